#ifndef QUARTET_TESTS_SUPPORT_SIMT_SIMT_DEVICE_H_
#define QUARTET_TESTS_SUPPORT_SIMT_SIMT_DEVICE_H_

#include <memory>

#include "kernels/cuda/device.h"

namespace quartet::testing {

// The device on which a test of CUDA ops runs. Defined twice: by the emulator (simt_device.cc) and
// by the GPU (gpu_device.cc); a test program links one of them.
std::unique_ptr<cuda::Device> OpenTestDevice();

// Whether times and big shapes make sense.
bool TestDeviceIsEmulated();

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_SIMT_SIMT_DEVICE_H_
