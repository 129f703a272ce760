#ifndef QUARTET_KERNELS_CUDA_KDA_PARAMS_H_
#define QUARTET_KERNELS_CUDA_KDA_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/step_params.h"

// n heads of d channels, D = n d. All activations FP32.

namespace quartet::cuda {

// The segments of one call: consecutive ones of the step, the first of them the one that owns row
// `first_row`.
struct KdaSegments {
  StepView step;
  int32_t first_row;
  int32_t count;
  int32_t rows;  // of all of them together
};

// Rows of one block of the projection's elementwise kernel.
constexpr int kKdaTileRows = 32;
// The convolution's taps; weights with fewer are padded in front with zeros.
constexpr int kKdaTaps = 4;
// Most rows whose gate products the projection's decode kernel makes itself.
constexpr int kKdaDecodeRows = 8;
// Rows of the gate weights [2 D, rank] of one block of that kernel.
constexpr int kKdaGateRows = 64;
constexpr int kKdaMaxGateRank = 256;

// Where windows leave pre-conv rows: ops::KdaWindow::conv.
struct KdaConvRing {
  float* data;  // [rows, 3, D] at data + slot * slot_stride
  int64_t slot_stride;
  int32_t rows;
};

struct KdaProjectParams {
  KdaSegments segments;
  // [rows, u_stride]: q, k, v [3 D], f_a [rank], g_a [rank], b [n], one after the other.
  const float* u;
  int64_t u_stride;  // a multiple of 4
  float* conv;       // [conv - 1, 3, D] at conv + slot * conv_slot_stride
  int64_t conv_slot_stride;
  KdaConvRing ring;
  const float* taps;             // [kKdaTaps, 3, D]
  const float* gate_scale;       // [n] exp(A_log)
  const float* dt_bias;          // [D]
  const uint16_t* gate_weights;  // FP16 [2 D, rank]: f_b, then g_b. Decode kernel only.
  float* q;                      // outputs: ops::KdaInputs
  float* k;
  float* v;
  float* g;  // in the rows kernel also an input: f_b's product
  float* beta;
  float* gate;
  int32_t heads;
  int32_t dim;
  int32_t rank;     // of the gates, a multiple of 8
  int32_t history;  // conv - 1
  float lower_bound;
  float query_scale;    // d^-1/2
  int32_t conv_blocks;  // decode kernel: blocks from here on make gates
};

struct KdaCommitParams {
  KdaSegments segments;
  float* conv;
  int64_t conv_slot_stride;
  KdaConvRing ring;
  int32_t heads;
  int32_t dim;
  int32_t history;
};

struct KdaNormParams {
  const float* o;     // [rows, n, d]
  const float* gate;  // [rows, n, d]
  const float* norm;  // [d]
  float* y;           // [rows, n, d]
  int64_t vectors;    // rows * n
  int32_t dim;
  float eps;
};

struct KdaRecurrenceInputs {
  const float* q;     // [rows, n, d]
  const float* k;     // [rows, n, d]
  const float* v;     // [rows, n, d]
  const float* g;     // [rows, n, d]
  const float* beta;  // [rows, n]
  int32_t heads;
  int32_t dim;
};

struct KdaStates {
  float* data;  // [n, d (key), d (value)] at data + slot * slot_stride
  int64_t slot_stride;
};

// Where windows leave the recurrence's inputs: ops::KdaWindow.
struct KdaRing {
  float* k;     // [rows, n, d] at k + slot * slot_stride, as the others
  float* v;     // [rows, n, d]
  float* g;     // [rows, n, d]
  float* beta;  // [rows, n]
  int64_t slot_stride;
  int32_t rows;
};

// Value columns of one block of the recurrence's kernels.
constexpr int kKdaColumns = 32;
// Tokens whose inputs a block of the step kernel holds in shared memory at a time.
constexpr int kKdaWindow = 8;

struct KdaStepParams {
  KdaSegments segments;
  KdaRecurrenceInputs in;
  KdaStates states;
  KdaRing ring;
  float* o;             // [rows, n, d]
  int32_t commit_only;  // the segments' rows are not walked
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_KDA_PARAMS_H_
