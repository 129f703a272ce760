#include "kernels/bench/cuda_timing.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/ceilings_params.h"
#include "kernels/cuda/driver_device.h"

namespace quartet::bench {
namespace {

constexpr int kReplays = 5;

}  // namespace

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

std::unique_ptr<cuda::Device> OpenBenchDevice(int ordinal) {
  cuda::DriverOptions options;
  options.ordinal = ordinal;
  if (const char* image = std::getenv("QUARTET_GPU_IMAGE")) options.image = image;
  return CheckOk(cuda::OpenDevice(options));
}

double MicrosecondsInGraph(cuda::Device& device, int calls, absl::FunctionRef<void(int)> work) {
  const std::unique_ptr<cuda::Graph> graph = CheckOk(device.Capture([&] {
    for (int i = 0; i < calls; ++i) work(i);
  }));
  device.Replay(*graph);
  CheckOk(device.Synchronize());
  double best_ms = 0;
  for (int i = 0; i < kReplays; ++i) {
    const double ms = CheckOk(device.Milliseconds([&] { device.Replay(*graph); }));
    best_ms = i == 0 ? ms : std::min(best_ms, ms);
  }
  return best_ms * 1000 / calls;
}

Ceilings MeasureCeilings(cuda::Device& device) {
  constexpr size_t kBytes = size_t{2} << 30;
  constexpr int kIterations = 4096;
  constexpr unsigned kThreads = 512;
  const unsigned blocks = device.info().multiprocessors * 4;
  const cuda::Buffer data = CheckOk(device.Allocate(kBytes, "read ceiling"));
  const cuda::Buffer sink = CheckOk(device.Allocate(sizeof(uint32_t), "read ceiling"));
  device.Fill(data.data(), 1, kBytes);

  Ceilings ceilings;
  const cuda::Kernel* read = CheckOk(device.Find("ceiling_read"));
  const double read_us = MicrosecondsInGraph(device, 4, [&](int) {
    device.Launch(read, {.grid_x = blocks, .threads = kThreads},
                  cuda::CeilingReadParams{data.as<uint4>(), kBytes / 16, sink.as<uint32_t>()});
  });
  ceilings.read_gbs = kBytes / read_us / 1e3;

  const auto loop = [&](const char* name, int iterations) {
    const cuda::Kernel* kernel = CheckOk(device.Find(name));
    return MicrosecondsInGraph(device, 4, [&](int) {
      device.Launch(kernel, {.grid_x = blocks, .threads = kThreads},
                    cuda::CeilingLoopParams{iterations, sink.as<uint32_t>()});
    });
  };
  const double threads = static_cast<double>(blocks) * kThreads;
  ceilings.integer_gops = threads * 8 * kIterations / loop("ceiling_integer", kIterations) / 1e3;
  ceilings.matrix_tflops =
      threads / 32 * 4 * kIterations * 2 * 16 * 16 * 16 / loop("ceiling_mma", kIterations) / 1e6;
  const cuda::Kernel* empty = CheckOk(device.Find("ceiling_integer"));
  ceilings.launch_us = MicrosecondsInGraph(device, 500, [&](int) {
    device.Launch(empty, {.threads = 32}, cuda::CeilingLoopParams{0, sink.as<uint32_t>()});
  });
  return ceilings;
}

void PrintHeading(const cuda::Device& device, const Ceilings& ceilings) {
  std::printf("%s, %s kernels\n", device.info().name.c_str(), device.info().image.c_str());
  std::printf(
      "measured now: read %.0f GB/s, integer %.0f G/s, matrix %.0f TFLOP/s, kernel to kernel %.2f "
      "µs\n",
      ceilings.read_gbs, ceilings.integer_gops, ceilings.matrix_tflops, ceilings.launch_us);
  std::printf("%-56s %9s %9s %7s %9s\n", "", "µs", "GB/s", "of read", "x floor");
}

void PrintLine(const std::string& what, double us, double bytes, const Ceilings& ceilings,
               double floor_us) {
  const double gbs = bytes / us / 1e3;
  std::printf("%-56s %8.2f %9.0f %6.1f%%", what.c_str(), us, gbs, 100 * gbs / ceilings.read_gbs);
  if (floor_us > 0) std::printf(" %8.2f", us / floor_us);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace quartet::bench
