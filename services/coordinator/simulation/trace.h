#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_TRACE_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_TRACE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "services/coordinator/core/types.h"

namespace quartet::simulation {

using coordinator::TimeUs;

struct TraceEvent {
  enum class Kind {
    kReady,      // a = epoch
    kAdopt,      // a = objects that all disks have, b = of these, in the index now
    kSubmit,     // who = request, a = prompt tokens, b = max_tokens
    kRefuse,     // a = prompt tokens, note = why
    kCancel,     // who = request, note = why
    kTruncate,   // who = request, a = tokens kept
    kPause,      // who = request, a = whether it is paused now
    kClose,      // a = seq_uid
    kOpen,       // a = seq_uid, b = slot, c = seed
    kResume,     // a = seq_uid, b = tokens, c = snapshot
    kCommit,     // step, a = seq_uid, b = export at, c = snapshot
    kPlan,       // step, a = rows, b = tokens, c = plan hash
    kCopy,       // step, a = from place, b = to place, c = tokens, note = what and where
    kRow,        // step, a = seq_uid, b = position, c = tokens, note = kind and exports
    kFault,      // step, a = rank, note = which
    kAnswer,     // step, a = rank, b = agreement hash, note = what the collector said
    kAdmitted,   // who = request
    kTokens,     // who = request, a = first token, b = tokens, c = answer so far
    kEnd,        // who = request, a = answer's tokens, note = how
    kEngineEnd,  // a = epoch, note = why
  };
  TimeUs time = 0;
  Kind kind = Kind::kReady;
  uint64_t step = 0;
  uint64_t who = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  std::string note;
};

// One line, without its end.
std::string Format(const TraceEvent& event);

// What happened in a run: a digest over everything, the last events, and, if somebody listens, each
// event as it comes. Lines are made only for those that are read.
class Trace {
 public:
  using Listener = std::function<void(const TraceEvent&)>;
  explicit Trace(Listener listener = nullptr);

  void Add(TraceEvent event);
  // Two runs did the same if their digests are equal.
  uint64_t digest() const { return digest_; }
  // The last events, formatted, the oldest first.
  std::vector<std::string> Tail() const;

 private:
  const Listener listener_;
  uint64_t digest_ = 0;
  uint64_t count_ = 0;
  std::vector<TraceEvent> last_;  // a ring
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_TRACE_H_
