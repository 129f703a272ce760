// Scores of pools: s = scale sum_h w[h] relu(q[h] . P_m), FP32 sums in a fixed order.

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/dsa_paged.cuh"
#include "kernels/cuda/indexer_params.h"

namespace quartet::cuda {
namespace {

constexpr int kDim = 128;  // of the tile kernels
constexpr int kSteps = kDim / 16;
constexpr int kStride = kDim + 8;  // halves, of a row in shared memory
constexpr int kStageRows = 4;      // rows whose queries are staged at a time

// Consecutive rows of one segment, and how many pools the last of them sees.
struct Run {
  int begin;
  int end;
  int pools;
  StepSegment segment;
};

QUARTET_DEVICE Run RunFrom(const IndexScoreParams& p, int row, int end) {
  Run run;
  run.segment = p.step.segments[p.step.row_segments[row]];
  run.begin = row;
  run.end = min(end, run.segment.row_begin + run.segment.rows);
  run.pools = (run.segment.position + run.end - run.segment.row_begin) / p.kpool;
  return run;
}
QUARTET_DEVICE int CandidatesOf(const IndexScoreParams& p, const Run& run, int row) {
  return (run.segment.position + row - run.segment.row_begin + 1) / p.kpool;
}

// One warp's keys in registers: 16 pools a tile, as B of the tile primitive.
template <int Tiles>
struct KeyTiles {
  FragB b[Tiles][kSteps];
};

// Begins the copy of 16 keys from `pool` on into the warp's part of shared memory.
QUARTET_DEVICE void CopyKeys(const IndexScoreParams& p, const Run& run, int pool, __half* to) {
  const int32_t* pages = p.step.pages + run.segment.page_begin;
  const int piece = Lane() & 15;  // of 8 halves
#pragma unroll
  for (int i = Lane() >> 4; i < 16; i += 2) {
    const bool valid = pool + i < run.pools;
    const unsigned char* key = PagedRow(p.keys, pages, valid ? pool + i : run.pools - 1);
    CopyAsync16(to + i * kStride + piece * 8, key + piece * 16, valid);
  }
}

QUARTET_DEVICE void StageWeights(const IndexScoreParams& p, int row, int rows, int padded,
                                 float* w) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * padded;
       i += static_cast<int>(blockDim.x)) {
    const int h = i % padded;
    w[i] = h < p.heads ? p.w[static_cast<int64_t>(row + i / padded) * p.heads + h] : 0.0f;
  }
}

// Fills A's rows of `rows` rows of queries, heads padded with zeros to `padded`, and their head
// weights. Every block of a column rounds the same queries; one of them counts what saturates.
QUARTET_DEVICE void StageRounding(const IndexScoreParams& p, int row, int rows, int padded,
                                  bool count, __half* q, float* w) {
  constexpr int kPieces = kDim / 8;
  constexpr int kBatch = 4;  // loads under way
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int step = static_cast<int>(blockDim.x) / kPieces;
  const int lines = rows * padded;  // a line: one head of one row
  for (int first = static_cast<int>(threadIdx.x) / kPieces; first < lines; first += kBatch * step) {
    float4 v[kBatch][2];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int line = first + u * step;
      const int h = line % padded;
      v[u][0] = v[u][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (line >= lines || h >= p.heads) continue;
      const auto* from = reinterpret_cast<const float4*>(
          p.q + (static_cast<int64_t>(row + line / padded) * p.heads + h) * kDim + piece * 8);
      v[u][0] = from[0];
      v[u][1] = from[1];
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int line = first + u * step;
      if (line >= lines) continue;
      *reinterpret_cast<uint4*>(q + line * kStride + piece * 8) =
          RoundEight(v[u][0], v[u][1], count ? p.saturation : nullptr);
    }
  }
  StageWeights(p, row, rows, padded, w);
}

// The same from queries that were rounded before, as an asynchronous copy.
QUARTET_DEVICE void StageRounded(const IndexScoreParams& p, int row, int rows, int padded,
                                 __half* q, float* w) {
  const int pieces = rows * padded * (kDim / 8);
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += static_cast<int>(blockDim.x)) {
    const int piece = i % (kDim / 8);
    const int h = i / (kDim / 8) % padded;
    const int r = i / (kDim / 8) / padded;
    const int64_t at = static_cast<int64_t>(row - p.row_begin + r) * p.heads + min(h, p.heads - 1);
    CopyAsync16(q + (r * padded + h) * kStride + piece * 8, p.q_f16 + at * kDim + piece * 8,
                h < p.heads);
  }
  CopyAsyncCommit();
  StageWeights(p, row, rows, padded, w);
}

// One row's scores of the warp's pools.
template <int Tiles>
QUARTET_DEVICE void ScoreRow(const IndexScoreParams& p, const KeyTiles<Tiles>& keys,
                             const __half* q /*[padded][kStride]*/, const float* w, int padded,
                             int pool, int candidates, float* scores) {
  float parts[4 * Tiles] = {};
  for (int h = 0; h < padded; h += 16) {
    FragC c[Tiles];
#pragma unroll
    for (int n = 0; n < Tiles; ++n) Clear(c[n]);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      FragA a;
      LoadA(a, q + h * kStride + k * 16, kStride);
#pragma unroll
      for (int n = 0; n < Tiles; ++n) Mma(c[n], a, keys.b[n][k]);
    }
    const float w0 = w[h + RowOfC(0)];
    const float w1 = w[h + RowOfC(2)];
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        parts[4 * n + j] += w0 * fmaxf(c[n].v[RegisterOfPart(j, 0)], 0.0f) +
                            w1 * fmaxf(c[n].v[RegisterOfPart(j, 1)], 0.0f);
      }
    }
  }
  int tile = 0;
  int column = 0;
  const float sum = SumRowsOfC<Tiles>(parts, &tile, &column);
  const int m = pool + tile * 16 + column;
  if (m < candidates) scores[m] = sum * p.scale;
}

// All rows of a run against the warp's keys. Rounded queries have two buffers: the next rows are
// copied while the present ones are scored. Of others the first rows have been staged.
template <int Tiles, bool Rounded>
QUARTET_DEVICE void ScoreRun(const IndexScoreParams& p, const Run& run, const KeyTiles<Tiles>& keys,
                             int pool, int padded, [[maybe_unused]] bool count, __half* q,
                             float* w) {
  const int stage_halves = kStageRows * padded * kStride;
  const int stage_weights = kStageRows * padded;
  const int stages = (run.end - run.begin + kStageRows - 1) / kStageRows;
  const auto rows_of = [&](int s) { return min(kStageRows, run.end - run.begin - s * kStageRows); };
  if (Rounded) StageRounded(p, run.begin, rows_of(0), padded, q, w);
  for (int s = 0; s < stages; ++s) {
    const int buffer = Rounded ? s & 1 : 0;
    const int row = run.begin + s * kStageRows;
    if (Rounded) {
      if (s + 1 < stages) {
        StageRounded(p, row + kStageRows, rows_of(s + 1), padded, q + (buffer ^ 1) * stage_halves,
                     w + (buffer ^ 1) * stage_weights);
        CopyAsyncWait<1>();
      } else {
        CopyAsyncWait<0>();
      }
    } else if (s > 0) {
      StageRounding(p, row, rows_of(s), padded, count, q, w);
    }
    __syncthreads();
    for (int r = 0; r < rows_of(s); ++r) {
      const int candidates = CandidatesOf(p, run, row + r);
      if (candidates <= p.topk || pool >= candidates) continue;
      ScoreRow<Tiles>(p, keys, q + buffer * stage_halves + r * padded * kStride,
                      w + buffer * stage_weights + r * padded, padded, pool, candidates,
                      p.scores + (row + r - p.row_begin) * p.stride);
    }
    __syncthreads();
  }
}

// Grid (any, groups of group_rows rows): a block takes every gridDim.x-th tile of pools.
template <int Warps, int Tiles, bool Rounded>
QUARTET_DEVICE void ScoreTiles(const IndexScoreParams& p) {
  constexpr int kTilePools = Warps * Tiles * 16;
  const int padded = (p.heads + 15) / 16 * 16;
  // Many rows: keys pass through shared memory before the queries come and lie in the same place.
  auto* q = reinterpret_cast<__half*>(QUARTET_DYNAMIC_SHARED());
  const int stage_halves = (Rounded ? 2 : 1) * kStageRows * padded * kStride;
  auto* w = reinterpret_cast<float*>(q + (Rounded ? max(stage_halves, Warps * 16 * kStride)
                                                  : stage_halves + Warps * 16 * kStride));
  __half* key_stage = (Rounded ? q : q + stage_halves) + Warp() * 16 * kStride;

  int row = p.row_begin + static_cast<int>(blockIdx.y) * p.group_rows;
  const int end = min(row + p.group_rows, p.row_begin + p.rows);
  while (row < end) {
    const Run run = RunFrom(p, row, end);
    row = run.end;
    if (run.pools <= p.topk) continue;
    for (int first = static_cast<int>(blockIdx.x) * kTilePools; first < run.pools;
         first += static_cast<int>(gridDim.x) * kTilePools) {
      const int pool = first + Warp() * Tiles * 16;
      KeyTiles<Tiles> keys;
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        CopyKeys(p, run, pool + n * 16, key_stage);
        CopyAsyncCommit();
        if (!Rounded) {
          StageRounding(p, run.begin, min(kStageRows, run.end - run.begin), padded, first == 0, q,
                        w);
        }
        CopyAsyncWait<0>();
        __syncwarp();
#pragma unroll
        for (int k = 0; k < kSteps; ++k) LoadB(keys.b[n][k], key_stage + k * 16, kStride);
        __syncwarp();
      }
      if (Rounded) __syncthreads();
      ScoreRun<Tiles, Rounded>(p, run, keys, pool, padded, first == 0, q, w);
    }
  }
}

#if QUARTET_ARCH >= 800
constexpr int kManyTiles = 2;
#else
constexpr int kManyTiles = 1;  // fragments take twice the registers
#endif

}  // namespace

// A few rows: as many blocks as possible share the reading of the keys.
QUARTET_KERNEL(index_score_few, 256, 2, IndexScoreParams) {
  ScoreTiles<8, 1, false>(p);
}

// Prefill: 64 rows or so pass by the keys that a block holds in registers.
QUARTET_KERNEL(index_score_many, 512, 1, IndexScoreParams) {
  ScoreTiles<16, kManyTiles, true>(p);
}

QUARTET_KERNEL(index_round, 256, 1, IndexRoundParams) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= p.count) return;
  const float4 v = reinterpret_cast<const float4*>(p.q)[i];
  reinterpret_cast<uint2*>(p.q_f16)[i] =
      make_uint2(ToHalf2(v.x, v.y, p.saturation), ToHalf2(v.z, v.w, p.saturation));
}

// Any width and FP32 keys, without tensor cores: a warp a pool. Grid (any, rows).
QUARTET_KERNEL(index_score_plain, 256, 1, IndexScoreParams) {
  const int row = p.row_begin + static_cast<int>(blockIdx.y);
  const RowPlace place = PlaceOfRow(p.step, row);
  const int candidates = (place.position + 1) / p.kpool;
  if (candidates <= p.topk) return;
  const int dim = p.keys.width;
  const int32_t* pages = p.step.pages + place.segment.page_begin;
  for (int m = static_cast<int>(blockIdx.x) * 8 + Warp(); m < candidates;
       m += static_cast<int>(gridDim.x) * 8) {
    const unsigned char* key = PagedRow(p.keys, pages, m);
    float score = 0.0f;
    for (int h = 0; h < p.heads; ++h) {
      const int64_t at = static_cast<int64_t>(row) * p.heads + h;
      float dot = 0.0f;
      for (int c = Lane(); c < dim; c += 32) {
        dot += p.q[at * dim + c] * LoadElement(p.keys.form, key, c);
      }
      score += p.w[at] * fmaxf(WarpSum(dot), 0.0f);
    }
    if (Lane() == 0) p.scores[blockIdx.y * p.stride + m] = score * p.scale;
  }
}

}  // namespace quartet::cuda
