#include "services/grammar/mask_maker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::grammar {
namespace {

using Kind = Node::Kind;

// If a text can be left by more bytes than this, its tokens are walked through one by one.
constexpr size_t kExitBytesMax = 16;
constexpr size_t kTablesMax = 64;
constexpr uint32_t kUnknownSet = 0xFFFFFFFF;
constexpr uint32_t kEmptySet = 0xFFFFFFFE;
// A state that is nested so deeply that its description is larger is not remembered.
constexpr size_t kKeyWordsMax = 4096;

void Unite(const Mask& added, Mask* mask) {
  for (size_t i = 0; i < mask->size(); ++i) (*mask)[i] |= added[i];
}

uint8_t FlagOf(TokenText::Kind kind) {
  return kind == TokenText::Kind::kMarker ? kMarkersAreText : kSpecialsAreText;
}

}  // namespace

MaskMaker::MaskMaker(std::shared_ptr<const Vocabulary> vocabulary, MaskMakerLimits limits)
    : vocabulary_(std::move(vocabulary)), limits_(limits) {}

absl::StatusOr<std::shared_ptr<const LoadedGrammar>> MaskMaker::Load(std::string_view bytes) {
  const auto known = grammars_.find(bytes);
  if (known != grammars_.end()) return known->second;
  absl::StatusOr<Grammar> grammar = Grammar::Parse(bytes);
  if (!grammar.ok()) return grammar.status();
  auto loaded = std::make_shared<LoadedGrammar>();
  loaded->grammar = std::make_shared<const Grammar>(*std::move(grammar));
  loaded->vocabulary = vocabulary_;
  loaded->serial = serials_++;
  for (const std::string& name : loaded->grammar->token_names()) {
    const std::optional<int32_t> id = vocabulary_->AddedId(name);
    if (!id) {
      return absl::InvalidArgumentError(
          absl::StrCat("grammar: the vocabulary has no token \"", name, "\""));
    }
    loaded->token_names.emplace(*id, static_cast<uint32_t>(loaded->token_ids.size()));
    loaded->token_ids.push_back(*id);
  }
  if (tables_.size() > kTablesMax) {
    std::erase_if(tables_, [](const auto& table) { return table.second.use_count() == 1; });
  }
  for (uint32_t i = 0; i < loaded->grammar->automatons(); ++i) {
    const TextAutomaton& automaton = loaded->grammar->automaton(i);
    std::shared_ptr<TextTable>& table = tables_[automaton.key()];
    if (table == nullptr) table = std::make_shared<TextTable>(automaton, vocabulary_);
    loaded->tables.push_back(table);
  }
  if (limits_.grammars > 0) {
    while (grammar_order_.size() >= limits_.grammars) {
      grammars_.erase(grammar_order_.front());
      grammar_order_.pop_front();
    }
    grammars_.emplace(std::string(bytes), loaded);
    grammar_order_.emplace_back(bytes);
  }
  return loaded;
}

MaskMaker::Key MaskMaker::KeyOf(const LoadedGrammar& grammar, const Machine& machine,
                                const Readings& readings) const {
  Key key = {grammar.serial};
  // No token has more units than bytes: beyond that, one count is like another.
  const auto far = static_cast<uint32_t>(vocabulary_->token_bytes_max() + 1);
  for (const Reading& reading : readings) {
    const Node& node = machine.node(reading);
    key.push_back(reading.node);
    key.push_back(reading.state);
    if (node.kind == Kind::kText) {
      key.push_back(reading.count < node.min ? std::min(node.min - reading.count, far) : 0);
      key.push_back(node.max == kUnlimited ? far : std::min(node.max - reading.count, far));
    }
    for (uint32_t stack = reading.stack; stack != 0; stack = machine.frame(stack).below) {
      key.push_back(machine.frame(stack).node);
      key.push_back(machine.frame(stack).count);
    }
    key.push_back(0);  // no frame is of node 0
  }
  return key;
}

std::shared_ptr<const Mask> MaskMaker::MaskOf(const LoadedGrammar& grammar, Machine* machine,
                                              const Readings& readings) {
  Key key = KeyOf(grammar, *machine, readings);
  if (const auto found = recent_.find(key); found != recent_.end()) {
    ++hits_;
    return found->second;
  }
  std::shared_ptr<const Mask> mask;
  if (const auto found = older_.find(key); found != older_.end()) {
    ++hits_;
    mask = found->second;
  } else {
    ++misses_;
    auto made = std::make_shared<Mask>(vocabulary_->EmptyMask());
    Compute(grammar, machine, readings, made.get());
    mask = std::move(made);
  }
  if (key.size() <= kKeyWordsMax) {
    if (recent_.size() >= std::max<size_t>(1, limits_.masks / 2)) {
      older_ = std::move(recent_);
      recent_.clear();
    }
    recent_.emplace(std::move(key), mask);
  }
  return mask;
}

uint32_t MaskMaker::SetOf(const Readings& readings, const Machine& machine) {
  const auto [found, fresh] = set_ids_.try_emplace(readings, static_cast<uint32_t>(sets_.size()));
  if (fresh) {
    ReadingsSet& set = sets_.emplace_back();
    set.readings = readings;
    set.first = machine.First(readings, /*texts=*/true);
    set.next.fill(kUnknownSet);
  }
  return found->second;
}

uint32_t MaskMaker::NextSet(uint32_t set, uint8_t byte, Machine* machine) {
  uint32_t next = sets_[set].next[byte];
  if (next == kUnknownSet) {
    Readings readings;
    machine->Step(sets_[set].readings, byte, &readings);
    next = readings.empty() ? kEmptySet : SetOf(readings, *machine);
    sets_[set].next[byte] = next;
  }
  return next;
}

void MaskMaker::Compute(const LoadedGrammar& grammar, Machine* machine, const Readings& readings,
                        Mask* mask) {
  const size_t frames = machine->frames();
  Readings others;
  for (const Reading& reading : readings) {
    const Kind kind = machine->node(reading).kind;
    if (kind == Kind::kLiteral) others.push_back(reading);
    if (kind == Kind::kText && !AddText(grammar, machine, reading, mask)) {
      others.push_back(reading);
    }
  }
  if (!others.empty()) WalkBelow(0, SetOf(others, *machine), machine, mask);
  AddAdded(grammar, machine, readings, mask);
  if (Machine::MayEnd(readings)) {
    for (const int32_t id : vocabulary_->end_ids()) Allow(id, mask);
  }
  sets_.clear();
  set_ids_.clear();
  machine->Rewind(frames);
}

bool MaskMaker::AddText(const LoadedGrammar& grammar, Machine* machine, const Reading& reading,
                        Mask* mask) {
  Readings after;
  machine->AfterText(reading, &after);
  const ByteSet first = machine->First(after, /*texts=*/true);
  if (first.count() > kExitBytesMax) return false;
  const Node& node = machine->node(reading);
  TextContinuations& from = grammar.tables[node.a]->From(static_cast<uint16_t>(reading.state));
  const uint32_t units_max = node.max == kUnlimited ? kUnlimited : node.max - reading.count;
  const uint32_t units_min = node.min > reading.count ? node.min - reading.count : 0;
  Unite(from.UpTo(units_max), mask);

  const uint32_t behind = SetOf(after, *machine);
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!first.test(byte)) continue;
    const TextContinuations::Exits& exits = from.ExitsBy(static_cast<uint8_t>(byte));
    const auto possible = [&](const TextContinuations::Exit& exit) {
      return exit.units >= units_min && exit.units <= units_max;
    };
    // A text that is full may have no unit more, though a byte would begin one.
    const uint32_t next = NextSet(behind, static_cast<uint8_t>(byte), machine);
    if (next == kEmptySet) continue;
    if (exits.tokens.empty() || (possible(exits.tokens.front()) && possible(exits.tokens.back()))) {
      Unite(exits.all, mask);
    } else {
      for (const auto& exit : exits.tokens) {
        if (possible(exit)) Allow(exit.id, mask);
      }
    }
    if (sets_[next].first.none()) continue;
    for (const auto& exit : exits.nodes) {
      if (possible(exit)) WalkBelow(exit.node, next, machine, mask);
    }
  }
  return true;
}

void MaskMaker::AddAdded(const LoadedGrammar& grammar, Machine* machine, const Readings& readings,
                         Mask* mask) {
  uint8_t flags = 0;
  for (const Reading& reading : readings) {
    const Node& node = machine->node(reading);
    if (node.kind == Kind::kToken) Allow(grammar.token_ids[node.a], mask);
    if (node.kind == Kind::kText) flags |= node.text_flags;
  }
  if (flags == 0) return;
  Readings after;
  for (const int32_t id : vocabulary_->added_ids()) {
    const TokenText& token = vocabulary_->token(id);
    const uint8_t flag = FlagOf(token.kind);
    if ((flags & flag) == 0) continue;
    machine->StepAdded(readings, std::nullopt, token.bytes, flag, &after);
    if (!after.empty()) Allow(id, mask);
  }
}

void MaskMaker::WalkBelow(uint32_t node, uint32_t set, Machine* machine, Mask* mask) {
  const uint32_t begin = vocabulary_->first_child(node);
  const uint32_t end = begin + vocabulary_->children(node);
  for (uint32_t child = begin; child < end; ++child) {
    const uint8_t byte = vocabulary_->byte(child);
    if (!sets_[set].first.test(byte)) continue;
    const uint32_t next = NextSet(set, byte, machine);
    if (next == kEmptySet) continue;
    for (int32_t id = vocabulary_->first_id(child); id >= 0; id = vocabulary_->next_id(id)) {
      Allow(id, mask);
    }
    if (vocabulary_->children(child) > 0) WalkBelow(child, next, machine, mask);
  }
}

}  // namespace quartet::grammar
