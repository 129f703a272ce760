#include "services/grammar/mask_writer.h"

#include <memory>
#include <optional>
#include <utility>

namespace quartet::grammar {
namespace {

using Kind = Node::Kind;

// If a text can be left by more bytes than this, its tokens are walked through one by one.
constexpr size_t kExitBytesMax = 16;
constexpr uint32_t kUnknownSet = 0xFFFFFFFF;
constexpr uint32_t kEmptySet = 0xFFFFFFFE;

uint8_t FlagOf(TokenText::Kind kind) {
  return kind == TokenText::Kind::kMarker ? kMarkersAreText : kSpecialsAreText;
}

}  // namespace

MaskWriter::MaskWriter(const LoadedGrammar& grammar, Machine* machine)
    : grammar_(grammar),
      vocabulary_(*grammar.vocabulary),
      machine_(*machine),
      mask_(vocabulary_.EmptyMask()) {}

Mask MaskWriter::Write(const Readings& readings) {
  const size_t frames = machine_.frames();
  Readings others;
  for (const Reading& reading : readings) {
    const Kind kind = machine_.node(reading).kind;
    if (kind == Kind::kLiteral || (kind == Kind::kText && !AddText(reading))) {
      others.push_back(reading);
    }
  }
  if (!others.empty()) WalkBelow(0, SetOf(others));
  AddAdded(readings);
  if (Machine::MayEnd(readings)) {
    for (const int32_t id : vocabulary_.end_ids()) Allow(id, &mask_);
  }
  machine_.Rewind(frames);
  return std::move(mask_);
}

uint32_t MaskWriter::SetOf(const Readings& readings) {
  const auto [found, fresh] = set_ids_.try_emplace(readings, static_cast<uint32_t>(sets_.size()));
  if (fresh) {
    ReadingsSet& set = sets_.emplace_back();
    set.readings = readings;
    set.first = machine_.First(readings, /*texts=*/true);
    set.next.fill(kUnknownSet);
  }
  return found->second;
}

uint32_t MaskWriter::NextSet(uint32_t set, uint8_t byte) {
  uint32_t next = sets_[set].next[byte];
  if (next == kUnknownSet) {
    Readings readings;
    machine_.Step(sets_[set].readings, byte, &readings);
    next = readings.empty() ? kEmptySet : SetOf(readings);
    sets_[set].next[byte] = next;
  }
  return next;
}

bool MaskWriter::AddText(const Reading& reading) {
  Readings after;
  machine_.AfterText(reading, &after);
  const ByteSet first = machine_.First(after, /*texts=*/true);
  if (first.count() > kExitBytesMax) return false;
  const Node& node = machine_.node(reading);
  const std::shared_ptr<const TextContinuations> from =
      grammar_.tables[node.a]->From(static_cast<uint16_t>(reading.state));
  const uint32_t units_max = node.max == kUnlimited ? kUnlimited : node.max - reading.count;
  const uint32_t units_min = node.min > reading.count ? node.min - reading.count : 0;
  from->AllowUpTo(units_max, &mask_);

  const uint32_t behind = SetOf(after);
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!first.test(byte)) continue;
    const TextContinuations::Exits& exits = from->ExitsBy(static_cast<uint8_t>(byte));
    const auto possible = [&](const TextContinuations::Exit& exit) {
      return exit.units >= units_min && exit.units <= units_max;
    };
    // A text that is full may have no unit more, though a byte would begin one.
    const uint32_t next = NextSet(behind, static_cast<uint8_t>(byte));
    if (next == kEmptySet) continue;
    if (exits.tokens.empty() || (possible(exits.tokens.front()) && possible(exits.tokens.back()))) {
      Unite(exits.all, &mask_);
    } else {
      for (const auto& exit : exits.tokens) {
        if (possible(exit)) Allow(exit.id, &mask_);
      }
    }
    if (sets_[next].first.none()) continue;
    for (const auto& exit : exits.nodes) {
      if (possible(exit)) WalkBelow(exit.node, next);
    }
  }
  return true;
}

void MaskWriter::AddAdded(const Readings& readings) {
  uint8_t flags = 0;
  for (const Reading& reading : readings) {
    const Node& node = machine_.node(reading);
    if (node.kind == Kind::kToken) Allow(grammar_.token_ids[node.a], &mask_);
    if (node.kind == Kind::kText) flags |= node.text_flags;
  }
  if (flags == 0) return;
  Readings after;
  for (const int32_t id : vocabulary_.added_ids()) {
    const TokenText& token = vocabulary_.token(id);
    const uint8_t flag = FlagOf(token.kind);
    if ((flags & flag) == 0) continue;
    machine_.StepAdded(readings, std::nullopt, token.bytes, flag, &after);
    if (!after.empty()) Allow(id, &mask_);
  }
}

void MaskWriter::WalkBelow(uint32_t node, uint32_t set) {
  const uint32_t begin = vocabulary_.first_child(node);
  const uint32_t end = begin + vocabulary_.children(node);
  for (uint32_t child = begin; child < end; ++child) {
    const uint8_t byte = vocabulary_.byte(child);
    if (!sets_[set].first.test(byte)) continue;
    const uint32_t next = NextSet(set, byte);
    if (next == kEmptySet) continue;
    for (int32_t id = vocabulary_.first_id(child); id >= 0; id = vocabulary_.next_id(id)) {
      Allow(id, &mask_);
    }
    if (vocabulary_.children(child) > 0) WalkBelow(child, next);
  }
}

}  // namespace quartet::grammar
