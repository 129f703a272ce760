#ifndef QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/quartet/v1/engine.pb.h"
#include "services/common/metrics.h"
#include "services/common/status_channel.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/rpc/engine_options.h"
#include "services/coordinator/rpc/event_queue.h"
#include "services/grammar/constraint.h"

namespace quartet::coordinator {

// What the outside may know, as of the last turn of the engine thread.
struct EngineSnapshot {
  std::string not_ready_reason;  // empty = ready
  uint32_t max_model_len = 0;
  uint32_t vocab_size = 0;
  std::string checkpoint_digest;
  std::string vocabulary_digest;  // empty = grammars cannot be used yet
  Ledger ledger;
};

// Owns the core, the membership and one thread on which both live. Streams push events into
// events(); the thread turns them into core calls, sends plans to all ranks and results to the
// clients. Nothing of a step leaves before every rank has answered with the same agreement hash.
//
// The engine ends itself when it cannot go on (a rank is lost or silent, ranks disagree, the flags
// do not go with the checkpoint): all open requests end with ABORTED and a message that says why,
// the workers are told to abort, and `on_fatal` is called once, on the engine's thread. Until
// Shutdown it then answers everything with UNAVAILABLE.
class Engine {
 public:
  // `metrics` and `status` outlive the engine.
  Engine(const EngineOptions& options, Metrics* metrics, const StatusChannel* status,
         std::function<void(const std::string&)> on_fatal);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Start();
  // Ends all open requests with UNAVAILABLE, tells the workers to abort, joins the thread. What is
  // queued in the streams is still to be written.
  void Shutdown();

  // Thread safe.
  EventQueue& events();
  EngineSnapshot Snapshot() const;
  const EngineOptions& options() const;
  // What grammars are about, once the engine is ready; its digest (constraints.h). Thread safe.
  absl::StatusOr<std::string> PutVocabulary(std::string_view bytes);
  // What holds a submit's answer to its grammar (constraints.h). Thread safe.
  absl::StatusOr<grammar::Constraint> Constrain(const v1::Submit& submit) const;
  // Has the engine thread write a recording. Thread safe.
  void DumpFlight();
  // A refusal that a stream made by itself, for the metrics.
  void CountRefused(const std::string& reason);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_H_
