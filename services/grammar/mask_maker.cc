#include "services/grammar/mask_maker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/grammar/mask_writer.h"

namespace quartet::grammar {
namespace {

using Kind = Node::Kind;

constexpr size_t kTablesMax = 64;
// A state that is nested so deeply that its description is larger is not remembered.
constexpr size_t kKeyWordsMax = 4096;

// What a grammar's texts can be continued with is worked out when it is loaded, for so many states
// of their automatons. Classes of characters that have more are seldom, and their states are small.
constexpr size_t kReadyStatesMax = 512;

}  // namespace

MaskMaker::MaskMaker(std::shared_ptr<const Vocabulary> vocabulary, MaskMakerLimits limits)
    : vocabulary_(std::move(vocabulary)), limits_(limits) {}

absl::StatusOr<std::shared_ptr<const LoadedGrammar>> MaskMaker::Load(std::string_view bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = grammars_.find(bytes); known != grammars_.end()) return known->second;
  }
  absl::StatusOr<Grammar> grammar = Grammar::Parse(bytes);
  if (!grammar.ok()) return grammar.status();
  auto loaded = std::make_shared<LoadedGrammar>();
  loaded->grammar = std::make_shared<const Grammar>(*std::move(grammar));
  loaded->vocabulary = vocabulary_;
  for (const std::string& name : loaded->grammar->token_names()) {
    const std::optional<int32_t> id = vocabulary_->AddedId(name);
    if (!id) {
      return absl::InvalidArgumentError(
          absl::StrCat("grammar: the vocabulary has no token \"", name, "\""));
    }
    loaded->token_names.emplace(*id, static_cast<uint32_t>(loaded->token_ids.size()));
    loaded->token_ids.push_back(*id);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (tables_.size() > kTablesMax) {
      std::erase_if(tables_, [](const auto& table) { return table.second.use_count() == 1; });
    }
    for (uint32_t i = 0; i < loaded->grammar->automatons(); ++i) {
      const TextAutomaton& automaton = loaded->grammar->automaton(i);
      std::shared_ptr<TextTable>& table = tables_[automaton.key()];
      if (table == nullptr) table = std::make_shared<TextTable>(automaton, vocabulary_);
      loaded->tables.push_back(table);
    }
  }
  size_t states_left = kReadyStatesMax;
  for (const std::shared_ptr<TextTable>& table : loaded->tables) {
    const size_t states = std::min(table->automaton().states(), states_left);
    for (size_t state = 0; state < states; ++state) table->From(static_cast<uint16_t>(state));
    states_left -= states;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  loaded->serial = serials_++;
  if (limits_.grammars == 0) return loaded;
  const auto [known, fresh] = grammars_.try_emplace(std::string(bytes), loaded);
  if (!fresh) return known->second;  // another thread was faster
  grammar_order_.emplace_back(bytes);
  while (grammar_order_.size() > limits_.grammars) {
    grammars_.erase(grammar_order_.front());
    grammar_order_.pop_front();
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

std::shared_ptr<const Mask> MaskMaker::Remembered(const Key& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = recent_.find(key); found != recent_.end()) return found->second;
  const auto found = older_.find(key);
  return found == older_.end() ? nullptr : found->second;
}

void MaskMaker::Remember(Key key, std::shared_ptr<const Mask> mask) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (recent_.size() >= std::max<size_t>(1, limits_.masks / 2)) {
    older_ = std::move(recent_);
    recent_.clear();
  }
  recent_.emplace(std::move(key), std::move(mask));
}

std::shared_ptr<const Mask> MaskMaker::MaskOf(const LoadedGrammar& grammar, Machine* machine,
                                              const Readings& readings) {
  Key key = KeyOf(grammar, *machine, readings);
  std::shared_ptr<const Mask> mask = Remembered(key);
  if (mask != nullptr) {
    ++hits_;
  } else {
    ++misses_;
    mask = std::make_shared<const Mask>(MaskWriter(grammar, machine).Write(readings));
  }
  if (key.size() <= kKeyWordsMax) Remember(std::move(key), mask);
  return mask;
}

}  // namespace quartet::grammar
