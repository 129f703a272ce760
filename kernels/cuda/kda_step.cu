// The delta rule token by token. Value columns do not depend on each other: a block holds the
// columns [32 split, 32 split + 32) of one head's state in registers while it walks the rows of a
// segment, so that the state is read and written once.

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/kda_device.cuh"
#include "kernels/cuda/kda_params.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kLanesOfRow = kKdaColumns / 4;        // threads beside each other in a key row
constexpr int kRowGroups = kThreads / kLanesOfRow;  // threads below each other in a column

// The inputs of up to kKdaWindow tokens, d padded with zeros to `Width`.
template <int Width>
struct alignas(16) Window {
  float q[kKdaWindow][Width];
  float k[kKdaWindow][Width];
  float decay[kKdaWindow][Width];  // e^g
  float v[kKdaWindow][kKdaColumns];
  float beta[kKdaWindow];
};

// Sums over the key rows of one warp. A token uses the half of its parity, so that one barrier a
// token is enough.
struct alignas(16) PartialSums {
  float k[2][kWarps][kKdaColumns];  // of S^T k
  float q[2][kWarps][kKdaColumns];  // of S^T q
};

// A thread's part of the state: key rows [row, row + kRows), value columns [column, column + 4).
template <int Width>
struct StateTile {
  static constexpr int kRows = Width / kRowGroups;
  float s[kRows][4];
};

struct Place {
  int column;  // of the block's 32
  int group;   // of key rows
};
QUARTET_DEVICE Place ThisPlace() {
  const int thread = static_cast<int>(threadIdx.x);
  return {thread % kLanesOfRow * 4, thread / kLanesOfRow};
}

template <int Width>
QUARTET_DEVICE void LoadState(StateTile<Width>& tile, const float* state, int dim, int split,
                              bool zero) {
  const Place at = ThisPlace();
  const int value = split * kKdaColumns + at.column;
#pragma unroll
  for (int r = 0; r < StateTile<Width>::kRows; ++r) {
    const int key = at.group * StateTile<Width>::kRows + r;
    const bool inside = !zero && key < dim && value < dim;
    if (inside) {
      LoadFloats(tile.s[r], state + key * dim + value);
    } else {
      tile.s[r][0] = tile.s[r][1] = tile.s[r][2] = tile.s[r][3] = 0.0f;
    }
  }
}

template <int Width>
QUARTET_DEVICE void StoreState(const StateTile<Width>& tile, float* state, int dim, int split) {
  const Place at = ThisPlace();
  const int value = split * kKdaColumns + at.column;
#pragma unroll
  for (int r = 0; r < StateTile<Width>::kRows; ++r) {
    const int key = at.group * StateTile<Width>::kRows + r;
    if (key < dim && value < dim) {
      StoreFloats(state + key * dim + value, tile.s[r]);
    }
  }
}

template <int Width>
QUARTET_DEVICE void LoadWindow(Window<Width>& window, const KdaRecurrenceInputs& in, int row,
                               int tokens, int head, int split) {
  const int64_t width = static_cast<int64_t>(in.heads) * in.dim;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = row * width + static_cast<int64_t>(head) * in.dim;
  constexpr int kVectors = Width / 4;
#pragma unroll
  for (int i = thread; i < kKdaWindow * kVectors; i += kThreads) {
    const int t = i / kVectors;
    const int c = i % kVectors * 4;
    if (t >= tokens) break;
    float q[4] = {}, k[4] = {}, g[4] = {};
    if (c < in.dim) {
      const int64_t at = first + t * width + c;
      LoadConstants(q, in.q + at);
      LoadConstants(k, in.k + at);
      LoadConstants(g, in.g + at);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) g[n] = expf(g[n]);
    StoreFloats(&window.q[t][c], q);
    StoreFloats(&window.k[t][c], k);
    StoreFloats(&window.decay[t][c], g);
  }
  static_assert(kKdaWindow * kKdaColumns / 4 <= kThreads);
  if (thread < tokens * kKdaColumns / 4) {
    const int t = thread / (kKdaColumns / 4);
    const int c = thread % (kKdaColumns / 4) * 4;
    const int value = split * kKdaColumns + c;
    float v[4] = {};
    if (value < in.dim) LoadConstants(v, in.v + first + t * width + value);
    StoreFloats(&window.v[t][c], v);
  }
  if (thread < tokens) {
    window.beta[thread] = __ldg(in.beta + static_cast<int64_t>(row + thread) * in.heads + head);
  }
}

// Sums `v` over the key rows of the warp and leaves it in `sums` [32].
QUARTET_DEVICE void SumOfWarp(float (&v)[4], float* sums) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int offset = kLanesOfRow; offset < 32; offset *= 2) {
      v[j] += __shfl_xor_sync(kFullMask, v[j], offset);
    }
  }
  if (Lane() < kLanesOfRow) StoreFloats(sums + 4 * Lane(), v);
}

// The sums over the warps, of one column and of four.
QUARTET_DEVICE float SumOfWarps(const float (&sums)[kWarps][kKdaColumns], int column) {
  float sum = sums[0][column];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += sums[w][column];
  return sum;
}

QUARTET_DEVICE void SumOfWarps(const float (&sums)[kWarps][kKdaColumns], int column,
                               float (&to)[4]) {
  LoadFloats(to, &sums[0][column]);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    float more[4];
    LoadFloats(more, &sums[w][column]);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] += more[j];
  }
}

// Takes the state over the tokens of the window; o's row of token t goes to o + t * o_stride, for
// `values` columns. Nothing but `tile` changes: whoever only wants the outputs of tokens that may
// be taken back calls this and does not store the tile.
template <int Width>
QUARTET_DEVICE void Walk(StateTile<Width>& tile, const Window<Width>& window, PartialSums& sums,
                         int tokens, float* o, int64_t o_stride, int values) {
  constexpr int kRows = StateTile<Width>::kRows;
  const Place at = ThisPlace();
  const int key = at.group * kRows;
  const int thread = static_cast<int>(threadIdx.x);
  for (int t = 0; t < tokens; ++t) {
    float k[kRows], decay[kRows];
    LoadFloats(k, window.k[t] + key);
    LoadFloats(decay, window.decay[t] + key);
    float sum[4] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        tile.s[r][j] *= decay[r];
        sum[j] += tile.s[r][j] * k[r];
      }
    }
    SumOfWarp(sum, sums.k[t & 1][Warp()]);
    __syncthreads();
    if (t > 0 && thread < values) {
      o[(t - 1) * o_stride + thread] = SumOfWarps(sums.q[(t - 1) & 1], thread);
    }
    float q[kRows], u[4];
    LoadFloats(q, window.q[t] + key);
    LoadFloats(u, window.v[t] + at.column);
    SumOfWarps(sums.k[t & 1], at.column, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u[j] = window.beta[t] * (u[j] - sum[j]);
      sum[j] = 0.0f;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        tile.s[r][j] += k[r] * u[j];
        sum[j] += tile.s[r][j] * q[r];
      }
    }
    SumOfWarp(sum, sums.q[t & 1][Warp()]);
  }
  __syncthreads();
  if (thread < values) {
    o[(tokens - 1) * o_stride + thread] = SumOfWarps(sums.q[(tokens - 1) & 1], thread);
  }
}

// Grid (heads * splits, segments).
template <int Width>
QUARTET_DEVICE void StepSegmentOfHead(const KdaStepParams& p, Window<Width>& window,
                                      PartialSums& sums) {
  const int dim = p.in.dim;
  const int splits = (dim + kKdaColumns - 1) / kKdaColumns;
  const int head = static_cast<int>(blockIdx.x) / splits;
  const int split = static_cast<int>(blockIdx.x) % splits;
  const StepSegment segment = FirstSegment(p.segments)[blockIdx.y];
  float* state =
      p.states.data + segment.slot * p.states.slot_stride + static_cast<int64_t>(head) * dim * dim;
  StateTile<Width> tile;
  LoadState(tile, state, dim, split, segment.position == 0);
  const int64_t width = static_cast<int64_t>(p.in.heads) * dim;
  const int values = min(kKdaColumns, dim - split * kKdaColumns);
  for (int t = 0; t < segment.rows; t += kKdaWindow) {
    const int tokens = min(kKdaWindow, segment.rows - t);
    const int row = segment.row_begin + t;
    LoadWindow(window, p.in, row, tokens, head, split);
    __syncthreads();
    Walk(tile, window, sums, tokens, p.o + row * width + head * dim + split * kKdaColumns, width,
         values);
  }
  StoreState(tile, state, dim, split);
}

}  // namespace

QUARTET_KERNEL(kda_step_32, 128, 4, KdaStepParams) {
  __shared__ Window<32> window;
  __shared__ PartialSums sums;
  StepSegmentOfHead<32>(p, window, sums);
}
QUARTET_KERNEL(kda_step_64, 128, 4, KdaStepParams) {
  __shared__ Window<64> window;
  __shared__ PartialSums sums;
  StepSegmentOfHead<64>(p, window, sums);
}
QUARTET_KERNEL(kda_step_128, 128, 4, KdaStepParams) {
  __shared__ Window<128> window;
  __shared__ PartialSums sums;
  StepSegmentOfHead<128>(p, window, sums);
}

}  // namespace quartet::cuda
