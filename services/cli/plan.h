#ifndef QUARTET_SERVICES_CLI_PLAN_H_
#define QUARTET_SERVICES_CLI_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/gpu_plan.h"

namespace quartet::cli {

// "32GiB", "32768MiB" or a number of bytes.
absl::StatusOr<int64_t> ParseMemorySize(std::string_view text);

// What `quartet plan` prints: the table of one card in MiB, the verdict, and what to change.
std::string FormatGpuPlan(std::string_view model, const GpuPlan& plan,
                          const std::vector<GpuPlanChange>& changes);

// The same for programs, one JSON object. All sizes are bytes per GPU.
std::string GpuPlanJson(std::string_view model, const GpuPlan& plan,
                        const std::vector<GpuPlanChange>& changes);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_PLAN_H_
