#ifndef QUARTET_SERVICES_COORDINATOR_CORE_SAMPLING_CHECK_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_SAMPLING_CHECK_H_

#include <cstdint>
#include <string>

#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// What is wrong with how a request wants its tokens drawn and told; empty if nothing is.
std::string SamplingError(const Request& request, uint32_t vocab_size);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_SAMPLING_CHECK_H_
