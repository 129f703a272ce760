// Drawing one token for each row. Every kernel has a grid (chunks of the vocabulary, rows); the
// block that is done last with a row puts its chunks together. Chunks are cut by id, whatever the
// number of ranks, so that a row's result does not depend on it.

#include "kernels/cuda/device/arrive.cuh"
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
QUARTET_DEVICE bool NeedsKept(const SampleRow& row) {
  const bool min_p = row.log_min_p > static_cast<double>(NegativeInfinity());
  return row.over_temperature > 0.0 && row.target < 0 &&
         (HasTopK(row) || HasTopP(row) || min_p || row.draft >= 0);
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
    const int at = static_cast<int>(p.lists[row.banned_begin + i]) - begin;
    if (at >= 0 && at < kSampleChunk) atomicOr(&marks[at / 32], 1u << (at % 32));
  }
  __syncthreads();
}

// The chunk's biases.
QUARTET_DEVICE void SpreadBias(const SampleParamsCommon& p, const SampleRow& row,
                               float (&bias)[kSampleChunk]) {
  for (int i = static_cast<int>(threadIdx.x); i < kSampleChunk; i += kSampleThreads) bias[i] = 0.0f;
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * kSampleChunk;
  for (int i = static_cast<int>(threadIdx.x); i < row.bias_count; i += kSampleThreads) {
    const uint32_t* entry = p.lists + row.bias_begin + 2 * i;
    const int at = static_cast<int>(entry[0]) - begin;
    if (at >= 0 && at < kSampleChunk) bias[at] = __uint_as_float(entry[1]);
  }
  __syncthreads();
}

QUARTET_DEVICE bool IsAllowed(const SampleParamsCommon& p, const SampleRow& row, int id) {
  if (id >= row.first_banned || (row.forced >= 0 && id != row.forced)) return false;
  return row.allowed_begin < 0 || (p.lists[row.allowed_begin + id / 32] >> (id % 32) & 1) != 0;
}

QUARTET_DEVICE float Saturated(float logit) {
  return fminf(fmaxf(logit, -3.402823466e+38f), 3.402823466e+38f);
}

// Of an allowed id with a finite logit.
QUARTET_DEVICE float Penalised(const SampleRow& row, float logit, int id) {
  uint32_t said = row.counts != nullptr ? row.counts[id] : 0;
#pragma unroll
  for (int i = 0; i < kSampleUncounted; ++i) {
    said += i < row.uncounted_count && row.uncounted[i] == id;
  }
  if (said == 0) return logit;
  float out = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  const uint32_t times = said & 0x7FFFFFFFu;
  if (times > 0) {
    out -= fmaf(row.frequency_penalty, static_cast<float>(times), row.presence_penalty);
  }
  return Saturated(out);
}

QUARTET_DEVICE SampleChunkSums NoSums() {
  return {0.0, 0, -1, NegativeInfinity(), -1, NegativeInfinity(), 0.0f, 0};
}

// `sum` of exp(logit - largest) as one of exp(logit - other), other >= largest.
QUARTET_DEVICE float Rescaled(float sum, float largest, float other) {
  return sum > 0.0f ? sum * expf(largest - other) : 0.0f;
}

QUARTET_DEVICE SampleChunkSums Merge(const SampleChunkSums& a, const SampleChunkSums& b) {
  const float largest = fmaxf(a.largest, b.largest);
  const Candidate best =
      Better({static_cast<double>(a.best), a.best_id}, {static_cast<double>(b.best), b.best_id});
  const Candidate draw = Better({a.draw, a.draw_id}, {b.draw, b.draw_id});
  return {draw.value,
          0,
          draw.id,
          static_cast<float>(best.value),
          best.id,
          largest,
          Rescaled(a.sum, a.largest, largest) + Rescaled(b.sum, b.largest, largest),
          a.bad | b.bad};
}

QUARTET_DEVICE SampleChunkSums WarpMerge(const SampleChunkSums& s) {
  const float largest = WarpMax(s.largest);
  const Candidate best = WarpBest({static_cast<double>(s.best), s.best_id});
  const Candidate draw = WarpBest({s.draw, s.draw_id});
  return {draw.value,
          0,
          draw.id,
          static_cast<float>(best.value),
          best.id,
          largest,
          WarpSum(Rescaled(s.sum, s.largest, largest)),
          __any_sync(kFullMask, s.bad)};
}

// The sums of all threads of the block, in the first warp. `scratch` holds one element a warp.
QUARTET_DEVICE SampleChunkSums BlockMerge(const SampleChunkSums& s, SampleChunkSums* scratch) {
  const SampleChunkSums warp = WarpMerge(s);
  __syncthreads();
  if (Lane() == 0) scratch[Warp()] = warp;
  __syncthreads();
  if (Warp() > 0) return warp;
  return WarpMerge(Lane() < kSampleWarps ? scratch[Lane()] : NoSums());
}

QUARTET_DEVICE void FinishScan(const SampleParamsCommon& p, int r, const SampleRow& row,
                               const SampleChunkSums& sums) {
  SampleState state = {};
  state.log_sum = static_cast<double>(sums.largest) + static_cast<double>(logf(sums.sum));
  state.best = sums.best;
  state.finite = sums.bad == 0 && sums.best_id >= 0;
  state.last_tie = -1;  // no key is 0: everything is above the threshold
  p.states[r] = state;
  if (row.target >= 0) {
    const double logit = LogitAt(p, r, row.target);
    p.outcomes[r] = {row.target, static_cast<float>(logit - state.log_sum), state.finite};
  } else if (!NeedsKept(row)) {
    WriteOutcome(p, r, row.over_temperature > 0.0 ? sums.draw_id : sums.best_id, state);
  }
}

QUARTET_DEVICE void ClearBins(const SampleParamsCommon& p, int row) {
  for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads) {
    p.bin_counts[row * kSampleBins + i] = 0;
    p.bin_masses[row * kSampleBins + i] = 0;
  }
}

// The logits of this thread's ids, -infinity beyond the vocabulary.
QUARTET_DEVICE void LoadLogits(const SampleParamsCommon& p, int r, float (&logits)[kSampleIds]) {
  int rank = ChunkId(0) / p.local;
  int at = ChunkId(0) - rank * p.local;
#pragma unroll
  for (int i = 0; i < kSampleIds; ++i) {
    while (at >= p.local) {
      at -= p.local;
      ++rank;
    }
    logits[i] = ChunkId(i) < p.vocab
                    ? p.logits[(static_cast<int64_t>(rank) * p.row_count + r) * p.local + at]
                    : NegativeInfinity();
    at += kSampleThreads;
  }
}

QUARTET_KERNEL(sample_scan, kSampleThreads, 5, SampleParamsCommon) {
  __shared__ uint32_t marks[kSampleChunk / 32];
  __shared__ float bias[kSampleChunk];
  __shared__ SampleChunkSums scratch[kSampleWarps];
  const int r = static_cast<int>(blockIdx.y);
  const SampleRow row = p.rows[r];
  float logits[kSampleIds];
  LoadLogits(p, r, logits);
  if (row.banned_count > 0) MarkBanned(p, row, marks);
  if (row.bias_count > 0) SpreadBias(p, row, bias);

  const bool cuts = NeedsKept(row);
  const bool noisy = row.over_temperature > 0.0 && !cuts;
  SampleChunkSums sums = NoSums();
#pragma unroll
  for (int i = 0; i < kSampleIds; ++i) {
    const int id = ChunkId(i);
    const int at = i * kSampleThreads + static_cast<int>(threadIdx.x);
    float v = logits[i];
    sums.largest = fmaxf(sums.largest, v);
    sums.bad |= !(v <= 3.402823466e+38f);
    bool allowed = v > NegativeInfinity() && IsAllowed(p, row, id);
    if (row.banned_count > 0) allowed = allowed && (marks[at / 32] >> (at % 32) & 1) == 0;
    if (allowed && row.bias_count > 0) v = Saturated(v + bias[at]);
    if (allowed && row.penalises != 0) v = Penalised(row, v, id);
    // Ids ascend, so that the first of equals is the lowest.
    if (allowed && v > sums.best) {
      sums.best = v;
      sums.best_id = id;
    }
    if (allowed && noisy) {
      const double value = DrawValue(row, v, id);
      if (sums.draw_id < 0 || value > sums.draw) {
        sums.draw = value;
        sums.draw_id = id;
      }
    }
    if (cuts && id < p.vocab) {
      p.keys[static_cast<int64_t>(r) * p.vocab + id] = allowed ? LogitKey(v) : 0;
    }
  }
  if (sums.largest > NegativeInfinity()) {
#pragma unroll
    for (int i = 0; i < kSampleIds; ++i) sums.sum += expf(logits[i] - sums.largest);
  }
  SampleChunkSums* chunks = p.chunks + static_cast<int64_t>(r) * gridDim.x;
  sums = BlockMerge(sums, scratch);
  if (threadIdx.x == 0) chunks[blockIdx.x] = sums;
  if (!LastToArrive(p.tickets + r, gridDim.x)) return;

  if (cuts) ClearBins(p, r);
  sums = NoSums();
  for (unsigned c = threadIdx.x; c < gridDim.x; c += kSampleThreads) sums = Merge(sums, chunks[c]);
  sums = BlockMerge(sums, scratch);
  if (threadIdx.x == 0) FinishScan(p, r, row, sums);
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

// exp of it in units of 2^-42: sums of integers do not depend on their order. Two words of 21 bits,
// so that those of a chunk can be summed in 32 bits each.
constexpr int kMassWordBits = 21;
struct MassWords {
  uint32_t low, high;
};
static_assert(kSampleChunk <= 1 << (32 - kMassWordBits));

QUARTET_DEVICE MassWords Mass(const SampleState& state, const SampleRow& row, uint32_t key) {
  constexpr float kUnits = 0x1p42f;
  constexpr float kMost = 0x1.fffffep41f;
  const double log_mass = LogMass(state, row, key);
  const float high = static_cast<float>(log_mass);
  const float low = static_cast<float>(log_mass - static_cast<double>(high));
  const float mass = expf(high);
  const auto units = static_cast<unsigned long long>(fminf((mass + mass * low) * kUnits, kMost));
  return {static_cast<uint32_t>(units & ((1u << kMassWordBits) - 1)),
          static_cast<uint32_t>(units >> kMassWordBits)};
}

// The sum of `own` over the threads before this one, and over all.
QUARTET_DEVICE unsigned long long SumBefore(unsigned long long own, unsigned long long* all,
                                            unsigned long long* scratch) {
  unsigned long long inclusive = own;
#pragma unroll
  for (unsigned offset = 1; offset < 32; offset *= 2) {
    const unsigned long long other = __shfl_up_sync(kFullMask, inclusive, offset);
    if (Lane() >= static_cast<int>(offset)) inclusive += other;
  }
  if (Lane() == 31) scratch[Warp()] = inclusive;
  __syncthreads();
  unsigned long long warps_before = 0;
  *all = 0;
  for (int w = 0; w < kSampleWarps; ++w) {
    if (w < Warp()) warps_before += scratch[w];
    *all += scratch[w];
  }
  return warps_before + inclusive - own;
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

// What a cut is to take of a row that has `total` (ids or mass) to take from; 0: all of it.
QUARTET_DEVICE unsigned long long WantedOf(const SampleCutParams& p, const SampleRow& row,
                                           unsigned long long total) {
  if (p.by_mass == 0) {
    const auto top_k = static_cast<unsigned long long>(row.top_k);
    return top_k < total ? top_k : 0;
  }
  const double mass = ceil((row.top_p > 0.0 ? row.top_p : 0.0) * static_cast<double>(total));
  return max(1ull, static_cast<unsigned long long>(mass));
}

// Walks down the bins until enough is taken, and puts the bits of the bin where that happens into
// the threshold; after the last bits there is a new kept set. A thread has kOwn bins, the first
// thread the highest.
QUARTET_DEVICE void WalkBins(const SampleCutParams& p, int r, const SampleRow& row,
                             const SampleState& old, float* floats) {
  __shared__ unsigned long long scratch[kSampleWarps];
  __shared__ uint32_t ties_wanted;  // 0: all ids with the threshold's key are kept
  __shared__ uint32_t threshold;
  constexpr int kOwn = kSampleBins / kSampleThreads;
  const int top = kSampleBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
  unsigned long long weight[kOwn];
  unsigned long long own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = r * kSampleBins + top - i;
    weight[i] = p.by_mass != 0 ? p.common.bin_masses[at] : p.common.bin_counts[at];
    own += weight[i];
  }
  if (threadIdx.x == 0) ties_wanted = 0;
  SampleState& state = p.common.states[r];
  unsigned long long total = 0;
  unsigned long long before = (p.first != 0 ? 0 : old.taken) + SumBefore(own, &total, scratch);
  const unsigned long long wanted = p.first != 0 ? WantedOf(p, row, total) : old.wanted;
  if (p.first != 0 && threadIdx.x == 0) {
    state.cutting = wanted > 0;
    state.wanted = wanted;
  }
  if (before < wanted && wanted <= before + own) {
    int bin = -1;
    unsigned long long bin_weight = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (bin >= 0) continue;
      if (wanted <= before + weight[i]) {
        bin = top - i;
        bin_weight = weight[i];
      } else {
        before += weight[i];
      }
    }
    state.prefix = (p.first != 0 ? 0 : old.prefix << p.bits) | static_cast<uint32_t>(bin);
    state.taken = before;
    if (p.last != 0) {
      // A bin is one key here, so that all its ids weigh the same.
      const uint32_t available = p.common.bin_counts[r * kSampleBins + bin];
      const unsigned long long each = bin_weight / available;
      const auto ties = static_cast<uint32_t>((wanted - before + each - 1) / each);
      threshold = state.threshold = state.prefix;
      if (ties < available) {
        ties_wanted = ties;
      } else if (threshold != old.threshold) {
        state.last_tie = 0x7FFFFFFF;
      }
    }
  }
  __syncthreads();
  if (ties_wanted > 0) {
    FindLastTie(p.common, r, old, threshold, static_cast<int>(ties_wanted), floats);
  }
}

QUARTET_KERNEL(sample_cut, kSampleThreads, 5, SampleCutParams) {
  __shared__ uint32_t counts[kSampleBins];
  __shared__ uint32_t low[kSampleBins], high[kSampleBins];
  __shared__ float floats[kSampleWarps];
  const SampleParamsCommon& common = p.common;
  const int r = static_cast<int>(blockIdx.y);
  const SampleRow row = common.rows[r];
  const SampleState state = common.states[r];
  if (!NeedsKept(row) || state.finite == 0) return;
  if (!(p.by_mass != 0 ? HasTopP(row) : HasTopK(row))) return;
  if (p.first == 0 && state.cutting == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads) {
    counts[i] = low[i] = high[i] = 0;
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
    if (p.by_mass != 0) {
      const MassWords mass = Mass(state, row, key);
      atomicAdd(&low[bin], mass.low);
      atomicAdd(&high[bin], mass.high);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads) {
    if (counts[i] == 0) continue;
    atomicAdd(&common.bin_counts[r * kSampleBins + i], counts[i]);
    if (p.by_mass != 0) {
      const unsigned long long mass =
          (static_cast<unsigned long long>(high[i]) << kMassWordBits) + low[i];
      atomicAdd(&common.bin_masses[r * kSampleBins + i], mass);
    }
  }
  if (!LastToArrive(common.tickets + r, gridDim.x)) return;
  WalkBins(p, r, row, state, floats);
  __syncthreads();
  ClearBins(common, r);
}

// ---- last pass: the draw from the kept set

QUARTET_DEVICE bool IsDrawn(const SampleState& state, const SampleRow& row, uint32_t key, int id) {
  return key != 0 && IsKept(state, key, id) && LogMass(state, row, key) >= row.log_min_p;
}

QUARTET_DEVICE unsigned long long MassOf(const SampleState& state, const SampleRow& row,
                                         uint32_t key) {
  const MassWords mass = Mass(state, row, key);
  return (static_cast<unsigned long long>(mass.high) << kMassWordBits) + mass.low;
}

// The sum over the block, for every thread.
QUARTET_DEVICE unsigned long long BlockMass(unsigned long long own, unsigned long long* scratch) {
  unsigned long long all = 0;
  __syncthreads();
  SumBefore(own, &all, scratch);
  return all;
}

// u < p(draft), u the generator's number for this position's draft.
QUARTET_DEVICE bool Accepts(const SampleRow& row, unsigned long long mass,
                            unsigned long long total) {
  const uint64_t cell =
      Philox(0, row.position, row.choice, kSampleAccept, row.key[0], row.key[1]) >> 12;
  const double u = (static_cast<double>(cell) + 0.5) * 0x1p-52;
  return u * static_cast<double>(total) < static_cast<double>(mass);
}

QUARTET_KERNEL(sample_draw, kSampleThreads, 5, SampleParamsCommon) {
  __shared__ Candidate scratch[kSampleWarps];
  __shared__ unsigned long long masses[kSampleWarps];
  const int r = static_cast<int>(blockIdx.y);
  const SampleRow row = p.rows[r];
  const SampleState state = p.states[r];
  if (!NeedsKept(row)) return;
  const uint32_t* keys = p.keys + static_cast<int64_t>(r) * p.vocab;
  const bool tests = row.draft >= 0;
  Candidate best = {0.0, -1};
  unsigned long long mass = 0;
  if (state.finite != 0) {
#pragma unroll
    for (int i = 0; i < kSampleIds; ++i) {
      const int id = ChunkId(i);
      const uint32_t key = id < p.vocab ? keys[id] : 0;
      if (!IsDrawn(state, row, key, id)) continue;
      if (tests) mass += MassOf(state, row, key);
      if (id == row.draft) continue;
      best = Better(best, {DrawValue(row, LogitOfKey(key), id), id});
    }
  }
  best = BlockBest(best, scratch);
  if (tests) mass = BlockMass(mass, masses);
  SampleChunkSums* chunks = p.chunks + static_cast<int64_t>(r) * gridDim.x;
  if (threadIdx.x == 0) {
    chunks[blockIdx.x].mass = mass;
    chunks[blockIdx.x].draw = best.value;
    chunks[blockIdx.x].draw_id = best.id;
  }
  if (!LastToArrive(p.tickets + r, gridDim.x)) return;
  best = {0.0, -1};
  mass = 0;
  for (int c = static_cast<int>(threadIdx.x); c < static_cast<int>(gridDim.x);
       c += kSampleThreads) {
    best = Better(best, {chunks[c].draw, chunks[c].draw_id});
    mass += chunks[c].mass;
  }
  best = BlockBest(best, scratch);
  if (tests) mass = BlockMass(mass, masses);
  if (threadIdx.x != 0) return;
  if (tests && row.draft < p.vocab && state.finite != 0 &&
      IsDrawn(state, row, keys[row.draft], row.draft)) {
    const unsigned long long draft = MassOf(state, row, keys[row.draft]);
    // Nothing else is left where the draft is all that is kept.
    if (best.id < 0 || Accepts(row, draft, mass)) best.id = row.draft;
  }
  WriteOutcome(p, r, best.id, state);
}

// ---- the likeliest ids

// Moves the best of what the threads hold to out[0], the next to out[1], and so on, and leaves -1
// where nothing is left. A thread's own are in `values`, -infinity where there is none.
template <int kOwn>
QUARTET_DEVICE void TakeTop(float (&values)[kOwn], const int (&ids)[kOwn], int count,
                            SampleTop* out, Candidate* scratch) {
  for (int taken = 0; taken < count; ++taken) {
    Candidate best = {0.0, -1};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (values[i] > NegativeInfinity()) {
        best = Better(best, {static_cast<double>(values[i]), ids[i]});
      }
    }
    best = BlockBest(best, scratch);
    if (threadIdx.x == 0) out[taken] = {static_cast<float>(best.value), best.id};
    if (best.id < 0) continue;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (ids[i] == best.id) values[i] = NegativeInfinity();
    }
  }
}

// After the scan, whose state says what the row sums to.
QUARTET_KERNEL(sample_top, kSampleThreads, 5, SampleParamsCommon) {
  __shared__ Candidate scratch[kSampleWarps];
  const int r = static_cast<int>(blockIdx.y);
  const int wanted = p.rows[r].top;
  if (wanted == 0) return;
  const int chunks = static_cast<int>(gridDim.x);
  SampleTop* chunk_tops = p.chunk_tops + static_cast<int64_t>(r) * chunks * kSampleTop;
  {
    float values[kSampleIds];
    int ids[kSampleIds];
    LoadLogits(p, r, values);
#pragma unroll
    for (int i = 0; i < kSampleIds; ++i) ids[i] = ChunkId(i);
    TakeTop(values, ids, wanted, chunk_tops + blockIdx.x * kSampleTop, scratch);
  }
  if (!LastToArrive(p.tickets + r, gridDim.x)) return;

  // Each thread goes through its share of the chunks' lists, the best of which come first.
  SampleTop* tops = p.tops + r * kSampleTop;
  Candidate last = {0.0, -1};  // what was taken before
  for (int taken = 0; taken < wanted; ++taken) {
    Candidate best = {0.0, -1};
    for (int i = static_cast<int>(threadIdx.x); i < chunks * kSampleTop; i += kSampleThreads) {
      if (i % kSampleTop >= wanted || chunk_tops[i].id < 0) continue;
      const Candidate c = {static_cast<double>(chunk_tops[i].value), chunk_tops[i].id};
      if (last.id < 0 || Better(c, last).id != c.id) best = Better(best, c);
    }
    best = BlockBest(best, scratch);
    if (threadIdx.x == 0) {
      const double logprob = best.value - p.states[r].log_sum;
      tops[taken] = {static_cast<float>(logprob), best.id};
    }
    if (best.id < 0) continue;
    last = best;
  }
}

// ---- what a sequence has said

QUARTET_KERNEL(sample_count, kCountThreads, 5, SampleCountParams) {
  const int i = static_cast<int>(blockIdx.x) * kCountThreads + static_cast<int>(threadIdx.x);
  if (i >= p.n_tokens) return;
  uint32_t* count = p.counts + p.tokens[i];
  if (p.prompt != 0) {
    atomicOr(count, 0x80000000u);
  } else {
    atomicAdd(count, 1u);
  }
}

}  // namespace quartet::cuda
