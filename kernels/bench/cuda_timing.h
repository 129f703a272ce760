#ifndef QUARTET_KERNELS_BENCH_CUDA_TIMING_H_
#define QUARTET_KERNELS_BENCH_CUDA_TIMING_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"

namespace quartet::bench {

// Ends the program with the message. Benchmarks have nobody to hand an error to.
void CheckOk(const absl::Status& status);
template <class T>
T CheckOk(absl::StatusOr<T> value) {
  CheckOk(value.status());
  return *std::move(value);
}

// The GPU with this ordinal, with the kernels that QUARTET_GPU_IMAGE names (native without it).
std::unique_ptr<cuda::Device> OpenBenchDevice(int ordinal = 0);

// Microseconds of one of `calls` calls of work(i), i = 0 .. calls - 1, that run one after the other
// as a CUDA graph: the best of five replays after one that warms up. `work` takes its weights from
// copy i of enough copies that the second-level cache holds none.
double MicrosecondsInGraph(cuda::Device& device, int calls, absl::FunctionRef<void(int)> work);

// What the card does at best, measured now.
struct Ceilings {
  double read_gbs = 0;       // GB/s from device memory
  double integer_gops = 0;   // 10^9 32-bit multiply-adds of one thread a second
  double matrix_tflops = 0;  // FP16 with FP32 sums, by the tile primitive
  double launch_us = 0;      // from one empty kernel of a graph to the next
};
Ceilings MeasureCeilings(cuda::Device& device);
// Card, image and ceilings, as the heading of a report.
void PrintHeading(const cuda::Device& device, const Ceilings& ceilings);

// Prints one line of a table: what, microseconds, GB/s and its share of the read ceiling, and how
// many times `floor_us` the time is (left out where floor_us is 0).
void PrintLine(const std::string& what, double us, double bytes, const Ceilings& ceilings,
               double floor_us = 0);

}  // namespace quartet::bench

#endif  // QUARTET_KERNELS_BENCH_CUDA_TIMING_H_
