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
constexpr int kThreads = kAttendThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kParts = 2;  // of the width in the sums of a logit
constexpr int kLogitStride = kKeys + 4;
constexpr int kWeightStride = kKeys + 8;

// What one row attends to, in order: the tokens of its pools, then the tail.
struct KeyList {
  const int32_t* pools;
  const int32_t* pages;
  int pooled;      // tokens in pools
  int tail_begin;  // position
  int count;
};

QUARTET_DEVICE KeyList KeysOfRow(const AttendParams& p, int row) {
  const RowPlace place = PlaceOfRow(p.step, row);
  const int last = p.tails != nullptr ? p.tails[row] : place.position;
  KeyList keys;
  keys.pools = p.pools + static_cast<int64_t>(row) * p.topk;
  keys.pages = p.step.pages + place.segment.page_begin;
  keys.pooled = p.counts[row] * p.kpool;
  keys.tail_begin = (last + 1) / p.kpool * p.kpool;
  keys.count = keys.pooled + last + 1 - keys.tail_begin;
  return keys;
}

// Null beyond the list.
QUARTET_DEVICE const unsigned char* LatentOfKey(const AttendParams& p, const KeyList& keys, int i) {
  if (i >= keys.count) return nullptr;
  const int pool = i / p.kpool;
  const int position = i < keys.pooled ? keys.pools[pool] * p.kpool + i - pool * p.kpool
                                       : keys.tail_begin + i - keys.pooled;
  return PagedRow(p.latents, keys.pages, position);
}

// 16 stored values as FP16.
QUARTET_DEVICE void WidenE4m3(const uint4& from, __half* to) {
  const uint2 a = E4m3ToHalf4(from.x);
  const uint2 b = E4m3ToHalf4(from.y);
  const uint2 c = E4m3ToHalf4(from.z);
  const uint2 d = E4m3ToHalf4(from.w);
  reinterpret_cast<uint4*>(to)[0] = make_uint4(a.x, a.y, b.x, b.y);
  reinterpret_cast<uint4*>(to)[1] = make_uint4(c.x, c.y, d.x, d.y);
}

template <int Heads, int Width>
struct Tile {
  static constexpr int kStride = Width + 8;  // halves
  static constexpr int kHeadTiles = Heads / 16;
  static constexpr int kColumnTiles = Width / kWarps / 16;  // of the weighted sum, a warp
  // Of the logits [Heads, 64] a warp has kM x kN tiles over one part of the width.
  static constexpr int kM = kHeadTiles == 1 ? 1 : 2;
  static constexpr int kN = kM;
  static constexpr int kGroup = kThreads / Heads;  // threads a head in the softmax

  __half* q;                        // [Heads][kStride]
  __half* latents;                  // [64][kStride]
  float* logits;                    // [Heads][kLogitStride]
  __half* weights;                  // [Heads][kWeightStride]
  float* rescale;                   // [Heads]
  const unsigned char** addresses;  // [64]
  unsigned char* raw;               // [64] stored latents of the next tile

  QUARTET_DEVICE explicit Tile(unsigned char* shared) {
    q = reinterpret_cast<__half*>(shared);
    latents = q + Heads * kStride;
    logits = reinterpret_cast<float*>(latents + kKeys * kStride);
    weights = reinterpret_cast<__half*>(logits + Heads * kLogitStride);
    rescale = reinterpret_cast<float*>(weights + Heads * kWeightStride);
    addresses = reinterpret_cast<const unsigned char**>(rescale + Heads);
    raw = reinterpret_cast<unsigned char*>(addresses + kKeys);
  }

  // Queries of `heads` heads; zeros where there is no head or no column.
  QUARTET_DEVICE void LoadQueries(const uint16_t* from, int heads, int rank) const {
    for (int i = static_cast<int>(threadIdx.x); i < Heads * (Width / 8); i += kThreads) {
      const int h = i / (Width / 8);
      const int c = i % (Width / 8) * 8;
      const uint4 v =
          h < heads && c < rank
              ? *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(h) * rank + c)
              : make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(q + h * kStride + c) = v;
    }
    // Columns that no latent has.
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * (Width / 8); i += kThreads) {
      const int c = i % (Width / 8) * 8;
      if (c >= rank) {
        *reinterpret_cast<uint4*>(latents + i / (Width / 8) * kStride + c) = make_uint4(0, 0, 0, 0);
      }
    }
  }

  QUARTET_DEVICE void FindKeys(const AttendParams& p, const KeyList& keys, int tile) const {
    if (threadIdx.x < kKeys) {
      addresses[threadIdx.x] = LatentOfKey(p, keys, tile * kKeys + static_cast<int>(threadIdx.x));
    }
  }

  // The latents at `addresses` from global memory, as FP16; zeros where there are none.
  QUARTET_DEVICE void LoadLatents(const PagedRows& rows) const {
    const int pieces = rows.width / 16;
    if (rows.form == Stored::kE4m3) {
      Gather<4, 16>(
          pieces,
          [&](const unsigned char* latent, int piece) {
            return LoadStreaming(reinterpret_cast<const uint4*>(latent) + piece);
          },
          WidenE4m3);
    } else if (rows.form == Stored::kF16) {
      Gather<4, 8>(
          2 * pieces,
          [&](const unsigned char* latent, int piece) {
            return LoadStreaming(reinterpret_cast<const uint4*>(latent) + piece);
          },
          [](const uint4& v, __half* to) { *reinterpret_cast<uint4*>(to) = v; });
    } else {
      Gather<1, 8>(
          2 * pieces,
          [&](const unsigned char* latent, int piece) {
            return RoundEight(reinterpret_cast<const float*>(latent) + piece * 8, nullptr);
          },
          [](const uint4& v, __half* to) { *reinterpret_cast<uint4*>(to) = v; });
    }
  }

  // Begins to copy the latents at `addresses` as they are stored (FP16 or E4M3).
  QUARTET_DEVICE void CopyRaw(const PagedRows& rows) const {
    const int pieces = rows.width * StoredBytes(rows.form) / 16;
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * pieces; i += kThreads) {
      const unsigned char* latent = addresses[i / pieces];
      CopyAsync16(raw + i * 16, (latent != nullptr ? latent : rows.data) + i % pieces * 16,
                  latent != nullptr);
    }
    CopyAsyncCommit();
  }
  // The copied ones as FP16.
  QUARTET_DEVICE void WidenRaw(const PagedRows& rows) const {
    const bool narrow = rows.form == Stored::kE4m3;
    const int pieces = rows.width * StoredBytes(rows.form) / 16;
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * pieces; i += kThreads) {
      const uint4 v = *reinterpret_cast<const uint4*>(raw + i * 16);
      __half* row = latents + i / pieces * kStride;
      if (narrow) {
        WidenE4m3(v, row + i % pieces * 16);
      } else {
        *reinterpret_cast<uint4*>(row + i % pieces * 8) = v;
      }
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

  // The softmax's numerators of a tile, rounded to FP16, into `weights`; brings the maximum and the
  // sum of this thread's head up to date and says by what earlier sums are to be rescaled. Returns
  // whether any head rescales. Ends with a barrier.
  QUARTET_DEVICE bool Softmax(float scale_log2, int valid, float* maximum, float* sum) const {
    constexpr int kEach = kKeys / kGroup;
    const int head = static_cast<int>(threadIdx.x) / kGroup;
    const int first = static_cast<int>(threadIdx.x) % kGroup;
    float x[kEach];
    float largest = *maximum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int key = first + i * kGroup;
      x[i] = key < valid ? logits[head * kLogitStride + key] * scale_log2 : -INFINITY;
      largest = fmaxf(largest, x[i]);
    }
    largest = WarpMax<kGroup>(largest);
    float added = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const __half weight = __float2half_rn(exp2f(x[i] - largest));
      weights[head * kWeightStride + first + i * kGroup] = weight;
      added += __half2float(weight);
    }
    const float factor = exp2f(*maximum - largest);
    *sum = *sum * factor + WarpSum<kGroup>(added);
    *maximum = largest;
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
  // Every piece of `Values` values of the tile by `load(address, piece)`, Batch of them in flight a
  // thread, and into its place by `put`.
  template <int Batch, int Values, class Load, class Put>
  QUARTET_DEVICE void Gather(int pieces, const Load& load, const Put& put) const {
    const int total = kKeys * pieces;
    for (int base = static_cast<int>(threadIdx.x); base < total; base += Batch * kThreads) {
      uint4 v[Batch];
#pragma unroll
      for (int u = 0; u < Batch; ++u) {
        const int i = base + u * kThreads;
        const unsigned char* latent = i < total ? addresses[i / pieces] : nullptr;
        v[u] = latent != nullptr ? load(latent, i % pieces) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int u = 0; u < Batch; ++u) {
        const int i = base + u * kThreads;
        if (i < total) put(v[u], latents + i / pieces * kStride + i % pieces * Values);
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
        for (int i = 0; i < 8; ++i) {
          float* to =
              logits + (head + m * 16 + RowOfC(i)) * kLogitStride + key + n * 16 + ColOfC(i);
          *to = Add ? c[m][n].v[i] + *to : c[m][n].v[i];
        }
      }
    }
  }
};

// Grid (splits, ceil(heads / Heads), rows). `Ahead`: the next tile's latents are on their way while
// the present ones are used; not for FP32 ones.
template <int Heads, int Width, bool Ahead>
QUARTET_DEVICE void AttendRow(const AttendParams& p) {
  using Shape = Tile<Heads, Width>;
  const Shape tile(QUARTET_DYNAMIC_SHARED());
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
  tile.FindKeys(p, keys, begin);
  tile.LoadQueries(q, heads, rank);
  FragC z[Shape::kHeadTiles][Shape::kColumnTiles];
#pragma unroll
  for (int m = 0; m < Shape::kHeadTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kColumnTiles; ++n) Clear(z[m][n]);
  }
  float maximum = -INFINITY;  // of the head that this thread has in the softmax
  float sum = 0.0f;
  __syncthreads();
  if (Ahead) tile.CopyRaw(p.latents);
  for (int t = begin; t < end; ++t) {
    if (Ahead) {
      CopyAsyncWait<0>();
      __syncthreads();
      tile.WidenRaw(p.latents);
    } else {
      tile.LoadLatents(p.latents);
      __syncthreads();
    }
    if (t + 1 < end) tile.FindKeys(p, keys, t + 1);
    if (Ahead) {
      __syncthreads();
      if (t + 1 < end) tile.CopyRaw(p.latents);
    }
    tile.Logits();
    const bool rescales = tile.Softmax(p.scale_log2, keys.count - t * kKeys, &maximum, &sum);
    if (rescales && t > begin) tile.Rescale(z);
    tile.AddWeighted(z);
    __syncthreads();
  }

  const int head = static_cast<int>(threadIdx.x) / Shape::kGroup;
  const bool speaks = static_cast<int>(threadIdx.x) % Shape::kGroup == 0 && head < heads;
  const int64_t part = (local_row * p.splits + split) * p.heads + head0;
  if (p.splits > 1) {
    if (speaks) {
      p.part_max[part + head] = maximum;
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
  AttendRow<16, 128, false>(p);
}
QUARTET_KERNEL(mla_attend_16_512, 256, 2, AttendParams) {
  AttendRow<16, 512, false>(p);
}
// Where one block has the shared memory for it: all heads share the latents.
QUARTET_KERNEL(mla_attend_64_128, 256, 1, AttendParams) {
  AttendRow<64, 128, true>(p);
}
QUARTET_KERNEL(mla_attend_64_512, 256, 1, AttendParams) {
  AttendRow<64, 512, true>(p);
}

// Adds up the splits of a row and head, in their order. Grid (heads, rows).
QUARTET_KERNEL(mla_merge, 128, 1, AttendParams) {
  const int head = static_cast<int>(blockIdx.x);
  const int64_t local_row = blockIdx.y;
  const KeyList keys = KeysOfRow(p, p.row_begin + static_cast<int>(blockIdx.y));
  const int tiles = (keys.count + kKeys - 1) / kKeys;
  const int splits = (tiles + p.split_tiles - 1) / p.split_tiles;
  const int64_t first = local_row * p.splits * p.heads + head;
  float largest = -INFINITY;
  for (int s = 0; s < splits; ++s) largest = fmaxf(largest, p.part_max[first + s * p.heads]);
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) {
    sum += p.part_sum[first + s * p.heads] * exp2f(p.part_max[first + s * p.heads] - largest);
  }
  const float inverse = splits > 0 ? 1.0f / sum : 0.0f;
  const int rank = p.latents.width;
  for (int c = static_cast<int>(threadIdx.x) * 4; c < rank; c += 128 * 4) {
    float4 z = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int s = 0; s < splits; ++s) {
      const float factor = exp2f(p.part_max[first + s * p.heads] - largest);
      const float4 v = *reinterpret_cast<const float4*>(p.parts + (first + s * p.heads) * rank + c);
      z.x += factor * v.x;
      z.y += factor * v.y;
      z.z += factor * v.z;
      z.w += factor * v.w;
    }
    *reinterpret_cast<uint2*>(p.q + (local_row * p.heads + head) * rank + c) =
        make_uint2(ToHalf2(z.x * inverse, z.y * inverse, p.saturation),
                   ToHalf2(z.z * inverse, z.w * inverse, p.saturation));
  }
}

}  // namespace quartet::cuda
