#include "kernels/bench/ceiling.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bench/ceiling.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quartet::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains: enough for two units with a latency of four to six. Returns the operations done.
double SpinFma(size_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f);
  const auto b = hn::Set(d, 0.001f);
  // Different starts, or the compiler would see that all chains are one.
  auto c0 = hn::Set(d, 0.00f), c1 = hn::Set(d, 0.01f), c2 = hn::Set(d, 0.02f),
       c3 = hn::Set(d, 0.03f), c4 = hn::Set(d, 0.04f), c5 = hn::Set(d, 0.05f),
       c6 = hn::Set(d, 0.06f), c7 = hn::Set(d, 0.07f), c8 = hn::Set(d, 0.08f),
       c9 = hn::Set(d, 0.09f), c10 = hn::Set(d, 0.10f), c11 = hn::Set(d, 0.11f);
  for (size_t i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, a, b);
    c1 = hn::MulAdd(c1, a, b);
    c2 = hn::MulAdd(c2, a, b);
    c3 = hn::MulAdd(c3, a, b);
    c4 = hn::MulAdd(c4, a, b);
    c5 = hn::MulAdd(c5, a, b);
    c6 = hn::MulAdd(c6, a, b);
    c7 = hn::MulAdd(c7, a, b);
    c8 = hn::MulAdd(c8, a, b);
    c9 = hn::MulAdd(c9, a, b);
    c10 = hn::MulAdd(c10, a, b);
    c11 = hn::MulAdd(c11, a, b);
  }
  c0 =
      hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(hn::Add(c4, c5), hn::Add(c6, c7)));
  c0 = hn::Add(hn::Add(c0, c8), hn::Add(hn::Add(c9, c10), c11));
  *sink = hn::GetLane(c0);
  return 2.0 * 12.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

}  // namespace HWY_NAMESPACE
}  // namespace quartet::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quartet::bench {

HWY_EXPORT(SpinFma);

Ceiling MeasureCeiling() {
  // Processor time, as the benchmarks' rates use it: others may share the core.
  const auto seconds_since = [](std::clock_t start) {
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  Ceiling best;
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  volatile float sink = 0.0f;
  // The best of several: other work on the machine only ever slows a measurement.
  for (int round = 0; round < 5; ++round) {
    std::clock_t start = std::clock();
    std::memcpy(to.data(), from.data(), kBytes);
    best.copy_gb_s = std::max(best.copy_gb_s, 2e-9 * kBytes / seconds_since(start));
    from[0] = to[1];
    float value = 0.0f;
    start = std::clock();
    const double flops = HWY_DYNAMIC_DISPATCH(SpinFma)(2'000'000, &value);
    best.fma_gflop_s = std::max(best.fma_gflop_s, 1e-9 * flops / seconds_since(start));
    sink = sink + value;
  }
  return best;
}

}  // namespace quartet::bench
#endif  // HWY_ONCE
