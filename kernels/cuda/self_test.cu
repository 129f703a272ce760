// Kernels that show the device headers at work, for tests of them on every architecture.

#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace quartet::cuda {

struct TestMmaParams {
  const uint16_t* a;             // [m][k]
  const uint16_t* b;             // [n][k]
  const uint16_t* b_transposed;  // [k][n]
  float* c;
  float* c_transposed;
};

QUARTET_KERNEL(test_mma, 32, 1, TestMmaParams) {
  constexpr int kStride = 24;
  __shared__ __align__(16) uint16_t tiles[3][16 * kStride];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) {
    const int at = i / 16 * kStride + i % 16;
    tiles[0][at] = p.a[i];
    tiles[1][at] = p.b[i];
    tiles[2][at] = p.b_transposed[i];
  }
  __syncwarp();
  FragA a;
  FragB b;
  FragC c;
  LoadA(a, reinterpret_cast<const __half*>(tiles[0]), kStride);
  LoadB(b, reinterpret_cast<const __half*>(tiles[1]), kStride);
  Clear(c);
  Mma(c, a, b);
  for (int i = 0; i < 8; ++i) p.c[RowOfC(i) * 16 + ColOfC(i)] = c.v[i];
  LoadBTransposed(b, reinterpret_cast<const __half*>(tiles[2]), kStride);
  Clear(c);
  Mma(c, a, b);
  for (int i = 0; i < 8; ++i) p.c_transposed[RowOfC(i) * 16 + ColOfC(i)] = c.v[i];
}

struct TestE4m3Params {
  const float* in;
  uint8_t* codes;
  float* back;
  SaturationCounters* counters;
  int32_t count;
};

QUARTET_KERNEL(test_e4m3, 128, 1, TestE4m3Params) {
  const int i = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (i >= p.count) return;
  p.codes[i] = ToE4m3(p.in[i], p.counters);
  p.back[i] = E4m3ToFloat(p.codes[i]);
}

}  // namespace quartet::cuda
