// The boundary between two sublayers: expand with the former mix, map, collapse, norm.

#include "kernels/cuda/device/memory.cuh"
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
  AwaitPrevious();
  LetNextIn();
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

QUARTET_EARLY_KERNEL(mhc_spread_f16, kMhcSpreadThreads, 1, MhcSiteParams) {
  SpreadRows<FnF16, 1>(p);
}
QUARTET_EARLY_KERNEL(mhc_spread_f32, kMhcSpreadThreads, 1, MhcSiteParams) {
  SpreadRows<FnF32, 1>(p);
}
QUARTET_EARLY_KERNEL(mhc_spread4_f16, kMhcSpreadThreads, 2, MhcSiteParams) {
  SpreadRows<FnF16, 4>(p);
}
QUARTET_EARLY_KERNEL(mhc_spread4_f32, kMhcSpreadThreads, 1, MhcSiteParams) {
  SpreadRows<FnF32, 4>(p);
}

// One block a row: the ninth warp maps, and walks the iterations while eight warps collapse.
QUARTET_EARLY_KERNEL(mhc_collapse, kMhcCollapseBlock, 1, MhcSiteParams) {
  __shared__ float scratch[kMhcCollapseBlock / 32];
  __shared__ float pre[kMhcStreams];
  constexpr int kMapWarp = kCollapseThreads / 32;
  const int64_t row = blockIdx.x;
  StreamsAhead ahead;
  NormAhead norm;
  float comb = 0.0f;
  if (Warp() < kMapWarp) LoadAhead(p, norm);
  AwaitPrevious();
  LetNextIn();
  if (Warp() < kMapWarp) {
    LoadAhead(p, row, ahead);
  } else {
    comb = MapRow(p, row, p.sums + row * p.slices * kMhcSums, p.slices, pre);
  }
  __syncthreads();
  if (Warp() == kMapWarp) Sinkhorn(p, row, comb);
  CollapseRow(p, row, pre, ahead, norm, scratch);
}

// ---- many rows: one block takes kMhcGroupRows of them

// A warp has kWarpRows rows and walks over the slices: old streams in registers, all 24 products
// too. The block's warps go slice by slice together and find fn in shared memory ([buffers] slices,
// the next one on its way where there are two buffers).
constexpr int kWarpRows = kMhcGroupRows / (kCollapseThreads / 32);

template <class Fn>
constexpr int kFnSlice = kMhcMap* kFnChunks<Fn> * 32;  // of 16 bytes

template <class Fn>
QUARTET_DEVICE void StageFn(const MhcSiteParams& p, int slice, uint4* to) {
  const uint4* from = p.fn + static_cast<int64_t>(slice) * kFnSlice<Fn>;
  for (int i = static_cast<int>(threadIdx.x); i < kFnSlice<Fn>; i += kCollapseThreads) {
    CopyAsync16(to + i, from + i);
  }
  CopyAsyncCommit();
}

// This lane's share of the products of a slice, summed over the warp: value i of the kWarpRows x
// kMhcMap ones is added to totals[i / 32] of lane i % 32.
constexpr int kTotals = (kWarpRows * kMhcMap + 31) / 32;

template <class Fn>
QUARTET_DEVICE void AddSlice(float (&totals)[kTotals], const uint4* fn_slice,
                             const StreamQuads (&z)[kWarpRows]) {
  float sums[kWarpRows * kMhcMap] = {};
#pragma unroll
  for (int o = 0; o < kMhcMap; ++o) {
    FnRows<Fn, 1> fn;
#pragma unroll
    for (int k = 0; k < kFnChunks<Fn>; ++k) {
      fn.chunks[0][k] = fn_slice[(o * kFnChunks<Fn> + k) * 32 + Lane()];
    }
    AddProducts<Fn, 1, kWarpRows, kMhcMap>(sums + o, fn, z);
  }
#pragma unroll
  for (int set = 0; set < kTotals; ++set) {
    float values[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      values[i] = 32 * set + i < kWarpRows * kMhcMap ? sums[32 * set + i] : 0.0f;
    }
    totals[set] += WarpSumOfEach(values);
  }
}

template <class Fn, int kBuffers>
QUARTET_DEVICE void GroupOfRows(const MhcSiteParams& p) {
  constexpr int kMix = kMhcStreams * (1 + kMhcStreams);
  __shared__ float scratch[kCollapseThreads / 32];
  __shared__ float pre[kMhcGroupRows][kMhcStreams];
  __shared__ float sums[kMhcGroupRows][kMhcSums];
  __shared__ __align__(16) float mixes[kMhcGroupRows][kMix];  // post, then comb
  uint4* buffers = reinterpret_cast<uint4*>(QUARTET_DYNAMIC_SHARED());
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kMhcGroupRows;
  const int rows = min(kMhcGroupRows, static_cast<int>(p.rows - begin));
  const int first_row = Warp() * kWarpRows;
  const int lane = Lane();
  // Rows beyond the last read the last one again and write nothing.
  const auto row_of = [&](int r) { return min(first_row + r, rows - 1); };
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    if (p.begin != 0 || lane >= kMix) continue;
    const int64_t row = begin + row_of(r);
    mixes[first_row + r][lane] = lane < kMhcStreams
                                     ? p.post[row * kMhcStreams + lane]
                                     : p.comb[row * kMhcStreams * kMhcStreams + lane - kMhcStreams];
  }
  __syncwarp();

  float totals[kTotals] = {};
  float squares[kWarpRows] = {};
  if (kBuffers > 1) StageFn<Fn>(p, 0, buffers);
  for (int slice = 0; slice < p.slices; ++slice) {
    uint4* fn = buffers + slice % kBuffers * kFnSlice<Fn>;
    if (kBuffers == 1) {
      __syncthreads();
      StageFn<Fn>(p, slice, fn);
    }
    const int quad = slice * (kMhcSlice / 4) + lane;
    StreamQuads z[kWarpRows];
    float4 y[kWarpRows];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) y[r] = LoadOld(p, z[r], begin + row_of(r), quad);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const float* mix = mixes[first_row + r];
      NewStreams(p, z[r], y[r], mix, mix + kMhcStreams);
      if (first_row + r < rows && quad < p.hidden / 4) {
        StoreStreams(z[r], p.streams, begin + first_row + r, p.hidden, quad);
      }
      squares[r] += WarpSum(SumOfSquares(z[r]));
    }
    CopyAsyncWait<0>();
    __syncthreads();  // this slice of fn has come, and nobody reads the one before it
    if (kBuffers > 1 && slice + 1 < p.slices) {
      StageFn<Fn>(p, slice + 1, buffers + (slice + 1) % kBuffers * kFnSlice<Fn>);
    }
    AddSlice<Fn>(totals, fn, z);
  }
#pragma unroll
  for (int set = 0; set < kTotals; ++set) {
    const int at = 32 * set + lane;
    if (at < kWarpRows * kMhcMap) sums[first_row + at / kMhcMap][at % kMhcMap] = totals[set];
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    if (lane == 0) sums[first_row + r][kMhcMap] = squares[r];
  }
  __syncwarp();
  for (int row = first_row; row < min(first_row + kWarpRows, rows); ++row) {
    Sinkhorn(p, begin + row, MapRow(p, begin + row, sums[row], 1, pre[row]));
  }
  __syncthreads();
  NormAhead norm;
  LoadAhead(p, norm);
  for (int r = 0; r < rows; ++r) {
    StreamsAhead ahead;
    LoadAhead(p, begin + r, ahead);
    CollapseRow(p, begin + r, pre[r], ahead, norm, scratch);
  }
}

QUARTET_KERNEL(mhc_group_f16, kCollapseThreads, 2, MhcSiteParams) {
  GroupOfRows<FnF16, 2>(p);
}
QUARTET_KERNEL(mhc_group_f32, kCollapseThreads, 2, MhcSiteParams) {
  GroupOfRows<FnF32, 1>(p);
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
