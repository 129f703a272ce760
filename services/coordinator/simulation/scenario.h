#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_SCENARIO_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_SCENARIO_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "services/coordinator/core/core.h"
#include "services/coordinator/core/step_collector.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/simulation/hash_model.h"
#include "services/coordinator/simulation/sim_tiers.h"

// Everything that a run is made of: the engine's configuration, who comes and what they do, how
// long steps take, what goes wrong.

namespace quartet::simulation {

// The time of one step.
struct CostModel {
  uint32_t step_us = 2000;  // of any step
  uint32_t row_us = 100;    // of each row
  uint32_t token_ns = 50000;
  uint32_t context_ns = 20;    // of each token before a row
  uint32_t copy_us = 50;       // of each page or snapshot that moves between tiers
  TimeUs disk_write_us = 200;  // of one of them on the disk, beside the steps

  TimeUs StepUs(const coordinator::StepPlan& plan) const;
};

// A client and what it does beside waiting for its answer.
struct ClientScript {
  TimeUs gap_us = 0;             // it comes so long after the client before it
  coordinator::Request request;  // its seed is nobody else's
  // Whose prefixes it shares in the prefix cache; nothing: it does not use it.
  std::optional<uint64_t> domain;
  // When its answer is finished it asks so many times more, each time with everything that was said
  // before and so many tokens more.
  uint32_t turns = 0;
  uint32_t turn_tokens = 0;
  TimeUs think_us = 0;

  enum class Leaves { kNever, kAfterSubmit, kAfterAdmission, kAfterToken };
  Leaves leaves = Leaves::kNever;
  uint32_t leave_token = 0;  // kAfterToken: the how manieth
  TimeUs leave_after_us = 0;

  // When it has seen so many tokens it finds that only the first truncate_to count. 0 = never. More
  // than it has seen is what no honest client asks for.
  uint32_t truncate_token = 0;
  uint32_t truncate_to = 0;
  TimeUs truncate_after_us = 0;

  TimeUs read_us = 0;    // for each token
  uint32_t retries = 0;  // after the engine was lost
};

// What happens to one rank's answer to one step.
enum class Fault : uint8_t {
  kNone,
  kLate,              // it comes, but long after the others
  kLostThenRepeated,  // the plan is sent again, the worker answers from its memory
  kDoubled,           // the second copy comes when everything has moved on
  kStepError,         // the rank could not run the step
  kWrongHash,         // the rank did something else
  kFrozen,            // no answer before the deadline, but one long after it
  kKilled,            // the stream ends
};
inline constexpr int kFaultKinds = 8;
const char* Name(Fault fault);
// Whether the engine ends with it.
inline bool EndsEngine(Fault fault) {
  return fault >= Fault::kStepError;
}

// Bugs that a test plants between the parts, to see that they are found.
struct PlantedBugs {
  std::function<void(std::optional<coordinator::StepPlan>&)> plan;  // as the core gives it out
  std::function<void(uint32_t rank, coordinator::StepPlan&)> sent;  // as a rank gets it
  std::function<void(coordinator::StepCollector::Answer&)> answer;  // as the collector gets it
  std::function<void(std::vector<coordinator::Output>&)> outputs;
  std::function<void(std::vector<UnitKey>&)> names;  // of units of answers, as the core gets them
  std::function<void(coordinator::Ledger&)> ledger;
  std::function<void(std::vector<coordinator::CacheEntry>&)> adopted;  // as the core gets them
  bool blind_workers = false;  // they do not compare what comes back from a lower tier
  bool deaf_to_cancel = false;
  bool deaf_to_pause = false;
};

struct Scenario {
  coordinator::CoreConfig config;
  uint32_t ranks = 1;
  HashModel model;
  CostModel cost;
  uint64_t seed = 1;                 // of what the links do
  uint32_t link_us = 100;            // a message takes up to twice as long
  TimeUs restart_us = 1000000;       // from the end of an engine to the next that is ready
  uint32_t slow_client_tokens = 64;  // unread, before a client counts as slow
  TimeUs slow_client_us = 30000000;

  // The next client in order of arrival, until there is none.
  std::function<std::optional<ClientScript>()> next_client;
  std::function<Fault(uint64_t epoch, uint64_t step, uint32_t rank)> fault;
  std::function<TierFault(uint32_t rank, const TierCopy& copy)> tier_fault;
  // When an engine ends, whether this rank has time to write what its disk still waits for.
  std::function<bool(uint32_t rank)> clean_end;
  PlantedBugs bugs;
};

// The clients of a list, in its order.
std::function<std::optional<ClientScript>()> Clients(std::vector<ClientScript> clients);

// A request whose prompt is a function of its seed.
coordinator::Request MakeRequest(uint64_t seed, uint32_t prompt_tokens, uint32_t max_tokens,
                                 uint32_t vocab_size);

// Which tiers of the prefix cache there are.
enum class Tiers { kAsDrawn, kDevice, kHost, kDisk };

// An engine, its clients and its misfortunes, all drawn from one number. Pools, budgets and queues
// are small, so that everything that may run out does.
Scenario RandomScenario(uint64_t seed, Tiers tiers = Tiers::kAsDrawn);

// One line.
std::string Describe(const Scenario& scenario);

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_SCENARIO_H_
