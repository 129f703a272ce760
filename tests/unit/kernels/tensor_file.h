#ifndef QUARTET_TESTS_UNIT_KERNELS_TENSOR_FILE_H_
#define QUARTET_TESTS_UNIT_KERNELS_TENSOR_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/ops/weights.h"

namespace quartet::testing {

// A tensor of a test data file. The data lives as long as the file.
struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;

  int64_t elements() const;
};

// A safetensors file of the test data, read whole. No checks: the data is ours, and a missing name
// ends the test with an exception that names it.
class TensorFile {
 public:
  // Relative to tests/data.
  explicit TensorFile(const std::string& path);
  TensorFile(const TensorFile&) = delete;

  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }
  const Tensor& Get(const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // Widened to FP32 or to double (F16, BF16, F32, F64, I32, I64, U16).
  std::vector<float> Floats(const std::string& name) const;
  std::vector<double> Doubles(const std::string& name) const;
  // Views for the ops, in the stored dtype. A matrix takes its first dimension as rows.
  ops::DenseMatrix Matrix(const std::string& name) const;
  ops::VectorView Vector(const std::string& name) const;

 private:
  std::vector<std::byte> bytes_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_KERNELS_TENSOR_FILE_H_
