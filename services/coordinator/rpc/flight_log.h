#ifndef QUARTET_SERVICES_COORDINATOR_RPC_FLIGHT_LOG_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_FLIGHT_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "services/coordinator/core/types.h"

// What went into the core and what it planned, as bytes: a few tens of them for a decode step. The
// core is pure, so whoever has all that went in can have it plan the same again. Prompts and
// answers are in it as token ids, and nothing else that a user wrote.

namespace quartet::coordinator {

// What went in.
struct SubmitInput {
  TimeUs now = 0;
  Request request;
};
struct CancelInput {
  uint64_t id = 0;
};
struct TruncateInput {
  uint64_t id = 0;
  uint32_t n_tokens = 0;
};
// Names of the units that an answer has filled.
struct UnitKeysInput {
  uint64_t id = 0;
  std::vector<UnitKey> keys;
};
struct PauseInput {
  uint64_t id = 0;
  bool paused = false;
};
struct ExpireInput {
  TimeUs now = 0;
};
// What the disk tier holds from the life before.
struct AdoptInput {
  std::vector<CacheEntry> entries;
};
// A call of PlanStep, and what it gave out.
struct PlanInput {
  TimeUs now = 0;
  bool planned = false;
  uint64_t step_id = 0;
  uint64_t fingerprint = 0;  // of rows, opens and closes
};
struct ResultInput {
  TimeUs now = 0;
  StepOutcome outcome;
};
struct FailAllInput {
  std::string message;
};

using FlightEvent = std::variant<SubmitInput, CancelInput, TruncateInput, PlanInput, ResultInput,
                                 FailAllInput, UnitKeysInput, PauseInput, ExpireInput, AdoptInput>;

struct FlightHeader {
  CoreConfig config;
  std::string reason;        // why it was written
  uint64_t first_event = 0;  // number of the first event that follows; 0 = nothing is missing
  uint64_t events = 0;       // so many follow
};

struct FlightLog {
  FlightHeader header;
  std::vector<FlightEvent> events;
};

// Differs for any two plans that tell the workers different things.
uint64_t PlanFingerprint(const StepPlan& plan);

std::string EncodeFlightEvent(const FlightEvent& event);
// What a file holds in front of its encoded events, one after the other.
std::string EncodeFlightHeader(const FlightHeader& header);

// Reads a whole file; takes nothing on trust. Errors say at which byte or event it went wrong.
absl::StatusOr<FlightLog> DecodeFlightLog(std::string_view bytes);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_FLIGHT_LOG_H_
