#include "services/coordinator/rpc/recorded_core.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::coordinator {
namespace {

// What an event takes beside its bytes.
constexpr size_t kEventOverheadBytes = sizeof(std::string) + 16;

}  // namespace

SubmitOutcome RecordedCore::OnSubmit(Request request, TimeUs now) {
  if (bytes_max_ > 0) Keep(SubmitInput{now, request});
  return core_.OnSubmit(std::move(request), now);
}

uint32_t RecordedCore::AdoptCached(std::vector<CacheEntry> entries) {
  if (bytes_max_ > 0) Keep(AdoptInput{entries});
  return core_.AdoptCached(std::move(entries));
}

void RecordedCore::OnCancel(uint64_t id) {
  Keep(CancelInput{id});
  core_.OnCancel(id);
}

Core::TruncateOutcome RecordedCore::OnTruncate(uint64_t id, uint32_t n_tokens) {
  Keep(TruncateInput{id, n_tokens});
  return core_.OnTruncate(id, n_tokens);
}

void RecordedCore::OnUnitKeys(uint64_t id, std::span<const UnitKey> keys) {
  Keep(UnitKeysInput{id, {keys.begin(), keys.end()}});
  core_.OnUnitKeys(id, keys);
}

void RecordedCore::OnPause(uint64_t id, bool paused) {
  Keep(PauseInput{id, paused});
  core_.OnPause(id, paused);
}

// Comes with every event; only what ends somebody changes anything.
void RecordedCore::ExpireDeadlines(TimeUs now) {
  const std::optional<TimeUs> next = core_.NextDeadline();
  if (next.has_value() && *next <= now) Keep(ExpireInput{now});
  core_.ExpireDeadlines(now);
}

std::optional<StepPlan> RecordedCore::PlanStep(TimeUs now) {
  const bool decides = core_.can_plan();
  const bool copies = decides && bytes_max_ > 0 && core_.GetLedger().copies_waiting > 0;
  std::optional<StepPlan> plan = core_.PlanStep(now);
  // A call while a step is in flight does nothing, and comes with every event.
  if (!decides || bytes_max_ == 0) return plan;
  const Ledger ledger = core_.GetLedger();
  if (plan.has_value()) {
    Keep(PlanInput{now, true, plan->step_id, PlanFingerprint(*plan)});
  } else if (copies || ledger.running + ledger.waiting > 0) {
    Keep(PlanInput{.now = now, .planned = false});
  }
  return plan;
}

bool RecordedCore::OnStepResult(const StepOutcome& outcome, TimeUs now) {
  if (bytes_max_ > 0) Keep(ResultInput{now, outcome});
  return core_.OnStepResult(outcome, now);
}

void RecordedCore::FailAll(const std::string& message) {
  Keep(FailAllInput{message});
  core_.FailAll(message);
}

void RecordedCore::Keep(const FlightEvent& event) {
  if (bytes_max_ == 0) return;
  kept_.push_back(EncodeFlightEvent(event));
  kept_bytes_ += kept_.back().size() + kEventOverheadBytes;
  while (kept_bytes_ > bytes_max_) {
    kept_bytes_ -= kept_.front().size() + kEventOverheadBytes;
    kept_.pop_front();
    ++first_event_;
  }
}

std::string RecordedCore::Recording(const std::string& reason) const {
  std::string bytes = EncodeFlightHeader({.config = core_.config(),
                                          .reason = reason,
                                          .first_event = first_event_,
                                          .events = kept_.size()});
  bytes.reserve(bytes.size() + kept_bytes_);
  for (const std::string& event : kept_) bytes += event;
  return bytes;
}

absl::StatusOr<std::string> WriteRecording(const std::string& folder, uint64_t epoch,
                                           uint32_t number, const std::string& bytes) {
  namespace fs = std::filesystem;
  const std::string path = absl::StrCat(folder, "/flight-", epoch, "-", number, ".bin");
  const std::string unfinished = path + ".part";
  std::error_code error;
  fs::create_directories(folder, error);
  errno = 0;
  std::ofstream file(unfinished, std::ios::binary);
  // There are prompts in it.
  fs::permissions(unfinished, fs::perms::owner_read | fs::perms::owner_write, error);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) fs::rename(unfinished, path, error);
  if (!file || error) {
    return absl::UnavailableError(absl::StrCat(
        "cannot write ", path, " (--flight-dir): ", file ? error.message() : std::strerror(errno)));
  }
  return path;
}

}  // namespace quartet::coordinator
