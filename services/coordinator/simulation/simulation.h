#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_SIMULATION_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "services/coordinator/core/core.h"
#include "services/coordinator/core/step_collector.h"
#include "services/coordinator/simulation/auditor.h"
#include "services/coordinator/simulation/event_queue.h"
#include "services/coordinator/simulation/random.h"
#include "services/coordinator/simulation/scenario.h"
#include "services/coordinator/simulation/sim_worker.h"
#include "services/coordinator/simulation/trace.h"

namespace quartet::simulation {

// What one client saw.
struct ClientRecord {
  uint64_t seed = 0;
  TimeUs submitted = 0;
  bool refused = false;
  uint32_t retry_after_ms = 0;  // refused
  std::vector<int32_t> tokens;
  std::vector<TimeUs> token_times;
  std::optional<coordinator::Output> end;
};

struct Result {
  std::string violation;  // empty: every invariant held
  uint64_t violation_step = 0;
  std::vector<std::string> trace_tail;
  uint64_t digest = 0;  // equal digests: the same run
  TimeUs time_us = 0;   // virtual
  Tally tally;
  uint64_t faults[kFaultKinds] = {};
  uint64_t tier_faults[kTierFaultKinds] = {};

  bool ok() const { return violation.empty(); }
};

// A whole cluster in one thread and in virtual time: the core and the collector as in production,
// driven as the coordinator's engine drives them; ranks with the hash model; clients; links that
// delay and lose; an auditor that watches. When the engine ends, the next one starts in the next
// epoch, as when a supervisor starts all processes again. The same scenario gives the same run.
class Simulation {
 public:
  explicit Simulation(Scenario scenario, Trace::Listener listener = nullptr);

  // Clients come until `max_steps` were planned; then what is open ends, by itself for some steps
  // more, after that because its client leaves. Call it once.
  Result Run(uint64_t max_steps);

  // Every client that came, in order; kept if asked for before the run.
  void KeepRecords() { keep_records_ = true; }
  std::vector<std::unique_ptr<ClientRecord>> TakeRecords() { return std::move(records_); }

 private:
  using Answer = coordinator::StepCollector::Answer;
  struct Arrival {
    std::unique_ptr<ClientScript> client;
    bool retry = false;  // else the next client is awaited after it
  };
  struct Leave {
    uint64_t client = 0;
  };
  struct Truncate {
    uint64_t client = 0;
    uint32_t n_tokens = 0;
  };
  struct Answered {
    Answer answer;
  };
  struct PlanAgain {
    uint64_t epoch = 0;
    uint32_t rank = 0;
  };
  struct WorkerGone {
    uint64_t epoch = 0;
    uint32_t rank = 0;
  };
  struct Ready {};
  struct Look {};  // something may be due now
  using Event =
      std::variant<Arrival, Leave, Truncate, Answered, PlanAgain, WorkerGone, Ready, Look>;

  // A client whose request is open.
  struct Client {
    std::unique_ptr<ClientScript> script;
    uint64_t number = 0;
    uint64_t request = 0;
    std::vector<int32_t> told;
    std::optional<UnitNames> names;  // if it uses the prefix cache
    bool left = false;
    TimeUs read_until = 0;  // when it has read everything that it was told
    std::optional<TimeUs> paused_since;
    TimeUs look_at = 0;  // while it is paused
    ClientRecord* record = nullptr;
  };

  void On(Arrival& event);
  void On(Leave& event);
  void On(Truncate& event);
  void On(Answered& event);
  void On(PlanAgain& event);
  void On(WorkerGone& event);
  void On(Ready& event);
  void On(Look&) {}

  void ScheduleArrival();
  void Submit(std::unique_ptr<ClientScript> script);
  void Cancel(Client& client, const char* why);
  Client* FindClient(uint64_t number);
  void Turn();
  TimeUs StepDeadline() const;  // of the oldest step in flight
  void CheckStepDeadline();
  void DeliverOutputs();
  void Deliver(coordinator::Output& output);
  void React(Client& client, const coordinator::Output& output);
  void NameAnswer(Client& client, const coordinator::Output& output);
  void GoOn(Client& client, const coordinator::Output& end);
  bool RunNextStep();
  void TracePlan(const coordinator::StepPlan& plan);
  void Execute(coordinator::StepPlan plan);
  // slow: one of its copies is.
  void Send(Answer answer, Fault fault, TimeUs step_us, bool slow);
  // What goes wrong with the plan's copies at this rank.
  std::vector<TierFault> DrawTierFaults(const coordinator::StepPlan& plan, uint32_t rank);
  // The disks of the engine that ends, and what the next one finds on them.
  void LeaveDisks();
  void Adopt();
  void PauseSlowClients();
  bool AnyPaused() const;
  void EndEngine(const std::string& message);
  void EndRun();
  bool LastSteps() const { return auditor_.tally().steps >= max_steps_; }

  TimeUs Link() { return static_cast<TimeUs>(scenario_.link_us + links_.Below(scenario_.link_us)); }
  void Note(TraceEvent event) {
    event.time = now_;
    trace_.Add(std::move(event));
  }

  const Scenario scenario_;
  Random links_;
  Trace trace_;
  Auditor auditor_;
  EventQueue<Event> events_;
  TimeUs now_ = 1000000;  // 0 means "not yet" in the core's stamps
  uint64_t max_steps_ = 0;

  uint64_t next_epoch_;
  std::optional<coordinator::Core> core_;  // while an engine is ready
  coordinator::StepCollector collector_;
  std::vector<SimWorker> workers_;      // by rank
  std::vector<SimDisk> disks_;          // by rank, between two engines
  coordinator::StepPlan sent_;          // the last one
  std::deque<TimeUs> sent_at_;          // of the steps in flight, oldest first
  TimeUs answered_at_ = 0;              // the last one
  TimeUs busy_until_ = 0;               // the ranks, with all that they have
  std::vector<TimeUs> last_answer_at_;  // of each rank, also of those still under way
  uint64_t turns_ = 0;
  bool end_expected_ = false;   // a fault of this engine ends it
  bool engine_ending_ = false;  // until the next one is ready

  std::map<uint64_t, Client> clients_;       // by request
  std::map<uint64_t, uint64_t> request_of_;  // by client number
  uint64_t next_client_ = 1;
  uint64_t faults_[kFaultKinds] = {};
  uint64_t tier_faults_[kTierFaultKinds] = {};
  bool keep_records_ = false;
  std::vector<std::unique_ptr<ClientRecord>> records_;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_SIMULATION_H_
