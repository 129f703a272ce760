#ifndef QUARTET_KERNELS_CUDA_LINEAR_EXACT_SHAPE_H_
#define QUARTET_KERNELS_CUDA_LINEAR_EXACT_SHAPE_H_

// What the kernels of linear_exact.cu and their host side agree on.

namespace quartet::cuda::exact {

constexpr int kSlice = 128;  // inputs that are summed in one chain
constexpr int kSlicesPerGroup = 8;
constexpr int kFewRows = 8;  // tile of linear_exact_few
constexpr int kFewOuts = 32;
constexpr int kManyRows = 128;  // tile of linear_exact_many
constexpr int kManyOuts = 64;

}  // namespace quartet::cuda::exact

#endif  // QUARTET_KERNELS_CUDA_LINEAR_EXACT_SHAPE_H_
