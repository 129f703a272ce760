#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_REPLAY_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_REPLAY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/rpc/flight_log.h"

namespace quartet::simulation {

struct ReplayResult {
  uint64_t events = 0;
  uint64_t plans = 0;
  uint64_t outputs = 0;  // that requests were told
  // Where this build's core first did something else than the recorded one; empty if it never did.
  std::string difference;
  coordinator::Ledger ledger;  // at the end
};

// Gives a new core all that the recorded one was given and compares what it plans. An error if the
// recording cannot be replayed: its beginning is missing, or no core can have its configuration.
absl::StatusOr<ReplayResult> Replay(const coordinator::FlightLog& log);

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_REPLAY_H_
