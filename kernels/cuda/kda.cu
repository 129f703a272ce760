// The elementwise parts around the delta rule: convolution, norms, gates; and the gated norm of its
// output.

#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/kda_device.cuh"
#include "kernels/cuda/kda_params.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kL2Eps = 1e-6f;
constexpr int kRowsInFlight = 4;  // are loaded before the first of them is used

QUARTET_DEVICE float Sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// Four channels a lane, so a head of up to `Width` channels takes Width / 4 lanes and a warp holds
// 128 / Width heads. Sums over a head stay in its lanes.
template <int Width>
struct HeadLanes {
  static constexpr int kLanes = Width / 4;
  static constexpr int kHeads = 32 / kLanes;  // of a warp

  int head;
  int channel;  // of the head; beyond d in lanes without work

  static QUARTET_DEVICE HeadLanes OfWarp(int warp) {
    return {warp * kHeads + Lane() / kLanes, Lane() % kLanes * 4};
  }
  static QUARTET_DEVICE float Sum(float v) { return WarpSum<kLanes>(v); }
};

enum Part { kQuery = 0, kKey = 1, kValue = 2, kDecay = 3 };

// Four channels of the last pre-conv rows, the newest last.
using History = float[kKdaTaps - 1][4];

// The four channels of one part (q, k or v) that a thread takes over a tile of rows.
template <int Width>
struct ConvColumn {
  const KdaProjectParams& p;
  Part part;
  bool active;      // the lane has channels; others only take part in sums
  const float* in;  // u at the segment's first row
  float* out;       // q, k or v at that row
  float taps[kKdaTaps][4];

  // Pre-conv row t of the segment, zeros in lanes without work.
  QUARTET_DEVICE void Row(int t, float (&row)[4]) const {
    if (active) {
      LoadConstants(row, in + t * p.u_stride);
    } else {
      row[0] = row[1] = row[2] = row[3] = 0.0f;
    }
  }

  // Output row t from pre-conv row t and those before it.
  QUARTET_DEVICE void Emit(int t, const History& history, const float (&row)[4]) const {
    float z[4];
    float square = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kKdaTaps - 1; ++j) sum += taps[j][c] * history[j][c];
      sum += taps[kKdaTaps - 1][c] * row[c];
      z[c] = sum * Sigmoid(sum);
      square += z[c] * z[c];
    }
    if (part != kValue) {
      const float scale =
          (part == kQuery ? p.query_scale : 1.0f) / sqrtf(HeadLanes<Width>::Sum(square) + kL2Eps);
#pragma unroll
      for (int c = 0; c < 4; ++c) z[c] *= scale;
    }
    if (active) StoreFloats(out + static_cast<int64_t>(t) * p.heads * p.dim, z);
  }
};

// Takes in a new row and forgets the oldest.
QUARTET_DEVICE void Push(History& history, const float (&row)[4]) {
#pragma unroll
  for (int j = 0; j < kKdaTaps - 1; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) history[j][c] = j + 2 < kKdaTaps ? history[j + 1][c] : row[c];
  }
}

// Four channels of a slot's history and of its ring, from `channel` of [3, D] on. One thread reads
// and writes both for these channels.
template <class Params>
struct ConvSlot {
  const Params& p;
  const StepSegment& segment;
  int64_t channel;
  bool active;

  QUARTET_DEVICE int64_t RowFloats() const { return static_cast<int64_t>(3) * p.heads * p.dim; }
  // Row j of the registers in the slot; shorter convolutions keep fewer rows.
  QUARTET_DEVICE int KeptRow(int j) const { return j - (kKdaTaps - 1 - p.history); }
  QUARTET_DEVICE float* Kept(int row) const {
    return p.conv + segment.slot * p.conv_slot_stride + row * RowFloats() + channel;
  }
  QUARTET_DEVICE float* Ring(int position) const {
    return p.ring.data + segment.slot * p.ring.slot_stride + position % p.ring.rows * RowFloats() +
           channel;
  }

  // The rows before the segment's first, what is to be committed among them; zeros where there are
  // none.
  QUARTET_DEVICE void Load(History& history) const {
    const int base = segment.position - segment.commit;
#pragma unroll
    for (int j = 0; j < kKdaTaps - 1; ++j) {
      if (active && base != 0 && KeptRow(j) >= 0) {
        LoadFloats(history[j], Kept(KeptRow(j)));
      } else {
        history[j][0] = history[j][1] = history[j][2] = history[j][3] = 0.0f;
      }
    }
    for (int position = base; position < segment.position; ++position) {
      float row[4] = {};
      if (active) LoadFloats(row, Ring(position));
      Push(history, row);
    }
  }
  QUARTET_DEVICE void Store(const History& history) const {
#pragma unroll
    for (int j = 0; j < kKdaTaps - 1; ++j) {
      if (active && KeptRow(j) >= 0) StoreFloats(Kept(KeptRow(j)), history[j]);
    }
  }
};

// Writes what the segment leaves: the history behind its rows, or behind what it commits and its
// rows in the ring. Only the thread that read the old history from the slot calls this, after it
// did; the rows come from u, which nobody changes.
template <int Width>
QUARTET_DEVICE void Leave(const ConvColumn<Width>& column, const ConvSlot<KdaProjectParams>& slot,
                          const History& old) {
  const int rows = slot.segment.rows;
  if (slot.segment.window != 0) {
    if (slot.segment.commit > 0) slot.Store(old);
    for (int t = 0; t < rows; ++t) {
      float row[4];
      column.Row(t, row);
      if (slot.active) StoreFloats(slot.Ring(slot.segment.position + t), row);
    }
    return;
  }
  History history;
#pragma unroll
  for (int j = 0; j < kKdaTaps - 1; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) history[j][c] = old[j][c];
  }
#pragma unroll
  for (int j = 0; j < kKdaTaps - 1; ++j) {
    const int t = rows - (kKdaTaps - 1) + j;
    if (t < 0) continue;
    float row[4];
    column.Row(t, row);
    Push(history, row);
  }
  slot.Store(history);
}

// Convolution, silu and norm of one part of a warp's heads over a tile of rows.
template <int Width>
QUARTET_DEVICE void ConvTile(const KdaProjectParams& p, const SegmentTile& tile, Part part,
                             HeadLanes<Width> at) {
  const StepSegment& segment = tile.segment;
  const int64_t width = static_cast<int64_t>(p.heads) * p.dim;
  const int64_t first = segment.row_begin;
  const int64_t channel = static_cast<int64_t>(at.head) * p.dim + at.channel;
  ConvColumn<Width> column = {.p = p, .part = part};
  column.active = at.head < p.heads && at.channel < p.dim;
  column.in = p.u + first * p.u_stride + part * width + channel;
  column.out = (part == kQuery ? p.q : part == kKey ? p.k : p.v) + first * width + channel;
#pragma unroll
  for (int j = 0; j < kKdaTaps; ++j) {
    if (column.active) LoadConstants(column.taps[j], p.taps + (j * 3 + part) * width + channel);
  }
  History history;
  if (tile.row == 0) {
    const ConvSlot<KdaProjectParams> slot = {p, segment, part * width + channel, column.active};
    slot.Load(history);
    Leave(column, slot, history);
  } else {
#pragma unroll
    for (int j = 0; j < kKdaTaps - 1; ++j) {
      column.Row(tile.row - (kKdaTaps - 1) + j, history[j]);
    }
  }
  const int end = min(tile.row + kKdaTileRows, segment.rows);
  for (int t = tile.row; t < end; t += kRowsInFlight) {
    float rows[kRowsInFlight][4];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) column.Row(min(t + i, end - 1), rows[i]);
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (t + i >= end) break;
      column.Emit(t + i, history, rows[i]);
      Push(history, rows[i]);
    }
  }
}

// beta of `heads` heads from `head` on over a tile of rows: a row a lane.
QUARTET_DEVICE void BetaTile(const KdaProjectParams& p, const SegmentTile& tile, int head,
                             int heads) {
  static_assert(kKdaTileRows == 32);
  const int t = tile.row + Lane();
  if (t >= tile.segment.rows) return;
  const int64_t row = tile.segment.row_begin + t;
  const float* b = p.u + row * p.u_stride + 3 * static_cast<int64_t>(p.heads) * p.dim + 2 * p.rank;
  for (int h = head; h < min(head + heads, p.heads); ++h) {
    p.beta[row * p.heads + h] = Sigmoid(__ldg(b + h));
  }
}

QUARTET_DEVICE float LogDecay(const KdaProjectParams& p, float f, float bias, float scale) {
  return p.lower_bound * Sigmoid(scale * (f + bias));
}

// The log decays of a warp's heads over a tile of rows, in place of f_b's product.
template <int Width>
QUARTET_DEVICE void DecayTile(const KdaProjectParams& p, const SegmentTile& tile,
                              HeadLanes<Width> at) {
  if (at.head >= p.heads || at.channel >= p.dim) return;
  const int channel = at.head * p.dim + at.channel;
  const float scale = p.gate_scale[at.head];
  float bias[4];
  LoadConstants(bias, p.dt_bias + channel);
  const int end = min(tile.row + kKdaTileRows, tile.segment.rows);
  const int64_t width = static_cast<int64_t>(p.heads) * p.dim;
  float* g = p.g + tile.segment.row_begin * width + channel;
  for (int t = tile.row; t < end; t += kRowsInFlight) {
    float f[kRowsInFlight][4];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) LoadFloats(f[i], g + min(t + i, end - 1) * width);
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (t + i >= end) break;
#pragma unroll
      for (int c = 0; c < 4; ++c) f[i][c] = LogDecay(p, f[i][c], bias[c], scale);
      StoreFloats(g + (t + i) * width, f[i]);
    }
  }
}

// Warp `warp` of the list that `parts` parts of all heads make: one part of 128 / Width heads.
template <int Width>
QUARTET_DEVICE void ProjectTile(const KdaProjectParams& p, int tile_index, int warp, int parts) {
  SegmentTile tile;
  if (!FindTile(p.segments, kKdaTileRows, tile_index, tile)) return;
  const int warps = (p.heads + HeadLanes<Width>::kHeads - 1) / HeadLanes<Width>::kHeads;
  const int part = warp / warps;
  if (part >= parts) return;
  using Lanes = HeadLanes<Width>;
  const Lanes at = Lanes::OfWarp(warp % warps);
  if (part == kDecay) {
    DecayTile(p, tile, at);
    return;
  }
  if (part == kQuery) BetaTile(p, tile, warp % warps * Lanes::kHeads, Lanes::kHeads);
  ConvTile(p, tile, static_cast<Part>(part), at);
}

// ---- gate products of a few rows

constexpr int kLanesOfRow = 16;  // share a row of the weights
constexpr int kWarpRows = kKdaGateRows / (kThreads / 32);
constexpr int kRowsAtOnce = 32 / kLanesOfRow;
constexpr int kLoads = kWarpRows / kRowsAtOnce;  // rows of one lane

// Sums each of v's elements over the lanes of a row. Lane l is left with the sum of v[l / 2]: each
// exchange halves what a lane still has to care for.
QUARTET_DEVICE float SumsOfRows(float (&v)[kLoads]) {
  static_assert(kLoads == 8 && kLanesOfRow == 16);
#pragma unroll
  for (int half = kLoads / 2; half >= 1; half /= 2) {
    const bool upper = (Lane() & 2 * half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float give = upper ? v[i] : v[i + half];
      const float keep = upper ? v[i + half] : v[i];
      v[i] = keep + __shfl_xor_sync(kFullMask, give, 2 * half);
    }
  }
  return v[0] + __shfl_xor_sync(kFullMask, v[0], 1);
}

// Rows [64 block, 64 block + 64) of the stack [f_b; g_b] times the gates' vectors of all rows.
QUARTET_DEVICE void GateProducts(const KdaProjectParams& p, int block) {
  __shared__ __align__(16) float x[2][kKdaDecodeRows][kKdaMaxGateRank];  // of f_a and g_a
  const int width = p.heads * p.dim;
  const int rows = p.segments.rows;
  const int64_t first_row = p.segments.first_row;
  const int lane = Lane() % kLanesOfRow;
  const int row0 = block * kKdaGateRows + Warp() * kWarpRows + Lane() / kLanesOfRow;
  // The weights of the first 128 inputs are on their way before anything else is waited for.
  uint4 w[kLoads];
  const auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = row0 + i * kRowsAtOnce;
      const uint16_t* from = p.gate_weights + static_cast<int64_t>(row) * p.rank + k;
      w[i] = row < 2 * width && k < p.rank ? LoadStreaming(reinterpret_cast<const uint4*>(from))
                                           : make_uint4(0, 0, 0, 0);
    }
  };
  load(8 * lane);
  // This lane's product in the end, and what its gate needs.
  const int mine = row0 + lane / 2 * kRowsAtOnce;
  const bool decays = mine < width;
  const float bias = decays ? __ldg(p.dt_bias + mine) : 0.0f;
  const float scale = decays ? __ldg(p.gate_scale + mine / p.dim) : 0.0f;
  AwaitPrevious();
  LetNextIn();
  const float* vectors = p.u + first_row * p.u_stride + 3 * static_cast<int64_t>(width);
  for (int k = static_cast<int>(threadIdx.x); k < 2 * p.rank; k += kThreads) {
    const bool second = k >= p.rank;
    for (int r = 0; r < rows; ++r) {
      x[second][r][second ? k - p.rank : k] = __ldg(vectors + r * p.u_stride + k);
    }
  }
  __syncthreads();
  float sums[kKdaDecodeRows][kLoads] = {};
  for (int k = 8 * lane; k < p.rank; k += 8 * kLanesOfRow) {
    if (k != 8 * lane) load(k);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float(&from)[kKdaDecodeRows][kKdaMaxGateRank] = x[row0 + i * kRowsAtOnce >= width];
      const uint32_t pairs[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
#pragma unroll
      for (int r = 0; r < kKdaDecodeRows; ++r) {
        if (r >= rows) break;
        float in[8];
        LoadFloats(in, &from[r][k]);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums[r][i] += HalfToFloat(static_cast<uint16_t>(pairs[c])) * in[2 * c];
          sums[r][i] += HalfToFloat(static_cast<uint16_t>(pairs[c] >> 16)) * in[2 * c + 1];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kKdaDecodeRows; ++r) {
    if (r >= rows) break;
    const float product = SumsOfRows(sums[r]);
    if (lane % 2 != 0 || mine >= 2 * width) continue;
    if (decays) {
      p.g[(first_row + r) * width + mine] = LogDecay(p, product, bias, scale);
    } else {
      p.gate[(first_row + r) * width + mine - width] = product;
    }
  }
}

// Grid (ceil(warps of four parts / 4), tiles).
template <int Width>
QUARTET_DEVICE void ProjectRows(const KdaProjectParams& p) {
  ProjectTile<Width>(p, static_cast<int>(blockIdx.y),
                     static_cast<int>(blockIdx.x) * (kThreads / 32) + Warp(), 4);
}

// Grid conv_blocks * segments, then ceil(2 D / 64) blocks for the gates. At most kKdaDecodeRows
// rows.
template <int Width>
QUARTET_DEVICE void ProjectDecode(const KdaProjectParams& p) {
  const int block = static_cast<int>(blockIdx.x);
  const int conv_blocks = p.conv_blocks * p.segments.count;
  if (block >= conv_blocks) {
    GateProducts(p, block - conv_blocks);
  } else {
    AwaitPrevious();
    LetNextIn();
    ProjectTile<Width>(p, block / p.conv_blocks, block % p.conv_blocks * (kThreads / 32) + Warp(),
                       3);
  }
}

// Grid (ceil(warps of three parts / 4), segments).
template <int Width>
QUARTET_DEVICE void CommitConv(const KdaCommitParams& p) {
  using Lanes = HeadLanes<Width>;
  const StepSegment segment = FirstSegment(p.segments)[blockIdx.y];
  const int warps = (p.heads + Lanes::kHeads - 1) / Lanes::kHeads;
  const int warp = static_cast<int>(blockIdx.x) * (kThreads / 32) + Warp();
  if (segment.commit == 0 || warp >= 3 * warps) return;
  const Lanes at = Lanes::OfWarp(warp % warps);
  const int64_t part = warp / warps;
  const ConvSlot<KdaCommitParams> slot = {p, segment,
                                          (part * p.heads + at.head) * p.dim + at.channel,
                                          at.head < p.heads && at.channel < p.dim};
  History history;
  slot.Load(history);
  slot.Store(history);
}

// ---- output

// One head of one row a group of lanes.
template <int Width>
QUARTET_DEVICE void GatedNorm(const KdaNormParams& p) {
  using Lanes = HeadLanes<Width>;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + Warp();
  const int64_t vector = warp * Lanes::kHeads + Lane() / Lanes::kLanes;
  const int channel = Lane() % Lanes::kLanes * 4;
  const bool active = vector < p.vectors && channel < p.dim;
  const int64_t at = vector * p.dim + channel;
  float o[4] = {}, gate[4] = {}, norm[4] = {};
  if (active) {
    LoadFloats(o, p.o + at);
    LoadFloats(gate, p.gate + at);
    LoadFloats(norm, p.norm + channel);
  }
  const float square = Lanes::Sum(o[0] * o[0] + o[1] * o[1] + o[2] * o[2] + o[3] * o[3]);
  const float scale = 1.0f / sqrtf(square / static_cast<float>(p.dim) + p.eps);
#pragma unroll
  for (int c = 0; c < 4; ++c) o[c] = o[c] * scale * norm[c] * Sigmoid(gate[c]);
  if (active) StoreFloats(p.y + at, o);
}

}  // namespace

QUARTET_KERNEL(kda_project_rows_32, 128, 4, KdaProjectParams) {
  ProjectRows<32>(p);
}
QUARTET_KERNEL(kda_project_rows_64, 128, 4, KdaProjectParams) {
  ProjectRows<64>(p);
}
QUARTET_KERNEL(kda_project_rows_128, 128, 4, KdaProjectParams) {
  ProjectRows<128>(p);
}
QUARTET_EARLY_KERNEL(kda_project_decode_32, 128, 4, KdaProjectParams) {
  ProjectDecode<32>(p);
}
QUARTET_EARLY_KERNEL(kda_project_decode_64, 128, 4, KdaProjectParams) {
  ProjectDecode<64>(p);
}
QUARTET_EARLY_KERNEL(kda_project_decode_128, 128, 4, KdaProjectParams) {
  ProjectDecode<128>(p);
}
QUARTET_KERNEL(kda_commit_32, 128, 4, KdaCommitParams) {
  CommitConv<32>(p);
}
QUARTET_KERNEL(kda_commit_64, 128, 4, KdaCommitParams) {
  CommitConv<64>(p);
}
QUARTET_KERNEL(kda_commit_128, 128, 4, KdaCommitParams) {
  CommitConv<128>(p);
}
QUARTET_KERNEL(kda_norm_32, 128, 8, KdaNormParams) {
  GatedNorm<32>(p);
}
QUARTET_KERNEL(kda_norm_64, 128, 8, KdaNormParams) {
  GatedNorm<64>(p);
}
QUARTET_KERNEL(kda_norm_128, 128, 8, KdaNormParams) {
  GatedNorm<128>(p);
}

}  // namespace quartet::cuda
