#include "services/coordinator/simulation/trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/coordinator/simulation/hash_model.h"

namespace quartet::simulation {
namespace {

constexpr size_t kTail = 60;

using Kind = TraceEvent::Kind;

std::string What(const TraceEvent& e) {
  switch (e.kind) {
    case Kind::kReady:
      return absl::StrCat("ready in epoch ", e.a);
    case Kind::kAdopt:
      return absl::StrCat("  on all disks lie ", e.a, " objects, ", e.b, " are in the index");
    case Kind::kSubmit:
      return absl::StrCat("request ", e.who, " comes: prompt ", e.a, ", max_tokens ", e.b);
    case Kind::kRefuse:
      return absl::StrCat("refused a prompt of ", e.a, ": ", e.note);
    case Kind::kCancel:
      return absl::StrCat("request ", e.who, " is cancelled: ", e.note);
    case Kind::kTruncate:
      return absl::StrCat("request ", e.who, " is truncated to ", e.a);
    case Kind::kPause:
      return absl::StrCat("request ", e.who, e.a != 0 ? " is paused" : " goes on");
    case Kind::kClose:
      return absl::StrCat("  close seq ", e.a);
    case Kind::kOpen:
      return absl::StrCat("  open seq ", e.a, " in slot ", e.b, ", seed ", e.c);
    case Kind::kResume:
      return absl::StrCat("  seq ", e.a, " begins behind ", e.b, " tokens from snapshot ", e.c);
    case Kind::kCommit:
      if (e.b == 0) return absl::StrCat("  seq ", e.a, " commits");
      return absl::StrCat("  seq ", e.a, " commits, snapshot ", e.c, " at ", e.b);
    case Kind::kPlan:
      if (e.step == 0) return "no step, closes alone";
      return absl::StrFormat("step %d: %d rows, %d tokens, hash %016x", e.step, e.a, e.b, e.c);
    case Kind::kCopy:
      return absl::StrCat("  copy ", e.note, ", place ", e.a, " to ", e.b, ", ", e.c, " tokens");
    case Kind::kRow:
      return absl::StrCat("  seq ", e.a, " ", e.note, " at ", e.b, ", ", e.c, " tokens");
    case Kind::kFault:
      return absl::StrCat("  fault at rank ", e.a, ": ", e.note);
    case Kind::kAnswer:
      return absl::StrFormat("rank %d answers step %d, hash %016x: %s", e.a, e.step, e.b, e.note);
    case Kind::kAdmitted:
      return absl::StrCat("request ", e.who, " is admitted");
    case Kind::kTokens:
      return absl::StrCat("request ", e.who, " gets ", e.b, " tokens, the first is ", e.a,
                          ", its answer has ", e.c);
    case Kind::kEnd:
      return absl::StrCat("request ", e.who, " ends after ", e.a, " tokens: ", e.note);
    case Kind::kEngineEnd:
      return absl::StrCat("epoch ", e.a, " ends: ", e.note);
  }
  return "";
}

}  // namespace

std::string Format(const TraceEvent& event) {
  return absl::StrFormat("%12.3f ms  %s", static_cast<double>(event.time) / 1000, What(event));
}

Trace::Trace(Listener listener) : listener_(std::move(listener)) {
  last_.reserve(kTail);
}

void Trace::Add(TraceEvent event) {
  const auto mix = [this](uint64_t value) { digest_ = Mix(digest_ ^ value); };
  mix(static_cast<uint64_t>(event.time));
  mix(static_cast<uint64_t>(event.kind) ^ (event.step << 8));
  mix(event.who);
  mix(event.a);
  mix(event.b);
  mix(event.c);
  for (const char c : event.note) digest_ = HashModel::Absorb(digest_, c);
  if (listener_) listener_(event);
  if (last_.size() < kTail) {
    last_.push_back(std::move(event));
  } else {
    last_[count_ % kTail] = std::move(event);
  }
  ++count_;
}

std::vector<std::string> Trace::Tail() const {
  std::vector<std::string> lines;
  for (uint64_t i = count_ - last_.size(); i < count_; ++i) {
    lines.push_back(Format(last_[i % kTail]));
  }
  return lines;
}

}  // namespace quartet::simulation
