// Decode: y = x W^T for 1 to 8 rows of x, W in FP16, at the speed at which W can be read.

#include "kernels/cuda/device/arrive.cuh"
#include "kernels/cuda/device/glu.cuh"
#include "kernels/cuda/device/row_dot.cuh"
#include "kernels/cuda/linear_params.h"

namespace quartet::cuda {
namespace {

// The emulator's host side does not tell the forms apart.
#if QUARTET_ARCH >= 800 || defined(QUARTET_SIMT)
constexpr int kMaxWarps = row_dot::kRowDotWarps;
#else
constexpr int kMaxWarps = row_dot::kRowDotWarpsSm70;
#endif

// One block: `slots` tiles of 32 outputs, each summed by `k_warps` warps.
template <int N>
struct RowsBlock {
  static constexpr int kTile = N * kRowDotOutputs;  // sums of a slot

  const LinearRowsParams& p;
  float* sums;  // shared [warps][N][32]
  int tid = static_cast<int>(threadIdx.x);

  // The first row of W of a slot, and where the rows end that are like it.
  QUARTET_DEVICE int First(int slot) const {
    const int block = static_cast<int>(blockIdx.x);
    return p.gated != 0 ? slot * (p.out / 2) + block * kRowDotOutputs
                        : (block * p.slots + slot) * kRowDotOutputs;
  }
  QUARTET_DEVICE int End(int slot) const { return p.gated != 0 && slot == 0 ? p.out / 2 : p.out; }

  // The sums of this warp, in shared memory.
  QUARTET_DEVICE void Multiply() const {
    const int slot = Warp() / p.k_warps;
    const int first = First(slot);
    if (first >= End(slot)) return;
    const int k_begin =
        (static_cast<int>(blockIdx.y) * p.k_warps + Warp() % p.k_warps) * p.k_per_warp;
    RowDot<N>({.w = reinterpret_cast<const __half*>(p.weights) + first * p.w_stride,
               .w_stride = p.w_stride,
               .outputs = min(kRowDotOutputs, End(slot) - first),
               .x = p.x,
               .x_stride = p.x_stride,
               .in = p.in,
               .x_aligned = p.x_aligned != 0,
               .counters = first == 0 ? p.saturation : nullptr},
              k_begin, min(p.in, k_begin + p.k_per_warp), sums + Warp() * kTile);
  }

  // Element e of [slots][N][32], summed over the slot's warps.
  QUARTET_DEVICE float OverWarps(int e) const {
    const float* from = sums + e / kTile * p.k_warps * kTile + e % kTile;
    float sum = 0.0f;
    for (int w = 0; w < p.k_warps; ++w) sum += from[w * kTile];
    return sum;
  }

  // Writes the outputs, where total(e) is the final sum of element e.
  template <class Total>
  QUARTET_DEVICE void Write(Total total) const {
    const int elements = p.gated != 0 ? kTile : p.slots * kTile;
    for (int e = tid; e < elements; e += static_cast<int>(blockDim.x)) {
      const int out = First(e / kTile) + e % kRowDotOutputs;
      if (out >= End(e / kTile)) continue;
      float& y = p.y[e / kRowDotOutputs % N * p.y_stride + out];
      y = p.gated != 0 ? ClampedSwiGlu(total(e), total(kTile + e), p.limit) : total(e);
    }
  }

  QUARTET_DEVICE void Run() const {
    Multiply();
    AwaitPrevious();  // warps without work did not
    // What follows asks for its first weights while the sums are added up.
    LetNextIn();
    __syncthreads();
    const int splits = static_cast<int>(gridDim.y);
    if (splits == 1) {
      Write([&](int e) { return OverWarps(e); });
      return;
    }
    const int elements = p.slots * kTile;
    float* partial = p.partial + static_cast<int64_t>(blockIdx.x) * splits * elements;
    for (int e = tid; e < elements; e += static_cast<int>(blockDim.x)) {
      partial[blockIdx.y * elements + e] = OverWarps(e);
    }
    if (!LastToArrive(p.arrived + blockIdx.x, gridDim.y)) return;
    Write([&](int e) { return SumFresh(partial + e, splits, elements); });
  }
};

template <int N>
QUARTET_DEVICE void LinearRows(const LinearRowsParams& p) {
  __shared__ float sums[kMaxWarps * RowsBlock<N>::kTile];
  RowsBlock<N>{p, sums}.Run();
}

// The FP32 form for many rows needs the registers more than a second block.
constexpr int MinBlocks(int rows) {
  return QUARTET_ARCH >= 800 || rows >= 4 ? 1 : 2;
}

}  // namespace

#define QUARTET_LINEAR_ROWS(n)                                                            \
  QUARTET_EARLY_KERNEL(linear_rows_##n, 32 * kMaxWarps, MinBlocks(n), LinearRowsParams) { \
    LinearRows<n>(p);                                                                     \
  }

QUARTET_LINEAR_ROWS(1)
QUARTET_LINEAR_ROWS(2)
QUARTET_LINEAR_ROWS(3)
QUARTET_LINEAR_ROWS(4)
QUARTET_LINEAR_ROWS(5)
QUARTET_LINEAR_ROWS(6)
QUARTET_LINEAR_ROWS(7)
QUARTET_LINEAR_ROWS(8)

#undef QUARTET_LINEAR_ROWS

}  // namespace quartet::cuda
