#include "services/coordinator/simulation/replay.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/coordinator/core/core.h"

namespace quartet::simulation {
namespace {

using coordinator::CoreConfig;

// Far above any machine. A configuration from a file must not make this process take all memory.
constexpr uint64_t kMaxSlots = 1 << 16;
constexpr uint64_t kMaxPages = 1 << 24;
constexpr uint64_t kMaxSnapshots = 1 << 20;

std::string LimitsError(const CoreConfig& config) {
  const uint64_t pages = std::max({config.pages, config.host_pages, config.disk_pages});
  const uint64_t snapshots =
      std::max({config.snapshots, config.host_snapshots, config.disk_snapshots});
  if (config.slots > kMaxSlots || pages > kMaxPages || snapshots > kMaxSnapshots) {
    return absl::StrCat(config.slots, " slots, ", pages, " pages and ", snapshots,
                        " snapshots of a tier; at most ", kMaxSlots, ", ", kMaxPages, " and ",
                        kMaxSnapshots);
  }
  return coordinator::ConfigError(config);
}

class Replayer {
 public:
  explicit Replayer(const CoreConfig& config) : core_(config) {}

  // What it did differently; empty if nothing.
  std::string Give(const coordinator::FlightEvent& event) {
    const std::string difference =
        std::visit([this](const auto& input) { return On(input); }, event);
    result_.outputs += core_.TakeOutputs().size();
    ++result_.events;
    return difference;
  }

  ReplayResult Finish() && {
    result_.ledger = core_.GetLedger();
    return std::move(result_);
  }

 private:
  std::string On(const coordinator::SubmitInput& input) {
    core_.OnSubmit(input.request, input.now);
    return "";
  }
  std::string On(const coordinator::CancelInput& input) {
    core_.OnCancel(input.id);
    return "";
  }
  std::string On(const coordinator::TruncateInput& input) {
    core_.OnTruncate(input.id, input.n_tokens);
    return "";
  }
  std::string On(const coordinator::AdoptInput& input) {
    if (result_.events > 0) return "what the disk tier holds comes after other events";
    core_.AdoptCached(input.entries);
    return "";
  }
  std::string On(const coordinator::UnitKeysInput& input) {
    core_.OnUnitKeys(input.id, input.keys);
    return "";
  }
  std::string On(const coordinator::PauseInput& input) {
    core_.OnPause(input.id, input.paused);
    return "";
  }
  std::string On(const coordinator::ExpireInput& input) {
    core_.ExpireDeadlines(input.now);
    return "";
  }
  std::string On(const coordinator::ResultInput& input) {
    core_.OnStepResult(input.outcome, input.now);
    return "";
  }
  std::string On(const coordinator::FailAllInput& input) {
    core_.FailAll(input.message);
    return "";
  }
  std::string On(const coordinator::PlanInput& recorded) {
    const std::optional<coordinator::StepPlan> plan = core_.PlanStep(recorded.now);
    if (plan.has_value() != recorded.planned) {
      return recorded.planned
                 ? absl::StrCat("step ", recorded.step_id, " was planned, here is nothing to do")
                 : absl::StrCat("nothing was planned, here is step ", plan->step_id);
    }
    if (!plan.has_value()) return "";
    ++result_.plans;
    const uint64_t fingerprint = coordinator::PlanFingerprint(*plan);
    if (plan->step_id == recorded.step_id && fingerprint == recorded.fingerprint) return "";
    return absl::StrFormat(
        "step %d was planned with fingerprint %016x, here it is step %d with "
        "%016x, %d rows, %d opens and %d closes",
        recorded.step_id, recorded.fingerprint, plan->step_id, fingerprint, plan->rows.size(),
        plan->opens.size(), plan->closes.size());
  }

  coordinator::Core core_;
  ReplayResult result_;
};

}  // namespace

absl::StatusOr<ReplayResult> Replay(const coordinator::FlightLog& log) {
  if (log.header.first_event != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the recording begins with event ", log.header.first_event,
        ", and what came before it is lost; only a whole one can be replayed (a larger "
        "--flight-mib keeps more)"));
  }
  if (const std::string error = LimitsError(log.header.config); !error.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the recorded configuration: ", error));
  }
  Replayer replayer(log.header.config);
  std::string difference;
  for (size_t i = 0; i < log.events.size() && difference.empty(); ++i) {
    difference = replayer.Give(log.events[i]);
    if (!difference.empty()) difference = absl::StrCat("event ", i, ": ", difference);
  }
  ReplayResult result = std::move(replayer).Finish();
  result.difference = std::move(difference);
  return result;
}

}  // namespace quartet::simulation
