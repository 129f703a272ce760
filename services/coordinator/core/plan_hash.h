#ifndef QUARTET_SERVICES_COORDINATOR_CORE_PLAN_HASH_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_PLAN_HASH_H_

#include <cstdint>

#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// A 64-bit hash over epoch, step_id and rows of a plan. Workers fold it into their agreement hash,
// so that two ranks that were told different things cannot agree.
uint64_t PlanHash(const StepPlan& plan);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_PLAN_HASH_H_
