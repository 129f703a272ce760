// Dense linear layers: decode, few rows, prefill, and the FP32 layers that decide.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/device/counters.h"
#include "kernels/cuda/linear.h"

namespace quartet::bench {
namespace {

using cuda::PackedLinear;
using Precision = PackedLinear::Precision;

struct Shape {
  const char* what;
  int64_t in;
  int64_t out;
};

// The real model's matrices on one card, and one of four ranks' slices of them.
constexpr Shape kDecode[] = {
    {"KDA q|k|v|f_a|g_a|b", 4096, 24576 + 256 + 64},
    {"KDA q|k|v|f_a|g_a|b / 4", 4096, 6144 + 256 + 16},
    {"KDA f_b", 128, 8192},
    {"KDA f_b / 4", 128, 2048},
    {"KDA o", 8192, 4096},
    {"KDA o / 4", 2048, 4096},
    {"MLA q_a|kv_a|wk|gate", 4096, 1536 + 512 + 128 + 128},
    {"MLA q_b", 1536, 16384},
    {"MLA q_b / 4", 1536, 4096},
    {"MLA o", 16384, 4096},
    {"MLA o / 4", 4096, 4096},
    {"dense gate|up", 4096, 24576},
    {"dense down", 12288, 4096},
    {"dense down / 4", 3072, 4096},
    {"shared expert gate|up", 4096, 4096},
    {"shared expert gate|up / 4", 4096, 1024},
    {"shared expert down", 2048, 4096},
    {"shared expert down / 4", 512, 4096},
    {"head", 4096, 154880},
    {"head / 4", 4096, 38720},
};
constexpr Shape kExact[] = {{"router", 4096, 288}, {"indexer wk", 4096, 128}};

// FP16 numbers around 1/64, as many as the largest matrix has.
class Weights {
 public:
  Weights() {
    constexpr size_t kPeriod = size_t{8} << 20;
    std::mt19937 bits(1);
    for (size_t i = 0; i < kPeriod; ++i) halves_[i] = 0x2000 | (bits() & 0x83FF);
    for (size_t at = kPeriod; at < halves_.size(); at += kPeriod) {
      std::memcpy(halves_.data() + at, halves_.data(),
                  std::min(kPeriod, halves_.size() - at) * sizeof(uint16_t));
    }
  }
  ops::LinearWeights Matrix(const Shape& s, ops::DType dtype) const {
    return ops::DenseMatrix{.dtype = dtype,
                            .data = reinterpret_cast<const std::byte*>(halves_.data()),
                            .rows = s.out,
                            .cols = s.in,
                            .row_stride = s.in};
  }

 private:
  std::vector<uint16_t> halves_ = std::vector<uint16_t>(size_t{154880} * 4096);
};

class Bench {
 public:
  Bench() {
    device_->Fill(counters_.data(), 0, counters_.bytes());
    std::vector<float> x(kMaxRows * kMaxIn);
    std::mt19937 bits(2);
    for (float& v : x) v = static_cast<float>(bits()) * 0x1p-31f - 1.0f;
    CheckOk(device_->CopyIn(x_.data(), x.data(), x_.bytes()));
    PrintHeading(*device_, ceilings_);
    std::printf("cuBLAS: %s\n", cublas_ == nullptr ? "none" : "loaded");
  }

  void Time(const Shape& s, ops::DType dtype, Precision precision,
            const std::vector<int>& row_counts, bool library = false) {
    cuda::Context context = {device_.get(), nullptr, counters_.as<cuda::SaturationCounters>(),
                             library ? cublas_.get() : nullptr};
    const double bytes = static_cast<double>(s.in) * s.out * (dtype == ops::DType::kF32 ? 4 : 2);
    const int copies = std::clamp(
        static_cast<int>(2 * static_cast<double>(device_->info().l2_bytes) / bytes) + 1, 1, 64);
    std::vector<PackedLinear> linears;
    for (int i = 0; i < copies; ++i) {
      linears.push_back(CheckOk(PackedLinear::Make(
          context, std::vector<ops::LinearWeights>{weights_.Matrix(s, dtype)}, precision, s.what)));
    }
    for (const int rows : row_counts) {
      const cuda::Buffer y = CheckOk(device_->Allocate(rows * s.out * sizeof(float), "y"));
      const size_t workspace_bytes = linears[0].WorkspaceBytes(rows);
      const cuda::Buffer workspace = CheckOk(device_->Allocate(workspace_bytes, "workspace"));
      const int calls = rows > 64 ? std::min(copies, 8) : std::max(copies, 16) / copies * copies;
      const double us = MicrosecondsInGraph(*device_, calls, [&](int i) {
        linears[i % copies].Run(x_.as<float>(), s.in, rows, y.as<float>(), s.out,
                                {workspace.as<std::byte>(), workspace_bytes});
      });
      const double flops = 2.0 * rows * s.in * s.out;
      const double floor_us =
          std::max(bytes / ceilings_.read_gbs / 1e3, flops / ceilings_.matrix_tflops / 1e6);
      PrintLine(absl::StrFormat("%s%s [%d, %d] x %d, %.0f TFLOP/s", s.what,
                                library ? " (cuBLAS)" : "", s.out, s.in, rows, flops / us / 1e6),
                us, bytes, ceilings_, floor_us);
    }
  }

  bool has_library() const { return cublas_ != nullptr; }

 private:
  static constexpr int64_t kMaxRows = 8192;
  static constexpr int64_t kMaxIn = 16384;

  std::unique_ptr<cuda::Device> device_ = OpenBenchDevice();
  const Ceilings ceilings_ = MeasureCeilings(*device_);
  std::unique_ptr<cuda::Cublas> cublas_ = cuda::Cublas::Load(*device_);
  cuda::Buffer counters_ = CheckOk(device_->Allocate(sizeof(cuda::SaturationCounters), "counters"));
  cuda::Buffer x_ = CheckOk(device_->Allocate(kMaxRows * kMaxIn * sizeof(float), "x"));
  Weights weights_;
};

void RunAll() {
  Bench bench;
  const ops::DType half = ops::DType::kF16;
  for (const Shape& s : kDecode) bench.Time(s, half, Precision::kF16, {1, 4, 8});
  for (const Shape& s : kExact) {
    for (const ops::DType dtype : {ops::DType::kF32, ops::DType::kBF16}) {
      bench.Time(s, dtype, Precision::kF32, {1, 4, 8, 64, 512, 2048, 8192});
    }
  }
  for (const int i : {0, 4, 6, 12}) {
    bench.Time(kDecode[i], half, Precision::kF16, {9, 16, 32, 64});
  }
  const Shape square = {"square", 4096, 8192};
  const std::vector<int> prefill = {64, 128, 256, 512, 1024, 2048, 8192};
  for (const Shape& s : {kDecode[0], kDecode[4], kDecode[6], square}) {
    bench.Time(s, half, Precision::kF16, prefill);
    if (bench.has_library()) bench.Time(s, half, Precision::kF16, prefill, true);
  }
}

}  // namespace
}  // namespace quartet::bench

int main() {
  quartet::bench::RunAll();
}
