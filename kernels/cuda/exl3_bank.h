#ifndef QUARTET_KERNELS_CUDA_EXL3_BANK_H_
#define QUARTET_KERNELS_CUDA_EXL3_BANK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/exl3_params.h"
#include "kernels/ops/weights.h"

namespace quartet::cuda {

// EXL3 matrices in device memory, in the layout that the kernels stream (device/exl3.cuh), all in
// one allocation.
struct PackedExl3 {
  Buffer memory;
  std::vector<Exl3Weights> weights;  // in the order they were given; device addresses
  // What the kernels are compiled for: all matrices of a bank agree in these.
  bool mul1 = false;
  bool column_major = false;
};
// `names` name the matrices in errors. INVALID_ARGUMENT where one contradicts itself;
// UNIMPLEMENTED where they mix tile orders, or mul1 with other codebooks.
absl::StatusOr<PackedExl3> PackExl3(Context& context,
                                    std::span<const ops::Exl3Matrix* const> matrices,
                                    std::span<const std::string> names);

// How a grid of products is cut: the inputs into `parts`, the outputs into `strips` a block.
struct Exl3Cut {
  int parts = 1;
  int strips = 1;
  int warps = 1;  // of a block, each with the same number of strips
};
// As few parts and as many strips a block as leave enough blocks for `groups` of at most `rows`
// rows to fill the device. `outputs`: of all matrices of the grid, `out` of one.
Exl3Cut CutProduct(const Context& context, int64_t in, int64_t outputs, int64_t out, int groups,
                   int rows);

// The kernel for the products of few rows.
class Exl3Product {
 public:
  static absl::StatusOr<Exl3Product> Make(Context& context, const PackedExl3& bank);
  // Fills in how it is cut. `rows_of_group`: the most that one group has.
  void Launch(Exl3ProductParams params, const Exl3Cut& cut, int groups, int rows_of_group) const;

 private:
  Context* context_ = nullptr;
  const Kernel* kernel_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_EXL3_BANK_H_
