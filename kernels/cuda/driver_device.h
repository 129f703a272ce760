#ifndef QUARTET_KERNELS_CUDA_DRIVER_DEVICE_H_
#define QUARTET_KERNELS_CUDA_DRIVER_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"

namespace quartet::cuda {

struct DriverOptions {
  int ordinal = 0;
  // "native": what nvcc compiled for this card; "sm_70": the sm_70 form, on any card.
  std::string image = "native";
};

// How many GPUs there are. UNAVAILABLE where there is no driver.
absl::StatusOr<int> CountDevices();

// A GPU through the driver API, which is found at run time: the program starts without it.
// UNAVAILABLE: no driver or no such card; FAILED_PRECONDITION: no kernels for this card, with what
// the program holds.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DriverOptions& options);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DRIVER_DEVICE_H_
