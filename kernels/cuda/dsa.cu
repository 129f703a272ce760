// DsaProject between its projections: the norms, and what a row appends to the caches.

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/dsa_paged.cuh"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxPool = 64;
constexpr float kLayerNormEps = 1e-6f;

// What scales a row of `width` floats to a mean square of one. All threads of the block call.
QUARTET_DEVICE float RmsScale(const float* x, int width, float eps, float* scratch) {
  float sum = 0.0f;
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kThreads) sum += x[c] * x[c];
  return 1.0f / sqrtf(BlockSum(sum, scratch) / static_cast<float>(width) + eps);
}

struct KeyStatistics {
  float mean;
  float scale;
};
// Of one projected index key. All lanes of the warp call and get the same.
QUARTET_DEVICE KeyStatistics StatisticsOfKey(const float* key, int dim) {
  float sum = 0.0f;
  for (int c = Lane(); c < dim; c += 32) sum += key[c];
  KeyStatistics s;
  s.mean = WarpSum(sum) / static_cast<float>(dim);
  float squares = 0.0f;
  for (int c = Lane(); c < dim; c += 32) squares += (key[c] - s.mean) * (key[c] - s.mean);
  s.scale = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(dim) + kLayerNormEps);
  return s;
}

// The index keys of a segment after LayerNorm: of this call from its projections, of older
// positions from the ring.
struct KeySource {
  const DsaAppendParams& p;
  RowPlace place;
  float* ring;  // of the slot

  QUARTET_DEVICE int key_offset() const { return p.q_rank + p.latents.width; }
  QUARTET_DEVICE const float* Projected(int t) const {
    return p.u + (place.segment.row_begin + t) * p.u_stride + key_offset();
  }
  QUARTET_DEVICE float* RingRow(int position) const {
    return ring + static_cast<int64_t>(position % p.ring_rows) * 2 * p.pool_keys.width;
  }
  QUARTET_DEVICE float Normed(const float* key, const KeyStatistics& s, int c) const {
    return (key[c] - s.mean) * s.scale * p.k_weight[c] + p.k_bias[c];
  }
};

// P[c] = sum_j softmax_j(e[j][c] + ape[j][c]) k[j][c] over the kpool rows that end with this one.
QUARTET_DEVICE void AppendPool(const KeySource& source, KeyStatistics* statistics /*[kpool]*/) {
  const DsaAppendParams& p = source.p;
  const int dim = p.pool_keys.width;
  const int first = source.place.t - (p.kpool - 1);  // rows below 0 lie in the ring
  for (int j = Warp(); j < p.kpool; j += kWarps) {
    if (first + j < 0) continue;
    const KeyStatistics s = StatisticsOfKey(source.Projected(first + j), dim);
    if (Lane() == 0) statistics[j] = s;
  }
  __syncthreads();
  const auto gate = [&](int j, int c) {
    return first + j >= 0 ? source.Projected(first + j)[dim + c]
                          : source.RingRow(source.place.segment.position + first + j)[dim + c];
  };
  const auto key = [&](int j, int c) {
    return first + j >= 0 ? source.Normed(source.Projected(first + j), statistics[j], c)
                          : source.RingRow(source.place.segment.position + first + j)[c];
  };
  unsigned char* to = PagedRow(p.pool_keys, p.step.pages + source.place.segment.page_begin,
                               source.place.position / p.kpool);
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += kThreads) {
    // Four rows at a time, so that their loads are under way together.
    float largest = -INFINITY;
    float total = 0.0f;
    float sum = 0.0f;
    for (int j0 = 0; j0 < p.kpool; j0 += 4) {
      float e[4];
      float k[4];
      float most = largest;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool there = j0 + j < p.kpool;
        e[j] = there ? gate(j0 + j, c) + p.ape[(j0 + j) * dim + c] : -INFINITY;
        k[j] = there ? key(j0 + j, c) : 0.0f;
        most = fmaxf(most, e[j]);
      }
      const float earlier = expf(largest - most);
      total *= earlier;
      sum *= earlier;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = expf(e[j] - most);
        total += weight;
        sum += weight * k[j];
      }
      largest = most;
    }
    StoreElement(p.pool_keys.form, to, c, sum / total, p.saturation);
  }
}

// Row t of the segment into the ring. One warp.
QUARTET_DEVICE void WriteRingRow(const KeySource& source, int t) {
  const DsaAppendParams& p = source.p;
  const int dim = p.pool_keys.width;
  const float* key = source.Projected(t);
  const KeyStatistics s = StatisticsOfKey(key, dim);
  float* to = source.RingRow(source.place.segment.position + t);
  for (int c = Lane(); c < dim; c += 32) {
    to[c] = source.Normed(key, s, c);
    to[dim + c] = key[dim + c];
  }
}

}  // namespace

// Grid (rows, 4): a block normalises q_a of its row, or stores its latent, or completes a pool, or
// writes the ring.
//
// Only the first pool that a segment completes can need rows of the ring. Where rows of this call
// replace those rows, the block that has read them writes the whole ring afterwards; else every
// row is written by a block of its own. A step has at most one segment of a sequence.
QUARTET_KERNEL(dsa_append, 256, 1, DsaAppendParams) {
  __shared__ float scratch[kWarps];
  __shared__ KeyStatistics statistics[kMaxPool];
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const float* u = p.u + row * p.u_stride;
  if (blockIdx.y == 0) {
    const float scale = RmsScale(u, p.q_rank, p.q_eps, scratch);
    float* to = p.q_latent + static_cast<int64_t>(row) * p.q_rank;
    for (int c = thread; c < p.q_rank; c += kThreads) to[c] = u[c] * scale * p.q_weight[c];
    return;
  }
  const RowPlace place = PlaceOfRow(p.step, row);
  if (blockIdx.y == 1) {
    const float* latent = u + p.q_rank;
    const float scale = RmsScale(latent, p.latents.width, p.kv_eps, scratch);
    unsigned char* to =
        PagedRow(p.latents, p.step.pages + place.segment.page_begin, place.position);
    for (int c = thread; c < p.latents.width; c += kThreads) {
      StoreElement(p.latents.form, to, c, latent[c] * scale * p.kv_weight[c], p.saturation);
    }
    return;
  }
  const KeySource source = {p, place, p.ring + place.segment.slot * p.slot_stride};
  const int first_kept = max(0, place.segment.rows - p.ring_rows);
  const bool replaces = place.segment.rows > p.ring_rows - (p.kpool - 1);
  if (blockIdx.y == 3) {
    for (int h = thread; h < p.index_heads; h += kThreads) {
      p.index_w[static_cast<int64_t>(row) * p.index_heads + h] *= p.head_scale;
    }
    if (!replaces && !place.segment.more && Warp() == 0) WriteRingRow(source, place.t);
    return;
  }
  if ((place.position + 1) % p.kpool == 0) AppendPool(source, statistics);
  const int first_completing = p.kpool - 1 - place.segment.position % p.kpool;
  if (replaces && !place.segment.more && place.t == min(first_completing, place.segment.rows - 1)) {
    __syncthreads();
    for (int t = first_kept + Warp(); t < place.segment.rows; t += kWarps) WriteRingRow(source, t);
  }
}

}  // namespace quartet::cuda
