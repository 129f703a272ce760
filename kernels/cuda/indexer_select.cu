// The best pools of each row: an exact selection on order-preserving integers, one block a row.
// Higher score first, equal scores by lower index, NaN last; the result ascends by index.
//
// Each thread holds its part of a row in registers. Of more than kListSize scores first a bound is
// found that at least topk of them reach: a threshold of the maxima of small groups. What is above
// it, usually half as many again, is listed, and the threshold of the list is that of the row. Rows
// longer than a block can hold are read again for every digit.

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/dsa_paged.cuh"
#include "kernels/cuda/indexer_params.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr int kListSize = 4096;
constexpr int kEach = kListSize / kThreads;  // of the list, a thread
constexpr int kFours = 9;                    // times four scores in a row that a thread holds
constexpr int kHeld = kFours * 4 * kThreads;
constexpr int kGroups = (kFours + 1) / 2;  // of eight scores a thread, the last may be smaller
static_assert(kEach == 4, "of a short row every score is listed");
// With at most so many groups above the bound, what is above it fits the list.
constexpr int kMostBounded = kListSize / 8;

// Orders as floats order, NaN as -inf, both zeros alike. Never zero, which stands for no score.
QUARTET_DEVICE uint32_t KeyOfScore(float score) {
  const float v = score == score ? score + 0.0f : -INFINITY;
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
QUARTET_DEVICE float ScoreOfKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

struct SelectShared {
  int4 histogram[kDigits / 4];
  int digit;
  int before;    // how many are in higher ones
  int in_digit;  // how many are in it
  int list_count;
  uint32_t warp_largest[kWarps];
  uint32_t warp_complements[kWarps];
  int warp_counts[kWarps];
  uint32_t list[kListSize];  // keys above the bound, in no particular order
  // Of each four pools in a row, which are above the threshold (lower four bits) and which at it.
  uint8_t marks[kHeld / 4];
};

QUARTET_DEVICE int SumOfWarp(int v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}
// Over this lane and those before it.
QUARTET_DEVICE int SumUpTo(int v) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kFullMask, v, offset);
    if (Lane() >= offset) v += other;
  }
  return v;
}

struct KeyRange {
  uint32_t least = 0;  // 0 where there is no key
  uint32_t largest = 0;
};
// Over all threads. A barrier must lie between two calls.
QUARTET_DEVICE KeyRange BlockRange(SelectShared& shared, const KeyRange& mine) {
  uint32_t largest = mine.largest;
  uint32_t complement = 0u - mine.least;  // the largest of the least key, and zero of none
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(kFullMask, largest, offset));
    complement = max(complement, __shfl_xor_sync(kFullMask, complement, offset));
  }
  if (Lane() == 0) {
    shared.warp_largest[Warp()] = largest;
    shared.warp_complements[Warp()] = complement;
  }
  __syncthreads();
  largest = shared.warp_largest[Lane()];
  complement = shared.warp_complements[Lane()];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(kFullMask, largest, offset));
    complement = max(complement, __shfl_xor_sync(kFullMask, complement, offset));
  }
  return {0u - complement, largest};
}

// Finds the highest digit such that at least `wanted` of the counted have it or a higher one, and
// how many have it and a higher one. Leaves the histogram empty. One warp.
QUARTET_DEVICE void FindDigit(SelectShared& shared, int wanted) {
  const int top = kDigits - 1 - 8 * Lane();  // this lane's highest digit of eight
  int4* at = &shared.histogram[top / 4 - 1];
  const int4 low = at[0], high = at[1];
  at[0] = at[1] = make_int4(0, 0, 0, 0);
  const int counts[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += counts[i];
  int before = SumUpTo(sum) - sum;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (before < wanted && wanted <= before + counts[i]) {
      shared.digit = top - i;
      shared.before = before;
      shared.in_digit = counts[i];
    }
    before += counts[i];
  }
}

// A threshold t of the keys that `each` hands to its argument in all threads, zeros left out: at
// most `wanted` are above t, at least `wanted` not below it. There must be as many. Digit by digit
// from the first bit in which keys differ, until a digit is wanted whole. The histogram is empty
// before and after.
template <class Each>
QUARTET_DEVICE uint32_t ThresholdOf(SelectShared& shared, int wanted, const Each& each) {
  KeyRange range;
  each([&](uint32_t key) {
    range.largest = max(range.largest, key);
    range.least = min(range.least - 1, key - 1) + 1;  // zero is the largest
  });
  range = BlockRange(shared, range);
  if (range.least == range.largest) return range.least;
  int* histogram = reinterpret_cast<int*>(shared.histogram);
  int shift = max(0, 24 - __clz(static_cast<int>(range.least ^ range.largest)));
  uint32_t prefix = range.largest >> shift >> 8;  // what the candidates have above the digit
  int above_digit = shift + 8;
  for (;;) {
    each([&](uint32_t key) {
      if (key == 0 || (above_digit < 32 && key >> above_digit != prefix)) return;
      atomicAdd(&histogram[key >> shift & (kDigits - 1)], 1);
    });
    __syncthreads();
    if (Warp() == 0) FindDigit(shared, wanted);
    __syncthreads();
    const int bits = above_digit - shift;  // less than eight for what remains at the end
    prefix = prefix << bits | (static_cast<uint32_t>(shared.digit) & ((1u << bits) - 1));
    wanted -= shared.before;
    const uint32_t least = prefix << shift;
    if (wanted == shared.in_digit) return least == 0 ? 0 : least - 1;
    if (shift == 0) return least;
    above_digit = shift;
    shift = max(0, shift - 8);
  }
}

// ---- rows of any length

// The scores of a row as all threads walk them together. Scores are aligned to 16 bytes.
struct RowScores {
  const float* scores;
  int count;

  // visit(key), all threads equally often.
  template <class Visit>
  QUARTET_DEVICE void Each(const Visit& visit) const {
#pragma unroll 4
    for (int base = 0; base < count; base += 4 * kThreads) {
      const int m = base + 4 * static_cast<int>(threadIdx.x);
      float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (m < count) v = *reinterpret_cast<const float4*>(scores + m);
      visit(m < count ? KeyOfScore(v.x) : 0);
      visit(m + 1 < count ? KeyOfScore(v.y) : 0);
      visit(m + 2 < count ? KeyOfScore(v.z) : 0);
      visit(m + 3 < count ? KeyOfScore(v.w) : 0);
    }
  }
};

// How many of four scores are above the threshold and how many at it, the former in the upper half.
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
  QUARTET_DEVICE int Counts(uint32_t threshold) const {
    int counts = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < valid) counts += key[i] > threshold ? 1 << 16 : key[i] == threshold ? 1 : 0;
    }
    return counts;
  }
};

// How many of those at the threshold were selected, and whether some were not.
struct Ties {
  int count;
  bool more;
};

// Writes the pools above the threshold and the first of those at it. Every warp has a range of
// pools of its own: it counts, and then writes behind what the warps before it counted.
QUARTET_DEVICE Ties WriteLong(SelectShared& shared, const RowScores& row, uint32_t threshold,
                              int topk, int32_t* pools) {
  constexpr int kStep = 4 * 32;
  const int range = (row.count + kWarps * kStep - 1) / (kWarps * kStep) * kStep;
  const int begin = min(Warp() * range, row.count);
  const int end = min(begin + range, row.count);
  int above = 0;
  int equal = 0;
#pragma unroll 8
  for (int base = begin; base < end; base += kStep) {
    const int counts = FourKeys(row, base + 4 * Lane(), end).Counts(threshold);
    above += counts >> 16;
    equal += counts & 0xFFFF;
  }
  above = SumOfWarp(above);
  equal = SumOfWarp(equal);
  if (Lane() == 0) {
    shared.warp_counts[Warp()] = above;
    shared.warp_largest[Warp()] = static_cast<uint32_t>(equal);
  }
  __syncthreads();
  const int above_of = shared.warp_counts[Lane()];
  const int equal_of = static_cast<int>(shared.warp_largest[Lane()]);
  const Ties ties = {topk - SumOfWarp(above_of), topk - SumOfWarp(above_of) < SumOfWarp(equal_of)};
  const bool any_above = above > 0;
  const bool any_equal = equal > 0;
  above = SumOfWarp(Lane() < Warp() ? above_of : 0);
  equal = SumOfWarp(Lane() < Warp() ? equal_of : 0);
  for (int base = begin; base < end; base += kStep) {
    if (!any_above && (!any_equal || equal >= ties.count)) break;
    const int m = base + 4 * Lane();
    const FourKeys four(row, m, end);
    const int mine = four.Counts(threshold);
    const int upto = SumUpTo(mine);
    int my_above = above + ((upto - mine) >> 16);
    int my_equal = equal + ((upto - mine) & 0xFFFF);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= four.valid || four.key[i] < threshold) continue;
      const bool is_equal = four.key[i] == threshold;
      if (!is_equal || my_equal < ties.count) {
        pools[my_above + min(my_equal, ties.count)] = m + i;
      }
      (is_equal ? my_equal : my_above) += 1;
    }
    const int all = __shfl_sync(kFullMask, upto, 31);
    above += all >> 16;
    equal += all & 0xFFFF;
  }
  return ties;
}

// ---- rows that a block holds

// Four i of thread t: pools 4 (kThreads i + t) and the next three.
struct HeldKeys {
  uint32_t key[kFours][4];
  int count;

  QUARTET_DEVICE explicit HeldKeys(const RowScores& row) : count(row.count) {
    float4 v[kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (First(i) < count) v[i] = *reinterpret_cast<const float4*>(row.scores + First(i));
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (i > 0 && !Has(i)) {
        key[i][0] = key[i][1] = key[i][2] = key[i][3] = 0;
        continue;
      }
      const int m = First(i);
      key[i][0] = m < count ? KeyOfScore(v[i].x) : 0;
      key[i][1] = m + 1 < count ? KeyOfScore(v[i].y) : 0;
      key[i][2] = m + 2 < count ? KeyOfScore(v[i].z) : 0;
      key[i][3] = m + 3 < count ? KeyOfScore(v[i].w) : 0;
    }
  }
  QUARTET_DEVICE static int First(int i) {
    return 4 * (kThreads * i + static_cast<int>(threadIdx.x));
  }
  // Whether any thread has scores in its four i.
  QUARTET_DEVICE bool Has(int i) const {
    return 4 * kThreads * i < count;
  }

  template <class Visit>
  QUARTET_DEVICE void Each(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (!Has(i)) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) visit(key[i][j]);
    }
  }
};

template <int Count>
QUARTET_DEVICE uint32_t ThresholdOfThese(SelectShared& shared, int wanted,
                                         const uint32_t (&keys)[Count]) {
  return ThresholdOf(shared, wanted, [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < Count; ++i) visit(keys[i]);
  });
}

// Fills the list with all keys above the bound, which must fit. Returns how many there are.
QUARTET_DEVICE int ListAbove(SelectShared& shared, const HeldKeys& held, uint32_t bound) {
  int mine = 0;
  held.Each([&](uint32_t key) { mine += key > bound ? 1 : 0; });
  const int upto = SumUpTo(mine);
  int at = 0;
  if (Lane() == 31) at = atomicAdd(&shared.list_count, upto);
  at = __shfl_sync(kFullMask, at, 31) + upto - mine;
  if (mine > 0) {
    held.Each([&](uint32_t key) {
      if (key > bound) shared.list[at++] = key;
    });
  }
  __syncthreads();
  return shared.list_count;
}

QUARTET_DEVICE uint32_t ThresholdOfHeld(SelectShared& shared, const HeldKeys& held, int topk) {
  if (held.count <= kListSize) return ThresholdOfThese(shared, topk, held.key[0]);
  uint32_t maxima[kGroups] = {};
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) maxima[i / 2] = max(maxima[i / 2], held.key[i][j]);
  }
  const uint32_t bound = ThresholdOfThese(shared, topk, maxima);
  const int listed = ListAbove(shared, held, bound);
  if (listed < topk) return bound;
  uint32_t list[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    list[i] = at < listed ? shared.list[at] : 0;
  }
  // A threshold of the list may lie below the bound, where it knows of no keys.
  return max(bound, ThresholdOfThese(shared, topk, list));
}

// Writes the pools above the threshold and the first of those at it, ascending.
QUARTET_DEVICE Ties WriteHeld(SelectShared& shared, const HeldKeys& held, uint32_t threshold,
                              int topk, int32_t* pools) {
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    if (!held.Has(i)) break;
    unsigned marks = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      marks |= held.key[i][j] > threshold ? 1u << j : held.key[i][j] == threshold ? 16u << j : 0;
    }
    shared.marks[kThreads * i + threadIdx.x] = static_cast<uint8_t>(marks);
  }
  __syncthreads();
  constexpr unsigned kAbove = 0x0F0F0F0F;  // the pools of a word of marks are 16
  constexpr int kWords = (kHeld / 16 + kThreads - 1) / kThreads;  // in a row, a thread
  const int first = static_cast<int>(threadIdx.x) * kWords;
  uint32_t words[kWords];
  int mine = 0;  // above in the upper half, at it in the lower
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = 0;
    if (16 * (first + i) < held.count) memcpy(&words[i], &shared.marks[4 * (first + i)], 4);
    mine += (__popc(words[i] & kAbove) << 16) + __popc(words[i] & ~kAbove);
  }
  const int upto = SumUpTo(mine);
  if (Lane() == 31) shared.warp_counts[Warp()] = upto;
  __syncthreads();
  const int of_warp = shared.warp_counts[Lane()];
  const int all = SumOfWarp(of_warp);
  const Ties ties = {topk - (all >> 16), topk - (all >> 16) < (all & 0xFFFF)};
  const int before = upto - mine + SumOfWarp(Lane() < Warp() ? of_warp : 0);
  int my_above = before >> 16;
  int my_equal = before & 0xFFFF;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    uint32_t left = words[i] & kAbove;
    if (my_equal < ties.count) left |= words[i] >> 4 & kAbove;
    for (; left != 0; left &= left - 1) {
      const int bit = __ffs(static_cast<int>(left)) - 1;
      const bool is_above = (words[i] >> bit & 1) != 0;
      if (is_above || my_equal < ties.count) {
        pools[my_above + min(my_equal, ties.count)] = 16 * (first + i) + bit / 8 * 4 + bit % 8;
      }
      (is_above ? my_above : my_equal) += 1;
    }
  }
  return ties;
}

// ---- one row

// The least selected score less the largest that was not. A barrier must lie before it.
template <class Each>
QUARTET_DEVICE float MarginOf(SelectShared& shared, uint32_t threshold, const Ties& ties,
                              const Each& each) {
  KeyRange mine;  // the largest below the threshold, the least above it
  each([&](uint32_t key) {
    if (key < threshold) mine.largest = max(mine.largest, key);
    if (key > threshold) mine.least = min(mine.least - 1, key - 1) + 1;
  });
  const KeyRange all = BlockRange(shared, mine);
  return ScoreOfKey(ties.count > 0 ? threshold : all.least) -
         ScoreOfKey(ties.more ? threshold : all.largest);
}

// Both return the margin, if it is wanted.
QUARTET_DEVICE float SelectHeld(SelectShared& shared, const RowScores& row, int topk,
                                int32_t* pools, bool with_margin) {
  const HeldKeys held(row);
  const uint32_t threshold = ThresholdOfHeld(shared, held, topk);
  const Ties ties = WriteHeld(shared, held, threshold, topk, pools);
  if (!with_margin) return 0.0f;
  return MarginOf(shared, threshold, ties, [&](const auto& visit) { held.Each(visit); });
}

QUARTET_DEVICE float SelectLong(SelectShared& shared, const RowScores& row, int topk,
                                int32_t* pools, bool with_margin) {
  const auto each = [&](const auto& visit) { row.Each(visit); };
  const uint32_t threshold = ThresholdOf(shared, topk, each);
  __syncthreads();
  const Ties ties = WriteLong(shared, row, threshold, topk, pools);
  if (!with_margin) return 0.0f;
  __syncthreads();
  return MarginOf(shared, threshold, ties, each);
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
  if (threadIdx.x < kDigits / 4) shared.histogram[threadIdx.x] = make_int4(0, 0, 0, 0);
  if (threadIdx.x == 0) shared.list_count = 0;
  const bool holds = candidates <= (p.topk <= kMostBounded ? kHeld : kListSize);
  const float margin = holds ? SelectHeld(shared, scores, p.topk, pools, p.margins != nullptr)
                             : SelectLong(shared, scores, p.topk, pools, p.margins != nullptr);
  if (threadIdx.x == 0 && p.margins != nullptr) p.margins[row] = margin;
}

}  // namespace quartet::cuda
