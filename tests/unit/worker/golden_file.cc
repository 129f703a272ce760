#include "tests/unit/worker/golden_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace quartet {

GoldenFile::GoldenFile(const std::string& path) {
  auto file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    std::fprintf(stderr, "%s\n", file.status().ToString().c_str());
    std::abort();
  }
  file_ = *std::move(file);
}

const TensorView* GoldenFile::Lookup(const std::string& name) const {
  for (const TensorView& tensor : file_->tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

const TensorView& GoldenFile::Get(const std::string& name) const {
  const TensorView* tensor = Lookup(name);
  if (tensor == nullptr) {
    std::fprintf(stderr, "%s holds no tensor %s\n", file_->path().c_str(), name.c_str());
    std::abort();
  }
  return *tensor;
}

std::vector<float> GoldenFile::F32(const std::string& name) const {
  const TensorView& tensor = Get(name);
  if (tensor.dtype != Dtype::kF32) std::abort();
  std::vector<float> out(tensor.elements());
  std::memcpy(out.data(), tensor.data, tensor.bytes);
  return out;
}

std::vector<int32_t> GoldenFile::I32(const std::string& name) const {
  const TensorView& tensor = Get(name);
  if (tensor.dtype != Dtype::kI32) std::abort();
  std::vector<int32_t> out(tensor.elements());
  std::memcpy(out.data(), tensor.data, tensor.bytes);
  return out;
}

std::vector<int64_t> GoldenFile::Shape(const std::string& name) const {
  return Get(name).shape;
}

double MaxDiff(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double diff = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (std::isnan(diff)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, diff);
  }
  return worst;
}

}  // namespace quartet
