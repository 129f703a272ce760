#ifndef QUARTET_KERNELS_BENCH_CEILING_H_
#define QUARTET_KERNELS_BENCH_CEILING_H_

namespace quartet::bench {

// What one core of this machine does at best, measured now: the ruler of every other figure of the
// same run.
struct Ceiling {
  double copy_gb_s = 0.0;    // memcpy of 64 MiB, bytes read plus bytes written
  double fma_gflop_s = 0.0;  // independent multiply-adds in registers, widest vectors
};

Ceiling MeasureCeiling();

}  // namespace quartet::bench

#endif  // QUARTET_KERNELS_BENCH_CEILING_H_
