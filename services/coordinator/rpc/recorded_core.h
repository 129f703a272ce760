#ifndef QUARTET_SERVICES_COORDINATOR_RPC_RECORDED_CORE_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_RECORDED_CORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/coordinator/core/core.h"
#include "services/coordinator/rpc/flight_log.h"

namespace quartet::coordinator {

// The core, with a flight recorder at its inputs: every call goes through unchanged and is kept in
// memory, the oldest ones given up when the limit is reached. Only a recording from the first call
// on can be replayed; the rest of one still shows what came last. Not thread safe, as the core.
class RecordedCore {
 public:
  // recording_bytes_max: 0 = nothing is kept.
  RecordedCore(const CoreConfig& config, size_t recording_bytes_max)
      : core_(config), bytes_max_(recording_bytes_max) {}

  // As those of Core.
  SubmitOutcome OnSubmit(Request request, TimeUs now);
  uint32_t AdoptCached(std::vector<CacheEntry> entries);
  void OnCancel(uint64_t id);
  Core::TruncateOutcome OnTruncate(uint64_t id, uint32_t n_tokens);
  void OnUnitKeys(uint64_t id, std::span<const UnitKey> keys);
  void OnPause(uint64_t id, bool paused);
  void ExpireDeadlines(TimeUs now);
  std::optional<TimeUs> NextDeadline() const { return core_.NextDeadline(); }
  std::optional<StepPlan> PlanStep(TimeUs now);
  bool OnStepResult(const StepOutcome& outcome, TimeUs now);
  void FailAll(const std::string& message);
  std::vector<Output> TakeOutputs() { return core_.TakeOutputs(); }
  Ledger GetLedger() const { return core_.GetLedger(); }
  const CoreConfig& config() const { return core_.config(); }

  // A file's bytes: what is kept, under this reason.
  std::string Recording(const std::string& reason) const;

 private:
  void Keep(const FlightEvent& event);

  Core core_;
  const size_t bytes_max_;
  std::deque<std::string> kept_;  // encoded
  size_t kept_bytes_ = 0;
  uint64_t first_event_ = 0;  // number of the first one kept
};

// Writes the bytes to a new file in the folder, readable by this user alone, and returns its path.
// The name has the epoch and the number in it, so that no recording replaces another, and is there
// only when the file is whole.
absl::StatusOr<std::string> WriteRecording(const std::string& folder, uint64_t epoch,
                                           uint32_t number, const std::string& bytes);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_RECORDED_CORE_H_
