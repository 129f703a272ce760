// The best pools of each row: an exact selection on order-preserving integers, one block a row.
// Higher score first, equal scores by lower index, NaN last; the result ascends by index.
//
// Up to kListSize scores are held in registers. Of more, first a bound is found that at least topk
// of them reach, then the list of those that do, usually half as many again. Either way the scores
// are sorted into bins of equal width, which leaves but a few to compare with each other. Where a
// bin is crowded because its scores are equal, they are taken in order; other crowds, and what does
// not fit a list, go through a radix selection digit by digit.

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/dsa_paged.cuh"
#include "kernels/cuda/indexer_params.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr int kBins = kThreads;
constexpr int kListSize = 4096;
constexpr int kEach = kListSize / kThreads;  // of the list, a thread
static_assert(kEach == 4, "a thread loads its scores as one float4");
constexpr int kCrowd = 256;  // scores of one bin that are compared pair by pair

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
  int histogram[kBins];
  int digit;     // or bin
  int before;    // how many are in higher ones
  int in_digit;  // how many are in it
  uint32_t cut;
  int crowd_count;
  uint32_t crowd_keys[kCrowd];
  int crowd_pools[kCrowd];
  uint32_t warp_keys[kWarps];
  uint32_t warp_complements[kWarps];
  int warp_above[kWarps];
  int warp_equal[kWarps];
  int list_count;
  uint32_t keys[kListSize];  // the scores that may be selected, in no particular order
  int pools[kListSize];      // whose they are
};

QUARTET_DEVICE int SumOfWarp(int v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

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
// threads alike. *above gets how many are larger. The histogram is empty before and after.
template <class Each>
QUARTET_DEVICE uint32_t SelectKey(SelectShared& shared, int wanted, const Each& each, int* above) {
  uint32_t prefix = 0;
  int larger = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
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

// ---- bins

struct KeyRange {
  uint32_t least;
  uint32_t largest;
};
QUARTET_DEVICE KeyRange NoKeys() {
  return {~0u, 0};
}
// Over all threads.
QUARTET_DEVICE KeyRange BlockRange(SelectShared& shared, const KeyRange& mine) {
  uint32_t largest = mine.largest;
  uint32_t complement = ~mine.least;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(kFullMask, largest, offset));
    complement = max(complement, __shfl_xor_sync(kFullMask, complement, offset));
  }
  if (Lane() == 0) {
    shared.warp_keys[Warp()] = largest;
    shared.warp_complements[Warp()] = complement;
  }
  __syncthreads();
  largest = shared.warp_keys[Lane()];
  complement = shared.warp_complements[Lane()];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(kFullMask, largest, offset));
    complement = max(complement, __shfl_xor_sync(kFullMask, complement, offset));
  }
  return {~complement, largest};
}

// Maps scores to bins of equal width: order is kept, equal scores share a bin.
struct Bins {
  float low;     // score at the lower end
  float factor;  // kBins over the width of all
  float from;    // what lies below is left out, the rest spread over all bins again
  float spread;

  QUARTET_DEVICE float At(uint32_t key) const { return (ScoreOfKey(key) - low) * factor; }
  // Of what is not left out.
  QUARTET_DEVICE int Of(uint32_t key) const {
    return min(kBins - 1, static_cast<int>((At(key) - from) * spread));
  }
};

// False where the range is too wide, too narrow or not finite.
QUARTET_DEVICE bool MakeBins(const KeyRange& range, Bins* bins) {
  const float low = ScoreOfKey(range.least);
  const float width = ScoreOfKey(range.largest) - low;
  *bins = {low, kBins / width, 0.0f, 1.0f};
  return width < INFINITY && bins->factor < INFINITY && bins->factor > 0.0f;
}

// Finds the highest bin such that at least `wanted` of the counted are in it or a higher one.
// Leaves the histogram empty. All threads, a bin each; begins and ends with a barrier.
QUARTET_DEVICE void FindBin(SelectShared& shared, int wanted) {
  __syncthreads();
  const int bin = kBins - 1 - static_cast<int>(threadIdx.x);
  const int count = shared.histogram[bin];
  shared.histogram[bin] = 0;
  int upto = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kFullMask, upto, offset);
    if (Lane() >= offset) upto += other;
  }
  if (Lane() == 31) shared.warp_above[Warp()] = upto;
  __syncthreads();
  const int before = upto - count + SumOfWarp(Lane() < Warp() ? shared.warp_above[Lane()] : 0);
  if (before < wanted && wanted <= before + count) {
    shared.digit = bin;
    shared.before = before;
    shared.in_digit = count;
  }
  __syncthreads();
}

// Up to kListSize scores, kEach a thread, in no particular order.
struct Listed {
  uint32_t key[kEach];
  int pool[kEach];  // -1: none
};

// All scores of a row that has no more. Returns the range of this thread's.
QUARTET_DEVICE KeyRange ListAll(const RowScores& row, Listed* list) {
  KeyRange range = NoKeys();
  const int m = kEach * static_cast<int>(threadIdx.x);
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (m < row.count) v = *reinterpret_cast<const float4*>(row.scores + m);
  const float scores[kEach] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool valid = m + i < row.count;
    list->key[i] = valid ? KeyOfScore(scores[i]) : 0;
    list->pool[i] = valid ? m + i : -1;
    if (valid) range = {min(range.least, list->key[i]), max(range.largest, list->key[i])};
  }
  return range;
}

QUARTET_DEVICE uint32_t LargestOf(const RowScores& row) {
  uint32_t largest = 0;
  row.Each([&](bool valid, uint32_t key, int) { largest = valid ? max(largest, key) : largest; });
  return largest;
}

// Lists the scores of a row that are not left out by the bins. Returns how many there are, which
// may be more than the list holds.
QUARTET_DEVICE int Collect(SelectShared& shared, const RowScores& row, const Bins& bins,
                           Listed* list) {
  if (threadIdx.x == 0) shared.list_count = 0;
  __syncthreads();
  row.Each([&](bool valid, uint32_t key, int pool) {
    const bool take = valid && bins.At(key) >= bins.from;
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
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const bool valid = at < shared.list_count;
    list->key[i] = valid ? shared.keys[at] : 0;
    list->pool[i] = valid ? shared.pools[at] : -1;
  }
  return shared.list_count;
}

// ---- from all scores: any number of pools and of equal scores

// How many of four scores are above the cut and how many at it, the former in the upper half.
struct FourKeys {
  uint32_t key[4];
  int valid;

  QUARTET_DEVICE FourKeys(const RowScores& row, int m, int end) : valid(min(4, max(0, end - m))) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (valid > 0) v = *reinterpret_cast<const float4*>(row.scores + m);
    key[0] = KeyOfScore(v.x);
    key[1] = KeyOfScore(v.y);
    key[2] = KeyOfScore(v.z);
    key[3] = KeyOfScore(v.w);
  }
  QUARTET_DEVICE int Counts(uint32_t cut) const {
    int counts = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < valid) counts += key[i] > cut ? 1 << 16 : static_cast<int>(key[i] == cut);
    }
    return counts;
  }
};

// If `cut` is the topk-th best score, writes the pools above it and the first of those at it, and
// returns true. *rejected gets the cut if some at it are left. Every warp has a range of pools of
// its own: it counts, and then writes behind what the warps before it counted.
QUARTET_DEVICE bool WriteIfCut(SelectShared& shared, const RowScores& row, uint32_t cut, int topk,
                               int32_t* pools, uint32_t* rejected) {
  constexpr int kStep = 4 * 32;
  const int range = (row.count + kWarps * kStep - 1) / (kWarps * kStep) * kStep;
  const int begin = min(Warp() * range, row.count);
  const int end = min(begin + range, row.count);
  int above = 0;
  int equal = 0;
#pragma unroll 8
  for (int base = begin; base < end; base += kStep) {
    const int counts = FourKeys(row, base + 4 * Lane(), end).Counts(cut);
    above += counts >> 16;
    equal += counts & 0xFFFF;
  }
  above = SumOfWarp(above);
  equal = SumOfWarp(equal);
  __syncthreads();
  if (Lane() == 0) {
    shared.warp_above[Warp()] = above;
    shared.warp_equal[Warp()] = equal;
  }
  __syncthreads();
  const int ties = topk - SumOfWarp(shared.warp_above[Lane()]);
  const int all_equal = SumOfWarp(shared.warp_equal[Lane()]);
  if (ties < 1 || ties > all_equal) return false;
  *rejected = ties < all_equal ? cut : 0;
  const bool any_above = above > 0;
  const bool any_equal = equal > 0;
  above = SumOfWarp(Lane() < Warp() ? shared.warp_above[Lane()] : 0);
  equal = SumOfWarp(Lane() < Warp() ? shared.warp_equal[Lane()] : 0);
  for (int base = begin; base < end; base += kStep) {
    if (!any_above && (!any_equal || equal >= ties)) break;
    const int m = base + 4 * Lane();
    const FourKeys four(row, m, end);
    const int mine = four.Counts(cut);
    int upto = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kFullMask, upto, offset);
      if (Lane() >= offset) upto += other;
    }
    int my_above = above + ((upto - mine) >> 16);
    int my_equal = equal + ((upto - mine) & 0xFFFF);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= four.valid || four.key[i] < cut) continue;
      const bool is_equal = four.key[i] == cut;
      if (!is_equal || my_equal < ties) pools[my_above + min(my_equal, ties)] = m + i;
      (is_equal ? my_equal : my_above) += 1;
    }
    const int all = __shfl_sync(kFullMask, upto, 31);
    above += all >> 16;
    equal += all & 0xFFFF;
  }
  return true;
}

// The same for the cut that the keys handed in by all threads are, if they are one and the same.
QUARTET_DEVICE bool WriteIfTied(SelectShared& shared, const RowScores& row, const KeyRange& mine,
                                int topk, int32_t* pools, uint32_t* rejected, uint32_t* cut) {
  const KeyRange range = BlockRange(shared, mine);
  *cut = range.largest;
  return range.least == range.largest && WriteIfCut(shared, row, *cut, topk, pools, rejected);
}

// Digit by digit. As SelectFromList.
QUARTET_DEVICE uint32_t SelectFromScores(SelectShared& shared, const RowScores& row, int topk,
                                         int32_t* pools, uint32_t* rejected) {
  int above = 0;
  const uint32_t cut = SelectKey(
      shared, topk,
      [&](const auto& visit) {
        row.Each([&](bool valid, uint32_t key, int) { visit(valid, key); });
      },
      &above);
  WriteIfCut(shared, row, cut, topk, pools, rejected);
  return cut;
}

// ---- from the list

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

// Writes those of the list that `is_taken` says by their place in it, of pools below `count`.
// Returns the largest key of this thread that is not taken, 0 if there is none. Not before a
// barrier after the last use of shared.keys.
template <class IsTaken>
QUARTET_DEVICE uint32_t WriteTaken(SelectShared& shared, const Listed& list, int count,
                                   int32_t* pools, const IsTaken& is_taken) {
  uint32_t* bits = shared.keys;  // for every pool
  for (int i = static_cast<int>(threadIdx.x); i * 32 < count; i += kThreads) bits[i] = 0;
  __syncthreads();
  uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (list.pool[i] < 0) continue;
    if (is_taken(i)) {
      atomicOr(&bits[list.pool[i] / 32], 1u << (list.pool[i] % 32));
    } else {
      best = max(best, list.key[i]);
    }
  }
  __syncthreads();
  WriteBits(shared, bits, count, pools);
  return best;
}

// Selects from the list once FindBin has found the bin of the last selected, in which there are no
// more than kCrowd. Returns the key of the last selected; *rejected gets the largest key of this
// thread that was looked at and not selected, 0 if there is none.
QUARTET_DEVICE uint32_t SelectFromList(SelectShared& shared, const Listed& list,
                                       const int (&bin)[kEach], int count, int topk, int32_t* pools,
                                       uint32_t* rejected) {
  const int last_bin = shared.digit;
  const int wanted = topk - shared.before;  // of the last bin
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (bin[i] != last_bin) continue;
    const int at = atomicAdd(&shared.crowd_count, 1);
    shared.crowd_keys[at] = list.key[i];
    shared.crowd_pools[at] = list.pool[i];
  }
  const int crowd = shared.in_digit;
  const auto rank = [&](uint32_t key, int pool) {
    int better = 0;
    for (int j = 0; j < crowd; ++j) {
      const uint32_t other = shared.crowd_keys[j];
      better += other > key || (other == key && shared.crowd_pools[j] < pool);
    }
    return better;
  };
  *rejected = WriteTaken(shared, list, count, pools, [&](int i) {
    if (bin[i] != last_bin) return bin[i] > last_bin;
    const int better = rank(list.key[i], list.pool[i]);
    if (better == wanted - 1) shared.cut = list.key[i];
    return better < wanted;
  });
  return shared.cut;
}

// Chooses the way. `row` has more than topk scores. As SelectFromList.
QUARTET_DEVICE uint32_t Select(SelectShared& shared, const RowScores& row, int topk, int32_t* pools,
                               uint32_t* rejected) {
  Listed list;
  const bool held = row.count <= kListSize;
  if (!held && (topk > kThreads || row.count > 32 * kListSize)) {
    return SelectFromScores(shared, row, topk, pools, rejected);
  }
  // Of all scores, or of the largest of every thread, of which at least topk are selected from.
  KeyRange mine;
  if (held) {
    mine = ListAll(row, &list);
  } else {
    mine.least = mine.largest = LargestOf(row);
  }
  const KeyRange range = BlockRange(shared, mine);
  if (range.least == range.largest &&
      WriteIfCut(shared, row, range.largest, topk, pools, rejected)) {
    return range.largest;
  }
  Bins bins;
  if (!MakeBins(range, &bins)) return SelectFromScores(shared, row, topk, pools, rejected);
  uint32_t cut = 0;
  if (!held) {
    const int bin = bins.Of(mine.largest);
    CountDigit(shared.histogram, true, bin);
    FindBin(shared, topk);
    if (shared.in_digit > kCrowd && WriteIfTied(shared, row, bin == shared.digit ? mine : NoKeys(),
                                                topk, pools, rejected, &cut)) {
      return cut;
    }
    bins.from = static_cast<float>(shared.digit);
    bins.spread = kBins / (kBins - bins.from);
    if (Collect(shared, row, bins, &list) > kListSize) {
      return SelectFromScores(shared, row, topk, pools, rejected);
    }
  }
  int bin[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    bin[i] = list.pool[i] >= 0 ? bins.Of(list.key[i]) : -1;
    CountDigit(shared.histogram, bin[i] >= 0, bin[i]);
  }
  FindBin(shared, topk);
  if (shared.in_digit <= kCrowd) {
    return SelectFromList(shared, list, bin, row.count, topk, pools, rejected);
  }
  KeyRange crowd = NoKeys();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (bin[i] != shared.digit) continue;
    crowd = {min(crowd.least, list.key[i]), max(crowd.largest, list.key[i])};
  }
  if (WriteIfTied(shared, row, crowd, topk, pools, rejected, &cut)) return cut;
  return SelectFromScores(shared, row, topk, pools, rejected);
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
  shared.histogram[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.crowd_count = 0;
  __syncthreads();
  uint32_t rejected = 0;
  const uint32_t cut = Select(shared, scores, p.topk, pools, &rejected);
  if (p.margins == nullptr) return;
  rejected = BlockMaxKey(shared, rejected);
  if (rejected == 0) rejected = BlockMaxKey(shared, LargestBelow(scores, cut));
  if (threadIdx.x == 0) p.margins[row] = ScoreOfKey(cut) - ScoreOfKey(rejected);
}

}  // namespace quartet::cuda
