#ifndef QUARTET_KERNELS_CPU_PACKED_MATRIX_H_
#define QUARTET_KERNELS_CPU_PACKED_MATRIX_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace quartet::cpu {

// An FP32 weight matrix in the panel layout of simd.h. Immutable, so any thread may use it.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // From [n, k] row-major: y = x W^T.
  static PackedMatrix FromRows(const float* w, int64_t n, int64_t k);
  // From [k, n] row-major: y = x W.
  static PackedMatrix FromColumns(const float* w, int64_t n, int64_t k);

  int64_t in() const { return static_cast<int64_t>(view_.k); }
  int64_t out() const { return static_cast<int64_t>(view_.n); }
  int64_t bytes() const;

  // y[r][0 .. out) = x[r] W for `rows` rows, ldx and ldy floats apart; spread over the pool where
  // that pays. Bits depend neither on rows nor on threads.
  void Multiply(const float* x, size_t ldx, size_t rows, float* y, size_t ldy,
                ThreadPool* pool) const;

 private:
  PackedMatrix(int64_t n, int64_t k);
  float* Element(int64_t n, int64_t k);

  AlignedFloats data_;
  PanelView view_;
};

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_PACKED_MATRIX_H_
