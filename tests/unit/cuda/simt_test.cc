// The emulator and the device headers themselves.

#include "kernels/cpu/convert.h"
#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

class DeviceHeaders : public CudaOps {};

// C = A B by the tile primitives, one 16 x 16 x 16 tile a warp.
TEST_F(DeviceHeaders, TilePrimitiveMultiplies) {
  struct Params {
    const uint16_t* a;
    const uint16_t* b;
    const uint16_t* b_transposed;
    float* c;
    float* c_transposed;
  };
  std::vector<float> a = RandomFloats(256, 1.0f, 1), b = RandomFloats(256, 1.0f, 2);
  std::vector<uint16_t> ha(256), hb(256), hbt(256);
  for (int i = 0; i < 256; ++i) {
    bool saturated = false;
    ha[i] = cpu::F32ToF16(a[i], &saturated);
    hb[i] = cpu::F32ToF16(b[i], &saturated);  // [n][k]
    hbt[i % 16 * 16 + i / 16] = hb[i];        // [k][n]
  }
  std::vector<float> expected(256);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      for (int k = 0; k < 16; ++k) {
        expected[m * 16 + n] += cpu::F16ToF32(ha[m * 16 + k]) * cpu::F16ToF32(hb[n * 16 + k]);
      }
    }
  }
  const auto da = Upload(ha), db = Upload(hb), dbt = Upload(hbt);
  const auto dc = Poisoned<float>(256), dct = Poisoned<float>(256);
  const auto* kernel = Must(device_->Find("test_mma"));
  device_->Launch(kernel, {.threads = 32},
                  Params{da.as<uint16_t>(), db.as<uint16_t>(), dbt.as<uint16_t>(), dc.as<float>(),
                         dct.as<float>()});
  EXPECT_LT(MaxDifference(Download<float>(dc, 256), expected), 1e-5);
  EXPECT_LT(MaxDifference(Download<float>(dct, 256), expected), 1e-5);
}

// Every E4M3 value comes back from itself; floats round as the CPU rounds them.
TEST_F(DeviceHeaders, E4m3IsTheCpusE4m3) {
  struct Params {
    const float* in;
    uint8_t* codes;
    float* back;
    unsigned long long* counters;
    int32_t count;
  };
  std::vector<float> in;
  for (int code = 0; code < 256; ++code) {
    const float v = cpu::E4m3ToF32(static_cast<uint8_t>(code));
    if (std::isnan(v)) continue;
    const float above = std::abs(v) == 448 ? 480 : cpu::E4m3ToF32(static_cast<uint8_t>(code + 1));
    const float half_way = std::copysign((std::abs(v) + std::abs(above)) / 2, v);
    for (float f : {v, half_way, std::nextafter(half_way, 0.0f), std::nextafter(half_way, 1e9f)}) {
      in.push_back(f);
    }
  }
  for (float f : RandomFloats(1000, 100.0f, 3)) in.push_back(f);
  in.push_back(1e30f);
  uint64_t saturations = 0;
  std::vector<uint8_t> expected;
  for (float f : in) {
    bool saturated = false;
    expected.push_back(cpu::F32ToE4m3(f, &saturated));
    saturations += saturated;
  }
  const auto din = Upload(in);
  const auto codes = Poisoned<uint8_t>(in.size());
  const auto back = Poisoned<float>(in.size());
  const auto counters = Upload(std::vector<unsigned long long>{0, 0});
  device_->Launch(Must(device_->Find("test_e4m3")),
                  {.grid_x = cuda::CeilDiv(in.size(), 128), .threads = 128},
                  Params{din.as<float>(), codes.as<uint8_t>(), back.as<float>(),
                         counters.as<unsigned long long>(), static_cast<int32_t>(in.size())});
  EXPECT_EQ(Download<uint8_t>(codes, in.size()), expected);
  const auto values = Download<float>(back, in.size());
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(values[i], cpu::E4m3ToF32(expected[i])) << in[i];
  EXPECT_EQ(Download<unsigned long long>(counters, 2)[1], saturations);
}

}  // namespace
}  // namespace quartet::testing
