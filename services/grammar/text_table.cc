#include "services/grammar/text_table.h"

#include <algorithm>

namespace quartet::grammar {
namespace {

// Above this the states of one table are forgotten and made again as they are needed.
constexpr size_t kTableBytesMax = 64 << 20;

}  // namespace

const Mask& TextContinuations::UpTo(uint32_t units) {
  units = std::min(units, units_max_);
  const auto [found, fresh] = up_to_.try_emplace(units);
  if (fresh) {
    Mask& mask = found->second;
    mask = vocabulary_->EmptyMask();
    for (const Inside& token : inside_) {
      if (token.units <= units) Allow(token.id, &mask);
    }
  }
  return found->second;
}

const TextContinuations::Exits& TextContinuations::ExitsBy(uint8_t byte) {
  const auto [found, fresh] = exits_.try_emplace(byte);
  Exits& exits = found->second;
  if (!fresh) return exits;
  exits.all = vocabulary_->EmptyMask();
  for (const Boundary& boundary : boundaries_) {
    const uint32_t node = vocabulary_->Child(boundary.node, byte);
    if (node == 0) continue;
    for (int32_t id = vocabulary_->first_id(node); id >= 0; id = vocabulary_->next_id(id)) {
      exits.tokens.push_back({id, 0, boundary.units});
      Allow(id, &exits.all);
    }
    if (vocabulary_->children(node) > 0) exits.nodes.push_back({-1, node, boundary.units});
  }
  const auto by_units = [](const Exit& a, const Exit& b) { return a.units < b.units; };
  std::stable_sort(exits.tokens.begin(), exits.tokens.end(), by_units);
  std::stable_sort(exits.nodes.begin(), exits.nodes.end(), by_units);
  return exits;
}

size_t TextContinuations::weight() const {
  const size_t mask = vocabulary_->mask_words() * sizeof(uint32_t);
  size_t bytes = inside_.capacity() * sizeof(Inside) + boundaries_.capacity() * sizeof(Boundary) +
                 up_to_.size() * mask;
  for (const auto& [byte, exits] : exits_) {
    bytes += mask + (exits.tokens.capacity() + exits.nodes.capacity()) * sizeof(Exit);
  }
  return bytes;
}

void TextTable::Walk(uint32_t node, uint16_t state, uint32_t units, TextContinuations* out) const {
  const bool boundary = automaton_.IsBoundary(state);
  const uint32_t begun = boundary ? units : units + 1;
  for (int32_t id = vocabulary_->first_id(node); id >= 0; id = vocabulary_->next_id(id)) {
    out->inside_.push_back({id, begun});
    out->units_max_ = std::max(out->units_max_, begun);
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

TextContinuations& TextTable::From(uint16_t state) {
  const auto known = states_.find(state);
  if (known != states_.end()) return known->second;
  size_t bytes = 0;
  for (const auto& [other, continuations] : states_) bytes += continuations.weight();
  if (bytes > kTableBytesMax) states_.clear();

  // Most states differ from the first by a few bytes only: what follows the others is the same.
  const TextContinuations* alike = state == 0 ? nullptr : &From(0);
  TextContinuations& made = states_[state];
  made.vocabulary_ = vocabulary_.get();
  for (unsigned byte = 0; byte < 256; ++byte) {
    const uint16_t next = automaton_.Next(state, static_cast<uint8_t>(byte));
    const uint32_t node = vocabulary_->Child(0, static_cast<uint8_t>(byte));
    if (next != TextAutomaton::kDead && node != 0) {
      if (alike != nullptr && next == automaton_.Next(0, static_cast<uint8_t>(byte))) {
        made.inside_.insert(
            made.inside_.end(),
            alike->inside_.begin() + static_cast<std::ptrdiff_t>(alike->inside_end_[byte]),
            alike->inside_.begin() + static_cast<std::ptrdiff_t>(alike->inside_end_[byte + 1]));
        made.boundaries_.insert(
            made.boundaries_.end(),
            alike->boundaries_.begin() + static_cast<std::ptrdiff_t>(alike->boundary_end_[byte]),
            alike->boundaries_.begin() +
                static_cast<std::ptrdiff_t>(alike->boundary_end_[byte + 1]));
        made.units_max_ = std::max(made.units_max_, alike->units_max_);
      } else {
        Walk(node, next, automaton_.IsBoundary(next) ? 1 : 0, &made);
      }
    }
    made.inside_end_[byte + 1] = made.inside_.size();
    made.boundary_end_[byte + 1] = made.boundaries_.size();
  }
  return made;
}

}  // namespace quartet::grammar
