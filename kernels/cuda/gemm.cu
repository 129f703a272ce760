// y = x W^T for more rows than linear_rows.cu takes: x and W in FP16, sums FP32, over the tile
// primitive. A block of 8 warps has one of the tiles of gemm_shape.h.

#include "kernels/cuda/device/arrive.cuh"
#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/staged_copy.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/gemm_shape.h"
#include "kernels/cuda/linear_params.h"

namespace quartet::cuda {
namespace {

// Row tiles that are walked before the next tile of outputs: what runs at the same time then reads
// few different rows of x and of W, which the second-level cache holds.
constexpr int kRowTilesTogether = 16;

template <int kKind>
struct Gemm {
  static constexpr gemm::Tile kShape = gemm::kTiles[kKind];
  static constexpr int kRows = kShape.rows;
  static constexpr int kOuts = kShape.outs;
  static constexpr int kDepth = kShape.depth;
  static constexpr int kStages = kShape.Stages(kAsyncCopies);
  static constexpr int kStride = kDepth + gemm::kPadding;
  static constexpr int kThreads = kShape.Threads();
  static constexpr int kWarpRows = kRows / kShape.down;
  static constexpr int kWarpOuts = kOuts / kShape.across;
  static constexpr int kDown = kWarpRows / 16;  // 16 x 16 tiles of a warp
  static constexpr int kAcross = kWarpOuts / 16;
  static constexpr int kRowPieces = kDepth / 8;
  static constexpr int kPieces = ((kRows + kOuts) * kRowPieces + kThreads - 1) / kThreads;
  static constexpr int kStageHalves = (kRows + kOuts) * kStride;
  static_assert(kDown >= 1 && kAcross >= 1);

  const GemmParams& p;
  __half* shared;
  int row0 = 0;
  int out0 = 0;
  int tile = 0;
  int k_end = 0;
  StagedCopy<kPieces> copy;
  const uint16_t* from[kPieces];
  bool exists[kPieces];
  FragC c[kDown][kAcross];

  QUARTET_DEVICE void FindTile() {
    tile = static_cast<int>(blockIdx.x);
    const int band = tile / (kRowTilesTogether * p.out_tiles);
    const int first = band * kRowTilesTogether;
    const int height = min(kRowTilesTogether, p.row_tiles - first);
    const int inside = tile - first * p.out_tiles;
    row0 = (first + inside % height) * kRows;
    out0 = inside / height * kOuts;
  }

  // Piece `i` of this thread in a stage: rows of x first, then rows of W.
  QUARTET_DEVICE static bool InStage(int i) {
    return (kRows + kOuts) * kRowPieces % kThreads == 0 || i + 1 < kPieces ||
           static_cast<int>(threadIdx.x) + i * kThreads < (kRows + kOuts) * kRowPieces;
  }
  QUARTET_DEVICE __half* Place(int i, int stage) const {
    const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
    return shared + stage * kStageHalves + piece / kRowPieces * kStride + piece % kRowPieces * 8;
  }
  // Where this thread's pieces come from; rows that do not exist read as zeros.
  QUARTET_DEVICE void FindPieces(int k_begin) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
      const int line = piece / kRowPieces;
      const bool is_x = line < kRows;
      const int row = is_x ? row0 + line : out0 + line - kRows;
      exists[i] = InStage(i) && row < (is_x ? p.rows : p.out);
      const uint16_t* first = is_x ? p.x + row * p.x_stride : p.weights + row * p.w_stride;
      from[i] = (exists[i] ? first : p.weights) + k_begin + piece % kRowPieces * 8;
    }
  }
  // The stages are fetched one after the other.
  QUARTET_DEVICE void Fetch(int k0, int stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (!InStage(i)) continue;
      const int k = k0 + (static_cast<int>(threadIdx.x) + i * kThreads) % kRowPieces * 8;
      const bool valid = exists[i] && k < k_end;
      copy.Fetch(i, Place(i, stage), valid ? from[i] : p.weights, valid);
      from[i] += kDepth;
    }
  }
  QUARTET_DEVICE void Store(int stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (InStage(i)) copy.Store(i, Place(i, stage));
    }
  }

  QUARTET_DEVICE int WarpRow() const {
    return Warp() / kShape.across * kWarpRows;
  }
  QUARTET_DEVICE int WarpOut() const {
    return Warp() % kShape.across * kWarpOuts;
  }

  QUARTET_DEVICE void Multiply(int stage) {
    const __half* x = shared + stage * kStageHalves + WarpRow() * kStride;
    const __half* w = shared + stage * kStageHalves + (kRows + WarpOut()) * kStride;
    // The operands of the next 16 inputs are loaded while these are multiplied.
    FragA a[2][kDown];
    FragB b[2][kAcross];
    const auto load = [&](int k) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) LoadA(a[k / 16 % 2][i], x + 16 * i * kStride + k, kStride);
#pragma unroll
      for (int j = 0; j < kAcross; ++j) LoadB(b[k / 16 % 2][j], w + 16 * j * kStride + k, kStride);
    };
    load(0);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      if (kAsyncCopies && k + 16 < kDepth) load(k + 16);
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) Mma(c[i][j], a[k / 16 % 2][i], b[k / 16 % 2][j]);
      }
      // Without asynchronous copies the registers hold the next stage instead.
      if (!kAsyncCopies && k + 16 < kDepth) load(k + 16);
    }
  }

  QUARTET_DEVICE void Sum(int k_begin) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) Clear(c[i][j]);
    }
    const int steps = (k_end - k_begin + kDepth - 1) / kDepth;
    FindPieces(k_begin);
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s < steps) Fetch(k_begin + s * kDepth, s);
      copy.Commit();
    }
    Store(0);
    for (int step = 0; step < steps; ++step) {
      CopyAsyncWait<kStages - 2>();
      __syncthreads();
      const int ahead = step + kStages - 1;
      if (ahead < steps) Fetch(k_begin + ahead * kDepth, ahead % kStages);
      copy.Commit();
      Multiply(step % kStages);
      if (ahead < steps) Store(ahead % kStages);
    }
  }

  // f(row in the tile, output in the tile, sum) for all sums of this thread.
  template <class F>
  QUARTET_DEVICE void Each(F f) const {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          f(WarpRow() + 16 * i + RowOfC(r), WarpOut() + 16 * j + ColOfC(r), c[i][j].v[r]);
        }
      }
    }
  }
  QUARTET_DEVICE void Write(int row, int out, float sum) const {
    if (row0 + row < p.rows && out0 + out < p.out) {
      p.y[(row0 + row) * p.y_stride + out0 + out] = sum;
    }
  }

  QUARTET_DEVICE void Run() {
    FindTile();
    const int splits = static_cast<int>(gridDim.y);
    const int split = static_cast<int>(blockIdx.y);
    const int k_begin = split * p.depth_per_split;
    k_end = min(p.depth, k_begin + p.depth_per_split);
    Sum(k_begin);
    if (splits == 1) {
      Each([&](int row, int out, float sum) { Write(row, out, sum); });
      return;
    }
    constexpr int kTile = kRows * kOuts;
    float* partial = p.partial + static_cast<int64_t>(tile) * splits * kTile;
    Each([&](int row, int out, float sum) { partial[split * kTile + row * kOuts + out] = sum; });
    if (!LastToArrive(p.arrived + tile, gridDim.y)) return;
    for (int e = static_cast<int>(threadIdx.x); e < kTile; e += kThreads) {
      if (row0 + e / kOuts >= p.rows) break;
      Write(e / kOuts, e % kOuts, SumFresh(partial + e, splits, kTile));
    }
  }
};

template <int kKind>
QUARTET_DEVICE void RunGemm(const GemmParams& p) {
  Gemm<kKind> gemm{p, reinterpret_cast<__half*>(QUARTET_DYNAMIC_SHARED())};
  gemm.Run();
}

}  // namespace

#define QUARTET_GEMM(kind, min_blocks)                                                \
  QUARTET_KERNEL(gemm_##kind, gemm::kTiles[kind].Threads(), min_blocks, GemmParams) { \
    RunGemm<kind>(p);                                                                 \
  }

QUARTET_GEMM(0, 2)
QUARTET_GEMM(1, 2)
QUARTET_GEMM(2, 2)
QUARTET_GEMM(3, 2)
#if QUARTET_ARCH >= 800
QUARTET_GEMM(4, 2)
#endif

#undef QUARTET_GEMM

// Thread t of a block has four columns.
QUARTET_KERNEL(linear_to_half, 256, 4, LinearToHalfParams) {
  const int k =
      static_cast<int>(blockIdx.x) * gemm::kToHalfCols + static_cast<int>(threadIdx.x) * 4;
  const int row = static_cast<int>(blockIdx.y);
  if (k >= p.half_stride) return;
  const float* x = p.x + row * p.x_stride;
  float v[4];
  if (k + 4 <= p.in && (reinterpret_cast<uintptr_t>(x + k) & 15) == 0) {
    const float4 all = *reinterpret_cast<const float4*>(x + k);
    v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = k + j < p.in ? x[k + j] : 0.0f;
  }
  *reinterpret_cast<uint2*>(p.half + row * p.half_stride + k) =
      make_uint2(ToHalf2(v[0], v[1], p.saturation), ToHalf2(v[2], v[3], p.saturation));
}

}  // namespace quartet::cuda
