// Prints what the GPU can do at best.

#include "kernels/bench/cuda_timing.h"

int main() {
  const auto device = quartet::bench::OpenBenchDevice();
  quartet::bench::PrintHeading(*device, quartet::bench::MeasureCeilings(*device));
}
