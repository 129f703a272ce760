// What lies between the large products of a step: mHC boundaries, norms, sampling, at the real
// model's sizes on one GPU.

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/sampler.h"

namespace quartet::bench {
namespace {

constexpr int kHidden = 4096;
constexpr int kStreams = 4;
constexpr int kMap = 24;
constexpr int kMaxRows = 8192;
constexpr int kSites = 96;  // their fn together are larger than the second cache

std::vector<float> Random(size_t count, float deviation) {
  std::mt19937 bits(7);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> out(count);
  for (float& v : out) v = normal(bits);
  return out;
}

ops::VectorView View(const std::vector<float>& v) {
  return {ops::DType::kF32, reinterpret_cast<const std::byte*>(v.data()),
          static_cast<int64_t>(v.size())};
}

struct Bench {
  cuda::Device& device;
  const Ceilings& ceilings;
  ops::Backend& backend;

  cuda::Buffer Floats(size_t count, float deviation) const {
    // A megabyte of random values, over and over.
    const std::vector<float> pattern = Random(std::min<size_t>(count, 1 << 18), deviation);
    cuda::Buffer buffer = CheckOk(device.Allocate(count * sizeof(float), "bench"));
    for (size_t at = 0; at < count; at += pattern.size()) {
      CheckOk(device.CopyIn(buffer.as<float>() + at, pattern.data(),
                            std::min(pattern.size(), count - at) * sizeof(float)));
    }
    return buffer;
  }
};

void BenchMhc(const Bench& b) {
  // 0x1400 .. 0x17FF are small FP16 values.
  std::vector<uint16_t> fn(static_cast<size_t>(kMap) * kStreams * kHidden);
  std::mt19937 bits(1);
  for (uint16_t& v : fn) v = static_cast<uint16_t>(0x1400 + bits() % 1024 + (bits() % 2 << 15));
  const auto base = Random(kMap, 1.0f), scale = Random(3, 1.0f), norm = Random(kHidden, 1.0f);
  ops::MhcSiteWeights w;
  w.fn.dtype = ops::DType::kF16;
  w.fn.data = reinterpret_cast<const std::byte*>(fn.data());
  w.fn.rows = kMap;
  w.fn.cols = w.fn.row_stride = int64_t{kStreams} * kHidden;
  w.base = View(base);
  w.scale = View(scale);
  w.norm = {View(norm)};
  std::vector<std::unique_ptr<ops::MhcSite>> sites;
  for (int i = 0; i < kSites; ++i) sites.push_back(CheckOk(b.backend.PrepareMhcSite(w)));
  const auto finish = CheckOk(b.backend.PrepareMhcFinish(w.norm, kStreams));

  const auto streams = b.Floats(size_t{kMaxRows} * kStreams * kHidden, 1.0f);
  const auto y = b.Floats(size_t{kMaxRows} * kHidden, 1.0f);
  const auto x = b.Floats(size_t{kMaxRows} * kHidden, 1.0f);
  const auto post = b.Floats(size_t{kMaxRows} * kStreams, 0.5f);
  const auto comb = b.Floats(size_t{kMaxRows} * kStreams * kStreams, 0.2f);
  const ops::MhcMix mix{post.as<float>(), comb.as<float>()};
  for (const int partials : {1, 4}) {
    const std::vector<const float*> ys(partials, y.as<float>());
    for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 512, 703, 704, 2048, 8192}) {
      if (partials > 1 && rows != 1 && rows != 4 && rows != 8192) continue;
      const double bytes = 4.0 * rows * kHidden * (2 * kStreams + 1 + 1) + 2.0 * fn.size();
      const double us = MicrosecondsInGraph(b.device, rows > 128 ? 4 : kSites, [&](int i) {
        sites[i]->Boundary(ys, rows, streams.as<float>(), mix, x.as<float>());
      });
      PrintLine(absl::StrCat("mHC boundary, ", rows, " rows, ", partials, " partials"), us, bytes,
                b.ceilings);
    }
  }
  for (const int rows : {1, 4, 8192}) {
    const float* const ys[] = {y.as<float>()};
    const double bytes = 4.0 * rows * kHidden * (2 * kStreams + 1 + 1);
    const double us = MicrosecondsInGraph(b.device, rows > 64 ? 4 : 64, [&](int) {
      finish->Run(ys, rows, streams.as<float>(), mix, x.as<float>());
    });
    PrintLine(absl::StrCat("mHC finish, ", rows, " rows"), us, bytes, b.ceilings);
  }
}

void BenchNorm(const Bench& b) {
  const auto weight = Random(kHidden, 1.0f);
  const auto norm = CheckOk(b.backend.PrepareRmsNorm({View(weight)}));
  const auto residual = CheckOk(b.backend.PrepareResidualNorm({View(weight)}));
  const auto x = b.Floats(size_t{kMaxRows} * kHidden, 1.0f);
  const auto y = b.Floats(size_t{kMaxRows} * kHidden, 1.0f);
  const auto partial = b.Floats(size_t{kMaxRows} * kHidden, 1.0f);
  const float* const partials[] = {partial.as<float>()};
  for (const int rows : {1, 4, 8192}) {
    const int calls = rows > 64 ? 4 : 64;
    const double row_bytes = 4.0 * rows * kHidden;
    PrintLine(absl::StrCat("RMSNorm, ", rows, " rows"),
              MicrosecondsInGraph(b.device, calls,
                                  [&](int) { norm->Run(x.as<float>(), rows, y.as<float>()); }),
              2 * row_bytes, b.ceilings);
    PrintLine(absl::StrCat("residual + RMSNorm, ", rows, " rows"),
              MicrosecondsInGraph(
                  b.device, calls,
                  [&](int) { residual->Run(x.as<float>(), partials, rows, y.as<float>()); }),
              4 * row_bytes, b.ceilings);
  }
}

void BenchSampler(const Bench& b) {
  constexpr int64_t kVocab = 154'880;
  constexpr int kRanks = 4;
  constexpr int kMaxDraws = 8;
  constexpr int kCalls = 16;  // their logits together are larger than the second cache
  const auto sampler = CheckOk(cuda::RowSampler::Make(b.device, {}));
  const auto logits = b.Floats(size_t{kCalls} * kMaxDraws * kVocab, 2.5f);
  const size_t bytes = sampler->WorkspaceBytes(kMaxDraws, kVocab);
  const cuda::Buffer workspace = CheckOk(b.device.Allocate(bytes, "bench"));
  const cuda::Buffer outcomes =
      CheckOk(b.device.Allocate(kMaxDraws * sizeof(cuda::SampleOutcome), "bench"));
  struct Kind {
    const char* name;
    ops::SampleParams params;
  };
  const Kind kinds[] = {
      {"greedy", {}},
      {"temperature 1", {.temperature = 1.0f}},
      {"temperature 1, min_p 0.05", {.temperature = 1.0f, .min_p = 0.05f}},
      {"temperature 1, top_p 0.95", {.temperature = 1.0f, .top_p = 0.95f}},
      {"temperature 1, top_k 40", {.temperature = 1.0f, .top_k = 40}},
      {"temperature 1, top_k 40, top_p 0.95", {.temperature = 1.0f, .top_p = 0.95f, .top_k = 40}},
  };
  for (const Kind& kind : kinds) {
    for (const int rows : {1, 4, 8}) {
      const std::vector<ops::SampleParams> params(rows, kind.params);
      CheckOk(sampler->Stage(params));
      const double us = MicrosecondsInGraph(b.device, kCalls, [&](int i) {
        sampler->Run(
            {logits.as<float>() + size_t{kMaxDraws} * kVocab * i, rows, kRanks, kVocab / kRanks},
            cuda::SamplePasses::Of(params), {workspace.as<std::byte>(), bytes},
            outcomes.as<cuda::SampleOutcome>());
      });
      PrintLine(absl::StrCat("sampling, ", rows, " rows, ", kind.name), us, 4.0 * rows * kVocab,
                b.ceilings);
    }
  }
}

}  // namespace

void Main() {
  const auto device = OpenBenchDevice();
  const Ceilings ceilings = MeasureCeilings(*device);
  PrintHeading(*device, ceilings);
  const auto backend = CheckOk(cuda::MakeCudaBackend(*device, {.max_rows = kMaxRows}));
  const Bench bench{*device, ceilings, *backend};
  BenchMhc(bench);
  BenchNorm(bench);
  BenchSampler(bench);
}

}  // namespace quartet::bench

int main() {
  quartet::bench::Main();
}
