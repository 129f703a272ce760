// A finite automaton that reads text byte by byte and counts its units (characters, mostly).
#ifndef QUARTET_SERVICES_GRAMMAR_TEXT_AUTOMATON_H_
#define QUARTET_SERVICES_GRAMMAR_TEXT_AUTOMATON_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/grammar/char_set.h"

namespace quartet::grammar {

// Deterministic. State 0 is the start. Some states are boundaries: the text may end there, and
// reaching one by a byte completes one more unit. Every state has a way on and a way to a boundary,
// so that text can always be completed, whatever number of units is asked for. Immutable.
class TextAutomaton {
 public:
  static constexpr uint16_t kDead = 0xFFFF;
  static constexpr size_t kStatesMax = 4096;

  // Text whose units are spelled in one of the given ways, none of which may be the beginning of
  // another. `spellings` must not be empty.
  static TextAutomaton OfUnits(const std::vector<Spelling>& spellings);

  enum class Unit { kByte, kCharacter };
  // Any text (of UTF-8 characters, or of any bytes) in which none of `texts` stands. These must be
  // ASCII and not empty.
  static TextAutomaton Without(const std::vector<std::string>& texts, Unit unit);

  // From the bytes that `key` gives. InvalidArgument if they describe no such automaton.
  static absl::StatusOr<TextAutomaton> Parse(std::string_view key);

  size_t states() const { return boundary_.size(); }
  bool IsBoundary(uint16_t state) const { return boundary_[state] != 0; }
  uint16_t Next(uint16_t state, uint8_t byte) const {
    return next_[state * classes_ + class_of_[byte]];
  }
  // The bytes that lead on from `state`.
  const ByteSet& First(uint16_t state) const { return first_[state]; }
  // All of the automaton as bytes: equal for equal automatons.
  const std::string& key() const { return key_; }

 private:
  // One row of 256 next states for each state.
  using Rows = std::vector<std::array<uint16_t, 256>>;
  static TextAutomaton FromRows(const Rows& rows, std::vector<uint8_t> boundary);
  absl::Status Check() const;
  void FillFirst();

  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 0;
  std::vector<uint8_t> boundary_;
  std::vector<uint16_t> next_;  // [state][class]
  std::vector<ByteSet> first_;
  std::string key_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_TEXT_AUTOMATON_H_
