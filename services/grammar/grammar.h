// What an answer may look like: a pushdown automaton over bytes and single tokens.
//
// Nodes say what comes next. Nested and repeated parts are called: what is to be done after them
// stands on a stack, with the number of repetitions so far, so that a list of up to a million items
// takes no more nodes than one of two. Text of up to n characters is one node with a counting
// automaton of its own.
#ifndef QUARTET_SERVICES_GRAMMAR_GRAMMAR_H_
#define QUARTET_SERVICES_GRAMMAR_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/grammar/text_automaton.h"

namespace quartet::grammar {

inline constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();

// Of a serialised grammar.
inline constexpr size_t kGrammarBytesMax = 2 << 20;
inline constexpr size_t kNodesMax = 1 << 18;
inline constexpr size_t kAutomatonsMax = 4096;

struct Node {
  enum class Kind : uint8_t {
    kReturn,   // the end of a rule or of a repeated part; with an empty stack, of the answer
    kLiteral,  // the bytes at `a`, `b` of them, then `next`
    kText,     // `min` to `max` units of text automaton `a`, then `next`
    kToken,    // the token named `a`, then `next`
    kSplit,    // any of the `b` nodes of which branches[a] is the first
    kJump,     // `next`, without reading anything
    kCall,     // what begins at `a`, up to its return, then `next`
    kRepeat,   // `min` to `max` times what begins at `a`, then `next`
  };
  Kind kind = Kind::kReturn;
  uint8_t text_flags = 0;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t min = 0;
  uint32_t max = 0;
  uint32_t next = 0;
  bool operator==(const Node&) const = default;
};

// Which added tokens count as the text that they are spelled with where text is read (a kText).
// Elsewhere only kToken can read one.
inline constexpr uint8_t kMarkersAreText = 1;   // those that are not special, such as <tool_call>
inline constexpr uint8_t kSpecialsAreText = 2;  // special ones, if they do not end the answer

// Immutable once made, by GrammarBuilder or Parse, which check that
//   - every index is in range,
//   - whatever has been read, the answer can be completed,
//   - no rule calls itself, and nothing is repeated, without reading anything.
class Grammar {
 public:
  // A grammar from another process. InvalidArgument says what is wrong with the bytes.
  static absl::StatusOr<Grammar> Parse(std::string_view bytes);
  std::string Serialize() const;

  const std::vector<Node>& nodes() const { return nodes_; }
  uint32_t start() const { return start_; }
  uint32_t branch(uint32_t index) const { return branches_[index]; }
  std::string_view literal(const Node& node) const {
    return std::string_view(literals_).substr(node.a, node.b);
  }
  const TextAutomaton& automaton(uint32_t index) const { return automatons_[index]; }
  size_t automatons() const { return automatons_.size(); }
  const std::vector<std::string>& token_names() const { return token_names_; }

 private:
  friend class GrammarBuilder;
  friend class GrammarCheck;
  Grammar() = default;

  std::vector<Node> nodes_;  // node 0 is a kReturn
  uint32_t start_ = 0;
  std::vector<uint32_t> branches_;
  std::string literals_;
  std::vector<TextAutomaton> automatons_;
  std::vector<std::string> token_names_;
};

// Checks what the class comment promises.
absl::Status CheckGrammar(const Grammar& grammar);

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_GRAMMAR_H_
