// Follows one answer through a grammar, token by token.
#ifndef QUARTET_SERVICES_GRAMMAR_MATCHER_H_
#define QUARTET_SERVICES_GRAMMAR_MATCHER_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "services/grammar/mask_maker.h"

namespace quartet::grammar {

// Copies share memory and are cheap, and are used by the same thread.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const LoadedGrammar> grammar);

  // Where the answer stands: to come back to it, with the matcher it is from or a copy.
  struct State {
    Readings readings;
    bool ended = false;
  };
  const State& state() const { return state_; }
  void Restore(State state) { state_ = std::move(state); }

  // Reads one token. False, and nothing has changed, if the grammar does not allow it.
  bool Advance(int32_t token);
  // The same for bytes.
  bool AdvanceBytes(std::string_view bytes);

  // An end token may come next.
  bool MayEnd() const { return !state_.ended && Machine::MayEnd(state_.readings); }
  // Nothing else may.
  bool MustEnd() const { return MayEnd() && state_.readings.size() == 1; }
  // One has come.
  bool ended() const { return state_.ended; }

  const LoadedGrammar& grammar() const { return *grammar_; }
  // The tokens that Advance takes in `state`. None if an end token has come.
  std::shared_ptr<const Mask> MaskOf(const State& state, MaskMaker* maker) const;

  // Gives up memory that only states of the past need: states that were taken before are not valid
  // any more. Cheap if there is little to gain.
  void Compact();

 private:
  std::shared_ptr<const LoadedGrammar> grammar_;
  std::shared_ptr<Machine> machine_;
  State state_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_MATCHER_H_
