// The delta rule in chunks of 64 tokens. With G the cumulative log decay inside a chunk (inclusive,
// per key channel), S the state on entry and Tm = (I + A)^-1 diag(beta):
//   A_ij = beta_i sum_c k_ic k_jc e^(G_ic - G_jc)  for j < i
//   M_ij = sum_c q_ic k_jc e^(G_ic - G_jc)         for j <= i
//   U  = Tm V - (Tm (K e^G)) S
//   O  = (Q e^G) S + M U
//   S' = e^G_last S + (K e^(G_last - G))^T U
// What does not need S is made for all chunks at once (kda_chunk_*); then the chunks of a segment
// are walked in order, value columns independent of each other (kda_walk_*).
//
// G reaches -5 * 64, so e^G and e^-G never meet as factors over a chunk. Sub-blocks of 16 rows:
// inside one, logs count from a row in the middle, so that factors stay within e^(+-40); between
// two, everything is a product of decays, at most 1, and what underflows is nothing.

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/kda_chunk_params.h"
#include "kernels/cuda/kda_device.cuh"

namespace quartet::cuda {
namespace {

// ---- what does not need the state

constexpr int kAlgebraThreads = 32 * kKdaPairs;
constexpr int kPivot = 7;  // the row of a block whose log counts as zero

// One chunk of one head; rows beyond the segment are zeros.
struct ChunkRows {
  const KdaRecurrenceInputs& in;
  int64_t begin;  // of the first row's channels in q, k, v and g
  int stride;     // between rows
  int rows;       // at most 64

  QUARTET_DEVICE float At(const float* x, int i, int c) const {
    return i < rows && c < in.dim ? __ldg(x + begin + i * stride + c) : 0.0f;
  }
};

// Factors of one channel of block `block` for the blocks below the diagonal.
QUARTET_DEVICE void FarFactors(const ChunkRows& chunk, int channel, int block,
                               KdaChunkFactors& shared) {
  const int lane = Lane();
  const int begin = block * kKdaBlock;
  float g[kKdaBlock], k[kKdaBlock], q[kKdaBlock];
#pragma unroll
  for (int r = 0; r < kKdaBlock; ++r) {
    g[r] = chunk.At(chunk.in.g, begin + r, channel);
    k[r] = chunk.At(chunk.in.k, begin + r, channel);
    q[r] = chunk.At(chunk.in.q, begin + r, channel);
  }
  float log = 0.0f;
#pragma unroll
  for (int r = 0; r < kKdaBlock; ++r) {
    log += g[r];
    const float decay = expf(log);
    shared.far_left_k[begin + r][lane] = k[r] * decay;
    shared.far_left_q[begin + r][lane] = q[r] * decay;
  }
  shared.block_log[block][lane] = log;
  log = 0.0f;
#pragma unroll
  for (int r = kKdaBlock - 1; r >= 0; --r) {
    shared.far_right[begin + r][lane] = k[r] * expf(log);
    log += g[r];
  }
}

// The same for the block on the diagonal.
QUARTET_DEVICE void NearFactors(const ChunkRows& chunk, int channel, int block,
                                KdaChunkFactors& shared) {
  const int lane = Lane();
  const int begin = block * kKdaBlock;
  float log[kKdaBlock];
  log[kPivot] = 0.0f;
#pragma unroll
  for (int r = kPivot + 1; r < kKdaBlock; ++r) {
    log[r] = log[r - 1] + chunk.At(chunk.in.g, begin + r, channel);
  }
#pragma unroll
  for (int r = kPivot - 1; r >= 0; --r) {
    log[r] = log[r + 1] - chunk.At(chunk.in.g, begin + r + 1, channel);
  }
#pragma unroll
  for (int r = 0; r < kKdaBlock; ++r) {
    const float k = chunk.At(chunk.in.k, begin + r, channel);
    const float q = chunk.At(chunk.in.q, begin + r, channel);
    const float factor = expf(log[r]);
    shared.near_left_k[begin + r][lane] = k * factor;
    shared.near_left_q[begin + r][lane] = q * factor;
    shared.near_right[begin + r][lane] = k * expf(-log[r]);
  }
}

struct BlockPair {
  int row, column;  // column <= row
};
QUARTET_DEVICE BlockPair PairOfWarp() {
  const int warp = Warp();
  const int row = warp < 1 ? 0 : warp < 3 ? 1 : warp < 6 ? 2 : 3;
  return {row, warp - row * (row + 1) / 2};
}

// A warp's 16 x 16 block of k k^T and q k^T with decays: rows lane / 8 + 4 r, columns lane % 8 + 8
// s.
struct PairSums {
  float k[4][2];
  float q[4][2];
};

QUARTET_DEVICE float Dot4(float sum, float4 a, float4 b) {
  return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Adds the slab's channels.
QUARTET_DEVICE void AddPair(BlockPair pair, KdaChunkFactors& shared, PairSums& sums) {
  const bool near = pair.row == pair.column;
  const KdaFactor& left_k = near ? shared.near_left_k : shared.far_left_k;
  const KdaFactor& left_q = near ? shared.near_left_q : shared.far_left_q;
  const KdaFactor& right = near ? shared.near_right : shared.far_right;
  float log = 0.0f;
  for (int b = pair.column + 1; b < pair.row; ++b) log += shared.block_log[b][Lane()];
  shared.between[Warp()][Lane()] = expf(log);
  __syncwarp();
  const int row = pair.row * kKdaBlock + Lane() / 8;
  const int column = pair.column * kKdaBlock + Lane() % 8;
#pragma unroll 2
  for (int c = 0; c < kKdaSlab; c += 4) {
    const float4 decay = LoadFloat4(&shared.between[Warp()][c]);
    float4 columns[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const float4 k = LoadFloat4(&right[column + 8 * s][c]);
      columns[s] = make_float4(k.x * decay.x, k.y * decay.y, k.z * decay.z, k.w * decay.w);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float4 k = LoadFloat4(&left_k[row + 4 * r][c]);
      const float4 q = LoadFloat4(&left_q[row + 4 * r][c]);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        sums.k[r][s] = Dot4(sums.k[r][s], k, columns[s]);
        sums.q[r][s] = Dot4(sums.q[r][s], q, columns[s]);
      }
    }
  }
  __syncwarp();
}

// A into shared memory, M into the workspace.
QUARTET_DEVICE void StorePair(BlockPair pair, const PairSums& sums, KdaChunkShared& shared,
                              float* m) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = pair.row * kKdaBlock + Lane() / 8 + 4 * r;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int j = pair.column * kKdaBlock + Lane() % 8 + 8 * s;
      shared.a[j][i] = shared.beta[i] * sums.k[r][s];
      m[i * kKdaChunk + j] = j <= i ? sums.q[r][s] : 0.0f;
    }
  }
}

// (I + A) x = x for two columns and the rows of one block, the rows above it already solved: when a
// row is done, it is taken from all below.
QUARTET_DEVICE void SolveBlock(const KdaChunkShared& shared, int begin, int column,
                               float (&w)[kKdaBlock], float (&u)[kKdaBlock]) {
#pragma unroll 2
  for (int j = 0; j < begin; ++j) {
    float a[kKdaBlock];
    LoadFloats(a, &shared.a[j][begin]);
    const float w_j = shared.solution.w[j][column];
    const float u_j = shared.solution.u[j][column];
#pragma unroll
    for (int r = 0; r < kKdaBlock; ++r) {
      w[r] -= a[r] * w_j;
      u[r] -= a[r] * u_j;
    }
  }
#pragma unroll
  for (int j = 0; j < kKdaBlock - 1; ++j) {
    float a[kKdaBlock];
    LoadFloats(a, &shared.a[begin + j][begin]);
#pragma unroll
    for (int r = j + 1; r < kKdaBlock; ++r) {
      w[r] -= a[r] * w[j];
      u[r] -= a[r] * u[j];
    }
  }
}

// Channel c of Tm (K e^G) and of Tm V.
template <int Width>
QUARTET_DEVICE void SolveColumns(const ChunkRows& chunk, int c, KdaChunkShared& shared,
                                 float* out) {
  using Layout = KdaChunkLayout<Width>;
  float log = 0.0f;
#pragma unroll 1
  for (int begin = 0; begin < kKdaChunk; begin += kKdaBlock) {
    float g[kKdaBlock], w[kKdaBlock], u[kKdaBlock];
#pragma unroll
    for (int r = 0; r < kKdaBlock; ++r) {
      g[r] = chunk.At(chunk.in.g, begin + r, c);
      w[r] = chunk.At(chunk.in.k, begin + r, c);
      u[r] = chunk.At(chunk.in.v, begin + r, c);
    }
#pragma unroll
    for (int r = 0; r < kKdaBlock; ++r) {
      log += g[r];
      w[r] *= shared.beta[begin + r] * expf(log);
      u[r] *= shared.beta[begin + r];
    }
    SolveBlock(shared, begin, c, w, u);
#pragma unroll
    for (int r = 0; r < kKdaBlock; ++r) {
      shared.solution.w[begin + r][c] = w[r];
      shared.solution.u[begin + r][c] = u[r];
      out[Layout::kW + (begin + r) * Width + c] = w[r];
      out[Layout::kU + (begin + r) * Width + c] = u[r];
    }
  }
}

// Channel c of Q e^G, of K e^(G_last - G) and of e^G_last.
template <int Width>
QUARTET_DEVICE void DecayColumns(const ChunkRows& chunk, int c, float* out) {
  using Layout = KdaChunkLayout<Width>;
  float log = 0.0f;
#pragma unroll 1
  for (int begin = 0; begin < kKdaChunk; begin += kKdaBlock) {
    float g[kKdaBlock], q[kKdaBlock];
#pragma unroll
    for (int r = 0; r < kKdaBlock; ++r) {
      g[r] = chunk.At(chunk.in.g, begin + r, c);
      q[r] = chunk.At(chunk.in.q, begin + r, c);
    }
#pragma unroll
    for (int r = 0; r < kKdaBlock; ++r) {
      log += g[r];
      out[Layout::kQ + (begin + r) * Width + c] = expf(log) * q[r];
    }
  }
  log = 0.0f;
#pragma unroll 1
  for (int begin = kKdaChunk - kKdaBlock; begin >= 0; begin -= kKdaBlock) {
    float g[kKdaBlock], k[kKdaBlock];
#pragma unroll
    for (int r = 0; r < kKdaBlock; ++r) {
      g[r] = chunk.At(chunk.in.g, begin + r, c);
      k[r] = chunk.At(chunk.in.k, begin + r, c);
    }
#pragma unroll
    for (int r = kKdaBlock - 1; r >= 0; --r) {
      out[Layout::kK + (begin + r) * Width + c] = expf(log) * k[r];
      log += g[r];
    }
  }
  out[Layout::kDecay + c] = expf(log);
}

// Grid (chunks of the pass, heads).
template <int Width>
QUARTET_DEVICE void ChunkAlgebra(const KdaChunkParams& p) {
  static_assert(2 * Width <= kAlgebraThreads);
  SegmentTile tile;
  if (!FindTile(p.segments, kKdaChunk, p.first_chunk + static_cast<int>(blockIdx.x), tile)) return;
  KdaChunkShared& shared = *reinterpret_cast<KdaChunkShared*>(QUARTET_DYNAMIC_SHARED());
  const int head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  // Index of the chunk's first row in beta; times d, in the other inputs.
  const int64_t first = static_cast<int64_t>(tile.segment.row_begin + tile.row) * p.in.heads + head;
  const ChunkRows chunk = {p.in, first * p.in.dim, p.in.heads * p.in.dim,
                           min(kKdaChunk, tile.segment.rows - tile.row)};
  float* out = p.workspace + (static_cast<int64_t>(blockIdx.x) * p.in.heads + head) *
                                 KdaChunkLayout<Width>::kFloats;
  if (thread < kKdaChunk) {
    shared.beta[thread] = thread < chunk.rows ? p.in.beta[first + thread * p.in.heads] : 0.0f;
  }
  const BlockPair pair = PairOfWarp();
  PairSums sums = {};
#pragma unroll 1
  for (int c = 0; c < Width; c += kKdaSlab) {
    if (Warp() < kKdaBlocks) {
      FarFactors(chunk, c + Lane(), Warp(), shared.factors);
    } else if (Warp() < 2 * kKdaBlocks) {
      NearFactors(chunk, c + Lane(), Warp() - kKdaBlocks, shared.factors);
    }
    __syncthreads();
    AddPair(pair, shared.factors, sums);
    __syncthreads();
  }
  StorePair(pair, sums, shared, out + KdaChunkLayout<Width>::kM);
  __syncthreads();
  if (thread < Width) {
    SolveColumns<Width>(chunk, thread, shared, out);
  } else if (thread < 2 * Width) {
    DecayColumns<Width>(chunk, thread - Width, out);
  }
}

// ---- the walk

constexpr int kWalkThreads = 128;
constexpr int kColumnLanes = kKdaColumns / 4;
constexpr int kRowGroups = kWalkThreads / kColumnLanes;  // 16: a thread has rows group + 16 r

// 64 rows of 16 floats, `stride` floats apart, into rows of kKdaPieceStride.
QUARTET_DEVICE void CopyRows(float* to, const float* from, int stride) {
  for (int i = static_cast<int>(threadIdx.x); i < kKdaChunk * kKdaPiece / 4; i += kWalkThreads) {
    const int row = i / (kKdaPiece / 4);
    const int c = i % (kKdaPiece / 4) * 4;
    CopyAsync16(to + row * kKdaPieceStride + c, from + row * stride + c);
  }
}

// Piece `piece` of the chunk at `chunk`.
template <int Width>
QUARTET_DEVICE void CopyPiece(float* to, const float* chunk, int piece) {
  using Layout = KdaChunkLayout<Width>;
  if (piece < Width / kKdaPiece) {
    CopyRows(to, chunk + Layout::kW + piece * kKdaPiece, Width);
    CopyRows(to + kKdaChunk * kKdaPieceStride, chunk + Layout::kQ + piece * kKdaPiece, Width);
    return;
  }
  const int token = (piece - Width / kKdaPiece) * kKdaPiece;
  const float* k = chunk + Layout::kK + token * Width;
  for (int i = static_cast<int>(threadIdx.x); i < kKdaPiece * Width / 4; i += kWalkThreads) {
    CopyAsync16(to + 4 * i, k + 4 * i);
  }
  CopyRows(to + kKdaPiece * Width, chunk + Layout::kM + token, kKdaChunk);
}

// to += a row of four times four rows.
QUARTET_DEVICE void AddFour(float (&to)[4], const float (&row)[4], const float (&rows)[4][4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int n = 0; n < 4; ++n) to[n] += row[c] * rows[c][n];
  }
}

template <int Width>
struct Walker {
  using Shared = KdaWalkShared<Width>;
  using Layout = KdaChunkLayout<Width>;
  static constexpr int kStateRows = Width / kRowGroups;  // a thread's, consecutive

  Shared& shared;
  int column;  // first of this thread's columns, of the block's
  int group;

  // w += W S and q += (Q e^G) S over the piece's 16 channels.
  QUARTET_DEVICE void ReadState(const float* piece, int channel, float (&w)[4][4],
                                float (&q)[4][4]) const {
#pragma unroll 2
    for (int c = 0; c < kKdaPiece; c += 4) {
      float s[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        LoadFloats(s[i], shared.s + (channel + c + i) * kKdaColumns + column);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float* row = piece + (group + kRowGroups * r) * kKdaPieceStride + c;
        float left[4];
        LoadFloats(left, row);
        AddFour(w[r], left, s);
        LoadFloats(left, row + kKdaChunk * kKdaPieceStride);
        AddFour(q[r], left, s);
      }
    }
  }

  // o += M U and s += (K e^(G_last - G))^T U over the piece's 16 tokens. Rows of o above the piece
  // do not see them.
  QUARTET_DEVICE void WriteState(const float* piece, int block, float (&o)[4][4],
                                 float (&s)[kStateRows][4]) const {
    const float* m = piece + kKdaPiece * Width;
#pragma unroll 1
    for (int t = 0; t < kKdaPiece; t += 4) {
      float u[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        LoadFloats(u[i], shared.u + (block * kKdaPiece + t + i) * kKdaColumns + column);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (r < block) continue;
        float left[4];
        LoadFloats(left, m + (group + kRowGroups * r) * kKdaPieceStride + t);
        AddFour(o[r], left, u);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float k[kStateRows];
        LoadFloats(k, piece + (t + i) * Width + group * kStateRows);
#pragma unroll
        for (int r = 0; r < kStateRows; ++r) {
#pragma unroll
          for (int n = 0; n < 4; ++n) s[r][n] += k[r] * u[i][n];
        }
      }
    }
  }
};

// Pieces of consecutive chunks of one head, each copied while the two before it are in use.
template <int Width>
struct Pipeline {
  using Shared = KdaWalkShared<Width>;

  float* stages;
  const float* workspace;  // of the first chunk
  int64_t chunk_stride;
  int total;  // pieces
  int next = 0;

  QUARTET_DEVICE void Start() {
    for (int i = 0; i < kKdaStages - 1; ++i) Copy(i);
  }
  // Piece `next`; all threads see what all of them wrote to shared memory before.
  QUARTET_DEVICE const float* Take() {
    CopyAsyncWait<kKdaStages - 2>();
    __syncthreads();
    Copy(next + kKdaStages - 1);
    return Stage(next++);
  }

 private:
  QUARTET_DEVICE float* Stage(int piece) {
    return stages + piece % kKdaStages * Shared::kStageFloats;
  }
  QUARTET_DEVICE void Copy(int piece) {
    constexpr int kPieces = Shared::kPieces;
    if (piece < total) {
      CopyPiece<Width>(Stage(piece), workspace + piece / kPieces * chunk_stride, piece % kPieces);
    }
    CopyAsyncCommit();
  }
};

// Grid (heads * splits, segments).
template <int Width>
QUARTET_DEVICE void WalkChunks(const KdaChunkParams& p) {
  using Layout = KdaChunkLayout<Width>;
  using Walk = Walker<Width>;
  using Shared = typename Walk::Shared;
  constexpr int kStateRows = Walk::kStateRows;
  const int dim = p.in.dim;
  const int splits = (dim + kKdaColumns - 1) / kKdaColumns;
  const int head = static_cast<int>(blockIdx.x) / splits;
  const StepSegment segment = FirstSegment(p.segments)[blockIdx.y];
  const int first = FirstTile(p.segments, kKdaChunk, static_cast<int>(blockIdx.y));
  const int begin = max(first, p.first_chunk);
  const int end = min(first + (segment.rows + kKdaChunk - 1) / kKdaChunk, p.first_chunk + p.chunks);
  if (begin >= end) return;

  Walk walk = {*reinterpret_cast<Shared*>(QUARTET_DYNAMIC_SHARED()),
               static_cast<int>(threadIdx.x) % kColumnLanes * 4,
               static_cast<int>(threadIdx.x) / kColumnLanes};
  Shared& shared = walk.shared;
  const int group = walk.group;
  const int value = static_cast<int>(blockIdx.x) % splits * kKdaColumns + walk.column;

  const int64_t chunk_stride = static_cast<int64_t>(p.in.heads) * Layout::kFloats;
  const float* chunk = p.workspace + (begin - p.first_chunk) * chunk_stride +
                       static_cast<int64_t>(head) * Layout::kFloats;
  Pipeline<Width> pipeline = {shared.stages, chunk, chunk_stride, (end - begin) * Shared::kPieces};
  pipeline.Start();

  float* state =
      p.states.data + segment.slot * p.states.slot_stride + static_cast<int64_t>(head) * dim * dim;
  const bool zero = segment.position == 0 && begin == first;
  float* own_state = shared.s + group * kStateRows * kKdaColumns + walk.column;
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
    const int key = group * kStateRows + r;
    const bool inside = !zero && key < dim && value < dim;
    StoreFloat4(own_state + r * kKdaColumns,
                inside ? LoadFloat4(state + key * dim + value) : ZeroFloat4());
  }

  for (int index = begin; index < end; ++index, chunk += chunk_stride) {
    float u[4][4], decay[kStateRows];
    LoadFloats(decay, chunk + Layout::kDecay + group * kStateRows);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      LoadFloats(u[r], chunk + Layout::kU + (group + kRowGroups * r) * Width + value);
    }
    float w[4][4] = {}, o[4][4] = {};
#pragma unroll 1
    for (int piece = 0; piece < Width / kKdaPiece; ++piece) {
      walk.ReadState(pipeline.Take(), piece * kKdaPiece, w, o);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int n = 0; n < 4; ++n) u[r][n] -= w[r][n];
      StoreFloats(shared.u + (group + kRowGroups * r) * kKdaColumns + walk.column, u[r]);
    }
    float s[kStateRows][4];
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) {
      LoadFloats(s[r], own_state + r * kKdaColumns);
#pragma unroll
      for (int n = 0; n < 4; ++n) s[r][n] *= decay[r];
    }
#pragma unroll 1
    for (int block = 0; block < kKdaBlocks; ++block) {
      walk.WriteState(pipeline.Take(), block, o, s);
    }
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) StoreFloats(own_state + r * kKdaColumns, s[r]);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int t = (index - first) * kKdaChunk + group + kRowGroups * r;
      if (t < segment.rows && value < dim) {
        const int64_t row = segment.row_begin + t;
        StoreFloats(p.o + (row * p.in.heads + head) * dim + value, o[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
    const int key = group * kStateRows + r;
    if (key < dim && value < dim) {
      StoreFloat4(state + key * dim + value, LoadFloat4(own_state + r * kKdaColumns));
    }
  }
}

}  // namespace

QUARTET_KERNEL(kda_chunk_32, 320, 2, KdaChunkParams) {
  ChunkAlgebra<32>(p);
}
QUARTET_KERNEL(kda_chunk_64, 320, 2, KdaChunkParams) {
  ChunkAlgebra<64>(p);
}
QUARTET_KERNEL(kda_chunk_128, 320, 2, KdaChunkParams) {
  ChunkAlgebra<128>(p);
}
QUARTET_KERNEL(kda_walk_32, 128, 2, KdaChunkParams) {
  WalkChunks<32>(p);
}
QUARTET_KERNEL(kda_walk_64, 128, 2, KdaChunkParams) {
  WalkChunks<64>(p);
}
QUARTET_KERNEL(kda_walk_128, 128, 2, KdaChunkParams) {
  WalkChunks<128>(p);
}
}  // namespace quartet::cuda
