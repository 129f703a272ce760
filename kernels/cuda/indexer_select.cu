// The best pools of each row: an exact radix selection on order-preserving integers, one block a
// row. Higher score first, equal scores by lower index, NaN last; the result ascends by index.

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/dsa_paged.cuh"
#include "kernels/cuda/indexer_params.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;

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
};

// Adds one to the digit's count of every lane with `valid`. Scores crowd in few digits, so the
// lanes that agree with the first of them are added at once.
QUARTET_DEVICE void CountDigit(int* histogram, bool valid, int digit) {
  const unsigned lanes = __ballot_sync(kFullMask, valid);
  if (lanes == 0) return;
  const int leader = __ffs(static_cast<int>(lanes)) - 1;
  const int common = __shfl_sync(kFullMask, digit, leader);
  const bool same = valid && digit == common;
  const unsigned together = __ballot_sync(kFullMask, same);
  if (Lane() == leader) {
    atomicAdd(&histogram[common], __popc(together));
  } else if (valid && !same) {
    atomicAdd(&histogram[digit], 1);
  }
}

// Finds the highest digit such that at least `wanted` of the counted have it or a higher one, and
// how many have a higher one. One warp.
QUARTET_DEVICE void FindDigit(SelectShared& shared, int wanted) {
  constexpr int kEach = kDigits / 32;
  const int top = kDigits - 1 - Lane() * kEach;  // this lane's highest digit
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += shared.histogram[top - i];
  int upto = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kFullMask, upto, offset);
    if (Lane() >= offset) upto += other;
  }
  int before = upto - sum;
  if (before < wanted && wanted <= upto) {
    int digit = top;
    while (before + shared.histogram[digit] < wanted) before += shared.histogram[digit--];
    shared.digit = digit;
    shared.before = before;
  }
}

// The `wanted`-th largest of the keys that `each` hands to its argument as (valid, key), by all
// threads alike. *above gets how many are larger.
template <class Each>
QUARTET_DEVICE uint32_t SelectKey(SelectShared& shared, int wanted, const Each& each, int* above) {
  uint32_t prefix = 0;
  int larger = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < kDigits) shared.histogram[threadIdx.x] = 0;
    __syncthreads();
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

// The scores of a row as all threads walk them together.
struct RowScores {
  const float* scores;
  int count;

  template <class Visit>
  QUARTET_DEVICE void Each(const Visit& visit) const {
#pragma unroll 4
    for (int base = 0; base < count; base += kThreads) {
      const int m = base + static_cast<int>(threadIdx.x);
      visit(m < count, m < count ? KeyOfScore(scores[m]) : 0);
    }
  }
};

// A key that at least `topk` keys reach, found cheaply: of every thread's largest key the topk-th
// largest. Few keys reach it, which keeps what follows off the histogram.
QUARTET_DEVICE uint32_t LowerBound(SelectShared& shared, const RowScores& row, int topk) {
  if (topk > kThreads) return 0;
  uint32_t largest = 0;
  row.Each([&](bool valid, uint32_t key) { largest = valid ? max(largest, key) : largest; });
  int above = 0;
  return SelectKey(
      shared, topk, [&](const auto& visit) { visit(true, largest); }, &above);
}

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

// The best score that was not selected. After WriteSelected, which left its counts.
QUARTET_DEVICE float BestRejected(SelectShared& shared, const RowScores& row, uint32_t cut,
                                  int ties) {
  uint32_t below = 0;
  row.Each([&](bool valid, uint32_t key) {
    if (valid && key < cut) below = max(below, key);
  });
  below = BlockMaxKey(shared, below);
  int equal = 0;
  for (int w = 0; w < kWarps; ++w) equal += shared.warp_equal[w];
  return ScoreOfKey(equal > ties ? cut : below);
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
  const uint32_t bound = LowerBound(shared, scores, p.topk);
  int above = 0;
  const uint32_t cut = SelectKey(
      shared, p.topk,
      [&](const auto& visit) {
        scores.Each([&](bool valid, uint32_t key) { visit(valid && key >= bound, key); });
      },
      &above);
  const int ties = p.topk - above;
  WriteSelected(shared, scores, cut, ties, pools);
  if (p.margins != nullptr) {
    const float rejected = BestRejected(shared, scores, cut, ties);
    if (threadIdx.x == 0) p.margins[row] = ScoreOfKey(cut) - rejected;
  }
}

}  // namespace quartet::cuda
