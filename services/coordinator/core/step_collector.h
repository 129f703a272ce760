#ifndef QUARTET_SERVICES_COORDINATOR_CORE_STEP_COLLECTOR_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_STEP_COLLECTOR_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// Gathers the answers of all ranks to the steps in flight and compares their agreement hashes: a
// step is done only when every rank has answered and all hashes are equal. Ranks answer in order,
// so steps are done in order. After a mismatch or an error nothing is open. Not thread safe.
class StepCollector {
 public:
  explicit StepCollector(uint32_t ranks);

  struct Answer {
    uint64_t epoch = 0;
    uint64_t step_id = 0;
    uint32_t rank = 0;
    uint64_t agreement_hash = 0;
    std::string error;
    std::vector<RowOutcome> rows;     // rank 0 only
    std::vector<CopyOutcome> copies;  // of this rank; ranks may differ
  };

  struct Verdict {
    enum class Kind {
      kWaiting,   // other ranks are missing
      kIgnored,   // not of the step that this rank has to answer next
      kComplete,  // `outcome` may be given out
      kMismatch,  // hashes differ: nothing of this step may leave
      kError,     // a rank could not run the step
    };
    Kind kind = Kind::kWaiting;
    StepOutcome outcome;
    std::string message;
  };

  // Starts to wait for a step, behind those that are open.
  void Begin(uint64_t epoch, uint64_t step_id);
  Verdict Add(Answer answer);

  bool waiting() const { return !open_.empty(); }
  // Ranks that have not answered the oldest open step.
  std::vector<uint32_t> MissingRanks() const;

 private:
  static void AddCopies(const std::vector<CopyOutcome>& copies, bool first,
                        std::vector<CopyOutcome>& all);

  struct Slot {
    bool present = false;
    uint64_t hash = 0;
  };
  struct Step {
    std::vector<Slot> answers;  // by rank
    StepOutcome outcome;
  };
  uint32_t ranks_;
  std::deque<Step> open_;  // oldest first
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_STEP_COLLECTOR_H_
