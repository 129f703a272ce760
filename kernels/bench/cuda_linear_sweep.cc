#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>
#include "absl/strings/str_format.h"
#include "absl/strings/str_cat.h"
#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/device/counters.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm_shape.h"
#include "kernels/cuda/linear_params.h"
using namespace quartet;
using namespace quartet::bench;
using cuda::CeilDiv;
int main() {
  auto device = OpenBenchDevice();
  const auto ceil = MeasureCeilings(*device);
  PrintHeading(*device, ceil);
  const size_t kBytes = size_t{640} << 20;
  auto w = CheckOk(device->Allocate(kBytes, "w"));
  {
    std::vector<uint16_t> h(kBytes / 2);
    uint32_t s = 1;
    for (auto& v : h) { s = s * 1664525u + 1013904223u; v = 0x2000 | ((s >> 12) & 0x83FF); }
    CheckOk(device->CopyIn(w.data(), h.data(), kBytes));
  }
  auto x = CheckOk(device->Allocate(8 * 16384 * 4, "x"));
  device->Fill(x.data(), 0, x.bytes());
  auto y = CheckOk(device->Allocate(64 * 160000 * 4, "y"));
  auto partial = CheckOk(device->Allocate(size_t{256} << 20, "p"));
  auto arrived = CheckOk(device->Allocate(1 << 20, "a"));
  device->Fill(arrived.data(), 0, arrived.bytes());
  auto sat = CheckOk(device->Allocate(64, "s"));
  struct S { int64_t in, out; };
  for (S s : {S{4096, 24896}, S{4096, 6416}, S{128, 8192}, S{8192, 4096}, S{2048, 4096}, S{4096, 2304}, S{1536, 16384}, S{1536,4096}, S{16384, 4096}, S{4096,4096}, S{4096,1024}, S{512,4096}, S{4096, 38720}, S{4096, 77440}}) {
    const double bytes = 2.0 * s.in * s.out;
    const int copies = std::min<int>(64, kBytes / bytes);
    for (int rows : {1, 8}) {
      const auto* k = CheckOk(device->Find(absl::StrCat("linear_rows_", rows).c_str(), 196608));
      std::string line = absl::StrFormat("[%d, %d] x %d:", s.out, s.in, rows);
      struct R { double us; std::string t; };
      std::vector<R> all;
      const int64_t tiles = CeilDiv(s.out, 32), steps = CeilDiv(s.in, 64);
      for (int kw : {1, 2, 3, 4, 6, 8, 12, 16}) for (int splits : {1, 2, 3, 4, 8}) for (int slots : {1, 2}) {
        if (kw * slots > 16) continue;
        if (tiles * splits * kw > 132 * 64 && tiles < 2000) continue;
        const int spw = CeilDiv(steps, kw * splits);
        if (spw * (kw * splits - 1) >= steps) continue;
        const int kpw = spw * 64;
        double us = MicrosecondsInGraph(*device, std::max(copies, 12) / copies * copies, [&](int i) {
          device->Launch(k, {.grid_x = CeilDiv(tiles, slots), .grid_y = (unsigned)splits, .threads = (unsigned)(32 * slots * kw), .shared_bytes = (unsigned)(12288 * slots * kw)},
            cuda::LinearRowsParams{.weights = w.as<uint16_t>() + (i % copies) * s.in * s.out, .x = x.as<float>(), .y = y.as<float>(), .partial = partial.as<float>(), .arrived = arrived.as<uint32_t>(), .saturation = sat.as<cuda::SaturationCounters>(), .w_stride = s.in, .x_stride = s.in, .y_stride = s.out, .in = (int)s.in, .out = (int)s.out, .slots = slots, .k_warps = kw, .k_per_warp = kpw, .shared_per_warp = 12288, .x_aligned = 1});
        });
        all.push_back({us, absl::StrFormat(" spw%d kw%d sp%d sl%d b%d w/sm %.1f", kpw / 64, kw, splits, slots, CeilDiv(tiles, slots) * splits, tiles * splits * kw / 132.0)});
      }
      std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.us < b.us; });
      std::printf("%s floor %.2f\n", line.c_str(), bytes / ceil.read_gbs / 1e3);
      for (size_t i = 0; i < all.size() && i < 6; ++i) std::printf("    %.2f us %.0f%% %s\n", all[i].us, 100 * bytes / ceil.read_gbs / 1e3 / all[i].us, all[i].t.c_str());
    }
  }
}
