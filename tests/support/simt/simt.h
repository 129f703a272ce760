#ifndef QUARTET_TESTS_SUPPORT_SIMT_SIMT_H_
#define QUARTET_TESTS_SUPPORT_SIMT_SIMT_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Runs CUDA kernels on the CPU, for tests on machines without a GPU: every thread of a block is a
// fiber, blocks run one after the other, barriers and warp operations switch between fibers. What
// kernels of this project use of CUDA is declared here and nothing else. A warp whose lanes meet at
// different barriers, a barrier that some threads never reach, and an access beyond the dynamic
// shared memory of the launch (a guard zone is checked) end the process with a message. Races and
// memory models are not modelled: compute-sanitizer on a GPU is for that.

namespace quartet::simt {

using Body = void (*)(const void* params);

// Called by QUARTET_KERNEL. Always true.
bool Register(const char* name, int max_threads, size_t param_bytes, Body body);

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct Registered {
  int max_threads = 0;
  size_t param_bytes = 0;
  Body body = nullptr;
};
// Null where there is none.
const Registered* FindKernel(const char* name);

// Runs the whole grid. Returns when it is done.
void Run(const Registered& kernel, const char* name, Dim3 grid, unsigned threads,
         size_t shared_bytes, const void* params);

struct ThreadIndex {
  Dim3 thread, block, block_dim, grid_dim;
};
const ThreadIndex& Index();
unsigned char* DynamicShared();

void BlockBarrier();
// The sum over the block's threads of `predicate != 0`, after a barrier.
int BlockBarrierCount(int predicate);
void WarpBarrier();

// Deposits `bytes` (at most 64) of every lane of the warp and waits until all are there; the values
// stay valid until the next-but-one exchange of the warp. Lanes that have ended read as zeros.
const unsigned char* ExchangeWarp(const void* value, size_t bytes);
constexpr size_t kExchangeStride = 64;

template <class T>
T FromLane(const unsigned char* values, int lane) {
  T out;
  std::memcpy(&out, values + static_cast<size_t>(lane) * kExchangeStride, sizeof(T));
  return out;
}
int LaneIndex();
uint32_t LiveLanes();

void MmaM16n8k16(float* d, const uint32_t* a, const uint32_t* b);
void MmaM8n8k4(float* d, const uint32_t* a, const uint32_t* b);

float HalfBitsToFloat(uint16_t bits);
uint16_t FloatToHalfBits(float value);  // to nearest even

}  // namespace quartet::simt

// ---- the CUDA names

#define threadIdx (::quartet::simt::Index().thread)
#define blockIdx (::quartet::simt::Index().block)
#define blockDim (::quartet::simt::Index().block_dim)
#define gridDim (::quartet::simt::Index().grid_dim)
#define __shared__ static thread_local
#define __device__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

inline void __syncthreads() {
  ::quartet::simt::BlockBarrier();
}
inline int __syncthreads_count(int predicate) {
  return ::quartet::simt::BlockBarrierCount(predicate);
}
inline int __syncthreads_or(int predicate) {
  return ::quartet::simt::BlockBarrierCount(predicate) != 0;
}
inline void __syncwarp(unsigned = 0xFFFFFFFFu) {
  ::quartet::simt::WarpBarrier();
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(unsigned, T v, int source, int width = 32) {
  const auto* values = ::quartet::simt::ExchangeWarp(&v, sizeof(T));
  const int lane = ::quartet::simt::LaneIndex();
  return ::quartet::simt::FromLane<T>(values, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask, int width = 32) {
  const auto* values = ::quartet::simt::ExchangeWarp(&v, sizeof(T));
  const int lane = ::quartet::simt::LaneIndex();
  const int from = lane ^ mask;
  return from / width == lane / width ? ::quartet::simt::FromLane<T>(values, from) : v;
}
template <class T>
T __shfl_up_sync(unsigned, T v, unsigned delta, int width = 32) {
  const auto* values = ::quartet::simt::ExchangeWarp(&v, sizeof(T));
  const int lane = ::quartet::simt::LaneIndex();
  const int from = lane - static_cast<int>(delta);
  return from >= (lane & ~(width - 1)) ? ::quartet::simt::FromLane<T>(values, from) : v;
}
template <class T>
T __shfl_down_sync(unsigned, T v, unsigned delta, int width = 32) {
  const auto* values = ::quartet::simt::ExchangeWarp(&v, sizeof(T));
  const int lane = ::quartet::simt::LaneIndex();
  const int from = lane + static_cast<int>(delta);
  return from <= (lane | (width - 1)) ? ::quartet::simt::FromLane<T>(values, from) : v;
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const int v = predicate != 0;
  const auto* values = ::quartet::simt::ExchangeWarp(&v, sizeof(v));
  unsigned mask = 0;
  for (int i = 0; i < 32; ++i) {
    mask |= static_cast<unsigned>(::quartet::simt::FromLane<int>(values, i)) << i;
  }
  return mask;
}
inline int __any_sync(unsigned m, int predicate) {
  return __ballot_sync(m, predicate) != 0;
}
inline int __all_sync(unsigned m, int predicate) {
  return __ballot_sync(m, predicate == 0) == 0;
}
inline unsigned __match_any_sync(unsigned, unsigned v) {
  const auto* values = ::quartet::simt::ExchangeWarp(&v, sizeof(v));
  unsigned mask = 0;
  for (int i = 0; i < 32; ++i) {
    if ((::quartet::simt::LiveLanes() >> i & 1) != 0 &&
        ::quartet::simt::FromLane<unsigned>(values, i) == v) {
      mask |= 1u << i;
    }
  }
  return mask;
}

template <class T, class V>
T atomicAdd(T* p, V v) {
  const T old = *p;
  *p = static_cast<T>(old + v);
  return old;
}
template <class T, class V>
T atomicMax(T* p, V v) {
  const T old = *p;
  if (static_cast<T>(v) > old) *p = static_cast<T>(v);
  return old;
}
template <class T, class V>
T atomicMin(T* p, V v) {
  const T old = *p;
  if (static_cast<T>(v) < old) *p = static_cast<T>(v);
  return old;
}
template <class T, class V>
T atomicOr(T* p, V v) {
  const T old = *p;
  *p = static_cast<T>(old | v);
  return old;
}
template <class T, class V>
T atomicExch(T* p, V v) {
  const T old = *p;
  *p = static_cast<T>(v);
  return old;
}

template <class T>
T __ldg(const T* p) {
  return *p;
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline float __int_as_float(int v) {
  return std::bit_cast<float>(v);
}
inline float __uint_as_float(unsigned v) {
  return std::bit_cast<float>(v);
}
inline int __float_as_int(float v) {
  return std::bit_cast<int>(v);
}
inline unsigned __float_as_uint(float v) {
  return std::bit_cast<unsigned>(v);
}
inline int __popc(unsigned v) {
  return std::popcount(v);
}
inline int __clz(int v) {
  return std::countl_zero(static_cast<unsigned>(v));
}
inline int __ffs(int v) {
  return v == 0 ? 0 : std::countr_zero(static_cast<unsigned>(v)) + 1;
}
inline unsigned __brev(unsigned v) {
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= (v >> i & 1) << (31 - i);
  return out;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 0xF;
    unsigned byte = static_cast<unsigned>(both >> (8 * (s & 7)) & 0xFF);
    if ((s & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    out |= byte << (8 * i);
  }
  return out;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  }
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 0xFF) * (b >> (8 * i) & 0xFF);
  return c;
}
inline float __expf(float v) {
  return std::exp(v);
}
inline float __logf(float v) {
  return std::log(v);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float v) {
  return 1.0f / v;
}
inline float rsqrtf(float v) {
  return 1.0f / std::sqrt(v);
}
inline float fmaxf(float a, float b) {
  return std::fmax(a, b);
}
inline float fminf(float a, float b) {
  return std::fmin(a, b);
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}

struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;
inline float __half2float(__half h) {
  return ::quartet::simt::HalfBitsToFloat(h.bits);
}
inline __half __float2half_rn(float v) {
  return {::quartet::simt::FloatToHalfBits(v)};
}
inline __half __ushort_as_half(uint16_t v) {
  return {v};
}
inline uint16_t __half_as_ushort(__half h) {
  return h.bits;
}
inline __half __hadd(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
inline __half __hmul(__half a, __half b) {
  return __float2half_rn(__half2float(a) * __half2float(b));
}
// Products and sums of halves are exact in double, so there is one rounding.
inline __half __hfma(__half a, __half b, __half c) {
  const double exact = static_cast<double>(__half2float(a)) * __half2float(b) + __half2float(c);
  // To float by rounding to odd, so that the second rounding cannot differ from a single one.
  float f = static_cast<float>(exact);
  if (static_cast<double>(f) != exact && (std::bit_cast<uint32_t>(f) & 1) == 0) {
    const bool toward_zero = std::fabs(static_cast<double>(f)) > std::fabs(exact);
    f = std::bit_cast<float>(std::bit_cast<uint32_t>(f) + (toward_zero ? -1u : 1u));
  }
  return __float2half_rn(f);
}
inline __half2 __floats2half2_rn(float a, float b) {
  return {__float2half_rn(a), __float2half_rn(b)};
}
inline __half2 __float22half2_rn(float2 v) {
  return __floats2half2_rn(v.x, v.y);
}
inline float2 __half22float2(__half2 v) {
  return {__half2float(v.x), __half2float(v.y)};
}
inline float __low2float(__half2 v) {
  return __half2float(v.x);
}
inline float __high2float(__half2 v) {
  return __half2float(v.y);
}
inline __half __low2half(__half2 v) {
  return v.x;
}
inline __half __high2half(__half2 v) {
  return v.y;
}
inline __half2 __half2half2(__half v) {
  return {v, v};
}
inline __half2 __low2half2(__half2 v) {
  return {v.x, v.x};
}
inline __half2 __high2half2(__half2 v) {
  return {v.y, v.y};
}
inline __half2 __halves2half2(__half a, __half b) {
  return {a, b};
}
inline __half2 __hadd2(__half2 a, __half2 b) {
  return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  return {__hmul(a.x, b.x), __hmul(a.y, b.y)};
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

#endif  // QUARTET_TESTS_SUPPORT_SIMT_SIMT_H_
