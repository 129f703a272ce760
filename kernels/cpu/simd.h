#ifndef QUARTET_KERNELS_CPU_SIMD_H_
#define QUARTET_KERNELS_CPU_SIMD_H_

#include <cstddef>
#include <cstdint>

namespace quartet::cpu {

// The vector kernels, compiled for several instruction sets; the widest that this machine has is
// taken at run time. All run on the calling thread, allocate nothing and accept unaligned pointers.
// Each result is a fixed sequence of operations on its own inputs: how many rows or columns are
// asked for in one call never changes a bit. (Two machines with different instruction sets may
// differ in the last bit, for instance where one has no fused multiply-add.)

// Columns of a wide and of a narrow weight panel.
inline constexpr size_t kWidePanel = 64;
inline constexpr size_t kNarrowPanel = 16;

// A weight matrix [n (out), k (in)] cut into panels of columns n: `wide` panels [k][64], then
// narrow ones [k][16], the last one filled up with zeros.
struct PanelView {
  const float* data = nullptr;
  size_t n = 0;
  size_t k = 0;
  size_t wide = 0;

  size_t panels() const { return wide + (n - wide * kWidePanel + kNarrowPanel - 1) / kNarrowPanel; }
};

// y[r][n] = sum_k x[r][k] w[n][k] for the columns of panels [panel_begin, panel_end). Every y is
// one chain of multiply-adds over k in ascending order, starting at zero.
void GemmPanels(const PanelView& w, const float* x, size_t ldx, size_t rows, float* y, size_t ldy,
                size_t panel_begin, size_t panel_end);

// sum_i a[i] b[i].
float Dot(const float* a, const float* b, size_t n);

// out[s] = scale * sum_i q[i] c[s * ldc + i] for s < count.
void DotRows(const float* q, const float* c, size_t ldc, size_t count, size_t n, float scale,
             float* out);

// z[i] = sum_s a[s] c[s * ldc + i], s ascending, starting at zero.
void WeightedSum(const float* a, const float* c, size_t ldc, size_t count, size_t n, float* z);

// y[i] += a x[i].
void Axpy(float a, const float* x, float* y, size_t n);

// The 128-point Sylvester transform without its factor 1/sqrt(128), in place: butterflies of stride
// 64, 32, .. 1.
void Hadamard128(float* x);

// One token of the delta rule on one head's state S [d (key), d (value)], decay[c] = exp(g[c]):
//   S <- diag(decay) S;  u <- beta (v - S^T k);  S <- S + k u^T;  o <- S^T q
void KdaStepHead(float* state, size_t d, const float* q, const float* k, const float* v,
                 const float* decay, float beta, float* o);

// S[i] <- post[i] y + sum_j comb[j][i] S[j] per channel, with y the sum of `parts` pointers in the
// order given. streams [n, hidden], n <= 8.
void MhcExpand(const float* const* partials, size_t parts, size_t offset, const float* post,
               const float* comb, size_t n, size_t hidden, float* streams);

// Binary16 to FP32, exactly.
void WidenF16(const uint16_t* from, float* to, size_t n);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_SIMD_H_
