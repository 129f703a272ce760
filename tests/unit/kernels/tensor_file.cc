#include "tests/unit/kernels/tensor_file.h"

#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "kernels/cpu/convert.h"

namespace quartet::testing {
namespace {

template <class T>
T At(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

double Element(const Tensor& tensor, int64_t i) {
  if (tensor.dtype == "F64") return At<double>(tensor.data, i);
  if (tensor.dtype == "F32") return At<float>(tensor.data, i);
  if (tensor.dtype == "F16") return cpu::F16ToF32(At<uint16_t>(tensor.data, i));
  if (tensor.dtype == "BF16") return cpu::Bf16ToF32(At<uint16_t>(tensor.data, i));
  if (tensor.dtype == "I32") return At<int32_t>(tensor.data, i);
  if (tensor.dtype == "I64") return static_cast<double>(At<int64_t>(tensor.data, i));
  if (tensor.dtype == "U16") return At<uint16_t>(tensor.data, i);
  throw std::runtime_error("no conversion from " + tensor.dtype);
}

ops::DType WeightType(const Tensor& tensor) {
  if (tensor.dtype == "F32") return ops::DType::kF32;
  if (tensor.dtype == "F16") return ops::DType::kF16;
  if (tensor.dtype == "BF16") return ops::DType::kBF16;
  throw std::runtime_error("not a weight type: " + tensor.dtype);
}

}  // namespace

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

TensorFile::TensorFile(const std::string& path) {
  const std::string full = std::string(QUARTET_SOURCE_DIR) + "/tests/data/" + path;
  std::ifstream file(full, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + full);
  const std::vector<char> text((std::istreambuf_iterator<char>(file)),
                               std::istreambuf_iterator<char>());
  bytes_.resize(text.size());
  std::memcpy(bytes_.data(), text.data(), text.size());
  const auto length = At<uint64_t>(bytes_.data(), 0);
  const boost::json::value header =
      boost::json::parse(boost::json::string_view(text.data() + 8, length));
  for (const auto& [name, value] : header.as_object()) {
    if (name == "__metadata__") continue;
    const auto& entry = value.as_object();
    Tensor tensor;
    tensor.dtype = std::string(entry.at("dtype").as_string());
    for (const auto& size : entry.at("shape").as_array()) tensor.shape.push_back(size.as_int64());
    const auto& offsets = entry.at("data_offsets").as_array();
    const int64_t begin = offsets[0].as_int64();
    tensor.data = bytes_.data() + 8 + length + begin;
    tensor.bytes = static_cast<size_t>(offsets[1].as_int64() - begin);
    tensors_[std::string(name)] = tensor;
  }
}

const Tensor& TensorFile::Get(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw std::runtime_error("no tensor " + name);
  return it->second;
}

std::vector<double> TensorFile::Doubles(const std::string& name) const {
  const Tensor& tensor = Get(name);
  std::vector<double> out(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = Element(tensor, static_cast<int64_t>(i));
  return out;
}

std::vector<float> TensorFile::Floats(const std::string& name) const {
  const std::vector<double> wide = Doubles(name);
  return std::vector<float>(wide.begin(), wide.end());
}

ops::DenseMatrix TensorFile::Matrix(const std::string& name) const {
  const Tensor& tensor = Get(name);
  ops::DenseMatrix matrix;
  matrix.dtype = WeightType(tensor);
  matrix.data = tensor.data;
  matrix.rows = tensor.shape.at(0);
  matrix.cols = tensor.elements() / matrix.rows;
  matrix.row_stride = matrix.cols;
  return matrix;
}

ops::VectorView TensorFile::Vector(const std::string& name) const {
  const Tensor& tensor = Get(name);
  return {WeightType(tensor), tensor.data, tensor.elements()};
}

}  // namespace quartet::testing
