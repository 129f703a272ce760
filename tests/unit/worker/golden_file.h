#ifndef QUARTET_TESTS_UNIT_WORKER_GOLDEN_FILE_H_
#define QUARTET_TESTS_UNIT_WORKER_GOLDEN_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shard_worker/checkpoint/safetensors.h"

namespace quartet {

// Reference tensors of a safetensors file. Ends the test program if the file or a tensor is absent.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path);
  std::vector<float> F32(const std::string& name) const;
  std::vector<int32_t> I32(const std::string& name) const;
  std::vector<int64_t> Shape(const std::string& name) const;
  bool Has(const std::string& name) const { return Lookup(name) != nullptr; }

 private:
  const TensorView* Lookup(const std::string& name) const;
  const TensorView& Get(const std::string& name) const;
  std::unique_ptr<SafetensorsFile> file_;
};

// Largest absolute difference; infinity for different sizes or a NaN.
double MaxDiff(std::span<const float> a, std::span<const float> b);

}  // namespace quartet

#endif  // QUARTET_TESTS_UNIT_WORKER_GOLDEN_FILE_H_
