// Which tokens a text can be continued with, worked out once for each state of its automaton.
#ifndef QUARTET_SERVICES_GRAMMAR_TEXT_TABLE_H_
#define QUARTET_SERVICES_GRAMMAR_TEXT_TABLE_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "services/grammar/text_automaton.h"
#include "services/grammar/vocabulary.h"

namespace quartet::grammar {

// What is known about the tokens that follow when a text is in one state of its automaton. Inside
// of text most tokens are possible; walking through all of them for each mask would take
// milliseconds. Used by one thread at a time.
class TextContinuations {
 public:
  // The tokens that only go on in the text, if at most `units` may begin. Valid until the next
  // call.
  const Mask& UpTo(uint32_t units);

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
  const Exits& ExitsBy(uint8_t byte);

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

  const Vocabulary* vocabulary_ = nullptr;
  // By the first byte of the tokens; entry i + 1 is where byte i's end.
  std::array<size_t, 257> inside_end_{};
  std::array<size_t, 257> boundary_end_{};
  std::vector<Inside> inside_;
  std::vector<Boundary> boundaries_;
  uint32_t units_max_ = 0;
  std::map<uint32_t, Mask> up_to_;
  std::map<uint8_t, Exits> exits_;
};

// The continuations from all states of one automaton, each made when it is first asked for. Used by
// one thread at a time.
class TextTable {
 public:
  TextTable(TextAutomaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
      : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {}

  // Valid until the next call.
  TextContinuations& From(uint16_t state);
  const TextAutomaton& automaton() const { return automaton_; }

 private:
  void Walk(uint32_t node, uint16_t state, uint32_t units, TextContinuations* out) const;

  const TextAutomaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::map<uint16_t, TextContinuations> states_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_TEXT_TABLE_H_
