// Drawing one token for each row. Every kernel has a grid (chunks of the vocabulary, rows); the
// block that is done last with a row puts its chunks together. Chunks are cut by id, whatever the
// number of ranks, so that a row's result does not depend on it.

#include "kernels/cuda/device/blocks.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/sampler_noise.cuh"

namespace quartet::cuda {

constexpr int kSampleWarps = kSampleThreads / 32;

QUARTET_DEVICE float NegativeInfinity() {
  return __int_as_float(static_cast<int>(0xFF800000u));
}

QUARTET_DEVICE float LogitAt(const SampleParamsCommon& p, int row, int id) {
  const int rank = id / p.local;
  return p.logits[(static_cast<int64_t>(rank) * p.row_count + row) * p.local + id - rank * p.local];
}

QUARTET_DEVICE bool HasTopK(const SampleRow& row) {
  return row.top_k > 0;
}
QUARTET_DEVICE bool HasTopP(const SampleRow& row) {
  return row.top_p < 1.0;
}
QUARTET_DEVICE bool HasCuts(const SampleRow& row) {
  const bool min_p = row.log_min_p > static_cast<double>(NegativeInfinity());
  return row.over_temperature > 0.0 && row.target < 0 && (HasTopK(row) || HasTopP(row) || min_p);
}

QUARTET_DEVICE int ChunkId(int i) {
  return static_cast<int>(blockIdx.x) * kSampleChunk + i * kSampleThreads +
         static_cast<int>(threadIdx.x);
}

QUARTET_DEVICE void WriteOutcome(const SampleParamsCommon& p, int row, int token,
                                 const SampleState& state) {
  SampleOutcome& out = p.outcomes[row];
  out.finite = state.finite;
  out.token = state.finite != 0 ? token : -1;
  out.logprob =
      state.finite != 0
          ? static_cast<float>(static_cast<double>(LogitAt(p, row, token)) - state.log_sum)
          : 0.0f;
}

// ---- first pass: everything that needs no kept set

// Bit i is set where the chunk's i-th id is banned by the row's list.
QUARTET_DEVICE void MarkBanned(const SampleParamsCommon& p, const SampleRow& row,
                               uint32_t (&marks)[kSampleChunk / 32]) {
  if (threadIdx.x < kSampleChunk / 32) marks[threadIdx.x] = 0;
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * kSampleChunk;
  for (int i = static_cast<int>(threadIdx.x); i < row.banned_count; i += kSampleThreads) {
    const int at = p.banned[row.banned_begin + i] - begin;
    if (at >= 0 && at < kSampleChunk) atomicOr(&marks[at / 32], 1u << (at % 32));
  }
  __syncthreads();
}

QUARTET_DEVICE void MergeChunks(const SampleParamsCommon& p, int r, const SampleRow& row,
                                Candidate* scratch, float* floats) {
  __shared__ double doubles[kSampleWarps];
  const int chunk_count = static_cast<int>(gridDim.x);
  const SampleChunkSums* chunks = p.chunks + static_cast<int64_t>(r) * chunk_count;
  Candidate best = {0.0, -1}, draw = {0.0, -1};
  float largest = NegativeInfinity();
  float bad = 0.0f;
  for (int c = static_cast<int>(threadIdx.x); c < chunk_count; c += kSampleThreads) {
    best = Better(best, {static_cast<double>(chunks[c].best), chunks[c].best_id});
    draw = Better(draw, {chunks[c].draw, chunks[c].draw_id});
    largest = fmaxf(largest, chunks[c].largest);
    if (chunks[c].bad != 0) bad = 1.0f;
  }
  best = BlockBest(best, scratch);
  draw = BlockBest(draw, scratch);
  largest = BlockMax(largest, floats);
  bad = BlockMax(bad, floats);
  double sum = 0.0;
  for (int c = static_cast<int>(threadIdx.x); c < chunk_count; c += kSampleThreads) {
    if (chunks[c].sum > 0.0f) {
      sum += static_cast<double>(chunks[c].sum) *
             static_cast<double>(expf(chunks[c].largest - largest));
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullMask, sum, offset);
  if (Lane() == 0) doubles[Warp()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kSampleWarps; ++w) sum += doubles[w];
  SampleState state = {};
  state.log_sum = static_cast<double>(largest) + log(sum);
  state.best = static_cast<float>(best.value);
  state.finite = bad == 0.0f && best.id >= 0;
  state.last_tie = -1;  // no key is 0: everything is above the threshold
  p.states[r] = state;
  if (row.target >= 0) {
    p.outcomes[r] = {
        row.target,
        static_cast<float>(static_cast<double>(LogitAt(p, r, row.target)) - state.log_sum),
        state.finite};
  } else if (!HasCuts(row)) {
    WriteOutcome(p, r, row.over_temperature > 0.0 ? draw.id : best.id, state);
  }
}

QUARTET_DEVICE void ClearBins(const SampleParamsCommon& p, int row) {
  for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads) {
    p.bin_counts[row * kSampleBins + i] = 0;
    p.bin_masses[row * kSampleBins + i] = 0;
  }
}

QUARTET_KERNEL(sample_scan, kSampleThreads, 1, SampleParamsCommon) {
  __shared__ uint32_t marks[kSampleChunk / 32];
  __shared__ float floats[kSampleWarps];
  __shared__ Candidate scratch[kSampleWarps];
  const int r = static_cast<int>(blockIdx.y);
  const SampleRow row = p.rows[r];
  float logits[kSampleIds];
#pragma unroll
  for (int i = 0; i < kSampleIds; ++i) {
    logits[i] = ChunkId(i) < p.vocab ? LogitAt(p, r, ChunkId(i)) : NegativeInfinity();
  }
  MarkBanned(p, row, marks);

  const bool cuts = HasCuts(row);
  const bool noisy = row.over_temperature > 0.0 && !cuts;
  Candidate best = {0.0, -1}, draw = {0.0, -1};
  float largest = NegativeInfinity();
  bool bad = false;
#pragma unroll
  for (int i = 0; i < kSampleIds; ++i) {
    const int id = ChunkId(i);
    const float v = logits[i];
    largest = fmaxf(largest, v);
    bad |= !(v <= 3.402823466e+38f);
    const int at = i * kSampleThreads + static_cast<int>(threadIdx.x);
    const bool allowed =
        v > NegativeInfinity() && id < row.first_banned && (marks[at / 32] >> (at % 32) & 1) == 0;
    if (allowed) best = Better(best, {static_cast<double>(v), id});
    if (allowed && noisy) draw = Better(draw, {DrawValue(row, v, id), id});
    if (cuts && id < p.vocab) {
      p.keys[static_cast<int64_t>(r) * p.vocab + id] = allowed ? LogitKey(v) : 0;
    }
  }
  largest = BlockMax(largest, floats);
  float sum = 0.0f;
  if (largest > NegativeInfinity()) {
#pragma unroll
    for (int i = 0; i < kSampleIds; ++i) sum += expf(logits[i] - largest);
  }
  sum = BlockSum(sum, floats);
  best = BlockBest(best, scratch);
  if (noisy) draw = BlockBest(draw, scratch);
  const int any_bad = __syncthreads_or(bad);
  if (threadIdx.x == 0) {
    p.chunks[static_cast<int64_t>(r) * gridDim.x + blockIdx.x] = {
        draw.value, draw.id, static_cast<float>(best.value), best.id, largest, sum, any_bad};
  }
  if (!IsLastBlock(p.tickets + r, gridDim.x)) return;
  if (cuts) ClearBins(p, r);
  MergeChunks(p, r, row, scratch, floats);
}

// ---- cuts: radix selection over the keys, eleven or ten bits a pass

QUARTET_DEVICE bool IsKept(const SampleState& state, uint32_t key, int id) {
  return key > state.threshold || (key == state.threshold && id <= state.last_tie);
}

// (logit - largest) / temperature
QUARTET_DEVICE double LogMass(const SampleState& state, const SampleRow& row, uint32_t key) {
  return (static_cast<double>(LogitOfKey(key)) - static_cast<double>(state.best)) *
         row.over_temperature;
}

// exp of it in units of 2^-44: sums of integers do not depend on their order.
QUARTET_DEVICE unsigned long long Mass(const SampleState& state, const SampleRow& row,
                                       uint32_t key) {
  return static_cast<unsigned long long>(exp(LogMass(state, row, key)) * 0x1p44 + 0.5);
}

// Before which of the descending bins does the sum reach `wanted`? Thread t has the kOwn bins that
// follow those of thread t - 1. Exactly one thread gets true, with the sum before its bins.
QUARTET_DEVICE bool OwnsCrossing(unsigned long long own, unsigned long long taken,
                                 unsigned long long wanted, unsigned long long* before,
                                 unsigned long long* total, unsigned long long* scratch) {
  unsigned long long inclusive = own;
#pragma unroll
  for (unsigned offset = 1; offset < 32; offset *= 2) {
    const unsigned long long other = __shfl_up_sync(kFullMask, inclusive, offset);
    if (Lane() >= static_cast<int>(offset)) inclusive += other;
  }
  if (Lane() == 31) scratch[Warp()] = inclusive;
  __syncthreads();
  unsigned long long warps_before = 0, all = 0;
  for (int w = 0; w < kSampleWarps; ++w) {
    if (w < Warp()) warps_before += scratch[w];
    all += scratch[w];
  }
  *total = all;
  *before = taken + warps_before + inclusive - own;
  return *before < wanted && wanted <= *before + own;
}

// Sets last_tie to the id of the `ties`-th kept id with exactly this key. Walks over the row's ids;
// only where a cut falls between equal logits.
QUARTET_DEVICE void FindLastTie(const SampleParamsCommon& p, int r, const SampleState& kept,
                                uint32_t key, int ties, float* floats) {
  __shared__ int warp_matches[kSampleWarps];
  const uint32_t* keys = p.keys + static_cast<int64_t>(r) * p.vocab;
  const auto matches = [&](int id) {
    return id < p.vocab && keys[id] == key && IsKept(kept, key, id);
  };
  const int thread = static_cast<int>(threadIdx.x);
  for (int begin = 0; begin < p.vocab; begin += kSampleChunk) {
    int own = 0;
#pragma unroll
    for (int i = 0; i < kSampleIds; ++i) own += matches(begin + i * kSampleThreads + thread);
    const int in_chunk = static_cast<int>(BlockSum(static_cast<float>(own), floats));
    if (in_chunk < ties) {
      ties -= in_chunk;
      continue;
    }
    for (int i = 0; i < kSampleIds; ++i) {
      const int id = begin + i * kSampleThreads + thread;
      const bool match = matches(id);
      const unsigned ballot = __ballot_sync(kFullMask, match);
      __syncthreads();
      if (Lane() == 0) warp_matches[Warp()] = __popc(ballot);
      __syncthreads();
      int before = __popc(ballot & ((1u << Lane()) - 1));
      int all = 0;
      for (int w = 0; w < kSampleWarps; ++w) {
        if (w < Warp()) before += warp_matches[w];
        all += warp_matches[w];
      }
      if (match && before == ties - 1) p.states[r].last_tie = id;
      ties -= all;
      if (ties <= 0) return;
    }
  }
}

// Puts the next bits of the threshold into the state; after the last ones, the new kept set.
QUARTET_DEVICE void WalkBins(const SampleCutParams& p, int r, const SampleRow& row,
                             const SampleState& old, float* floats) {
  __shared__ unsigned long long scratch[kSampleWarps];
  __shared__ int ties_wanted;
  __shared__ uint32_t tie_key;
  constexpr int kOwn = kSampleBins / kSampleThreads;
  const int top = kSampleBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
  unsigned long long weight[kOwn];
  uint32_t counts[kOwn];
  unsigned long long own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    counts[i] = p.common.bin_counts[r * kSampleBins + top - i];
    weight[i] = p.by_mass != 0 ? p.common.bin_masses[r * kSampleBins + top - i] : counts[i];
    own += weight[i];
  }
  if (threadIdx.x == 0) ties_wanted = 0;
  SampleState& state = p.common.states[r];
  const unsigned long long taken = p.first != 0 ? 0 : old.taken;
  unsigned long long wanted = old.wanted, before = 0, total = 0;
  bool crossing = OwnsCrossing(own, taken, wanted, &before, &total, scratch);
  if (p.first != 0) {
    // Only now is it known what there is to take from.
    if (p.by_mass != 0) {
      const double mass = ceil((row.top_p > 0.0 ? row.top_p : 0.0) * static_cast<double>(total));
      wanted = max(1ull, static_cast<unsigned long long>(mass));
    } else {
      wanted = static_cast<unsigned long long>(row.top_k);
    }
    const bool cutting = p.by_mass != 0 || wanted < total;
    if (threadIdx.x == 0) {
      state.cutting = cutting;
      state.wanted = wanted;
    }
    crossing = cutting && before < wanted && wanted <= before + own;
  }
  if (crossing) {
    int bin = -1;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (bin >= 0) continue;
      if (wanted <= before + weight[i]) {
        bin = i;
      } else {
        before += weight[i];
      }
    }
    const uint32_t prefix =
        (p.first != 0 ? 0 : old.prefix << p.bits) | static_cast<uint32_t>(top - bin);
    state.prefix = prefix;
    state.taken = before;
    if (p.last != 0) {
      // One bin is one key here, so that all its ids weigh the same.
      uint32_t available = 0;
      unsigned long long bin_weight = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (i == bin) available = counts[i], bin_weight = weight[i];
      }
      const unsigned long long each = bin_weight / available;
      const unsigned long long ties = (wanted - before + each - 1) / each;
      state.threshold = prefix;
      if (ties < available) {
        ties_wanted = static_cast<int>(ties);
        tie_key = prefix;
      } else if (prefix != old.threshold) {
        state.last_tie = 0x7FFFFFFF;
      }
    }
  }
  __syncthreads();
  if (ties_wanted > 0) FindLastTie(p.common, r, old, tie_key, ties_wanted, floats);
}

QUARTET_KERNEL(sample_cut, kSampleThreads, 1, SampleCutParams) {
  __shared__ uint32_t counts[kSampleBins];
  __shared__ unsigned long long masses[kSampleBins];
  __shared__ float floats[kSampleWarps];
  const SampleParamsCommon& common = p.common;
  const int r = static_cast<int>(blockIdx.y);
  const SampleRow row = common.rows[r];
  const SampleState state = common.states[r];
  if (!HasCuts(row) || state.finite == 0) return;
  if (!(p.by_mass != 0 ? HasTopP(row) : HasTopK(row))) return;
  if (p.first == 0 && state.cutting == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads) {
    counts[i] = 0;
    masses[i] = 0;
  }
  __syncthreads();
  const uint32_t* keys = common.keys + static_cast<int64_t>(r) * common.vocab;
#pragma unroll
  for (int i = 0; i < kSampleIds; ++i) {
    const int id = ChunkId(i);
    const uint32_t key = id < common.vocab ? keys[id] : 0;
    if (key == 0 || !IsKept(state, key, id)) continue;
    if (p.first == 0 && key >> (p.shift + p.bits) != state.prefix) continue;
    const uint32_t bin = key >> p.shift & ((1u << p.bits) - 1);
    atomicAdd(&counts[bin], 1u);
    if (p.by_mass != 0) atomicAdd(&masses[bin], Mass(state, row, key));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads) {
    if (counts[i] == 0) continue;
    atomicAdd(&common.bin_counts[r * kSampleBins + i], counts[i]);
    if (p.by_mass != 0) atomicAdd(&common.bin_masses[r * kSampleBins + i], masses[i]);
  }
  if (!IsLastBlock(common.tickets + r, gridDim.x)) return;
  WalkBins(p, r, row, state, floats);
  __syncthreads();
  ClearBins(common, r);
}

// ---- last pass: the draw from the kept set

QUARTET_KERNEL(sample_draw, kSampleThreads, 1, SampleParamsCommon) {
  __shared__ Candidate scratch[kSampleWarps];
  const int r = static_cast<int>(blockIdx.y);
  const SampleRow row = p.rows[r];
  const SampleState state = p.states[r];
  if (!HasCuts(row)) return;
  const uint32_t* keys = p.keys + static_cast<int64_t>(r) * p.vocab;
  Candidate best = {0.0, -1};
  if (state.finite != 0) {
#pragma unroll
    for (int i = 0; i < kSampleIds; ++i) {
      const int id = ChunkId(i);
      const uint32_t key = id < p.vocab ? keys[id] : 0;
      if (key == 0 || !IsKept(state, key, id) || LogMass(state, row, key) < row.log_min_p) continue;
      best = Better(best, {DrawValue(row, LogitOfKey(key), id), id});
    }
  }
  best = BlockBest(best, scratch);
  SampleChunkSums* chunks = p.chunks + static_cast<int64_t>(r) * gridDim.x;
  if (threadIdx.x == 0) {
    chunks[blockIdx.x].draw = best.value;
    chunks[blockIdx.x].draw_id = best.id;
  }
  if (!IsLastBlock(p.tickets + r, gridDim.x)) return;
  best = {0.0, -1};
  for (int c = static_cast<int>(threadIdx.x); c < static_cast<int>(gridDim.x);
       c += kSampleThreads) {
    best = Better(best, {chunks[c].draw, chunks[c].draw_id});
  }
  best = BlockBest(best, scratch);
  if (threadIdx.x == 0) WriteOutcome(p, r, best.id, state);
}

}  // namespace quartet::cuda
