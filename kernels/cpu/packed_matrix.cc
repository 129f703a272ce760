#include "kernels/cpu/packed_matrix.h"

#include <algorithm>

namespace quartet::cpu {
namespace {

// Below this many multiply-adds (about 10 us on one core) waking a helper costs more than it saves.
constexpr size_t kParallelMacs = 400'000;
// A multiple of every register tile's rows.
constexpr size_t kRowGrain = 6;

}  // namespace

PackedMatrix::PackedMatrix(int64_t n, int64_t k) {
  view_.n = static_cast<size_t>(n);
  view_.k = static_cast<size_t>(k);
  view_.wide = view_.n / kWidePanel;
  const size_t narrow = view_.panels() - view_.wide;
  const size_t count = (view_.wide * kWidePanel + narrow * kNarrowPanel) * view_.k;
  data_ = AllocateFloats(count);
  std::fill_n(data_.get(), count, 0.0f);
  view_.data = data_.get();
}

float* PackedMatrix::Element(int64_t n, int64_t k) {
  const size_t column = static_cast<size_t>(n);
  const size_t width = column < view_.wide * kWidePanel ? kWidePanel : kNarrowPanel;
  const size_t first = width == kWidePanel
                           ? column / kWidePanel * kWidePanel
                           : view_.wide * kWidePanel +
                                 (column - view_.wide * kWidePanel) / kNarrowPanel * kNarrowPanel;
  return data_.get() + first * view_.k + static_cast<size_t>(k) * width + (column - first);
}

PackedMatrix PackedMatrix::FromRows(const float* w, int64_t n, int64_t k) {
  PackedMatrix packed(n, k);
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t i = 0; i < k; ++i) *packed.Element(column, i) = w[column * k + i];
  }
  return packed;
}

PackedMatrix PackedMatrix::FromColumns(const float* w, int64_t n, int64_t k) {
  PackedMatrix packed(n, k);
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t column = 0; column < n; ++column) *packed.Element(column, i) = w[i * n + column];
  }
  return packed;
}

int64_t PackedMatrix::bytes() const {
  return static_cast<int64_t>(sizeof(float) * view_.n * view_.k);
}

void PackedMatrix::Multiply(const float* x, size_t ldx, size_t rows, float* y, size_t ldy,
                            ThreadPool* pool) const {
  const size_t panels = view_.panels();
  const bool parallel = rows * view_.n * view_.k >= kParallelMacs;
  const size_t threads = static_cast<size_t>(pool->threads());
  if (rows / kRowGrain >= 2 * threads) {
    pool->For(rows, kRowGrain, parallel, [&](size_t begin, size_t end, int) {
      GemmPanels(view_, x + begin * ldx, ldx, end - begin, y + begin * ldy, ldy, 0, panels);
    });
    return;
  }
  pool->For(panels, 1, parallel, [&](size_t begin, size_t end, int) {
    GemmPanels(view_, x, ldx, rows, y, ldy, begin, end);
  });
}

}  // namespace quartet::cpu
