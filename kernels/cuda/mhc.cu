// The boundary between two sublayers: expand with the former mix, map, collapse, norm.

#include "kernels/cuda/mhc_dots.cuh"

namespace quartet::cuda {

// Expands one quad of a row's channels, or copies y into every stream.
QUARTET_DEVICE void NewStreams(const MhcSiteParams& p, StreamQuads& s, float4 y, const float* post,
                               const float* comb) {
  if (p.begin == 0) {
    Expand(s, y, post, comb);
  } else {
#pragma unroll
    for (int j = 0; j < kMhcStreams; ++j) SetQuad(s, j, y);
  }
}

// Loads what NewStreams needs; zeros beyond the row.
QUARTET_DEVICE float4 LoadOld(const MhcSiteParams& p, StreamQuads& s, int64_t row, int quad) {
#pragma unroll
  for (int e = 0; e < 4 * kMhcStreams; ++e) s.v[e] = 0.0f;
  if (quad >= p.hidden / 4) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (p.begin == 0) LoadStreams(s, p.streams, row, p.hidden, quad);
  return SumPartials(p.partials, row * p.hidden, quad);
}

// ---- x of a row: eight warps, quads dealt to threads in turn

// What a thread loads ahead of the map: its first quads, which are all of them up to 4096 channels.
constexpr int kAhead = 4;
struct StreamsAhead {
  StreamQuads s[kAhead];
};
struct NormAhead {
  float4 w[kAhead];
};

QUARTET_DEVICE int AheadQuad(int a) {
  return static_cast<int>(threadIdx.x) + a * kCollapseThreads;
}
QUARTET_DEVICE void LoadAhead(const MhcSiteParams& p, int64_t row, StreamsAhead& ahead) {
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    if (AheadQuad(a) < p.hidden / 4) {
      LoadStreams(ahead.s[a], p.streams, row, p.hidden, AheadQuad(a));
    }
  }
}
QUARTET_DEVICE void LoadAhead(const MhcSiteParams& p, NormAhead& ahead) {
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    if (AheadQuad(a) < p.hidden / 4) ahead.w[a] = LoadQuad(p.norm, AheadQuad(a));
  }
}

// All threads of the block call; warps from the ninth on only wait.
QUARTET_DEVICE void CollapseRow(const MhcSiteParams& p, int64_t row, const float* pre,
                                const StreamsAhead& ahead, const NormAhead& norm, float* scratch) {
  const int quads = threadIdx.x < kCollapseThreads ? p.hidden / 4 : 0;
  float4 x[kAhead];
  float squares = 0.0f;
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    if (AheadQuad(a) >= quads) continue;
    x[a] = Collapse(ahead.s[a], pre);
    squares += SumOfSquares(x[a]);
  }
  float* out = p.x + row * p.hidden;
  for (int q = AheadQuad(kAhead); q < quads; q += kCollapseThreads) {
    StreamQuads s;
    LoadStreams(s, p.streams, row, p.hidden, q);
    const float4 v = Collapse(s, pre);
    squares += SumOfSquares(v);
    StoreQuad(out, q, v);
  }
  const float scale =
      RootScale(BlockSum(squares, scratch), static_cast<float>(p.hidden), p.site_eps);
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    if (AheadQuad(a) < quads) StoreQuad(out, AheadQuad(a), Normed(x[a], scale, norm.w[a]));
  }
  for (int q = AheadQuad(kAhead); q < quads; q += kCollapseThreads) {
    StoreQuad(out, q, Normed(LoadQuad(out, q), scale, LoadQuad(p.norm, q)));
  }
}

// ---- few rows: a row is spread over many blocks, then a second launch puts it together

// Grid (slices, ceil(rows / kRows)). Eight warps, three rows of fn each, share a slice; all of them
// expand it.
template <class Fn, int kRows>
QUARTET_DEVICE void SpreadRows(const MhcSiteParams& p) {
  constexpr int kOuts = kMhcMap / (kMhcSpreadThreads / 32);
  const int slice = static_cast<int>(blockIdx.x);
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kRows;
  const int rows = min(kRows, static_cast<int>(p.rows - begin));
  const int warp = Warp();
  const int quad = slice * (kMhcSlice / 4) + Lane();
  FnRows<Fn, kOuts> fn;
  LoadFn<Fn, kOuts>(fn, p, slice, warp * kOuts);
  StreamQuads z[kRows];
  float4 y[kRows];
  // Rows beyond the last read the last one again and write nothing.
#pragma unroll
  for (int r = 0; r < kRows; ++r) y[r] = LoadOld(p, z[r], begin + min(r, rows - 1), quad);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = begin + min(r, rows - 1);
    NewStreams(p, z[r], y[r], p.post + row * kMhcStreams, p.comb + row * kMhcStreams * kMhcStreams);
  }
  __syncthreads();  // every warp has read the old streams
  const auto sums_of = [&](int r) { return p.sums + ((begin + r) * p.slices + slice) * kMhcSums; };
  // The warps take turns at what is done once a row.
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (warp != r || r >= rows) continue;
    if (quad < p.hidden / 4) StoreStreams(z[r], p.streams, begin + r, p.hidden, quad);
    const float squares = WarpSum(SumOfSquares(z[r]));
    if (Lane() == 0) sums_of(r)[kMhcMap] = squares;
  }
  float products[kRows * kOuts] = {};
  AddProducts<Fn, kOuts, kRows, kOuts>(products, fn, z);
#pragma unroll
  for (int i = 0; i < kRows * kOuts; ++i) {
    const float sum = WarpSum(products[i]);
    if (Lane() == 0 && i / kOuts < rows) sums_of(i / kOuts)[warp * kOuts + i % kOuts] = sum;
  }
}

QUARTET_KERNEL(mhc_spread_f16, kMhcSpreadThreads, 1, MhcSiteParams) {
  SpreadRows<FnF16, 1>(p);
}
QUARTET_KERNEL(mhc_spread_f32, kMhcSpreadThreads, 1, MhcSiteParams) {
  SpreadRows<FnF32, 1>(p);
}
QUARTET_KERNEL(mhc_spread4_f16, kMhcSpreadThreads, 1, MhcSiteParams) {
  SpreadRows<FnF16, 4>(p);
}
QUARTET_KERNEL(mhc_spread4_f32, kMhcSpreadThreads, 1, MhcSiteParams) {
  SpreadRows<FnF32, 4>(p);
}

// One block a row: the ninth warp maps, and walks the iterations while eight warps collapse.
QUARTET_KERNEL(mhc_collapse, kMhcCollapseBlock, 1, MhcSiteParams) {
  __shared__ float scratch[kMhcCollapseBlock / 32];
  __shared__ float pre[kMhcStreams];
  constexpr int kMapWarp = kCollapseThreads / 32;
  const int64_t row = blockIdx.x;
  StreamsAhead ahead;
  NormAhead norm;
  float comb = 0.0f;
  if (Warp() < kMapWarp) {
    LoadAhead(p, row, ahead);
    LoadAhead(p, norm);
  } else {
    comb = MapRow(p, row, p.sums + row * p.slices * kMhcSums, pre);
  }
  __syncthreads();
  if (Warp() == kMapWarp) Sinkhorn(p, row, comb);
  CollapseRow(p, row, pre, ahead, norm, scratch);
}

// ---- many rows: one block takes kMhcGroupRows of them

// kTeams teams of warps share the rows, the warps of a team the slices; the teams walk the slices
// together, so that all but the first find fn in the first cache. A warp holds its rows' quads of
// all streams and all 24 products in registers. Shared memory: [kMhcGroupRows, slices, kMhcSums]
// floats.
template <class Fn, int kTeams>
QUARTET_DEVICE void GroupOfRows(const MhcSiteParams& p) {
  constexpr int kTeamWarps = 8 / kTeams;
  constexpr int kRows = kMhcGroupRows / kTeams;
  constexpr int kMix = kMhcStreams * (1 + kMhcStreams);
  __shared__ float scratch[8];
  __shared__ float pre[kMhcGroupRows][kMhcStreams];
  __shared__ __align__(16) float mixes[kMhcGroupRows][kMix];  // post, then comb
  float* all_sums = reinterpret_cast<float*>(QUARTET_DYNAMIC_SHARED());
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kMhcGroupRows;
  const int rows = min(kMhcGroupRows, static_cast<int>(p.rows - begin));
  const int warp = Warp();
  const int lane = Lane();
  if (warp < rows && lane < kMix && p.begin == 0) {
    const int64_t row = begin + warp;
    mixes[warp][lane] = lane < kMhcStreams
                            ? p.post[row * kMhcStreams + lane]
                            : p.comb[row * kMhcStreams * kMhcStreams + lane - kMhcStreams];
  }
  __syncthreads();

  const int first_row = warp / kTeamWarps * kRows;
  for (int slice = warp % kTeamWarps; slice < p.slices && first_row < rows; slice += kTeamWarps) {
    const int quad = slice * (kMhcSlice / 4) + lane;
    StreamQuads z[kRows];
    float4 y[kRows];
    // Rows beyond the last read the last one again and write nothing.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      y[r] = LoadOld(p, z[r], begin + min(first_row + r, rows - 1), quad);
    }
    float sums[kRows * kMhcMap] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row + r;
      const float* mix = mixes[min(row, rows - 1)];
      NewStreams(p, z[r], y[r], mix, mix + kMhcStreams);
      if (row < rows && quad < p.hidden / 4) {
        StoreStreams(z[r], p.streams, begin + row, p.hidden, quad);
      }
      const float squares = WarpSum(SumOfSquares(z[r]));
      if (lane == 0) all_sums[(row * p.slices + slice) * kMhcSums + kMhcMap] = squares;
    }
#pragma unroll
    for (int o = 0; o < kMhcMap; ++o) {
      FnRows<Fn, 1> fn;
      LoadFn<Fn, 1>(fn, p, slice, o);
      AddProducts<Fn, 1, kRows, kMhcMap>(sums + o, fn, z);
    }
    // Lane l gets the sum of the value l of each set of 32; the last set may be a part.
    constexpr int kSets = (kRows * kMhcMap + 31) / 32;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      float values[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        values[i] = 32 * set + i < kRows * kMhcMap ? sums[32 * set + i] : 0.0f;
      }
      const float sum = WarpSumOfEach(values);
      const int at = 32 * set + lane;
      if (at < kRows * kMhcMap) {
        all_sums[((first_row + at / kMhcMap) * p.slices + slice) * kMhcSums + at % kMhcMap] = sum;
      }
    }
  }
  __syncthreads();
  if (warp < rows) {
    const float* sums = all_sums + warp * p.slices * kMhcSums;
    Sinkhorn(p, begin + warp, MapRow(p, begin + warp, sums, pre[warp]));
  }
  __syncthreads();
  NormAhead norm;
  LoadAhead(p, norm);
  StreamsAhead ahead;
  if constexpr (kTeams == 2) LoadAhead(p, begin, ahead);
  for (int r = 0; r < rows; ++r) {
    if constexpr (kTeams == 2) {
      StreamsAhead next;
      if (r + 1 < rows) LoadAhead(p, begin + r + 1, next);
      CollapseRow(p, begin + r, pre[r], ahead, norm, scratch);
      ahead = next;
    } else {
      LoadAhead(p, begin + r, ahead);
      CollapseRow(p, begin + r, pre[r], ahead, norm, scratch);
    }
  }
}

QUARTET_KERNEL(mhc_group_f16, 256, 1, MhcSiteParams) {
  GroupOfRows<FnF16, 2>(p);
}
QUARTET_KERNEL(mhc_group_f32, 256, 1, MhcSiteParams) {
  GroupOfRows<FnF32, 2>(p);
}
QUARTET_KERNEL(mhc_group4_f16, 256, 2, MhcSiteParams) {
  GroupOfRows<FnF16, 4>(p);
}

// ---- after the last sublayer: one block a row, which waits in shared memory ([hidden] floats)

QUARTET_KERNEL(mhc_finish, 1024, 1, MhcFinishParams) {
  __shared__ float scratch[32];
  float* mean = reinterpret_cast<float*>(QUARTET_DYNAMIC_SHARED());
  const int64_t row = blockIdx.x;
  const int threads = static_cast<int>(blockDim.x);
  const float weight[kMhcStreams] = {0.25f, 0.25f, 0.25f, 0.25f};
  float squares = 0.0f;
  for (int q = static_cast<int>(threadIdx.x); q < p.hidden / 4; q += threads) {
    StreamQuads s;
    LoadStreams(s, p.streams, row, p.hidden, q);
    Expand(s, SumPartials(p.partials, row * p.hidden, q), p.post + row * kMhcStreams,
           p.comb + row * kMhcStreams * kMhcStreams);
    StoreStreams(s, p.streams, row, p.hidden, q);
    const float4 v = Collapse(s, weight);
    squares += SumOfSquares(v);
    StoreQuad(mean, q, v);
  }
  const float scale = RootScale(BlockSum(squares, scratch), static_cast<float>(p.hidden), p.eps);
  for (int q = static_cast<int>(threadIdx.x); q < p.hidden / 4; q += threads) {
    StoreQuad(p.h + row * p.hidden, q, Normed(LoadQuad(mean, q), scale, LoadQuad(p.norm, q)));
  }
}

}  // namespace quartet::cuda
