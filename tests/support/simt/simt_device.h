#ifndef QUARTET_TESTS_SUPPORT_SIMT_SIMT_DEVICE_H_
#define QUARTET_TESTS_SUPPORT_SIMT_SIMT_DEVICE_H_

#include <memory>

#include "kernels/cuda/device.h"

namespace quartet::testing {

// The device on which a test of CUDA ops runs. Defined twice: by the emulator (simt_device.cc) and
// by the GPU (gpu_device.cc); a test program links one of them.
std::unique_ptr<cuda::Device> OpenTestDevice();

// True where only small shapes make sense: in the emulator, and under QUARTET_TEST_SHAPES=small.
bool TestDeviceIsEmulated();

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_SIMT_SIMT_DEVICE_H_
