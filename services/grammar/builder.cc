#include "services/grammar/builder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quartet::grammar {
namespace {

constexpr uint32_t kReturnNode = 0;
constexpr uint32_t kUndefined = 0xFFFFFFFF;

}  // namespace

GrammarBuilder::GrammarBuilder() {
  Add({.kind = Kind::kEmpty});
  Add({.kind = Kind::kNever});
}

Expr GrammarBuilder::Add(Item item) {
  exprs_.push_back(std::move(item));
  return {static_cast<uint32_t>(exprs_.size() - 1)};
}

Expr GrammarBuilder::Literal(std::string_view bytes) {
  if (bytes.empty()) return Empty();
  return Add({.kind = Kind::kLiteral, .text = std::string(bytes)});
}

Expr GrammarBuilder::Token(std::string_view name) {
  std::vector<std::string>& names = grammar_.token_names_;
  auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) found = names.insert(names.end(), std::string(name));
  return Add({.kind = Kind::kToken, .index = static_cast<uint32_t>(found - names.begin())});
}

Expr GrammarBuilder::Text(const TextAutomaton& automaton, uint32_t min, uint32_t max,
                          uint8_t flags) {
  if (min > max) return Never();
  if (max == 0) return Empty();
  const auto [found, fresh] =
      automatons_.emplace(automaton.key(), static_cast<uint32_t>(grammar_.automatons_.size()));
  if (fresh) grammar_.automatons_.push_back(automaton);
  return Add({.kind = Kind::kText, .flags = flags, .index = found->second, .min = min, .max = max});
}

Expr GrammarBuilder::Seq(std::vector<Expr> parts) {
  Item item{.kind = Kind::kSeq};
  for (const Expr part : parts) {
    const Item& added = exprs_[part.index];
    if (added.kind == Kind::kNever) return Never();
    if (added.kind == Kind::kEmpty) continue;
    if (added.kind == Kind::kLiteral && !item.parts.empty() &&
        exprs_[item.parts.back()].kind == Kind::kLiteral) {
      item.parts.back() = Literal(exprs_[item.parts.back()].text + added.text).index;
      continue;
    }
    item.parts.push_back(part.index);
  }
  if (item.parts.empty()) return Empty();
  if (item.parts.size() == 1) return {item.parts[0]};
  return Add(std::move(item));
}

Expr GrammarBuilder::Alt(std::vector<Expr> parts) {
  Item item{.kind = Kind::kAlt};
  for (const Expr part : parts) {
    if (exprs_[part.index].kind == Kind::kNever) continue;
    if (std::find(item.parts.begin(), item.parts.end(), part.index) != item.parts.end()) continue;
    item.parts.push_back(part.index);
  }
  if (item.parts.empty()) return Never();
  if (item.parts.size() == 1) return {item.parts[0]};
  return Add(std::move(item));
}

Expr GrammarBuilder::Repeat(Expr part, uint32_t min, uint32_t max) {
  if (min > max) return Never();
  const Kind kind = exprs_[part.index].kind;
  if (max == 0 || kind == Kind::kEmpty) return Empty();
  if (kind == Kind::kNever) return min == 0 ? Empty() : Never();
  if (max == 1) return min == 1 ? part : Optional(part);
  return Add({.kind = Kind::kRepeat, .min = min, .max = max, .parts = {part.index}});
}

Expr GrammarBuilder::Choice(std::vector<std::string> strings) {
  std::sort(strings.begin(), strings.end());
  strings.erase(std::unique(strings.begin(), strings.end()), strings.end());
  return ChoiceFrom(strings, 0);
}

// The strings are equal up to `at`.
Expr GrammarBuilder::ChoiceFrom(std::span<const std::string> sorted, size_t at) {
  std::vector<Expr> branches;
  while (!sorted.empty() && sorted.front().size() == at) {
    branches.push_back(Empty());
    sorted = sorted.subspan(1);
  }
  while (!sorted.empty()) {
    size_t alike = 1;
    while (alike < sorted.size() && sorted[alike][at] == sorted[0][at]) ++alike;
    const std::span<const std::string> group = sorted.first(alike);
    // Sorted, so that what the first and the last begin with, all do.
    size_t end = at + 1;
    while (end < group.front().size() && end < group.back().size() &&
           group.front()[end] == group.back()[end]) {
      ++end;
    }
    const Expr shared = Literal(std::string_view(group.front()).substr(at, end - at));
    branches.push_back(Seq({shared, ChoiceFrom(group, end)}));
    sorted = sorted.subspan(alike);
  }
  return Alt(std::move(branches));
}

Expr GrammarBuilder::NewRule() {
  return Add({.kind = Kind::kRule, .index = kUndefined});
}

void GrammarBuilder::Define(Expr rule, Expr body) {
  exprs_[rule.index].index = body.index;
}

bool GrammarBuilder::Possible(const Item& item) const {
  const auto possible = [this](uint32_t part) { return possible_[part]; };
  switch (item.kind) {
    case Kind::kNever:
      return false;
    case Kind::kSeq:
      return std::all_of(item.parts.begin(), item.parts.end(), possible);
    case Kind::kAlt:
      return std::any_of(item.parts.begin(), item.parts.end(), possible);
    case Kind::kRepeat:
      return item.min == 0 || possible(item.parts[0]);
    case Kind::kRule:
      return item.index != kUndefined && possible(item.index);
    default:
      return true;
  }
}

// The smallest set of parts that can be completed.
void GrammarBuilder::FindPossible() {
  possible_.assign(exprs_.size(), false);
  std::vector<std::vector<uint32_t>> users(exprs_.size());
  std::vector<uint32_t> open;
  for (uint32_t i = 0; i < exprs_.size(); ++i) {
    for (const uint32_t part : exprs_[i].parts) users[part].push_back(i);
    if (exprs_[i].kind == Kind::kRule && exprs_[i].index != kUndefined) {
      users[exprs_[i].index].push_back(i);
    }
    open.push_back(i);
  }
  while (!open.empty()) {
    const uint32_t i = open.back();
    open.pop_back();
    if (possible_[i] || !Possible(exprs_[i])) continue;
    possible_[i] = true;
    open.insert(open.end(), users[i].begin(), users[i].end());
  }
}

uint32_t GrammarBuilder::AddNode(Node node) {
  if (grammar_.nodes_.size() >= kNodesMax) {
    too_large_ = true;
    return kReturnNode;
  }
  grammar_.nodes_.push_back(node);
  return static_cast<uint32_t>(grammar_.nodes_.size() - 1);
}

uint32_t GrammarBuilder::RuleNode(uint32_t rule) {
  const auto found = rule_nodes_.find(rule);
  if (found != rule_nodes_.end()) return found->second;
  const uint32_t node = AddNode({.kind = Node::Kind::kJump});
  rule_nodes_.emplace(rule, node);
  rules_to_emit_.push_back(rule);
  return node;
}

uint32_t GrammarBuilder::Emit(uint32_t expr, uint32_t next) {
  if (too_large_) return kReturnNode;
  const Item& item = exprs_[expr];
  switch (item.kind) {
    case Kind::kEmpty:
    case Kind::kNever:  // not reached: only what is possible is written
      return next;
    case Kind::kLiteral: {
      const auto at = static_cast<uint32_t>(grammar_.literals_.size());
      grammar_.literals_ += item.text;
      return AddNode({.kind = Node::Kind::kLiteral,
                      .a = at,
                      .b = static_cast<uint32_t>(item.text.size()),
                      .next = next});
    }
    case Kind::kToken:
      return AddNode({.kind = Node::Kind::kToken, .a = item.index, .next = next});
    case Kind::kText:
      return AddNode({.kind = Node::Kind::kText,
                      .text_flags = item.flags,
                      .a = item.index,
                      .min = item.min,
                      .max = item.max,
                      .next = next});
    case Kind::kSeq:
      for (auto part = item.parts.rbegin(); part != item.parts.rend(); ++part) {
        next = Emit(*part, next);
      }
      return next;
    case Kind::kAlt: {
      std::vector<uint32_t> branches;
      for (const uint32_t part : item.parts) {
        if (possible_[part]) branches.push_back(Emit(part, next));
      }
      if (branches.size() == 1) return branches[0];
      const auto at = static_cast<uint32_t>(grammar_.branches_.size());
      grammar_.branches_.insert(grammar_.branches_.end(), branches.begin(), branches.end());
      return AddNode(
          {.kind = Node::Kind::kSplit, .a = at, .b = static_cast<uint32_t>(branches.size())});
    }
    case Kind::kRepeat: {
      if (!possible_[item.parts[0]]) return next;
      const uint32_t body = Emit(item.parts[0], kReturnNode);
      return AddNode(
          {.kind = Node::Kind::kRepeat, .a = body, .min = item.min, .max = item.max, .next = next});
    }
    case Kind::kRule: {
      const uint32_t target = RuleNode(expr);
      // What returns at once need not be returned to.
      if (next == kReturnNode) return target;
      return AddNode({.kind = Node::Kind::kCall, .a = target, .next = next});
    }
  }
  return next;
}

absl::StatusOr<Grammar> GrammarBuilder::Build(Expr start) {
  FindPossible();
  if (!possible_[start.index]) {
    return absl::InvalidArgumentError("no answer can satisfy it");
  }
  AddNode({.kind = Node::Kind::kReturn});
  grammar_.start_ = Emit(start.index, kReturnNode);
  while (!rules_to_emit_.empty() && !too_large_) {
    const uint32_t rule = rules_to_emit_.back();
    rules_to_emit_.pop_back();
    const uint32_t body = Emit(exprs_[rule].index, kReturnNode);
    grammar_.nodes_[rule_nodes_.at(rule)].next = body;
  }
  if (too_large_ || grammar_.automatons_.size() > kAutomatonsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the grammar takes more than ", kNodesMax,
                                                     " nodes or ", kAutomatonsMax,
                                                     " kinds of text; make the schema smaller"));
  }
  if (absl::Status status = CheckGrammar(grammar_); !status.ok()) return status;
  if (const size_t bytes = grammar_.Serialize().size(); bytes > kGrammarBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the grammar takes ", bytes,
                                                     " bytes, at most ", kGrammarBytesMax,
                                                     "; make the schema smaller"));
  }
  return std::move(grammar_);
}

}  // namespace quartet::grammar
