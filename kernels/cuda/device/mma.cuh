#ifndef QUARTET_KERNELS_CUDA_DEVICE_MMA_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_MMA_CUH_

#include "kernels/cuda/device/launch.cuh"

// The tile primitive of every kernel that uses tensor cores: one warp multiplies
//   C [16, 16] += A [16, 16] B [16, 16],  A and B FP16, C FP32,
// by two mma.m16n8k16 (sm_80 and up) or by four mma.m8n8k4 of four quad pairs each, one quadrant of
// C a quad pair (sm_70). Which element a register holds differs between the two; kernels ask
// RowOfC and ColOfC and fill A and B through the Load functions.

namespace quartet::cuda {

#if QUARTET_ARCH >= 800

struct FragA {
  uint32_t r[4];
};
struct FragB {
  uint32_t r[4];
};

namespace mma_detail {

// d += a b with a [16, 16], b [16, 8].
QUARTET_DEVICE void M16n8k16(float* d, const uint32_t* a, const uint32_t* b) {
#ifdef QUARTET_SIMT
  ::quartet::simt::MmaM16n8k16(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace mma_detail

#else

struct FragA {
  uint32_t r[8];  // 16 consecutive k of one row of this quad pair's half
};
struct FragB {
  uint32_t r[8];
};

namespace mma_detail {

// Per quad pair: d [8, 8] += a [8, 4] b [4, 8].
QUARTET_DEVICE void M8n8k4(float* d, const uint32_t* a, const uint32_t* b) {
#ifdef QUARTET_SIMT
  ::quartet::simt::MmaM8n8k4(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
#endif
}

// The row (of A) or column (of B) inside the quad pair's half that this lane supplies.
QUARTET_DEVICE int Index8() {
  const int lane = static_cast<int>(threadIdx.x & 31);
  return (lane & 3) + 4 * (lane >> 4);
}
QUARTET_DEVICE int RowHalf() {
  return static_cast<int>(threadIdx.x >> 2 & 1);
}
QUARTET_DEVICE int ColHalf() {
  return static_cast<int>(threadIdx.x >> 3 & 1);
}

}  // namespace mma_detail

#endif

struct FragC {
  float v[8];
};

QUARTET_DEVICE void Clear(FragC& c) {
#pragma unroll
  for (int i = 0; i < 8; ++i) c.v[i] = 0.0f;
}

// Row and column inside the 16 x 16 tile of register i of this lane's FragC.
QUARTET_DEVICE int RowOfC(int i) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#if QUARTET_ARCH >= 800
  return (lane >> 2) + 8 * (i >> 1 & 1);
#else
  return 8 * mma_detail::RowHalf() + (lane & 1) + 2 * (i >> 1 & 1) + 4 * (lane >> 4);
#endif
}
QUARTET_DEVICE int ColOfC(int i) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#if QUARTET_ARCH >= 800
  return 2 * (lane & 3) + (i & 1) + 8 * (i >> 2);
#else
  return 8 * mma_detail::ColHalf() + 4 * (i >> 2 & 1) + (lane & 2) + (i & 1);
#endif
}

// A from shared memory, element (m, k) at a[m * stride + k], stride in halves. Rows begin on 16
// bytes; a stride of 8 mod 64 halves avoids bank conflicts.
QUARTET_DEVICE void LoadA(FragA& f, const __half* a, int stride) {
#if QUARTET_ARCH >= 800 && !defined(QUARTET_SIMT)
  const int lane = static_cast<int>(threadIdx.x & 31);
  const unsigned at =
      static_cast<unsigned>(__cvta_generic_to_shared(a + (lane & 15) * stride + (lane >> 4) * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(at)
               : "memory");
#elif QUARTET_ARCH >= 800
  const int lane = static_cast<int>(threadIdx.x & 31);
  for (int i = 0; i < 4; ++i) {
    const int row = (lane >> 2) + 8 * (i & 1);
    const int k = 2 * (lane & 3) + 8 * (i >> 1);
    f.r[i] = *reinterpret_cast<const uint32_t*>(a + row * stride + k);
  }
#else
  const __half* row = a + (8 * mma_detail::RowHalf() + mma_detail::Index8()) * stride;
  const uint4 low = *reinterpret_cast<const uint4*>(row);
  const uint4 high = *reinterpret_cast<const uint4*>(row + 8);
  f.r[0] = low.x, f.r[1] = low.y, f.r[2] = low.z, f.r[3] = low.w;
  f.r[4] = high.x, f.r[5] = high.y, f.r[6] = high.z, f.r[7] = high.w;
#endif
}

// B from shared memory, element (k, n) at b[n * stride + k]: the rows of W in y = x W^T.
QUARTET_DEVICE void LoadB(FragB& f, const __half* b, int stride) {
#if QUARTET_ARCH >= 800 && !defined(QUARTET_SIMT)
  const int lane = static_cast<int>(threadIdx.x & 31);
  const unsigned at = static_cast<unsigned>(
      __cvta_generic_to_shared(b + ((lane & 7) + (lane >> 4) * 8) * stride + (lane >> 3 & 1) * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(at)
               : "memory");
#elif QUARTET_ARCH >= 800
  const int lane = static_cast<int>(threadIdx.x & 31);
  for (int i = 0; i < 4; ++i) {
    const int n = (lane >> 2) + 8 * (i >> 1);
    const int k = 2 * (lane & 3) + 8 * (i & 1);
    f.r[i] = *reinterpret_cast<const uint32_t*>(b + n * stride + k);
  }
#else
  const __half* row = b + (8 * mma_detail::ColHalf() + mma_detail::Index8()) * stride;
  const uint4 low = *reinterpret_cast<const uint4*>(row);
  const uint4 high = *reinterpret_cast<const uint4*>(row + 8);
  f.r[0] = low.x, f.r[1] = low.y, f.r[2] = low.z, f.r[3] = low.w;
  f.r[4] = high.x, f.r[5] = high.y, f.r[6] = high.z, f.r[7] = high.w;
#endif
}

// B from shared memory, element (k, n) at b[k * stride + n].
QUARTET_DEVICE void LoadBTransposed(FragB& f, const __half* b, int stride) {
#if QUARTET_ARCH >= 800 && !defined(QUARTET_SIMT)
  const int lane = static_cast<int>(threadIdx.x & 31);
  const unsigned at =
      static_cast<unsigned>(__cvta_generic_to_shared(b + (lane & 15) * stride + (lane >> 4) * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(at)
               : "memory");
#else
  const auto pair = [&](int k, int n) {
    return static_cast<uint32_t>(__half_as_ushort(b[k * stride + n])) |
           static_cast<uint32_t>(__half_as_ushort(b[(k + 1) * stride + n])) << 16;
  };
#if QUARTET_ARCH >= 800
  const int lane = static_cast<int>(threadIdx.x & 31);
  for (int i = 0; i < 4; ++i) {
    f.r[i] = pair(2 * (lane & 3) + 8 * (i & 1), (lane >> 2) + 8 * (i >> 1));
  }
#else
  const int n = 8 * mma_detail::ColHalf() + mma_detail::Index8();
#pragma unroll
  for (int i = 0; i < 8; ++i) f.r[i] = pair(2 * i, n);
#endif
#endif
}

QUARTET_DEVICE void Mma(FragC& c, const FragA& a, const FragB& b) {
#if QUARTET_ARCH >= 800
  mma_detail::M16n8k16(c.v, a.r, b.r);
  mma_detail::M16n8k16(c.v + 4, a.r, b.r + 2);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) mma_detail::M8n8k4(c.v, a.r + 2 * i, b.r + 2 * i);
#endif
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_MMA_CUH_
