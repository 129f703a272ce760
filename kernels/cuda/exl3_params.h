#ifndef QUARTET_KERNELS_CUDA_EXL3_PARAMS_H_
#define QUARTET_KERNELS_CUDA_EXL3_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

struct SaturationCounters;

// The codebook recipe: state * multiplier + addend, then & mask; for mul1 the last is the FP16
// scale instead. In memory although these are constants: an instruction holds one constant at most,
// and of two that it knows the compiler makes two instructions. The multiplier of mcg, whose addend
// is zero, can be a constant.
constexpr uint32_t kMcgMultiplier = 0xCBAC1FEDu;
struct Exl3Codebook {
  uint32_t multiplier = 0;
  uint32_t addend = 0;
  uint32_t mask = 0x8FFF8FFFu;
};

// One EXL3 matrix as kernels see it.
struct Exl3Weights {
  const uint32_t* trellis = nullptr;  // in units, see device/exl3.cuh
  const uint16_t* suh = nullptr;      // FP16 [in]
  const uint16_t* svh = nullptr;      // FP16 [out]
  Exl3Codebook codebook;
  int32_t bits = 0;
};

// Rows of x that use the same expert, at most eight, and its matrices.
struct Exl3Group {
  int32_t rows;  // 0: an empty group
  int32_t expert;
  int32_t slots[8];         // row * top_k + choice, ascending
  int32_t x_rows[8];        // the row
  Exl3Weights matrices[3];  // gate, up, down
};

// The products of one grid: every group's rows with one or two of its matrices, sums over the
// inputs before the output transform. A block has some strips of one matrix over one part of the
// inputs, which its warps take in turn; grid (out / (16 strips of a block), matrices * parts,
// groups).
struct Exl3ProductParams {
  const Exl3Group* groups;  // null: `single`, with rows 8 g .. of x in group g
  Exl3Weights single;
  float* sums;    // [parts][slots][matrices * out]
  int32_t slots;  // rows of x, times top_k with groups
  int32_t in;     // of a matrix, with padding
  int32_t out;
  int32_t matrices;
  int32_t first_matrix;  // of a group's three
  int32_t parts;
  int32_t part_inputs;  // in / parts, a multiple of 128
  int32_t strips_per_warp;
  SaturationCounters* saturation;

  // The input: x [rows, used_in], or the activations of the sums of gate and up.
  const float* x;
  int64_t x_stride;
  int32_t used_in;
  const float* gate_up = nullptr;  // [gate_up_parts][slots][2 * in]
  int32_t gate_up_parts = 0;
  float limit = 0.0f;
};

// y = the output transform of the sums of one matrix. Grid (out / 128 / 8, rows).
struct Exl3OutputParams {
  const float* sums;  // [parts][rows][out]
  const uint16_t* svh;
  float* y;
  int64_t y_stride;
  int32_t parts;
  int32_t rows;
  int32_t out;
  int32_t used_out;
};

// ---- many rows: positions are rows of x, or slots sorted by expert

// Positions that use the same expert, at most a tile of rows.
struct Exl3RowTile {
  int32_t expert;
  int32_t first;
  int32_t rows;
};
// What the positions are. Without experts (null pointers) position i is row i and uses `single`.
struct Exl3Positions {
  const Exl3RowTile* tiles = nullptr;
  const int32_t* tile_count = nullptr;
  const int32_t* slots = nullptr;     // [count]: slot at a position, row * slots_per_row + choice
  const int32_t* experts = nullptr;   // [count]: of a position
  const Exl3Weights* bank = nullptr;  // [experts][gate, up, down]
  Exl3Weights single;
  int32_t count = 0;
  int32_t slots_per_row = 1;
};

// inputs = the transformed rows of x, for one or two matrices. Grid (count).
struct Exl3TransformParams {
  Exl3Positions positions;
  uint16_t* inputs;  // FP16 [matrices][count][in], a unit's in the order of exl3::PlaceOfInput
  int32_t in;
  int32_t matrices;
  int32_t first_matrix;
  SaturationCounters* saturation;
  const float* x;  // [rows, used_in]
  int64_t x_stride;
  int32_t used_in;
  // Or the activations of these sums, [count][2 * in].
  const float* gate_up;
  float limit;
};

// sums [count][matrices * out]: grid (matrices * ceil(out / kColumnTile), most row tiles).
struct Exl3GemmParams {
  Exl3Positions positions;
  const uint16_t* inputs;
  float* sums;
  int32_t in;
  int32_t out;
  int32_t matrices;
  int32_t first_matrix;
};

// Checkpoint order to units: one thread a word.
struct Exl3PackParams {
  const uint32_t* tiles;  // [in / 16][out / 16][8 * bits]
  uint32_t* units;
  int32_t in;
  int32_t out;
  int32_t bits;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_EXL3_PARAMS_H_
