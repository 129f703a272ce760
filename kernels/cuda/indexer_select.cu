// The best pools of each row: an exact radix selection on order-preserving integers, one block a
// row. Higher score first, equal scores by lower index, NaN last; the result ascends by index.
//
// The scores are read twice: for a bound that at least topk of them reach, then for the list of
// those that do, usually half as many again. The rest happens in shared memory.

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/dsa_paged.cuh"
#include "kernels/cuda/indexer_params.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr int kListSize = 4096;

// Orders as floats order, NaN as -inf, both zeros alike.
QUARTET_DEVICE uint32_t KeyOfScore(float score) {
  const float v = score == score ? score + 0.0f : -INFINITY;
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
QUARTET_DEVICE float ScoreOfKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

struct SelectShared {
  int histogram[kDigits];
  int digit;
  int before;
  uint32_t warp_keys[kWarps];
  int warp_above[kWarps];
  int warp_equal[kWarps];
  int list_count;
  uint32_t keys[kListSize];  // the scores that may be selected, in no particular order
  int pools[kListSize];      // whose they are
};

// Adds one to the digit's count of every lane with `valid`. Scores crowd in few digits, so lanes
// that agree with the first of them are added at once, twice; the rest one by one.
QUARTET_DEVICE void CountDigit(int* histogram, bool valid, int digit) {
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    const unsigned lanes = __ballot_sync(kFullMask, valid);
    if (lanes == 0) return;
    const int leader = __ffs(static_cast<int>(lanes)) - 1;
    const int common = __shfl_sync(kFullMask, digit, leader);
    const bool same = valid && digit == common;
    const unsigned together = __ballot_sync(kFullMask, same);
    if (Lane() == leader) atomicAdd(&histogram[common], __popc(together));
    valid = valid && !same;
  }
  if (valid) atomicAdd(&histogram[digit], 1);
}

// Finds the highest digit such that at least `wanted` of the counted have it or a higher one, and
// how many have a higher one. Leaves the histogram empty. One warp.
QUARTET_DEVICE void FindDigit(SelectShared& shared, int wanted) {
  constexpr int kEach = kDigits / 32;
  const int top = kDigits - 1 - Lane() * kEach;  // this lane's highest digit
  int counts[kEach];
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    counts[i] = shared.histogram[top - i];
    shared.histogram[top - i] = 0;
    sum += counts[i];
  }
  int upto = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kFullMask, upto, offset);
    if (Lane() >= offset) upto += other;
  }
  int before = upto - sum;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (before < wanted && wanted <= before + counts[i]) {
      shared.digit = top - i;
      shared.before = before;
    }
    before += counts[i];
  }
}

// The `wanted`-th largest of the keys that `each` hands to its argument as (valid, key), by all
// threads alike; of its bits only those from LastShift on, a multiple of 8, the others zero. *above
// gets how many are larger in those bits. The histogram is empty before and after.
template <int LastShift = 0, class Each>
QUARTET_DEVICE uint32_t SelectKey(SelectShared& shared, int wanted, const Each& each, int* above) {
  uint32_t prefix = 0;
  int larger = 0;
  for (int shift = 24; shift >= LastShift; shift -= 8) {
    each([&](bool valid, uint32_t key) {
      const bool counted = valid && (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8));
      CountDigit(shared.histogram, counted, static_cast<int>(key >> shift & 0xFF));
    });
    __syncthreads();
    if (Warp() == 0) FindDigit(shared, wanted - larger);
    __syncthreads();
    prefix |= static_cast<uint32_t>(shared.digit) << shift;
    larger += shared.before;
  }
  *above = larger;
  return prefix;
}

QUARTET_DEVICE uint32_t BlockMaxKey(SelectShared& shared, uint32_t key) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    key = max(key, __shfl_xor_sync(kFullMask, key, offset));
  }
  __syncthreads();
  if (Lane() == 0) shared.warp_keys[Warp()] = key;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) key = max(key, shared.warp_keys[i]);
  return key;
}

// The scores of a row as all threads walk them together. Scores are aligned to 16 bytes.
struct RowScores {
  const float* scores;
  int count;

  // visit(valid, key, pool), all threads equally often.
  template <class Visit>
  QUARTET_DEVICE void Each(const Visit& visit) const {
#pragma unroll 4
    for (int base = 0; base < count; base += 4 * kThreads) {
      const int m = base + 4 * static_cast<int>(threadIdx.x);
      float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (m < count) v = *reinterpret_cast<const float4*>(scores + m);
      visit(m < count, KeyOfScore(v.x), m);
      visit(m + 1 < count, KeyOfScore(v.y), m + 1);
      visit(m + 2 < count, KeyOfScore(v.z), m + 2);
      visit(m + 3 < count, KeyOfScore(v.w), m + 3);
    }
  }
};

// A key that at least `topk` keys reach, found cheaply: of every thread's largest key the topk-th
// largest. Not many more keys reach it.
QUARTET_DEVICE uint32_t LowerBound(SelectShared& shared, const RowScores& row, int topk) {
  if (topk > kThreads) return 0;
  uint32_t largest = 0;
  row.Each([&](bool valid, uint32_t key, int) { largest = valid ? max(largest, key) : largest; });
  int above = 0;
  // The upper half of its bits will do.
  return SelectKey<16>(
      shared, topk, [&](const auto& visit) { visit(true, largest); }, &above);
}

// Collects the keys that reach `bound`. Returns how many there are, which may be more than the list
// holds.
QUARTET_DEVICE int Collect(SelectShared& shared, const RowScores& row, uint32_t bound) {
  if (threadIdx.x == 0) shared.list_count = 0;
  __syncthreads();
  row.Each([&](bool valid, uint32_t key, int pool) {
    const bool take = valid && key >= bound;
    const unsigned lanes = __ballot_sync(kFullMask, take);
    if (lanes == 0) return;
    int at = 0;
    if (Lane() == 0) at = atomicAdd(&shared.list_count, __popc(lanes));
    at = __shfl_sync(kFullMask, at, 0) + __popc(lanes & ((1u << Lane()) - 1));
    if (!take || at >= kListSize) return;
    shared.keys[at] = key;
    shared.pools[at] = pool;
  });
  __syncthreads();
  return shared.list_count;
}

// ---- the usual way: from the list

// Writes the pools whose bits are set, ascending. `bits` holds count bits, whole words.
QUARTET_DEVICE void WriteBits(SelectShared& shared, const uint32_t* bits, int count,
                              int32_t* pools) {
  constexpr int kWords = kListSize / kThreads;
  const int first = static_cast<int>(threadIdx.x) * kWords;
  uint32_t word[kWords];
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    word[i] = (first + i) * 32 < count ? bits[first + i] : 0;
    mine += __popc(word[i]);
  }
  int upto = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kFullMask, upto, offset);
    if (Lane() >= offset) upto += other;
  }
  if (Lane() == 31) shared.warp_above[Warp()] = upto;
  __syncthreads();
  if (mine == 0) return;
  int at = upto - mine;
  for (int w = 0; w < Warp(); ++w) at += shared.warp_above[w];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    for (; word[i] != 0; word[i] &= word[i] - 1) {
      pools[at++] = (first + i) * 32 + __ffs(static_cast<int>(word[i])) - 1;
    }
  }
}

// Selects from the `listed` collected keys, more than topk or as many, of pools below `count`.
// *rejected gets the largest key that is listed and not selected, 0 if there is none.
QUARTET_DEVICE uint32_t SelectFromList(SelectShared& shared, int listed, int count, int topk,
                                       int32_t* pools, uint32_t* rejected) {
  constexpr int kEach = kListSize / kThreads;
  uint32_t key[kEach];
  int pool[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    key[i] = at < listed ? shared.keys[at] : 0;
    pool[i] = at < listed ? shared.pools[at] : -1;
  }
  const int used = (listed + kThreads - 1) / kThreads;
  int above = 0;
  const uint32_t cut = SelectKey(
      shared, topk,
      [&](const auto& visit) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          if (i < used) visit(pool[i] >= 0, key[i]);
        }
      },
      &above);
  // Of the pools at the cut the lowest are taken: those whose complement is at least tie_cut.
  int at_cut = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i < used) at_cut += __syncthreads_count(pool[i] >= 0 && key[i] == cut);
  }
  uint32_t tie_cut = 0;
  if (at_cut > topk - above) {
    int unused = 0;
    tie_cut = SelectKey(
        shared, topk - above,
        [&](const auto& visit) {
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            if (i < used) visit(pool[i] >= 0 && key[i] == cut, ~static_cast<uint32_t>(pool[i]));
          }
        },
        &unused);
  }
  // The list has been read: its place holds a bit for every pool now.
  uint32_t* bits = shared.keys;
  for (int i = static_cast<int>(threadIdx.x); i * 32 < count; i += kThreads) bits[i] = 0;
  __syncthreads();
  uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (pool[i] < 0) continue;
    if (key[i] > cut || (key[i] == cut && ~static_cast<uint32_t>(pool[i]) >= tie_cut)) {
      atomicOr(&bits[pool[i] / 32], 1u << (pool[i] % 32));
    } else {
      best = max(best, key[i]);
    }
  }
  __syncthreads();
  WriteBits(shared, bits, count, pools);
  *rejected = best;
  return cut;
}

// ---- the way for any number of pools and of equal scores: from the scores

// Writes the pools above `cut`, and of those at it the first `ties`, ascending. Every warp has a
// range of pools of its own: it counts, and then writes behind what the warps before it counted.
QUARTET_DEVICE void WriteSelected(SelectShared& shared, const RowScores& row, uint32_t cut,
                                  int ties, int32_t* pools) {
  const int range = (row.count + kThreads - 1) / kThreads * 32;
  const int begin = min(Warp() * range, row.count);
  const int end = min(begin + range, row.count);
  int above = 0;
  int equal = 0;
  for (int base = begin; base < end; base += 32) {
    const int m = base + Lane();
    const uint32_t key = m < end ? KeyOfScore(row.scores[m]) : 0;
    above += __popc(__ballot_sync(kFullMask, m < end && key > cut));
    equal += __popc(__ballot_sync(kFullMask, m < end && key == cut));
  }
  if (Lane() == 0) {
    shared.warp_above[Warp()] = above;
    shared.warp_equal[Warp()] = equal;
  }
  __syncthreads();
  const bool anything = above + equal > 0;
  above = 0;
  equal = 0;
  for (int w = 0; w < Warp(); ++w) {
    above += shared.warp_above[w];
    equal += shared.warp_equal[w];
  }
  if (!anything) return;
  const unsigned before = (1u << Lane()) - 1;
  for (int base = begin; base < end; base += 32) {
    const int m = base + Lane();
    const uint32_t key = m < end ? KeyOfScore(row.scores[m]) : 0;
    const unsigned is_above = __ballot_sync(kFullMask, m < end && key > cut);
    const unsigned is_equal = __ballot_sync(kFullMask, m < end && key == cut);
    const int my_above = above + __popc(is_above & before);
    const int my_equal = equal + __popc(is_equal & before);
    const bool take =
        (is_above >> Lane() & 1) != 0 || ((is_equal >> Lane() & 1) != 0 && my_equal < ties);
    if (take) pools[my_above + min(my_equal, ties)] = m;
    above += __popc(is_above);
    equal += __popc(is_equal);
  }
}

// Selects, and returns the cut; *rejected as SelectFromList, of all pools.
QUARTET_DEVICE uint32_t SelectFromScores(SelectShared& shared, const RowScores& row, uint32_t bound,
                                         int topk, int32_t* pools, uint32_t* rejected) {
  int above = 0;
  const uint32_t cut = SelectKey(
      shared, topk,
      [&](const auto& visit) {
        row.Each([&](bool valid, uint32_t key, int) { visit(valid && key >= bound, key); });
      },
      &above);
  WriteSelected(shared, row, cut, topk - above, pools);
  int equal = 0;
  for (int w = 0; w < kWarps; ++w) equal += shared.warp_equal[w];
  *rejected = equal > topk - above ? cut : 0;
  return cut;
}

// The largest key below `cut`, of this thread's.
QUARTET_DEVICE uint32_t LargestBelow(const RowScores& row, uint32_t cut) {
  uint32_t below = 0;
  row.Each([&](bool valid, uint32_t key, int) {
    if (valid && key < cut) below = max(below, key);
  });
  return below;
}

}  // namespace

// Grid (rows).
QUARTET_KERNEL(index_select, 1024, 1, IndexSelectParams) {
  __shared__ SelectShared shared;
  const int row = p.row_begin + static_cast<int>(blockIdx.x);
  const int candidates = (PlaceOfRow(p.step, row).position + 1) / p.kpool;
  int32_t* pools = p.pools + static_cast<int64_t>(row) * p.topk;
  if (threadIdx.x == 0) p.counts[row] = min(candidates, p.topk);
  if (candidates <= p.topk) {
    for (int m = static_cast<int>(threadIdx.x); m < candidates; m += kThreads) pools[m] = m;
    if (threadIdx.x == 0 && p.margins != nullptr) p.margins[row] = INFINITY;
    return;
  }
  const RowScores scores = {p.scores + blockIdx.x * p.stride, candidates};
  if (threadIdx.x < kDigits) shared.histogram[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t bound = LowerBound(shared, scores, p.topk);
  const int listed = Collect(shared, scores, bound);
  uint32_t cut = 0;
  uint32_t rejected = 0;
  if (listed <= kListSize && candidates <= 32 * kListSize) {
    cut = SelectFromList(shared, listed, candidates, p.topk, pools, &rejected);
  } else {
    cut = SelectFromScores(shared, scores, bound, p.topk, pools, &rejected);
  }
  if (p.margins == nullptr) return;
  rejected = BlockMaxKey(shared, rejected);
  if (rejected == 0) rejected = BlockMaxKey(shared, LargestBelow(scores, cut));
  if (threadIdx.x == 0) p.margins[row] = ScoreOfKey(cut) - ScoreOfKey(rejected);
}

}  // namespace quartet::cuda
