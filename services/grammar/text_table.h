// Which tokens a text can be continued with, worked out once for each state of its automaton.
#ifndef QUARTET_SERVICES_GRAMMAR_TEXT_TABLE_H_
#define QUARTET_SERVICES_GRAMMAR_TEXT_TABLE_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "services/grammar/text_automaton.h"
#include "services/grammar/vocabulary.h"

namespace quartet::grammar {

// What is known about the tokens that follow when a text is in one state of its automaton. Inside
// of text most tokens are possible; walking through all of them for each mask would take
// milliseconds. Thread safe.
class TextContinuations {
 public:
  // Allows the tokens that only go on in the text, if at most `units` may begin.
  void AllowUpTo(uint32_t units, Mask* mask) const;

  // Where a token leaves the text by a byte: behind a boundary inside the token stands that byte.
  struct Exit {
    int32_t id;      // the token that ends with that byte, or -1
    uint32_t node;   // of the vocabulary's tree: tokens that go on behind it, or 0
    uint32_t units;  // complete before that byte
  };
  struct Exits {
    std::vector<Exit> tokens;  // with an id, in the order of their units
    std::vector<Exit> nodes;   // with a node, likewise
    Mask all;                  // the ids of `tokens`
  };
  const Exits& ExitsBy(uint8_t byte) const;

  // About the bytes of memory taken.
  size_t weight() const;

 private:
  friend class TextTable;
  struct Inside {
    int32_t id;
    uint32_t units;  // begun
  };
  struct Boundary {
    uint32_t node;
    uint32_t units;  // complete
  };

  // Everything but the exits is there from then on.
  void Complete(const Vocabulary* vocabulary);
  // Gives up what is said in a better form too.
  void ForgetParts();
  Exits MakeExits(uint8_t byte) const;
  void AddExit(uint32_t node, uint32_t units, Exits* exits) const;

  const Vocabulary* vocabulary_ = nullptr;
  // By the first byte of the tokens; entry i + 1 is where byte i's end.
  std::array<size_t, 257> inside_end_{};
  std::array<size_t, 257> boundary_end_{};
  std::vector<Inside> inside_;
  std::vector<Boundary> boundaries_;
  // Where there are many tokens: those of up to i units, and the others in the order of their
  // units.
  std::vector<Mask> up_to_;
  std::vector<Inside> long_;
  // Where there are many boundaries: their units by node.
  std::vector<uint16_t> boundary_units_;
  mutable std::mutex mutex_;  // guards the next
  mutable std::map<uint8_t, std::unique_ptr<const Exits>> exits_;
};

// The continuations from all states of one automaton, each made when it is first asked for. Thread
// safe; while one thread makes some, others find those that are there.
class TextTable {
 public:
  TextTable(TextAutomaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
      : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {}

  // The first time in a state takes milliseconds.
  std::shared_ptr<const TextContinuations> From(uint16_t state);
  const TextAutomaton& automaton() const { return automaton_; }

 private:
  std::shared_ptr<const TextContinuations> Make(uint16_t state, const TextContinuations* alike);
  void Walk(uint32_t node, uint16_t state, uint32_t units, TextContinuations* out) const;

  const TextAutomaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::mutex mutex_;  // guards the next
  std::map<uint16_t, std::shared_ptr<const TextContinuations>> states_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_TEXT_TABLE_H_
