// The delta rule token by token. Value columns do not depend on each other: a block holds the
// columns [32 split, 32 split + 32) of one head's state in registers while it walks the rows of a
// segment, so that the state is read and written once.

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/memory.cuh"
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
  float decay[kKdaWindow][Width];  // g, then e^g
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

// Asks for what LoadState will load. No more than that, since the kernel before may still write it.
template <int Width>
QUARTET_DEVICE void PrefetchState(const float* state, int dim, int split) {
  const Place at = ThisPlace();
  if (at.column != 0) return;  // the 32 columns of a row are one line
#pragma unroll
  for (int r = 0; r < StateTile<Width>::kRows; ++r) {
    const int key = at.group * StateTile<Width>::kRows + r;
    if (key < dim) PrefetchL2(state + key * dim + split * kKdaColumns);
  }
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

// Calls fn(token, channel) for this thread's share of the vectors of four channels of a window.
template <int Width, class Fn>
QUARTET_DEVICE void ForVectors(int tokens, Fn fn) {
  constexpr int kVectors = Width / 4;  // of a token
  for (int i = static_cast<int>(threadIdx.x); i < tokens * kVectors; i += kThreads) {
    fn(i / kVectors, i % kVectors * 4);
  }
}

// Starts copying the inputs of `tokens` tokens, that of token t from row row_of(t).
template <int Width, class RowOf>
QUARTET_DEVICE void StartWindow(Window<Width>& window, const KdaRecurrenceInputs& in, int tokens,
                                int head, int split, RowOf row_of) {
  const int64_t width = static_cast<int64_t>(in.heads) * in.dim;
  const int64_t first = static_cast<int64_t>(head) * in.dim;
  ForVectors<Width>(tokens, [&](int t, int c) {
    const int64_t at = first + row_of(t) * width + c;
    const bool inside = c < in.dim;
    CopyAsync16(&window.q[t][c], in.q + at, inside);
    CopyAsync16(&window.k[t][c], in.k + at, inside);
    CopyAsync16(&window.decay[t][c], in.g + at, inside);
  });
  ForVectors<kKdaColumns>(tokens, [&](int t, int c) {
    const int value = split * kKdaColumns + c;
    CopyAsync16(&window.v[t][c], in.v + first + row_of(t) * width + value, value < in.dim);
  });
  CopyAsyncCommit();
  const int t = static_cast<int>(threadIdx.x);
  if (t < tokens) {
    window.beta[t] = in.beta[static_cast<int64_t>(row_of(t)) * in.heads + head];
  }
}

// Waits for the copies and makes decays of what this thread copied itself. A barrier has to follow.
template <int Width>
QUARTET_DEVICE void FinishWindow(Window<Width>& window, int tokens) {
  CopyAsyncWait<0>();
  ForVectors<Width>(tokens, [&](int t, int c) {
    float g[4];
    LoadFloats(g, &window.decay[t][c]);
#pragma unroll
    for (int n = 0; n < 4; ++n) g[n] = expf(g[n]);
    StoreFloats(&window.decay[t][c], g);
  });
}

// Sums `v`, four columns, over the key rows of the warp and leaves it in `sums` [32]. Each exchange
// halves the columns that a lane still has to care for.
QUARTET_DEVICE void SumOfWarp(const float (&v)[4], float* sums) {
  static_assert(kLanesOfRow == 8);
  const bool upper = (Lane() & 16) != 0;
  const bool odd = (Lane() & 8) != 0;
  float two[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    two[j] = (upper ? v[j + 2] : v[j]) + __shfl_xor_sync(kFullMask, upper ? v[j] : v[j + 2], 16);
  }
  const float one = (odd ? two[1] : two[0]) + __shfl_xor_sync(kFullMask, odd ? two[0] : two[1], 8);
  sums[Lane() % kLanesOfRow * 4 + 2 * upper + odd] = one;
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

// One slot's ring as inputs; nobody asks for what comes of q.
QUARTET_DEVICE KdaRecurrenceInputs RingInputs(const KdaStepParams& p, int slot) {
  const int64_t at = slot * p.ring.slot_stride;
  const float* k = p.ring.k + at;
  return {k, k, p.ring.v + at, p.ring.g + at, p.ring.beta + at, p.in.heads, p.in.dim};
}

// Takes the state over what the segment commits.
template <int Width>
QUARTET_DEVICE void WalkCommitted(StateTile<Width>& tile, const KdaStepParams& p,
                                  const StepSegment& segment, int head, int split,
                                  Window<Width>& window, PartialSums& sums) {
  const KdaRecurrenceInputs ring = RingInputs(p, segment.slot);
  for (int t = 0; t < segment.commit; t += kKdaWindow) {
    const int tokens = min(kKdaWindow, segment.commit - t);
    const int first = segment.position - segment.commit + t;
    StartWindow(window, ring, tokens, head, split,
                [&](int i) { return (first + i) % p.ring.rows; });
    FinishWindow(window, tokens);
    __syncthreads();
    Walk(tile, window, sums, tokens, nullptr, 0, 0);
  }
}

// Copies the inputs of a window's rows into the ring. Those that do not belong to value columns are
// the business of the head's first block; nobody reads the rows that are written here.
template <int Width>
QUARTET_DEVICE void KeepWindow(const KdaStepParams& p, const StepSegment& segment, int head,
                               int split) {
  const int64_t width = static_cast<int64_t>(p.in.heads) * p.in.dim;
  const int64_t slot = segment.slot * p.ring.slot_stride;
  const auto copy = [&](float* to, const float* from, int t, int channel) {
    if (channel >= p.in.dim) return;
    const int64_t at = static_cast<int64_t>(head) * p.in.dim + channel;
    StoreFloat4(to + slot + (segment.position + t) % p.ring.rows * width + at,
                LoadFloat4(from + (segment.row_begin + t) * width + at));
  };
  ForVectors<kKdaColumns>(
      segment.rows, [&](int t, int c) { copy(p.ring.v, p.in.v, t, split * kKdaColumns + c); });
  if (split != 0) return;
  ForVectors<Width>(segment.rows, [&](int t, int c) {
    copy(p.ring.k, p.in.k, t, c);
    copy(p.ring.g, p.in.g, t, c);
  });
  for (int t = static_cast<int>(threadIdx.x); t < segment.rows; t += kThreads) {
    p.ring.beta[slot + (segment.position + t) % p.ring.rows * p.in.heads + head] =
        p.in.beta[static_cast<int64_t>(segment.row_begin + t) * p.in.heads + head];
  }
}

// Grid (heads * splits, segments).
template <int Width>
QUARTET_DEVICE void StepSegmentOfHead(const KdaStepParams& p, Window<Width> (&windows)[2],
                                      PartialSums& sums) {
  const int dim = p.in.dim;
  const int splits = (dim + kKdaColumns - 1) / kKdaColumns;
  const int head = static_cast<int>(blockIdx.x) / splits;
  const int split = static_cast<int>(blockIdx.x) % splits;
  const StepSegment segment = FirstSegment(p.segments)[blockIdx.y];
  const int rows = p.commit_only != 0 ? 0 : segment.rows;
  float* state =
      p.states.data + segment.slot * p.states.slot_stride + static_cast<int64_t>(head) * dim * dim;
  const int64_t width = static_cast<int64_t>(p.in.heads) * dim;
  const int values = min(kKdaColumns, dim - split * kKdaColumns);
  const auto start = [&](int t) {
    if (t >= rows) return;
    StartWindow(windows[t / kKdaWindow % 2], p.in, min(kKdaWindow, rows - t), head, split,
                [&](int i) { return segment.row_begin + t + i; });
  };
  const bool fresh = segment.position == segment.commit;
  if (!fresh) PrefetchState<Width>(state, dim, split);
  AwaitPrevious();
  LetNextIn();
  if (rows == 0 && segment.commit == 0) return;
  start(0);
  StateTile<Width> tile;
  LoadState(tile, state, dim, split, fresh);
  if (segment.commit > 0) {
    WalkCommitted(tile, p, segment, head, split, windows[1], sums);
    if (segment.window != 0 || rows == 0) StoreState(tile, state, dim, split);
  }
  if (segment.window != 0 && rows > 0) KeepWindow<Width>(p, segment, head, split);
  for (int t = 0; t < rows; t += kKdaWindow) {
    Window<Width>& window = windows[t / kKdaWindow % 2];
    const int tokens = min(kKdaWindow, rows - t);
    FinishWindow(window, tokens);
    __syncthreads();
    start(t + kKdaWindow);
    const int64_t row = segment.row_begin + t;
    Walk(tile, window, sums, tokens, p.o + row * width + head * dim + split * kKdaColumns, width,
         values);
  }
  if (segment.window == 0 && rows > 0) StoreState(tile, state, dim, split);
}

}  // namespace

QUARTET_EARLY_KERNEL(kda_step_32, 128, 3, KdaStepParams) {
  __shared__ Window<32> windows[2];
  __shared__ PartialSums sums;
  StepSegmentOfHead<32>(p, windows, sums);
}
QUARTET_EARLY_KERNEL(kda_step_64, 128, 3, KdaStepParams) {
  __shared__ Window<64> windows[2];
  __shared__ PartialSums sums;
  StepSegmentOfHead<64>(p, windows, sums);
}
QUARTET_EARLY_KERNEL(kda_step_128, 128, 3, KdaStepParams) {
  __shared__ Window<128> windows[2];
  __shared__ PartialSums sums;
  StepSegmentOfHead<128>(p, windows, sums);
}

}  // namespace quartet::cuda
