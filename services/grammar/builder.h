// Puts grammars together from parts.
#ifndef QUARTET_SERVICES_GRAMMAR_BUILDER_H_
#define QUARTET_SERVICES_GRAMMAR_BUILDER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/grammar/grammar.h"

namespace quartet::grammar {

// A part of a grammar: a handle, valid for the builder that made it.
struct Expr {
  uint32_t index = 0;
};

// A part that is used in several places is written out for each, unless it is a rule. Used by one
// thread at a time.
class GrammarBuilder {
 public:
  GrammarBuilder();

  Expr Empty() const { return {kEmptyExpr}; }
  // Matches nothing at all. What needs it cannot be part of an answer and is left out.
  Expr Never() const { return {kNeverExpr}; }
  Expr Literal(std::string_view bytes);
  // One token, by its text.
  Expr Token(std::string_view name);
  Expr Text(const TextAutomaton& automaton, uint32_t min, uint32_t max, uint8_t flags = 0);
  Expr Seq(std::vector<Expr> parts);
  Expr Alt(std::vector<Expr> parts);
  Expr Optional(Expr part) { return Alt({part, Empty()}); }
  // `part` must not be able to match the empty string: Build refuses that.
  Expr Repeat(Expr part, uint32_t min, uint32_t max);
  // One of the strings. Those that begin alike share their beginnings.
  Expr Choice(std::vector<std::string> strings);

  // A rule can be used before it is defined, also inside its own definition.
  Expr NewRule();
  void Define(Expr rule, Expr body);

  // The number of parts made so far, for limits.
  size_t size() const { return exprs_.size(); }

  // The grammar whose answers are those of `start`. InvalidArgument if there is none, or if a rule
  // can come back to itself before anything is read; ResourceExhausted if it is too large. Call it
  // once.
  absl::StatusOr<Grammar> Build(Expr start);

 private:
  enum class Kind : uint8_t { kEmpty, kNever, kLiteral, kToken, kText, kSeq, kAlt, kRepeat, kRule };
  struct Item {
    Kind kind;
    uint8_t flags = 0;
    uint32_t index = 0;  // of an automaton or a token name; of a rule, its body
    uint32_t min = 0;
    uint32_t max = 0;
    std::string text;
    std::vector<uint32_t> parts;
  };
  static constexpr uint32_t kEmptyExpr = 0;
  static constexpr uint32_t kNeverExpr = 1;

  Expr Add(Item item);
  Expr ChoiceFrom(std::span<const std::string> sorted, size_t at);
  void FindPossible();
  bool Possible(const Item& item) const;
  // Writes the nodes of an expression, `next` after it; the node that it begins with.
  uint32_t Emit(uint32_t expr, uint32_t next);
  uint32_t AddNode(Node node);
  uint32_t RuleNode(uint32_t rule);

  std::vector<Item> exprs_;
  std::map<std::string, uint32_t> automatons_;
  std::vector<bool> possible_;
  std::map<uint32_t, uint32_t> rule_nodes_;
  std::vector<uint32_t> rules_to_emit_;
  bool too_large_ = false;
  Grammar grammar_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_BUILDER_H_
