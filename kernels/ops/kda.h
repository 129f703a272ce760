#ifndef QUARTET_KERNELS_OPS_KDA_H_
#define QUARTET_KERNELS_OPS_KDA_H_

#include <cstdint>
#include <span>

#include "kernels/ops/batch.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/weights.h"

namespace quartet::ops {

// Kimi delta attention with a bounded gate, n heads (this rank's), key and value width d, D = n d.
struct KdaWeights {
  LinearWeights q, k, v;              // [D, hidden]
  VectorView q_conv, k_conv, v_conv;  // [D, 1, conv]; the last tap multiplies the newest row
  LinearWeights f_a, g_a;             // [gate rank, hidden], replicated over ranks
  LinearWeights f_b, g_b;             // [D, gate rank]
  LinearWeights b;                    // [n, hidden]
  VectorView a_log;                   // [n]
  VectorView dt_bias;                 // [D]
  VectorView o_norm;                  // [d]
  LinearWeights o;                    // [hidden, D]
  int heads = 0;                      // n
  int head_dim = 0;                   // d
  int conv_kernel = 4;
  float gate_lower_bound = -5.0f;
  float norm_eps = 1e-5f;
};

// What the recurrence eats, all FP32, head-major.
struct KdaInputs {
  float* q =
      nullptr;  // [rows, n, d]: l2(silu(conv(x Wq^T))) / sqrt(d), l2(z) = z / sqrt(sum z^2 + 1e-6)
  float* k = nullptr;  // [rows, n, d]: l2(silu(conv(x Wk^T)))
  float* v = nullptr;  // [rows, n, d]: silu(conv(x Wv^T))
  float* g = nullptr;  // [rows, n, d]: log decay, gate_lower_bound * sigmoid(exp(a_log) (f_b f_a x
                       // + dt_bias))
  float* beta = nullptr;  // [rows, n]: sigmoid(x b^T)
  float* gate = nullptr;  // [rows, n, d]: x g_a^T g_b^T, before its sigmoid
};

// What windows (Segment::window) leave for their commit: position p in ring row p % rows, slot s at
// base + s * slot_stride. The ring has room for the rows that a segment commits and its own.
struct KdaWindow {
  float* conv = nullptr;    // [rows, 3, D]: pre-conv q, k, v
  float* k = nullptr;       // [rows, n, d], as in KdaInputs
  float* v = nullptr;       // [rows, n, d]
  float* g = nullptr;       // [rows, n, d]
  float* beta = nullptr;    // [rows, n]
  int64_t slot_stride = 0;  // floats
  int rows = 0;             // 0: there are no windows
};

// A layer's live state: slot s at base + s * slot_stride (floats).
struct KdaState {
  float* recurrent = nullptr;  // [n, d (key), d (value)]
  float* conv = nullptr;       // [conv_kernel - 1, 3, D]: oldest row first; pre-conv q, k, v
  int64_t recurrent_slot_stride = 0;
  int64_t conv_slot_stride = 0;
  KdaWindow window;
};

// Projections, convolution over the sequence's history, and gates. The segments are consecutive
// ones of the step and all of their `rows` rows; x and out are those of the whole step. Each
// segment's slot first takes in what is to be committed; then a window's pre-conv rows go into the
// ring, other rows advance the conv state. A state at position 0 is zeros whatever the slot holds.
class KdaProject {
 public:
  virtual ~KdaProject() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* x /*[step rows, hidden]*/, std::span<const Segment> segments,
                   int rows, KdaState state, KdaInputs out, Workspace workspace) const = 0;
  // Only commits: rows of the segments, if any, are not looked at.
  virtual void Commit(std::span<const Segment> segments, KdaState state) const = 0;
};

// The delta rule, FP32, per head and token, in exactly this order (step form):
//   S <- diag(exp(g)) S;  u <- beta (v - S^T k);  S <- S + k u^T;  o = S^T q
// A state at position 0 is S = 0. Each segment's slot first takes in what is to be committed; then
// a window's inputs go into the ring and its walk leaves S as it is, other rows advance S.
class KdaRecurrence {
 public:
  virtual ~KdaRecurrence() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  // Token by token: a token's bits, and those of S, do not depend on how the sequence was cut into
  // segments, nor on whether it was committed from windows.
  virtual void Step(const KdaInputs& in, std::span<const Segment> segments, KdaState state,
                    float* o /*[rows, n, d]*/, Workspace workspace) const = 0;
  // Chunks of 64 tokens through (I + A)^-1, sub-blocks of 16 rows, decays only as differences of
  // cumulative logs between a block pivot and a row, so that every factor stays in FP32's range at
  // the decay bound too. Equal to Step up to rounding. For segments that are no windows; what they
  // are to commit is left to Commit, which comes before.
  virtual void Chunked(const KdaInputs& in, std::span<const Segment> segments, KdaState state,
                       float* o /*[rows, n, d]*/, Workspace workspace) const = 0;
  // Only commits, with the bits of Step: rows of the segments, if any, are not looked at.
  virtual void Commit(std::span<const Segment> segments, KdaState state,
                      Workspace workspace) const = 0;
};

// y = (RMSNorm over each head's d channels of o, weight o_norm) * sigmoid(gate), then times Wo^T:
// this rank's partial sum.
class KdaOutput {
 public:
  virtual ~KdaOutput() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* o /*[rows, n, d]*/, const float* gate /*[rows, n, d]*/, int rows,
                   float* partial /*[rows, hidden]*/, Workspace workspace) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_KDA_H_
