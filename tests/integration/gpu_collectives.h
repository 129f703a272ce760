#ifndef QUARTET_TESTS_INTEGRATION_GPU_COLLECTIVES_H_
#define QUARTET_TESTS_INTEGRATION_GPU_COLLECTIVES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/peer_stress_params.h"

namespace quartet {

// Numbers of values that the iterations take turns with: one row of the model, eight rows, odd
// ones.
inline constexpr std::array<uint32_t, 8> kStressCounts = {4096,  1,     8192,  4095,
                                                          16384, 12289, 32768, 2};

// The GPU with this ordinal, with the kernels that QUARTET_GPU_IMAGE names.
absl::StatusOr<std::unique_ptr<cuda::Device>> OpenStressDevice(int ordinal);

// One line about what the checks have found. False: something was wrong.
bool PrintReport(const std::string& who, const cuda::StressReport& report);

// All ranks as parts of one kernel on one GPU.
absl::Status RunInProcess(int ranks, int64_t iterations);

}  // namespace quartet

#endif  // QUARTET_TESTS_INTEGRATION_GPU_COLLECTIVES_H_
