#include "services/grammar/text_table.h"

#include <algorithm>

namespace quartet::grammar {
namespace {

// Above this the states of one table are forgotten and made again as they are needed.
constexpr size_t kTableBytesMax = 64 << 20;
// Fewer than this are looked through one by one.
constexpr size_t kMany = 4096;
// Hardly any token has more units.
constexpr uint32_t kCommonUnits = 24;
constexpr uint16_t kNoBoundary = 0xFFFF;

}  // namespace

void TextContinuations::Complete(const Vocabulary* vocabulary) {
  vocabulary_ = vocabulary;
  if (inside_.size() >= kMany) {
    std::vector<std::vector<int32_t>> by_units(kCommonUnits + 1);
    for (const Inside& token : inside_) {
      if (token.units <= kCommonUnits) {
        by_units[token.units].push_back(token.id);
      } else {
        long_.push_back(token);
      }
    }
    std::stable_sort(long_.begin(), long_.end(),
                     [](const Inside& a, const Inside& b) { return a.units < b.units; });
    up_to_.reserve(by_units.size());
    for (const std::vector<int32_t>& ids : by_units) {
      Mask& mask = up_to_.emplace_back(up_to_.empty() ? vocabulary->EmptyMask() : up_to_.back());
      for (const int32_t id : ids) Allow(id, &mask);
    }
  }
  if (boundaries_.size() >= kMany) {
    boundary_units_.assign(vocabulary->nodes(), kNoBoundary);
    static_assert(Vocabulary::kTokenBytesMax < kNoBoundary);
    for (const Boundary& boundary : boundaries_) {
      boundary_units_[boundary.node] = static_cast<uint16_t>(boundary.units);
    }
  }
}

void TextContinuations::ForgetParts() {
  if (!up_to_.empty()) inside_ = std::vector<Inside>();
  if (!boundary_units_.empty()) boundaries_ = std::vector<Boundary>();
}

void TextContinuations::AllowUpTo(uint32_t units, Mask* mask) const {
  if (up_to_.empty()) {
    for (const Inside& token : inside_) {
      if (token.units <= units) Allow(token.id, mask);
    }
    return;
  }
  Unite(up_to_[std::min(units, kCommonUnits)], mask);
  for (const Inside& token : long_) {
    if (token.units > units) break;
    Allow(token.id, mask);
  }
}

const TextContinuations::Exits& TextContinuations::ExitsBy(uint8_t byte) const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = exits_.find(byte); found != exits_.end()) return *found->second;
  }
  auto made = std::make_unique<const Exits>(MakeExits(byte));
  std::lock_guard<std::mutex> lock(mutex_);
  return *exits_.try_emplace(byte, std::move(made)).first->second;
}

void TextContinuations::AddExit(uint32_t node, uint32_t units, Exits* exits) const {
  for (int32_t id = vocabulary_->first_id(node); id >= 0; id = vocabulary_->next_id(id)) {
    exits->tokens.push_back({id, 0, units});
    Allow(id, &exits->all);
  }
  if (vocabulary_->children(node) > 0) exits->nodes.push_back({-1, node, units});
}

TextContinuations::Exits TextContinuations::MakeExits(uint8_t byte) const {
  Exits exits;
  exits.all = vocabulary_->EmptyMask();
  if (boundary_units_.empty()) {
    for (const Boundary& boundary : boundaries_) {
      const uint32_t node = vocabulary_->Child(boundary.node, byte);
      if (node != 0) AddExit(node, boundary.units, &exits);
    }
  } else {
    for (const uint32_t node : vocabulary_->NodesOf(byte)) {
      const uint16_t units = boundary_units_[vocabulary_->parent(node)];
      if (units != kNoBoundary) AddExit(node, units, &exits);
    }
  }
  const auto by_units = [](const Exit& a, const Exit& b) { return a.units < b.units; };
  std::stable_sort(exits.tokens.begin(), exits.tokens.end(), by_units);
  std::stable_sort(exits.nodes.begin(), exits.nodes.end(), by_units);
  return exits;
}

size_t TextContinuations::weight() const {
  const size_t mask = vocabulary_->mask_words() * sizeof(uint32_t);
  size_t bytes = (inside_.capacity() + long_.capacity()) * sizeof(Inside) +
                 boundaries_.capacity() * sizeof(Boundary) + up_to_.size() * mask +
                 boundary_units_.capacity() * sizeof(uint16_t);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [byte, exits] : exits_) {
    bytes += mask + (exits->tokens.capacity() + exits->nodes.capacity()) * sizeof(Exit);
  }
  return bytes;
}

void TextTable::Walk(uint32_t node, uint16_t state, uint32_t units, TextContinuations* out) const {
  const bool boundary = automaton_.IsBoundary(state);
  const uint32_t begun = boundary ? units : units + 1;
  for (int32_t id = vocabulary_->first_id(node); id >= 0; id = vocabulary_->next_id(id)) {
    out->inside_.push_back({id, begun});
  }
  const uint32_t children = vocabulary_->children(node);
  if (children == 0) return;
  if (boundary) out->boundaries_.push_back({node, units});
  const uint32_t first = vocabulary_->first_child(node);
  for (uint32_t child = first; child < first + children; ++child) {
    const uint16_t next = automaton_.Next(state, vocabulary_->byte(child));
    if (next == TextAutomaton::kDead) continue;
    Walk(child, next, automaton_.IsBoundary(next) ? units + 1 : units, out);
  }
}

std::shared_ptr<const TextContinuations> TextTable::From(uint16_t state) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = states_.find(state); known != states_.end()) return known->second;
  }
  // Most states differ from the first by a few bytes only: what follows the others is the same.
  const auto alike = state == 0 ? nullptr : From(0);
  auto made = Make(state, alike.get());
  std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const auto& [other, continuations] : states_) bytes += continuations->weight();
  if (bytes > kTableBytesMax) states_.clear();
  return states_.try_emplace(state, std::move(made)).first->second;
}

std::shared_ptr<const TextContinuations> TextTable::Make(uint16_t state,
                                                         const TextContinuations* alike) {
  auto made = std::make_shared<TextContinuations>();
  for (unsigned byte = 0; byte < 256; ++byte) {
    const uint16_t next = automaton_.Next(state, static_cast<uint8_t>(byte));
    const uint32_t node = vocabulary_->Child(0, static_cast<uint8_t>(byte));
    if (next != TextAutomaton::kDead && node != 0) {
      if (alike != nullptr && next == automaton_.Next(0, static_cast<uint8_t>(byte))) {
        made->inside_.insert(
            made->inside_.end(),
            alike->inside_.begin() + static_cast<std::ptrdiff_t>(alike->inside_end_[byte]),
            alike->inside_.begin() + static_cast<std::ptrdiff_t>(alike->inside_end_[byte + 1]));
        made->boundaries_.insert(
            made->boundaries_.end(),
            alike->boundaries_.begin() + static_cast<std::ptrdiff_t>(alike->boundary_end_[byte]),
            alike->boundaries_.begin() +
                static_cast<std::ptrdiff_t>(alike->boundary_end_[byte + 1]));
      } else {
        Walk(node, next, automaton_.IsBoundary(next) ? 1 : 0, made.get());
      }
    }
    made->inside_end_[byte + 1] = made->inside_.size();
    made->boundary_end_[byte + 1] = made->boundaries_.size();
  }
  made->Complete(vocabulary_.get());
  // Others are made like the first state only.
  if (state != 0) made->ForgetParts();
  return made;
}

}  // namespace quartet::grammar
