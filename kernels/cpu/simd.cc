#include "kernels/cpu/simd.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/convert.h"

#ifndef QUARTET_SIMD_TARGETS
#define QUARTET_SIMD_TARGETS
// One form per register width is enough, and arrays of vectors need sizes known at compile time.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quartet::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::CappedTag<float, kNarrowPanel>;  // at most 16 lanes
using One = hn::CappedTag<float, 1>;
constexpr size_t kLanes = hn::MaxLanes(Wide());
constexpr size_t kNarrowVecs = kNarrowPanel / kLanes;
constexpr size_t kWideVecs = kWidePanel / kLanes;
// Register tiles: rows x vectors of accumulators, beside the weights and one broadcast.
constexpr size_t kMaxRows = kLanes == 16 ? 6 : 3;
constexpr size_t kTileVecs = std::min<size_t>(4, kWideVecs);
// One row alone takes more vectors, to have enough chains in flight.
constexpr size_t kRowVecs = std::min<size_t>(8, kWideVecs);

// One register tile: kRows rows times kVecs vectors of columns, the whole of k.
template <size_t kRows, size_t kVecs>
HWY_INLINE void Tile(const float* HWY_RESTRICT w, size_t panel, size_t k,
                     const float* HWY_RESTRICT x, size_t ldx, float* HWY_RESTRICT y, size_t ldy,
                     size_t columns) {
  const Wide d;
  hn::Vec<Wide> acc[kRows][kVecs];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(d);
  }
  for (size_t i = 0; i < k; ++i) {
    hn::Vec<Wide> b[kVecs];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) b[v] = hn::LoadU(d, w + i * panel + v * kLanes);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const auto a = hn::Set(d, x[r * ldx + i]);
#pragma GCC unroll 8
      for (size_t v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(a, b[v], acc[r][v]);
    }
  }
  if (columns >= kVecs * kLanes) {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (size_t v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], d, y + r * ldy + v * kLanes);
    }
    return;
  }
  float row[kVecs * kLanes];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], d, row + v * kLanes);
    std::memcpy(y + r * ldy, row, columns * sizeof(float));
  }
}

// kRows rows against one panel.
template <size_t kRows>
HWY_INLINE void PanelRows(const float* w, bool wide, size_t k, const float* x, size_t ldx, float* y,
                          size_t ldy, size_t columns) {
  if (!wide) {
    Tile<kRows, kNarrowVecs>(w, kNarrowPanel, k, x, ldx, y, ldy, columns);
    return;
  }
  constexpr size_t kVecs = kRows == 1 ? kRowVecs : kTileVecs;
  for (size_t v = 0; v < kWideVecs; v += kVecs) {
    Tile<kRows, kVecs>(w + v * kLanes, kWidePanel, k, x, ldx, y + v * kLanes, ldy, kWidePanel);
  }
}

void GemmPanelsImpl(const PanelView& w, const float* x, size_t ldx, size_t rows, float* y,
                    size_t ldy, size_t panel_begin, size_t panel_end) {
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const bool wide = p < w.wide;
    const size_t column = wide ? p * kWidePanel : w.wide * kWidePanel + (p - w.wide) * kNarrowPanel;
    const float* panel = w.data + column * w.k;
    const size_t columns = std::min(wide ? kWidePanel : kNarrowPanel, w.n - column);
    float* out = y + column;
    size_t r = 0;
    for (; r + kMaxRows <= rows; r += kMaxRows) {
      PanelRows<kMaxRows>(panel, wide, w.k, x + r * ldx, ldx, out + r * ldy, ldy, columns);
    }
    const float* last_x = x + r * ldx;
    float* last_y = out + r * ldy;
    switch (rows - r) {
      case 1:
        PanelRows<1>(panel, wide, w.k, last_x, ldx, last_y, ldy, columns);
        break;
      case 2:
        PanelRows<2>(panel, wide, w.k, last_x, ldx, last_y, ldy, columns);
        break;
      case 3:
        PanelRows<3>(panel, wide, w.k, last_x, ldx, last_y, ldy, columns);
        break;
      case 4:
        PanelRows<4>(panel, wide, w.k, last_x, ldx, last_y, ldy, columns);
        break;
      case 5:
        PanelRows<5>(panel, wide, w.k, last_x, ldx, last_y, ldy, columns);
        break;
      default:
        break;
    }
  }
}

HWY_INLINE float DotInline(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t n) {
  const Wide d;
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + kLanes), hn::LoadU(d, b + i + kLanes), sum1);
  }
  if (i + kLanes <= n) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    i += kLanes;
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float DotImpl(const float* a, const float* b, size_t n) {
  return DotInline(a, b, n);
}

void DotRowsImpl(const float* q, const float* c, size_t ldc, size_t count, size_t n, float scale,
                 float* out) {
  for (size_t s = 0; s < count; ++s) out[s] = DotInline(q, c + s * ldc, n) * scale;
}

template <size_t kVecs, class D>
HWY_INLINE void WeightedSumBlock(D d, const float* HWY_RESTRICT a, const float* HWY_RESTRICT c,
                                 size_t ldc, size_t count, float* HWY_RESTRICT z) {
  constexpr size_t kStep = hn::MaxLanes(D());
  hn::Vec<D> acc[kVecs];
#pragma GCC unroll 8
  for (size_t v = 0; v < kVecs; ++v) acc[v] = hn::Zero(d);
  for (size_t s = 0; s < count; ++s) {
    const auto weight = hn::Set(d, a[s]);
#pragma GCC unroll 8
    for (size_t v = 0; v < kVecs; ++v) {
      acc[v] = hn::MulAdd(weight, hn::LoadU(d, c + s * ldc + v * kStep), acc[v]);
    }
  }
#pragma GCC unroll 8
  for (size_t v = 0; v < kVecs; ++v) hn::StoreU(acc[v], d, z + v * kStep);
}

void WeightedSumImpl(const float* a, const float* c, size_t ldc, size_t count, size_t n, float* z) {
  size_t i = 0;
  for (; i + 8 * kLanes <= n; i += 8 * kLanes) {
    WeightedSumBlock<8>(Wide(), a, c + i, ldc, count, z + i);
  }
  for (; i + kLanes <= n; i += kLanes) WeightedSumBlock<1>(Wide(), a, c + i, ldc, count, z + i);
  for (; i < n; ++i) WeightedSumBlock<1>(One(), a, c + i, ldc, count, z + i);
}

void AxpyImpl(float a, const float* HWY_RESTRICT x, float* HWY_RESTRICT y, size_t n) {
  const Wide d;
  const auto factor = hn::Set(d, a);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  }
  const One one;
  for (; i < n; ++i) {
    hn::StoreU(hn::MulAdd(hn::Set(one, a), hn::LoadU(one, x + i), hn::LoadU(one, y + i)), one,
               y + i);
  }
}

template <class D>
HWY_INLINE void Butterflies(D d, float* x, size_t stride) {
  for (size_t base = 0; base < 128; base += 2 * stride) {
    for (size_t i = base; i < base + stride; i += hn::MaxLanes(D())) {
      const auto a = hn::LoadU(d, x + i);
      const auto b = hn::LoadU(d, x + i + stride);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + stride);
    }
  }
}

void Hadamard128Impl(float* x) {
  const Wide d;
  const hn::CappedTag<float, 8> d8;
  const hn::CappedTag<float, 4> d4;
  Butterflies(d, x, 64);
  Butterflies(d, x, 32);
  Butterflies(d, x, 16);
  Butterflies(d8, x, 8);
  Butterflies(d4, x, 4);
#if HWY_TARGET == HWY_SCALAR
  Butterflies(d4, x, 2);
  Butterflies(d4, x, 1);
#else
  // Strides 2 and 1 inside a vector of four: (a, b, c, d) -> (a + c, b + d, a - c, b - d), then
  // neighbours. A lane that is subtracted from its partner enters negated, which is exact.
  alignas(16) static constexpr float kSign2[4] = {1.0f, 1.0f, -1.0f, -1.0f};
  alignas(16) static constexpr float kSign1[4] = {1.0f, -1.0f, 1.0f, -1.0f};
  const auto sign2 = hn::Load(d4, kSign2);
  const auto sign1 = hn::Load(d4, kSign1);
  for (size_t i = 0; i < 128; i += 4) {
    auto v = hn::LoadU(d4, x + i);
    v = hn::Add(hn::Shuffle1032(v), hn::Mul(v, sign2));
    v = hn::Add(hn::Shuffle2301(v), hn::Mul(v, sign1));
    hn::StoreU(v, d4, x + i);
  }
#endif
}

// kVecs vectors of value columns through the whole step; columns do not depend on one another.
template <size_t kVecs, class D>
HWY_INLINE void KdaColumns(D d, float* HWY_RESTRICT state, size_t width,
                           const float* HWY_RESTRICT q, const float* HWY_RESTRICT k,
                           const float* HWY_RESTRICT v, const float* HWY_RESTRICT decay, float beta,
                           float* HWY_RESTRICT o) {
  constexpr size_t kStep = hn::MaxLanes(D());
  hn::Vec<D> acc[kVecs];
  hn::Vec<D> u[kVecs];
#pragma GCC unroll 4
  for (size_t j = 0; j < kVecs; ++j) acc[j] = hn::Zero(d);
  for (size_t c = 0; c < width; ++c) {
    const auto fade = hn::Set(d, decay[c]);
    const auto key = hn::Set(d, k[c]);
#pragma GCC unroll 4
    for (size_t j = 0; j < kVecs; ++j) {
      const auto s = hn::Mul(fade, hn::LoadU(d, state + c * width + j * kStep));
      hn::StoreU(s, d, state + c * width + j * kStep);
      acc[j] = hn::MulAdd(key, s, acc[j]);
    }
  }
#pragma GCC unroll 4
  for (size_t j = 0; j < kVecs; ++j) {
    u[j] = hn::Mul(hn::Set(d, beta), hn::Sub(hn::LoadU(d, v + j * kStep), acc[j]));
    acc[j] = hn::Zero(d);
  }
  for (size_t c = 0; c < width; ++c) {
    const auto key = hn::Set(d, k[c]);
    const auto query = hn::Set(d, q[c]);
#pragma GCC unroll 4
    for (size_t j = 0; j < kVecs; ++j) {
      const auto s = hn::MulAdd(key, u[j], hn::LoadU(d, state + c * width + j * kStep));
      hn::StoreU(s, d, state + c * width + j * kStep);
      acc[j] = hn::MulAdd(query, s, acc[j]);
    }
  }
#pragma GCC unroll 4
  for (size_t j = 0; j < kVecs; ++j) hn::StoreU(acc[j], d, o + j * kStep);
}

void KdaStepHeadImpl(float* state, size_t d, const float* q, const float* k, const float* v,
                     const float* decay, float beta, float* o) {
  size_t i = 0;
  for (; i + 4 * kLanes <= d; i += 4 * kLanes) {
    KdaColumns<4>(Wide(), state + i, d, q, k, v + i, decay, beta, o + i);
  }
  for (; i + 2 * kLanes <= d; i += 2 * kLanes) {
    KdaColumns<2>(Wide(), state + i, d, q, k, v + i, decay, beta, o + i);
  }
  for (; i + kLanes <= d; i += kLanes) {
    KdaColumns<1>(Wide(), state + i, d, q, k, v + i, decay, beta, o + i);
  }
  for (; i < d; ++i) KdaColumns<1>(One(), state + i, d, q, k, v + i, decay, beta, o + i);
}

template <class D>
HWY_INLINE void ExpandChannels(D d, const float* const* partials, size_t parts, size_t offset,
                               const float* post, const float* comb, size_t n, size_t hidden,
                               size_t channel, float* streams) {
  auto y = hn::LoadU(d, partials[0] + offset + channel);
  for (size_t p = 1; p < parts; ++p) {
    y = hn::Add(y, hn::LoadU(d, partials[p] + offset + channel));
  }
  hn::Vec<D> in[8];
  for (size_t j = 0; j < n; ++j) in[j] = hn::LoadU(d, streams + j * hidden + channel);
  for (size_t i = 0; i < n; ++i) {
    auto sum = hn::Mul(hn::Set(d, post[i]), y);
    for (size_t j = 0; j < n; ++j) sum = hn::MulAdd(hn::Set(d, comb[j * n + i]), in[j], sum);
    hn::StoreU(sum, d, streams + i * hidden + channel);
  }
}

void MhcExpandImpl(const float* const* partials, size_t parts, size_t offset, const float* post,
                   const float* comb, size_t n, size_t hidden, float* streams) {
  size_t c = 0;
  for (; c + kLanes <= hidden; c += kLanes) {
    ExpandChannels(Wide(), partials, parts, offset, post, comb, n, hidden, c, streams);
  }
  for (; c < hidden; ++c) {
    ExpandChannels(One(), partials, parts, offset, post, comb, n, hidden, c, streams);
  }
}

void WidenF16Impl(const uint16_t* from, float* to, size_t n) {
  size_t i = 0;
// Without conversion instructions the library's emulation is not exact for every value.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  const Wide d;
  const hn::Rebind<hwy::float16_t, Wide> half;
  const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, halves + i)), d, to + i);
  }
#endif
  for (; i < n; ++i) to[i] = F16ToF32(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace quartet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quartet::cpu {

HWY_EXPORT(GemmPanelsImpl);
HWY_EXPORT(DotImpl);
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(WeightedSumImpl);
HWY_EXPORT(AxpyImpl);
HWY_EXPORT(Hadamard128Impl);
HWY_EXPORT(KdaStepHeadImpl);
HWY_EXPORT(MhcExpandImpl);
HWY_EXPORT(WidenF16Impl);

void GemmPanels(const PanelView& w, const float* x, size_t ldx, size_t rows, float* y, size_t ldy,
                size_t panel_begin, size_t panel_end) {
  HWY_DYNAMIC_DISPATCH(GemmPanelsImpl)(w, x, ldx, rows, y, ldy, panel_begin, panel_end);
}
float Dot(const float* a, const float* b, size_t n) {
  return HWY_DYNAMIC_DISPATCH(DotImpl)(a, b, n);
}
void DotRows(const float* q, const float* c, size_t ldc, size_t count, size_t n, float scale,
             float* out) {
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(q, c, ldc, count, n, scale, out);
}
void WeightedSum(const float* a, const float* c, size_t ldc, size_t count, size_t n, float* z) {
  HWY_DYNAMIC_DISPATCH(WeightedSumImpl)(a, c, ldc, count, n, z);
}
void Axpy(float a, const float* x, float* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(AxpyImpl)(a, x, y, n);
}
void Hadamard128(float* x) {
  HWY_DYNAMIC_DISPATCH(Hadamard128Impl)(x);
}
void KdaStepHead(float* state, size_t d, const float* q, const float* k, const float* v,
                 const float* decay, float beta, float* o) {
  HWY_DYNAMIC_DISPATCH(KdaStepHeadImpl)(state, d, q, k, v, decay, beta, o);
}
void MhcExpand(const float* const* partials, size_t parts, size_t offset, const float* post,
               const float* comb, size_t n, size_t hidden, float* streams) {
  HWY_DYNAMIC_DISPATCH(MhcExpandImpl)
  (partials, parts, offset, post, comb, n, hidden, streams);
}
void WidenF16(const uint16_t* from, float* to, size_t n) {
  HWY_DYNAMIC_DISPATCH(WidenF16Impl)(from, to, n);
}

}  // namespace quartet::cpu
#endif  // HWY_ONCE
