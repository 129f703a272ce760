#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/grammar/grammar.h"

namespace quartet::grammar {

class GrammarCheck {
 public:
  explicit GrammarCheck(const Grammar& grammar)
      : grammar_(grammar), nodes_(grammar.nodes_), users_(nodes_.size()) {}

  absl::Status Run() {
    if (nodes_.empty() || nodes_[0].kind != Node::Kind::kReturn) {
      return absl::InvalidArgumentError("grammar: node 0 must be there and be a return");
    }
    if (grammar_.start_ >= nodes_.size()) {
      return absl::InvalidArgumentError("grammar: the start names no node");
    }
    for (const std::string& name : grammar_.token_names_) {
      if (name.empty()) return absl::InvalidArgumentError("grammar: a token has an empty name");
    }
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (const std::string what = FaultOf(nodes_[i]); !what.empty()) return Wrong(i, what);
    }
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      for (const uint32_t used : Uses(nodes_[i])) users_[used].push_back(i);
    }
    const std::vector<bool> completable =
        Closure([this](uint32_t i, const std::vector<bool>& known) { return CanEnd(i, known); });
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      for (const uint32_t used : Uses(nodes_[i])) {
        if (!completable[used]) return Wrong(used, "leads to nothing that can be completed");
      }
    }
    if (!completable[grammar_.start_]) return Wrong(grammar_.start_, "cannot be completed");
    empty_ = Closure(
        [this](uint32_t i, const std::vector<bool>& known) { return CanBeEmpty(i, known); });
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].kind == Node::Kind::kRepeat && empty_[nodes_[i].a]) {
        return Wrong(i, "repeats something that may be empty");
      }
    }
    return CheckProgress();
  }

 private:
  using Kind = Node::Kind;

  static absl::Status Wrong(uint32_t node, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("grammar: node ", node, " ", what));
  }

  std::string FaultOf(const Node& node) const {
    if (node.next >= nodes_.size()) return "is followed by a node that does not exist";
    if ((node.text_flags & ~(kMarkersAreText | kSpecialsAreText)) != 0) return "has unknown flags";
    switch (node.kind) {
      case Kind::kReturn:
      case Kind::kJump:
        return "";
      case Kind::kLiteral:
        if (node.b == 0) return "is an empty literal";
        if (node.b > grammar_.literals_.size() || node.a > grammar_.literals_.size() - node.b) {
          return "is a literal that reaches past the end of the literals";
        }
        return "";
      case Kind::kText:
        if (node.a >= grammar_.automatons_.size()) return "names no text automaton";
        return CountFault(node);
      case Kind::kToken:
        return node.a >= grammar_.token_names_.size() ? "names no token" : "";
      case Kind::kSplit:
        if (node.b == 0) return "has no branches";
        if (node.b > grammar_.branches_.size() || node.a > grammar_.branches_.size() - node.b) {
          return "has branches past the end of the branches";
        }
        for (uint32_t i = 0; i < node.b; ++i) {
          if (grammar_.branches_[node.a + i] >= nodes_.size()) return "branches to no node";
        }
        return "";
      case Kind::kCall:
        return node.a >= nodes_.size() ? "calls no node" : "";
      case Kind::kRepeat:
        if (node.a >= nodes_.size()) return "repeats no node";
        return CountFault(node);
    }
    return "is of no kind";
  }

  static std::string CountFault(const Node& node) {
    const bool possible = node.max > 0 && node.min <= node.max && node.min < kUnlimited;
    return possible ? "" : "has no possible count";
  }

  // The nodes that a node can lead to.
  std::vector<uint32_t> Uses(const Node& node) const {
    switch (node.kind) {
      case Kind::kReturn:
        return {};
      case Kind::kSplit: {
        std::vector<uint32_t> branches;
        for (uint32_t i = 0; i < node.b; ++i) {
          branches.push_back(grammar_.branches_[node.a + i]);
        }
        return branches;
      }
      case Kind::kCall:
      case Kind::kRepeat:
        return {node.a, node.next};
      default:
        return {node.next};
    }
  }

  bool AnyBranch(const Node& node, const std::vector<bool>& known) const {
    for (uint32_t i = 0; i < node.b; ++i) {
      if (known[grammar_.branches_[node.a + i]]) return true;
    }
    return false;
  }

  // Whether the return of a node's own level can be reached.
  bool CanEnd(uint32_t i, const std::vector<bool>& known) const {
    const Node& node = nodes_[i];
    if (node.kind == Kind::kReturn) return true;
    if (node.kind == Kind::kSplit) return AnyBranch(node, known);
    if (node.kind == Kind::kCall) return known[node.a] && known[node.next];
    if (node.kind == Kind::kRepeat) return (node.min == 0 || known[node.a]) && known[node.next];
    return known[node.next];
  }

  // The same without reading anything.
  bool CanBeEmpty(uint32_t i, const std::vector<bool>& known) const {
    const Node& node = nodes_[i];
    switch (node.kind) {
      case Kind::kReturn:
        return true;
      case Kind::kLiteral:
      case Kind::kToken:
        return false;
      case Kind::kText:
        return node.min == 0 && known[node.next];
      case Kind::kSplit:
        return AnyBranch(node, known);
      case Kind::kJump:
        return known[node.next];
      case Kind::kCall:
        return known[node.a] && known[node.next];
      case Kind::kRepeat:
        return (node.min == 0 || known[node.a]) && known[node.next];
    }
    return false;
  }

  // The smallest set of nodes that `holds` adds nothing to.
  std::vector<bool> Closure(
      const std::function<bool(uint32_t, const std::vector<bool>&)>& holds) const {
    std::vector<bool> known(nodes_.size());
    std::vector<uint32_t> open(nodes_.size());
    for (uint32_t i = 0; i < open.size(); ++i) open[i] = i;
    while (!open.empty()) {
      const uint32_t i = open.back();
      open.pop_back();
      if (known[i] || !holds(i, known)) continue;
      known[i] = true;
      open.insert(open.end(), users_[i].begin(), users_[i].end());
    }
    return known;
  }

  // The nodes that a node leads to before anything is read.
  std::vector<uint32_t> FreeUses(const Node& node) const {
    switch (node.kind) {
      case Kind::kReturn:
      case Kind::kLiteral:
      case Kind::kToken:
        return {};
      case Kind::kText:
        return node.min == 0 ? std::vector<uint32_t>{node.next} : std::vector<uint32_t>{};
      case Kind::kCall:
        return empty_[node.a] ? std::vector<uint32_t>{node.a, node.next}
                              : std::vector<uint32_t>{node.a};
      case Kind::kRepeat:
        return node.min == 0 ? std::vector<uint32_t>{node.a, node.next}
                             : std::vector<uint32_t>{node.a};
      default:
        return Uses(node);
    }
  }

  // No way leads back to a node without reading.
  absl::Status CheckProgress() const {
    enum class Mark : uint8_t { kNew, kOpen, kDone };
    struct Place {
      uint32_t node;
      std::vector<uint32_t> uses;
      size_t at = 0;
    };
    std::vector<Mark> marks(nodes_.size(), Mark::kNew);
    for (uint32_t root = 0; root < nodes_.size(); ++root) {
      if (marks[root] != Mark::kNew) continue;
      std::vector<Place> path;
      path.push_back({root, FreeUses(nodes_[root])});
      marks[root] = Mark::kOpen;
      while (!path.empty()) {
        Place& place = path.back();
        if (place.at == place.uses.size()) {
          marks[place.node] = Mark::kDone;
          path.pop_back();
          continue;
        }
        const uint32_t next = place.uses[place.at++];
        if (marks[next] == Mark::kOpen) {
          return Wrong(next, "comes back to itself before anything is read");
        }
        if (marks[next] == Mark::kDone) continue;
        marks[next] = Mark::kOpen;
        path.push_back({next, FreeUses(nodes_[next])});
      }
    }
    return absl::OkStatus();
  }

  const Grammar& grammar_;
  const std::vector<Node>& nodes_;
  std::vector<std::vector<uint32_t>> users_;
  std::vector<bool> empty_;
};

absl::Status CheckGrammar(const Grammar& grammar) {
  return GrammarCheck(grammar).Run();
}

}  // namespace quartet::grammar
