#ifndef QUARTET_SERVICES_COORDINATOR_RPC_CONVERT_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_CONVERT_H_

#include <cstdint>

#include "proto/quartet/v1/engine.pb.h"
#include "proto/quartet/v1/worker.pb.h"
#include "services/coordinator/core/step_collector.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/membership/membership.h"

// Between the wire messages and the plain structs of core and membership.

namespace quartet::coordinator {

Request ToRequest(const v1::Submit& submit);
WorkerFacts ToWorkerFacts(const v1::Hello& hello);
CacheEntry ToCacheEntry(const v1::CacheEntry& entry);
// `rank` is the rank of the stream that the result came by.
StepCollector::Answer ToAnswer(const v1::StepResult& result, uint32_t rank);

v1::PoolSizes ToProto(const PoolPlan& pools);
v1::SequenceOpen ToProto(const SequenceOpen& open);
v1::StepPlan ToProto(const StepPlan& plan);
// Admitted, Tokens or Finished.
v1::EngineEvent ToProto(const Output& output);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_CONVERT_H_
