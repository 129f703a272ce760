// Attention of absorbed queries over selected latents, which are keys and values at once: logits by
// the tile primitive on FP16 operands, softmax and sums in FP32, one pass over tiles of 64 keys.

#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/dsa_paged.cuh"
#include "kernels/cuda/sparse_mla_params.h"

namespace quartet::cuda {
namespace {

constexpr int kKeys = kAttendKeys;
constexpr int kParts = 2;  // of the width in the sums of a logit
constexpr int kLogitStride = kKeys + 8;
// How much larger than the reference of the exponents a logit may be, in units of log 2, before the
// sums are rescaled. Weights up to 2^8 lose nothing in FP16.
constexpr float kSlack = 8.0f;
constexpr int kWeightStride = kKeys + 8;

// What one row attends to, in order: the tokens of its pools, then the tail, which counts as one
// more pool. A pool's tokens lie one after the other in one page.
struct KeyList {
  const int32_t* pools;
  const int32_t* pages;
  int pooled;      // pools that were selected
  int tail_begin;  // position
  int count;       // tokens
};

QUARTET_DEVICE KeyList KeysOfRow(const AttendParams& p, int row) {
  const RowPlace place = PlaceOfRow(p.step, row);
  const int last = p.tails != nullptr ? p.tails[row] : place.position;
  KeyList keys;
  keys.pools = p.pools + static_cast<int64_t>(row) * p.topk;
  keys.pages = p.step.pages + place.segment.page_begin;
  keys.pooled = p.counts[row];
  keys.tail_begin = (last + 1) / p.kpool * p.kpool;
  keys.count = keys.pooled * p.kpool + last + 1 - keys.tail_begin;
  return keys;
}

// The pool of the list that holds its `key`-th token.
QUARTET_DEVICE int PoolOf(const AttendParams& p, int key) {
  return p.kpool == 4 ? key >> 2 : key / p.kpool;
}

QUARTET_DEVICE uint4 WidenCodes(const uint2& codes) {
  const uint2 low = E4m3ToHalf4(codes.x);
  const uint2 high = E4m3ToHalf4(codes.y);
  return make_uint4(low.x, low.y, high.x, high.y);
}

// Eight stored values as FP16.
QUARTET_DEVICE uint4 LoadEight(Stored form, const unsigned char* from) {
  if (form == Stored::kF32) return RoundEight(reinterpret_cast<const float*>(from), nullptr);
  if (form == Stored::kF16) return *reinterpret_cast<const uint4*>(from);
  return WidenCodes(*reinterpret_cast<const uint2*>(from));
}

// The same in two steps, so that several loads are under way before the first is widened.
template <Stored Form>
QUARTET_DEVICE uint4 LoadRaw(const unsigned char* from) {
  if constexpr (Form == Stored::kE4m3) {
    const uint2 codes = LoadStreaming(reinterpret_cast<const uint2*>(from));
    return make_uint4(codes.x, codes.y, 0, 0);
  } else {
    return LoadEight(Form, from);
  }
}
template <Stored Form>
QUARTET_DEVICE uint4 Widened(const uint4& raw) {
  if constexpr (Form == Stored::kE4m3) return WidenCodes(make_uint2(raw.x, raw.y));
  return raw;
}

// The shared memory of a block, and what its threads do with it: 64 keys at a time for up to Heads
// heads of one row.
template <int Heads, int Width, int Threads>
struct Tile {
  static constexpr int kThreads = Threads;
  static constexpr int kWarps = Threads / 32;
  static constexpr int kStride = Width + 8;  // halves
  static constexpr int kHeadTiles = Heads / 16;
  static constexpr int kColumnTiles = Width / kWarps / 16;  // of the weighted sum, a warp
  // Of the logits [Heads, 64] a warp has kM x kN tiles over one part of the width.
  static constexpr int kM = kHeadTiles == 1 ? 1 : 2;
  static constexpr int kN = kHeadTiles / kM * (kKeys / 16) * kParts / kWarps;
  static constexpr int kGroup = kThreads / Heads;  // threads a head in the softmax
  static constexpr int kPieces = Width / 8;        // of a row, eight values each

  __half* q;                    // [Heads][kStride]
  __half* latents;              // [64][kStride]
  float* logits;                // [Heads][kLogitStride]
  __half* weights;              // [Heads][kWeightStride]
  float* rescale;               // [Heads]
  const unsigned char** pools;  // [topk + 1]: where the pools of this block's tiles lie
  unsigned char* raw;           // [64] stored latents of the next tile

  QUARTET_DEVICE Tile(unsigned char* shared, int topk) {
    q = reinterpret_cast<__half*>(shared);
    latents = q + Heads * kStride;
    logits = reinterpret_cast<float*>(latents + kKeys * kStride);
    weights = reinterpret_cast<__half*>(logits + Heads * kLogitStride);
    rescale = reinterpret_cast<float*>(weights + Heads * kWeightStride);
    pools = reinterpret_cast<const unsigned char**>(shared + AttendSharedBytes(Heads, Width, 0, 0));
    raw = reinterpret_cast<unsigned char*>(pools) + PoolTableBytes(topk);
  }

  // Queries of `heads` heads; zeros where there is no head or no column.
  QUARTET_DEVICE void LoadQueries(const uint16_t* from, int heads, int rank) const {
    for (int i = static_cast<int>(threadIdx.x); i < Heads * kPieces; i += kThreads) {
      const int h = i / kPieces;
      const int c = i % kPieces * 8;
      *reinterpret_cast<uint4*>(q + h * kStride + c) =
          h < heads && c < rank
              ? *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(h) * rank + c)
              : make_uint4(0, 0, 0, 0);
    }
  }

  // Fills `pools` from pool `first` of the list on.
  QUARTET_DEVICE void FindPools(const AttendParams& p, const KeyList& keys, int first,
                                int end) const {
    for (int i = first + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
      const int position = i < keys.pooled ? keys.pools[i] * p.kpool : keys.tail_begin;
      pools[i - first] = PagedRow(p.latents, keys.pages, position);
    }
  }
  // Where the latent of key `key` lies, if `pools` begins with the pool of key `first`.
  QUARTET_DEVICE const unsigned char* LatentOf(const AttendParams& p, int first, int key) const {
    const int pool = PoolOf(p, key);
    const int64_t inside = key - pool * p.kpool;
    return pools[pool - PoolOf(p, first)] + inside * p.latents.width * StoredBytes(p.latents.form);
  }

  // The latents of `count` keys from `key` on out of global memory, as FP16; zeros beyond them.
  QUARTET_DEVICE void LoadLatents(const AttendParams& p, int first, int key, int count) const {
    if (p.latents.form == Stored::kE4m3) {
      Gather<Stored::kE4m3, 8>(p, first, key, count);
    } else if (p.latents.form == Stored::kF16) {
      Gather<Stored::kF16, 4>(p, first, key, count);
    } else {
      Gather<Stored::kF32, 1>(p, first, key, count);
    }
  }

  // Begins to copy them as they are stored (FP16 or E4M3).
  QUARTET_DEVICE void CopyRaw(const AttendParams& p, int first, int key, int count) const {
    const int narrow = p.latents.form == Stored::kE4m3 ? 1 : 0;
    const int pieces = Width * 2 / 16 >> narrow;  // of 16 bytes
    const int row_pieces = p.latents.width * 2 / 16 >> narrow;
#pragma unroll 4
    for (int row = Warp(); row < kKeys; row += kWarps) {
      const bool valid = row < count;
      const unsigned char* latent = LatentOf(p, first, key + (valid ? row : 0));
      for (int i = Lane(); i < pieces; i += 32) {
        const bool here = valid && i < row_pieces;
        CopyAsync16(raw + (row * pieces + i) * 16, latent + (here ? i * 16 : 0), here);
      }
    }
    CopyAsyncCommit();
  }
  // The copied ones as FP16.
  QUARTET_DEVICE void WidenRaw(Stored form) const {
    const int bytes = 8 * StoredBytes(form);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kPieces; i += kThreads) {
      *reinterpret_cast<uint4*>(latents + i / kPieces * kStride + i % kPieces * 8) =
          LoadEight(form, raw + i * bytes);
    }
  }

  // logits[h][key] = q[h] . latents[key]. Ends with a barrier.
  QUARTET_DEVICE void Logits() const {
    constexpr int kSteps = Width / kParts / 16;
    constexpr int kWarpsAcross = kKeys / (16 * kN);
    const int part = Warp() / (kWarps / kParts);
    const int inside = Warp() % (kWarps / kParts);
    const int head = inside / kWarpsAcross * kM * 16;
    const int key = inside % kWarpsAcross * kN * 16;
    const __half* a = q + head * kStride + part * (Width / kParts);
    const __half* b = latents + key * kStride + part * (Width / kParts);
    FragC c[kM][kN];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) Clear(c[m][n]);
    }
#pragma unroll 4
    for (int k = 0; k < kSteps; ++k) {
      FragA fa[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) LoadA(fa[m], a + m * 16 * kStride + k * 16, kStride);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        FragB fb;
        LoadB(fb, b + n * 16 * kStride + k * 16, kStride);
#pragma unroll
        for (int m = 0; m < kM; ++m) Mma(c[m][n], fa[m], fb);
      }
    }
    // The second part first puts its sums down, then the first part adds them to its own.
    if (part == 1) PutLogits<false>(c, head, key);
    __syncthreads();
    if (part == 0) PutLogits<true>(c, head, key);
    __syncthreads();
  }

  // The softmax's numerators of a tile, rounded to FP16, into `weights`; brings the reference of
  // the exponents and the sum of this thread's head up to date and says by what earlier sums are to
  // be rescaled. Returns whether any head rescales. Ends with a barrier.
  QUARTET_DEVICE bool Softmax(float scale_log2, int valid, float* reference, float* sum) const {
    constexpr int kEach = kKeys / kGroup;
    const int head = static_cast<int>(threadIdx.x) / kGroup;
    const int first = static_cast<int>(threadIdx.x) % kGroup;
    float x[kEach];
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int key = first + i * kGroup;
      x[i] = key < valid ? logits[head * kLogitStride + key] * scale_log2 : -INFINITY;
      largest = fmaxf(largest, x[i]);
    }
    largest = WarpMax<kGroup>(largest);
    const float base = largest > *reference + kSlack ? largest : *reference;
    float added = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const __half weight = __float2half_rn(exp2f(x[i] - base));
      weights[head * kWeightStride + first + i * kGroup] = weight;
      added += __half2float(weight);
    }
    const float factor = exp2f(*reference - base);
    *sum = *sum * factor + WarpSum<kGroup>(added);
    *reference = base;
    if (first == 0) rescale[head] = factor;
    return __syncthreads_or(factor != 1.0f) != 0;
  }

  // z[h] += sum_key weights[h][key] latents[key], this warp's columns.
  QUARTET_DEVICE void AddWeighted(FragC (&z)[kHeadTiles][kColumnTiles]) const {
    const __half* values = latents + Warp() * kColumnTiles * 16;
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      FragA a[kHeadTiles];
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
        LoadA(a[m], weights + m * 16 * kWeightStride + k, kWeightStride);
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        FragB b;
        LoadBTransposed(b, values + k * kStride + n * 16, kStride);
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) Mma(z[m][n], a[m], b);
      }
    }
  }

  // z[h] *= rescale[h].
  QUARTET_DEVICE void Rescale(FragC (&z)[kHeadTiles][kColumnTiles]) const {
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
      const float low = rescale[m * 16 + RowOfC(0)];
      const float high = rescale[m * 16 + RowOfC(2)];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 8; ++i) z[m][n].v[i] *= (i >> 1 & 1) != 0 ? high : low;
      }
    }
  }

 private:
  // Every piece of the tile, up to MaxBatch of them in flight a thread.
  template <Stored Form, int MaxBatch>
  QUARTET_DEVICE void Gather(const AttendParams& p, int first, int key, int count) const {
    constexpr int kEach = kKeys * kPieces / kThreads;
    constexpr int kBatch = MaxBatch < kEach ? MaxBatch : kEach;
    static_assert(kEach % kBatch == 0);
    for (int base = static_cast<int>(threadIdx.x); base < kKeys * kPieces;
         base += kBatch * kThreads) {
      uint4 v[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int i = base + u * kThreads;
        const int row = i / kPieces;
        const int c = i % kPieces * 8;
        v[u] = row < count && c < p.latents.width
                   ? LoadRaw<Form>(LatentOf(p, first, key + row) + c * StoredBytes(Form))
                   : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int i = base + u * kThreads;
        *reinterpret_cast<uint4*>(latents + i / kPieces * kStride + i % kPieces * 8) =
            Widened<Form>(v[u]);
      }
    }
  }

  template <bool Add>
  QUARTET_DEVICE void PutLogits(const FragC (&c)[kM][kN], int head, int key) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {  // neighbouring columns
          auto* to = reinterpret_cast<float2*>(logits + (head + m * 16 + RowOfC(i)) * kLogitStride +
                                               key + n * 16 + ColOfC(i));
          float2 v = make_float2(c[m][n].v[i], c[m][n].v[i + 1]);
          if (Add) v = make_float2(v.x + to->x, v.y + to->y);
          *to = v;
        }
      }
    }
  }
};

// Grid (splits, ceil(heads / Heads), rows). `Ahead`: the next tile's latents are on their way while
// the present ones are used; not for FP32 ones.
template <int Heads, int Width, int Threads, bool Ahead>
QUARTET_DEVICE void AttendRow(const AttendParams& p) {
  using Shape = Tile<Heads, Width, Threads>;
  const Shape tile(QUARTET_DYNAMIC_SHARED(), p.topk);
  const int split = static_cast<int>(blockIdx.x);
  const int head0 = static_cast<int>(blockIdx.y) * Heads;
  const int heads = min(Heads, p.heads - head0);
  const int rank = p.latents.width;
  const int64_t local_row = blockIdx.z;
  const KeyList keys = KeysOfRow(p, p.row_begin + static_cast<int>(blockIdx.z));
  const int begin = split * p.split_tiles;
  const int end = min(begin + p.split_tiles, (keys.count + kKeys - 1) / kKeys);
  if (p.splits > 1 && begin >= end) return;

  uint16_t* q = p.q + (local_row * p.heads + head0) * rank;
  const int first = begin * kKeys;
  tile.FindPools(p, keys, first / p.kpool, (min(end * kKeys, keys.count) + p.kpool - 1) / p.kpool);
  tile.LoadQueries(q, heads, rank);
  FragC z[Shape::kHeadTiles][Shape::kColumnTiles];
#pragma unroll
  for (int m = 0; m < Shape::kHeadTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kColumnTiles; ++n) Clear(z[m][n]);
  }
  float reference = -INFINITY;  // of the head that this thread has in the softmax
  float sum = 0.0f;
  __syncthreads();
  const auto valid = [&](int t) { return keys.count - t * kKeys; };
  if (Ahead && begin < end) tile.CopyRaw(p, first, first, valid(begin));
  for (int t = begin; t < end; ++t) {
    if (Ahead) {
      CopyAsyncWait<0>();
      __syncthreads();
      tile.WidenRaw(p.latents.form);
      __syncthreads();
      if (t + 1 < end) tile.CopyRaw(p, first, (t + 1) * kKeys, valid(t + 1));
    } else {
      tile.LoadLatents(p, first, t * kKeys, valid(t));
      __syncthreads();
    }
    tile.Logits();
    const bool rescales = tile.Softmax(p.scale_log2, valid(t), &reference, &sum);
    if (rescales && t > begin) tile.Rescale(z);
    tile.AddWeighted(z);
    __syncthreads();
  }

  const int head = static_cast<int>(threadIdx.x) / Shape::kGroup;
  const bool speaks = static_cast<int>(threadIdx.x) % Shape::kGroup == 0 && head < heads;
  const int64_t part = (local_row * p.splits + split) * p.heads + head0;
  if (p.splits > 1) {
    if (speaks) {
      p.part_max[part + head] = reference;
      p.part_sum[part + head] = sum;
    }
  } else {
    if (speaks) tile.rescale[head] = sum > 0.0f ? 1.0f / sum : 0.0f;
    __syncthreads();
    tile.Rescale(z);
  }
#pragma unroll
  for (int m = 0; m < Shape::kHeadTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 8; i += 2) {  // neighbouring columns
        const int h = m * 16 + RowOfC(i);
        const int c = (Warp() * Shape::kColumnTiles + n) * 16 + ColOfC(i);
        if (h >= heads || c >= rank) continue;
        if (p.splits > 1) {
          *reinterpret_cast<float2*>(p.parts + (part + h) * rank + c) =
              make_float2(z[m][n].v[i], z[m][n].v[i + 1]);
        } else {
          *reinterpret_cast<uint32_t*>(q + static_cast<int64_t>(h) * rank + c) =
              ToHalf2(z[m][n].v[i], z[m][n].v[i + 1], p.saturation);
        }
      }
    }
  }
}

}  // namespace

QUARTET_KERNEL(mla_attend_16_128, 256, 2, AttendParams) {
  AttendRow<16, 128, kAttendThreads, false>(p);
}
QUARTET_KERNEL(mla_attend_16_512, 256, 2, AttendParams) {
  AttendRow<16, 512, kAttendThreads, false>(p);
}
// Where one block has the shared memory for it: all heads share the latents.
QUARTET_KERNEL(mla_attend_64_128, 256, 1, AttendParams) {
  AttendRow<64, 128, kAttendThreads, true>(p);
}
QUARTET_KERNEL(mla_attend_64_512, 512, 1, AttendParams) {
  AttendRow<64, 512, kAttendLargeThreads, true>(p);
}

// Adds up the splits of a row and head. Grid (heads, rows). Each quarter of the block adds every
// fourth split, then the quarters are added, always in the same order.
QUARTET_KERNEL(mla_merge, 512, 1, AttendParams) {
  constexpr int kQuarter = 128;
  __shared__ float factors[kMaxSplits];
  __shared__ float4 sums[3][kQuarter];
  const int head = static_cast<int>(blockIdx.x);
  const int64_t local_row = blockIdx.y;
  const KeyList keys = KeysOfRow(p, p.row_begin + static_cast<int>(blockIdx.y));
  const int tiles = (keys.count + kKeys - 1) / kKeys;
  const int splits = (tiles + p.split_tiles - 1) / p.split_tiles;
  const int64_t first = local_row * p.splits * p.heads + head;
  if (Warp() == 0) {
    float largest = -INFINITY;
    for (int s = Lane(); s < splits; s += 32) {
      largest = fmaxf(largest, p.part_max[first + s * p.heads]);
    }
    largest = WarpMax(largest);
    float sum = 0.0f;
    for (int s = Lane(); s < splits; s += 32) {
      factors[s] = exp2f(p.part_max[first + s * p.heads] - largest);
      sum += p.part_sum[first + s * p.heads] * factors[s];
    }
    sum = WarpSum(sum);
    __syncwarp();
    for (int s = Lane(); s < splits; s += 32) factors[s] /= sum;
  }
  __syncthreads();
  const int rank = p.latents.width;
  const int quarter = static_cast<int>(threadIdx.x) / kQuarter;
  const int column = static_cast<int>(threadIdx.x) % kQuarter;
  const int c = column * 4;
  float4 z = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (c < rank) {
#pragma unroll 4
    for (int s = quarter; s < splits; s += 4) {
      const float4 v = *reinterpret_cast<const float4*>(p.parts + (first + s * p.heads) * rank + c);
      z.x += factors[s] * v.x;
      z.y += factors[s] * v.y;
      z.z += factors[s] * v.z;
      z.w += factors[s] * v.w;
    }
  }
  if (quarter > 0) sums[quarter - 1][column] = z;
  __syncthreads();
  if (quarter > 0 || c >= rank) return;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const float4 v = sums[i][column];
    z = make_float4(z.x + v.x, z.y + v.y, z.z + v.z, z.w + v.w);
  }
  *reinterpret_cast<uint2*>(p.q + (local_row * p.heads + head) * rank + c) =
      make_uint2(ToHalf2(z.x, z.y, p.saturation), ToHalf2(z.z, z.w, p.saturation));
}

}  // namespace quartet::cuda
