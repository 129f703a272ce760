#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels/cuda/driver_device.h"
#include "tests/support/simt/simt_device.h"

namespace quartet::testing {

std::unique_ptr<cuda::Device> OpenTestDevice() {
  cuda::DriverOptions options;
  if (const char* image = std::getenv("QUARTET_GPU_IMAGE")) options.image = image;
  // Of a test that runs as several processes: on a card each, where there are so many.
  if (const char* rank = std::getenv("QUARTET_TEST_RANK")) {
    const absl::StatusOr<int> cards = cuda::CountDevices();
    if (cards.ok() && *cards > 0) options.ordinal = std::atoi(rank) % *cards;
  }
  absl::StatusOr<std::unique_ptr<cuda::Device>> device = cuda::OpenDevice(options);
  if (!device.ok()) throw std::runtime_error(std::string(device.status().message()));
  return *std::move(device);
}

bool TestDeviceIsEmulated() {
  // Under compute-sanitizer everything is as slow as there.
  const char* shapes = std::getenv("QUARTET_TEST_SHAPES");
  return shapes != nullptr && std::string(shapes) == "small";
}

}  // namespace quartet::testing
