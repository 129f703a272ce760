#include "kernels/cpu/kv.h"

#include <cstring>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/simd.h"

namespace quartet::cpu {

void StoreRow(Stored type, const float* from, size_t width, std::byte* to,
              SaturationCounters* saturation) {
  if (type == Stored::kF32) {
    std::memcpy(to, from, width * sizeof(float));
    return;
  }
  uint64_t saturated = 0;
  for (size_t i = 0; i < width; ++i) {
    bool hit = false;
    if (type == Stored::kF16) {
      const uint16_t bits = F32ToF16(from[i], &hit);
      std::memcpy(to + 2 * i, &bits, 2);
    } else {
      to[i] = static_cast<std::byte>(F32ToE4m3(from[i], &hit));
    }
    saturated += hit ? 1 : 0;
  }
  if (saturated == 0) return;
  std::atomic<uint64_t>& counter = type == Stored::kF16 ? saturation->f16 : saturation->e4m3;
  counter.fetch_add(saturated, std::memory_order_relaxed);
}

void LoadRow(Stored type, const std::byte* from, size_t width, const std::array<float, 256>& e4m3,
             float* to) {
  switch (type) {
    case Stored::kF32:
      std::memcpy(to, from, width * sizeof(float));
      return;
    case Stored::kF16:
      WidenF16(reinterpret_cast<const uint16_t*>(from), to, width);
      return;
    case Stored::kE4m3:
      for (size_t i = 0; i < width; ++i) to[i] = e4m3[static_cast<uint8_t>(from[i])];
      return;
  }
}

}  // namespace quartet::cpu
