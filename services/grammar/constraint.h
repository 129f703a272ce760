// What an engine needs to hold one sequence to a grammar.
#ifndef QUARTET_SERVICES_GRAMMAR_CONSTRAINT_H_
#define QUARTET_SERVICES_GRAMMAR_CONSTRAINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/grammar/matcher.h"

namespace quartet::grammar {

// One sequence: the tokens that are certain, and a window of drafts behind them that are only being
// tried. Position i of the window is the token that comes after i drafts. Used by one thread at a
// time; the maker is shared by all sequences and outlives them.
class Constraint {
 public:
  // InvalidArgument if `grammar` is not a serialised grammar for the maker's vocabulary.
  static absl::StatusOr<Constraint> Create(std::string_view grammar, MaskMaker* maker);

  // Tokens that have been accepted, in order; the window is empty afterwards. An end token ends the
  // answer. FailedPrecondition, with the tokens before it taken, at one that the grammar does not
  // allow.
  absl::Status Advance(std::span<const int32_t> tokens);

  // Puts drafts into the window: as many of the first as the grammar allows. The number of these;
  // what comes after it must be rejected.
  size_t AcceptedDrafts(std::span<const int32_t> drafts);
  // The tokens that may be sampled at a position of the window, from 0 to the number of accepted
  // drafts. Nothing, if the answer has ended before it; elsewhere at least one.
  std::shared_ptr<const Mask> MaskAt(size_t position) const;

  // After the certain tokens: whether the answer may end, can do nothing else, or has ended.
  bool MayEnd() const { return matcher_.MayEnd(); }
  bool MustEnd() const { return matcher_.MustEnd(); }
  bool ended() const { return matcher_.ended(); }

 private:
  Constraint(Matcher matcher, MaskMaker* maker);

  Matcher matcher_;
  MaskMaker* maker_;
  std::vector<Matcher::State> window_;  // before each position
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_CONSTRAINT_H_
