#include "services/grammar/grammar.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/grammar/byte_codec.h"

namespace quartet::grammar {
namespace {

constexpr std::string_view kMagic = "quartet grammar 1\n";
constexpr size_t kBranchesMax = 4 * kNodesMax;
constexpr size_t kTokenNamesMax = 256;

}  // namespace

std::string Grammar::Serialize() const {
  ByteWriter writer;
  for (const char c : kMagic) writer.Byte(static_cast<uint8_t>(c));
  writer.String(literals_);
  writer.Number(automatons_.size());
  for (const TextAutomaton& automaton : automatons_) writer.String(automaton.key());
  writer.Number(token_names_.size());
  for (const std::string& name : token_names_) writer.String(name);
  writer.Number(branches_.size());
  for (const uint32_t branch : branches_) writer.Number(branch);
  writer.Number(nodes_.size());
  for (const Node& node : nodes_) {
    writer.Byte(static_cast<uint8_t>(node.kind));
    writer.Byte(node.text_flags);
    for (const uint32_t field : {node.a, node.b, node.min, node.max, node.next}) {
      writer.Number(field);
    }
  }
  writer.Number(start_);
  return writer.Take();
}

absl::StatusOr<Grammar> Grammar::Parse(std::string_view bytes) {
  if (bytes.size() > kGrammarBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("grammar: ", bytes.size(), " bytes, at most ", kGrammarBytesMax));
  }
  if (!bytes.starts_with(kMagic)) {
    return absl::InvalidArgumentError(
        "grammar: does not begin as one of this version does; are all processes of one release?");
  }
  ByteReader reader(bytes.substr(kMagic.size()));
  Grammar grammar;
  grammar.literals_ = std::string(reader.String());
  const size_t automatons = reader.Number(kAutomatonsMax);
  for (size_t i = 0; i < automatons && reader.ok(); ++i) {
    absl::StatusOr<TextAutomaton> automaton = TextAutomaton::Parse(reader.String());
    if (!reader.ok()) break;
    if (!automaton.ok()) return automaton.status();
    grammar.automatons_.push_back(*std::move(automaton));
  }
  const size_t names = reader.Number(kTokenNamesMax);
  for (size_t i = 0; i < names && reader.ok(); ++i) {
    grammar.token_names_.emplace_back(reader.String());
  }
  const size_t branches = reader.Number(kBranchesMax);
  for (size_t i = 0; i < branches && reader.ok(); ++i) {
    grammar.branches_.push_back(static_cast<uint32_t>(reader.Number(kNodesMax)));
  }
  const size_t nodes = reader.Number(kNodesMax);
  for (size_t i = 0; i < nodes && reader.ok(); ++i) {
    Node node;
    const uint8_t kind = reader.Byte();
    if (kind > static_cast<uint8_t>(Node::Kind::kRepeat)) {
      return absl::InvalidArgumentError(absl::StrCat("grammar: node ", i, " is of kind ",
                                                     static_cast<int>(kind), ", at most ",
                                                     static_cast<int>(Node::Kind::kRepeat)));
    }
    node.kind = static_cast<Node::Kind>(kind);
    node.text_flags = reader.Byte();
    for (uint32_t* field : {&node.a, &node.b, &node.min, &node.max, &node.next}) {
      *field = static_cast<uint32_t>(reader.Number(kUnlimited));
    }
    grammar.nodes_.push_back(node);
  }
  grammar.start_ = static_cast<uint32_t>(reader.Number(kNodesMax));
  if (!reader.ok() || !reader.AtEnd()) {
    return absl::InvalidArgumentError(
        "grammar: cut short, followed by more, or with a number out of range");
  }
  if (absl::Status status = CheckGrammar(grammar); !status.ok()) return status;
  return grammar;
}

}  // namespace quartet::grammar
