#include "services/grammar/constraint.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::grammar {

Constraint::Constraint(Matcher matcher, MaskMaker* maker)
    : matcher_(std::move(matcher)), maker_(maker), window_{matcher_.state()} {}

absl::StatusOr<Constraint> Constraint::Create(std::string_view grammar, MaskMaker* maker) {
  absl::StatusOr<std::shared_ptr<const LoadedGrammar>> loaded = maker->Load(grammar);
  if (!loaded.ok()) return loaded.status();
  return Constraint(Matcher(*std::move(loaded)), maker);
}

absl::Status Constraint::Advance(std::span<const int32_t> tokens) {
  absl::Status status;
  for (const int32_t token : tokens) {
    if (matcher_.Advance(token)) continue;
    status = absl::FailedPreconditionError(
        absl::StrCat("the answer's grammar does not allow token ", token, " here"));
    break;
  }
  matcher_.Compact();
  window_.assign(1, matcher_.state());
  return status;
}

size_t Constraint::AcceptedDrafts(std::span<const int32_t> drafts) {
  window_.resize(1);
  for (const int32_t draft : drafts) {
    if (!matcher_.Advance(draft)) break;
    window_.push_back(matcher_.state());
  }
  matcher_.Restore(window_.front());
  return window_.size() - 1;
}

std::shared_ptr<const Mask> Constraint::MaskAt(size_t position) const {
  return matcher_.MaskOf(window_[position], maker_);
}

}  // namespace quartet::grammar
