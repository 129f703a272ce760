// The mixture of experts around its products: choice of experts, grouping, sums.

#include "kernels/cuda/device/exl3_input.cuh"
#include "kernels/cuda/moe_params.h"

namespace quartet::cuda {
namespace {

constexpr int kScores = kMaxExperts / 32;  // of a lane

// Below every score.
QUARTET_DEVICE float Taken() {
  return __int_as_float(static_cast<int>(0xFF800000u));  // -infinity
}

QUARTET_DEVICE float Sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// What the choice goes by. Numbers that compare with nothing are below every number but above what
// is taken, so that NaN rows still choose different experts.
QUARTET_DEVICE float Score(float logit, float bias) {
  const float score = Sigmoid(logit) + bias;
  return score > Taken() ? score : -3.402823466e38f;
}

// The index of the largest of the warp's scores, the lowest of equal ones. Lane l has scores of
// l, l + 32, ...
QUARTET_DEVICE int Best(const float* scores) {
  float best = scores[0];
  int index = Lane();
#pragma unroll
  for (int i = 1; i < kScores; ++i) {
    if (scores[i] > best) best = scores[i], index = Lane() + 32 * i;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kFullMask, best, offset);
    const int other_index = __shfl_xor_sync(kFullMask, index, offset);
    if (other > best || (other == best && other_index < index)) best = other, index = other_index;
  }
  return index;
}

// One warp chooses a row's experts; lane j ends with choice j.
QUARTET_DEVICE int ChooseExperts(const MoeSelectParams& p, int row) {
  const float* logits = p.logits + static_cast<int64_t>(row) * p.experts;
  if (p.forced != nullptr) {
    return Lane() < p.top_k ? p.forced[static_cast<int64_t>(row) * p.top_k + Lane()] : 0;
  }
  float scores[kScores];
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int e = Lane() + 32 * i;
    scores[i] = e < p.experts ? Score(logits[e], p.bias[e]) : Taken();
  }
  int chosen = 0;
  for (int j = 0; j < p.top_k; ++j) {
    const int best = Best(scores);
    if (Lane() == j) chosen = best;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (best == Lane() + 32 * i) scores[i] = Taken();
    }
  }
  return chosen;
}

// The weight of lane j's choice: the sum over the choices is taken first choice first.
QUARTET_DEVICE float WeighChoice(const MoeSelectParams& p, int row, int expert) {
  const float s =
      Lane() < p.top_k ? Sigmoid(p.logits[static_cast<int64_t>(row) * p.experts + expert]) : 0.0f;
  float sum = 0.0f;
  for (int j = 0; j < p.top_k; ++j) sum += __shfl_sync(kFullMask, s, j);
  return s / (sum + 1e-20f) * p.scaling;
}

// Slots of few rows by expert, in the order of each expert's first slot. One block.
QUARTET_DEVICE void GroupSlots(const MoeSelectParams& p, const int* experts, int count) {
  __shared__ unsigned leaders[kFewRows];  // by warp: which slots are the first of their expert
  __shared__ int group_expert[kFewRows * kMaxTopK];
  const int slot = static_cast<int>(threadIdx.x);
  const int expert = slot < count ? experts[slot] : -1;
  int first = slot, rank = 0, size = 0;
  for (int s = count - 1; s >= 0; --s) {
    if (experts[s] != expert) continue;
    first = s;
    ++size;
    rank += s < slot ? 1 : 0;
  }
  const unsigned leading = __ballot_sync(kFullMask, slot < count && first == slot);
  if (Lane() == 0) leaders[Warp()] = leading;
  __syncthreads();
  int group_count = 0, group = 0;
  for (int i = 0; i < kFewRows; ++i) {
    group_count += __popc(leaders[i]);
    if (i < first / 32) group += __popc(leaders[i]);
  }
  if (slot < count) {
    group += __popc(leaders[first / 32] & ((1u << (first & 31)) - 1));
    p.groups[group].slots[rank] = slot;
    p.groups[group].x_rows[rank] = slot / p.top_k;
    if (first == slot) {
      p.groups[group].rows = size;
      p.groups[group].expert = expert;
      group_expert[group] = expert;
    }
    if (slot >= group_count) p.groups[slot].rows = 0;
  }
  __syncthreads();

  // The matrices, so that the products find everything in one place.
  constexpr int kWords = sizeof(Exl3Group::matrices) / 4;
  for (int i = slot; i < group_count * kWords; i += static_cast<int>(blockDim.x)) {
    const int group = i / kWords;
    const auto* from = reinterpret_cast<const uint32_t*>(p.bank + 3 * group_expert[group]);
    reinterpret_cast<uint32_t*>(p.groups[group].matrices)[i % kWords] = from[i % kWords];
  }
  // And the input scales on their way to the second-level cache, where that is done in no time.
  if (p.rows > 1) return;
  const int lines = (p.inputs + 63) / 64;
  for (int i = slot; i < 2 * group_count * lines; i += static_cast<int>(blockDim.x)) {
    const Exl3Weights& w = p.bank[3 * group_expert[i / (2 * lines)] + i / lines % 2];
    PrefetchL2(w.suh + i % lines * 64);
  }
}

}  // namespace

QUARTET_KERNEL(moe_select, 256, 1, MoeSelectParams) {
  __shared__ int experts[kFewRows * kMaxTopK];
  const int row = static_cast<int>(blockIdx.x) * 8 + Warp();
  if (row < p.rows) {
    const int expert = ChooseExperts(p, row);
    const float weight = WeighChoice(p, row, expert);
    if (Lane() < p.top_k) {
      const int64_t slot = static_cast<int64_t>(row) * p.top_k + Lane();
      p.slots[slot] = {weight, expert};
      experts[Warp() * p.top_k + Lane()] = expert;
      if (p.trace_experts != nullptr) p.trace_experts[slot] = expert;
      if (p.trace_weights != nullptr) p.trace_weights[slot] = weight;
    }
  }
  if (p.groups == nullptr) return;
  __syncthreads();
  GroupSlots(p, experts, p.rows * p.top_k);
}

namespace {

// Warp sums over the block's slots, one contiguous share of them a warp.
struct Share {
  int begin, end;
};
QUARTET_DEVICE Share ShareOfWarp(int count) {
  const int each = (count + 8 * 32 - 1) / (8 * 32) * 32;
  return {min(count, Warp() * each), min(count, (Warp() + 1) * each)};
}

}  // namespace

// Block e places the slots of expert e: behind all slots of lower experts, in their own order.
QUARTET_KERNEL(moe_sort, 256, 1, MoeSortParams) {
  __shared__ int counts[kMaxExperts];
  __shared__ int own[8];  // of this expert, by warp
  const int expert = static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < p.experts; i += 256) counts[i] = 0;
  __syncthreads();
  const Share share = ShareOfWarp(p.count);
  int mine = 0;
  for (int i = share.begin + Lane(); i < share.end; i += 32) {
    const int e = p.slots[i].expert;
    atomicAdd(&counts[e], 1);
    mine += e == expert ? 1 : 0;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(kFullMask, mine, offset);
  if (Lane() == 0) own[Warp()] = mine;
  __syncthreads();

  int begin = 0, first_tile = 0;
  for (int e = 0; e < expert; ++e) {
    begin += counts[e];
    first_tile += (counts[e] + p.row_tile - 1) / p.row_tile;
  }
  const int size = counts[expert];
  const int tiles = (size + p.row_tile - 1) / p.row_tile;
  for (int i = static_cast<int>(threadIdx.x); i < tiles; i += 256) {
    p.tiles[first_tile + i] = {expert, begin + i * p.row_tile,
                               min(p.row_tile, size - i * p.row_tile)};
  }
  if (expert == p.experts - 1 && threadIdx.x == 0) *p.tile_count = first_tile + tiles;

  int at = begin;
  for (int i = 0; i < Warp(); ++i) at += own[i];
  for (int i = share.begin; i < share.end; i += 32) {
    const int slot = i + Lane();
    const bool here = slot < share.end && p.slots[slot].expert == expert;
    const unsigned all = __ballot_sync(kFullMask, here);
    if (here) {
      const int place = at + __popc(all & ((1u << Lane()) - 1));
      p.sorted[place] = slot;
      p.expert_of[place] = expert;
      p.places[slot] = place;
    }
    at += __popc(all);
  }
}

// What was there before the kernel that multiplied is fetched while that one still runs.
QUARTET_EARLY_KERNEL(moe_combine, 32 * kMaxTopK, 1, MoeCombineParams) {
  __shared__ __align__(16) float outputs[kMaxTopK][exl3::kBlock];
  const int row = static_cast<int>(blockIdx.y);
  const int at = static_cast<int>(blockIdx.x) * exl3::kBlock + 4 * Lane();
  const bool has_slot = Warp() < p.top_k;
  const int slot = row * p.top_k + (has_slot ? Warp() : 0);
  const MoeSlot choice = p.slots[slot];
  const int64_t place = p.places == nullptr ? slot : p.places[slot];
  float v[4], scale[4];
  exl3::LoadHalves(p.bank[3 * choice.expert + 2].svh + at, scale);
  AwaitPrevious();
  LetNextIn();
  const auto thread = static_cast<int>(threadIdx.x);
  const int column = static_cast<int>(blockIdx.x) * exl3::kBlock + thread;
  const bool adds = thread < exl3::kBlock && column < p.used_out;
  float* partial = p.partial + static_cast<int64_t>(row) * p.used_out + column;
  const float before = adds ? *partial : 0.0f;
  if (has_slot) {
    exl3::SumParts(p.sums + place * p.out + at, static_cast<int64_t>(p.slot_count) * p.out, p.parts,
                   v);
    exl3::Hadamard(v);
#pragma unroll
    for (int i = 0; i < 4; ++i) outputs[Warp()][4 * Lane() + i] = choice.weight * (v[i] * scale[i]);
  }
  __syncthreads();
  if (!adds) return;
  float sum = 0.0f;
  for (int j = 0; j < p.top_k; ++j) sum += outputs[j][thread];
  *partial = before + sum;
}

namespace {

QUARTET_DEVICE float DenseDot(const uint16_t* w, const float* x, int count) {
  float sum = 0.0f;
  for (int i = Lane(); i < count; i += 32) sum += x[i] * HalfToFloat(w[i]);
  return WarpSum(sum);
}

}  // namespace

QUARTET_KERNEL(moe_dense, 256, 1, MoeDenseParams) {
  const int64_t slot = blockIdx.y;
  const int out = static_cast<int>(blockIdx.x) * 8 + Warp();
  if (out >= p.out) return;
  const int64_t matrix = static_cast<int64_t>(p.in) * p.out;
  const uint16_t* w = p.weights + p.slots[slot].expert * (1 + p.gate_up) * matrix +
                      static_cast<int64_t>(out) * p.in;
  const float* x = p.x + slot / p.slots_per_x * p.in;
  float y = DenseDot(w, x, p.in);
  if (p.gate_up != 0) y = ClampedSwiGlu(y, DenseDot(w + matrix, x, p.in), p.limit);
  if (Lane() == 0) p.y[slot * p.out + out] = y;
}

QUARTET_KERNEL(moe_dense_combine, 256, 1, MoeDenseCombineParams) {
  const int column = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (column >= p.out) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * p.top_k;
  float sum = 0.0f;
  for (int j = 0; j < p.top_k; ++j) {
    sum += p.slots[first + j].weight * p.outputs[(first + j) * p.out + column];
  }
  p.partial[static_cast<int64_t>(blockIdx.y) * p.out + column] += sum;
}

}  // namespace quartet::cuda
