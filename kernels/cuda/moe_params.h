#ifndef QUARTET_KERNELS_CUDA_MOE_PARAMS_H_
#define QUARTET_KERNELS_CUDA_MOE_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/exl3_params.h"

namespace quartet::cuda {

constexpr int kMaxExperts = 512;
constexpr int kMaxTopK = 16;
constexpr int kFewRows = 8;  // of a decode step: one row a warp, one group an expert

// One (row, choice) pair; its number is row * top_k + choice.
struct MoeSlot {
  float weight;
  int32_t expert;
};

// Chooses every row's experts. Grid (ceil(rows / 8)).
struct MoeSelectParams {
  const float* logits;     // [rows, experts]
  const float* bias;       // [experts]
  const int32_t* forced;   // [rows, top_k]: take these instead; null: choose
  MoeSlot* slots;          // [rows, top_k]
  int32_t* trace_experts;  // [rows, top_k] or null
  float* trace_weights;    // [rows, top_k] or null
  int32_t rows;
  int32_t experts;
  int32_t top_k;
  float scaling;

  // At most eight rows and one block: also groups the slots by expert. Null: not.
  Exl3Group* groups;        // [rows * top_k]
  const Exl3Weights* bank;  // [experts][gate, up, down]
  int32_t inputs;           // of gate and up, with padding
};

// Sorts slots by expert, equal ones by number. Grid (experts).
struct MoeSortParams {
  const MoeSlot* slots;  // [count]
  int32_t count;
  int32_t experts;
  int32_t* sorted;      // [count]: the slot at a position
  int32_t* places;      // [count]: the position of a slot
  int32_t* expert_of;   // [count]: of a position
  Exl3RowTile* tiles;   // [count / row_tile + experts]
  int32_t* tile_count;  // [1]
  int32_t row_tile;     // the most rows of a tile
};

// partial += sum over a row's slots, first choice first, of weight * (output transform of its
// sums). Grid (out / 128, rows), one warp a slot, and at least 128 threads.
struct MoeCombineParams {
  const float* sums;      // [parts][slots][out]
  const int32_t* places;  // [slots]: where a slot's sums are; null: at its number
  const MoeSlot* slots;
  const Exl3Weights* bank;
  float* partial;  // [rows, used_out]
  int32_t parts;
  int32_t slot_count;
  int32_t top_k;
  int32_t out;
  int32_t used_out;
};

// Experts that are not EXL3, FP16, one warp an output of a slot. Grid (ceil(outputs / 8), slots).
struct MoeDenseParams {
  const uint16_t* weights;  // [experts][stack][out][in], stack 2 (gate, up) or 1 (down)
  const MoeSlot* slots;
  const float* x;  // [rows of x or slots, in]
  float* y;        // [slots, out]
  int32_t in;
  int32_t out;
  int32_t slots_per_x;  // top_k for gate and up, 1 for down
  int32_t gate_up;      // 1: y = glu(gate, up)
  float limit;
};

// partial += sum over a row's slots, first choice first. Grid (ceil(out / 256), rows).
struct MoeDenseCombineParams {
  const float* outputs;  // [slots, out]
  const MoeSlot* slots;
  float* partial;
  int32_t top_k;
  int32_t out;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MOE_PARAMS_H_
