#include "services/grammar/machine.h"

#include <algorithm>
#include <utility>

namespace quartet::grammar {
namespace {

using Kind = Node::Kind;

// Up to this many, looking through all is faster than hashing.
constexpr size_t kFew = 16;

// Readings that are followed from one token to the next.
constexpr size_t kKeptMax = 1024;
constexpr size_t kKeptTextsMax = 64;

}  // namespace

Machine::Machine(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  frames_.push_back({0, 0, 0});
}

uint32_t Machine::Push(Frame frame) {
  const auto [found, fresh] = frame_ids_.try_emplace(frame, static_cast<uint32_t>(frames_.size()));
  if (fresh) frames_.push_back(frame);
  return found->second;
}

void Machine::Rewind(size_t count) {
  while (frames_.size() > count) {
    frame_ids_.erase(frames_.back());
    frames_.pop_back();
  }
}

Readings Machine::Import(const Machine& other, const Readings& readings) {
  Readings taken = readings;
  for (Reading& reading : taken) {
    std::vector<Frame> stack;
    for (uint32_t at = reading.stack; at != 0; at = other.frames_[at].below) {
      stack.push_back(other.frames_[at]);
    }
    uint32_t below = 0;
    for (auto frame = stack.rbegin(); frame != stack.rend(); ++frame) {
      below = Push({frame->node, frame->count, below});
    }
    reading.stack = below;
  }
  return taken;
}

void Machine::Begin(Readings* to) {
  to->clear();
  seen_.clear();
  many_seen_.clear();
  many_.clear();
}

void Machine::Add(Reading reading, Readings* to) {
  if (to->size() >= kReadingsMax) return;
  if (to->size() < kFew) {
    if (std::find(to->begin(), to->end(), reading) != to->end()) return;
  } else {
    if (many_.empty()) many_.insert(to->begin(), to->end());
    if (!many_.insert(reading).second) return;
  }
  to->push_back(reading);
}

bool Machine::SeenBefore(const Place& place) {
  if (seen_.size() < kFew) {
    if (std::find(seen_.begin(), seen_.end(), place) != seen_.end()) return true;
    seen_.push_back(place);
    return false;
  }
  if (many_seen_.empty()) many_seen_.insert(seen_.begin(), seen_.end());
  return !many_seen_.insert(place).second;
}

void Machine::Enter(Place place, Readings* to) {
  open_.push_back(place);
  while (!open_.empty()) {
    place = open_.back();
    open_.pop_back();
    const Node& node = grammar_->nodes()[place.node];
    switch (node.kind) {
      case Kind::kLiteral:
      case Kind::kToken:
        Add({place.node, 0, 0, place.stack}, to);
        break;
      case Kind::kText:
        Add({place.node, 0, 0, place.stack}, to);
        if (node.min == 0) open_.push_back({node.next, 0, place.stack});
        break;
      case Kind::kJump:
        open_.push_back({node.next, 0, place.stack});
        break;
      case Kind::kSplit:
        if (SeenBefore(place)) break;
        for (uint32_t i = node.b; i-- > 0;) {
          open_.push_back({grammar_->branch(node.a + i), 0, place.stack});
        }
        break;
      case Kind::kCall:
        if (SeenBefore(place)) break;
        open_.push_back({node.a, 0, Push({place.node, 0, place.stack})});
        break;
      case Kind::kRepeat: {
        if (SeenBefore(place)) break;
        if (place.count >= node.min) open_.push_back({node.next, 0, place.stack});
        if (place.count < node.max) {
          uint32_t count = place.count + 1;
          if (node.max == kUnlimited) count = std::min(count, node.min);
          open_.push_back({node.a, 0, Push({place.node, count, place.stack})});
        }
        break;
      }
      case Kind::kReturn: {
        if (place.stack == 0) {
          Add({0, 0, 0, 0}, to);
          break;
        }
        const Frame frame = frames_[place.stack];
        const Node& caller = grammar_->nodes()[frame.node];
        if (caller.kind == Kind::kRepeat) {
          open_.push_back({frame.node, frame.count, frame.below});
        } else {
          open_.push_back({caller.next, 0, frame.below});
        }
        break;
      }
    }
  }
}

Readings Machine::Start() {
  Readings readings;
  Begin(&readings);
  Enter({grammar_->start(), 0, 0}, &readings);
  return readings;
}

bool Machine::TextGoesOn(const Node& node, uint8_t byte, Reading* reading) const {
  const TextAutomaton& automaton = grammar_->automaton(node.a);
  const uint16_t state = automaton.Next(static_cast<uint16_t>(reading->state), byte);
  // With `max` units complete no other may begin.
  if (state == TextAutomaton::kDead || reading->count >= node.max) return false;
  reading->state = state;
  if (automaton.IsBoundary(state)) {
    ++reading->count;
    if (node.max == kUnlimited) reading->count = std::min(reading->count, node.min);
  }
  return true;
}

void Machine::AddText(const Node& node, const Reading& reading, Readings* to) {
  if (reading.count < node.max) Add(reading, to);
  if (reading.count < node.min) return;
  if (grammar_->automaton(node.a).IsBoundary(static_cast<uint16_t>(reading.state))) {
    Enter({node.next, 0, reading.stack}, to);
  }
}

void Machine::Step(const Readings& from, uint8_t byte, Readings* to) {
  Begin(to);
  for (const Reading& reading : from) {
    const Node& node = grammar_->nodes()[reading.node];
    if (node.kind == Kind::kLiteral) {
      const std::string_view literal = grammar_->literal(node);
      if (static_cast<uint8_t>(literal[reading.state]) != byte) continue;
      if (reading.state + 1 < literal.size()) {
        Add({reading.node, reading.state + 1, 0, reading.stack}, to);
      } else {
        Enter({node.next, 0, reading.stack}, to);
      }
    } else if (node.kind == Kind::kText) {
      Reading text = reading;
      if (TextGoesOn(node, byte, &text)) AddText(node, text, to);
    }
  }
}

void Machine::StepAdded(const Readings& from, std::optional<uint32_t> name, std::string_view text,
                        uint8_t flag, Readings* to) {
  Begin(to);
  for (const Reading& reading : from) {
    const Node& node = grammar_->nodes()[reading.node];
    if (node.kind == Kind::kToken && name && node.a == *name) {
      Enter({node.next, 0, reading.stack}, to);
    } else if (node.kind == Kind::kText && (node.text_flags & flag) != 0) {
      Reading after = reading;
      if (std::all_of(text.begin(), text.end(),
                      [&](char c) { return TextGoesOn(node, static_cast<uint8_t>(c), &after); })) {
        AddText(node, after, to);
      }
    }
  }
}

void Machine::AfterText(const Reading& text, Readings* to) {
  Begin(to);
  Enter({grammar_->nodes()[text.node].next, 0, text.stack}, to);
}

ByteSet Machine::First(const Readings& readings, bool texts) const {
  ByteSet first;
  for (const Reading& reading : readings) {
    const Node& node = grammar_->nodes()[reading.node];
    if (node.kind == Kind::kLiteral) {
      first.set(static_cast<uint8_t>(grammar_->literal(node)[reading.state]));
    } else if (node.kind == Kind::kText && texts) {
      first |= grammar_->automaton(node.a).First(static_cast<uint16_t>(reading.state));
    }
  }
  return first;
}

void Machine::Prune(Readings* readings) const {
  if (readings->size() <= kKeptTextsMax) return;
  size_t kept = 0;
  size_t texts = 0;
  std::erase_if(*readings, [&](const Reading& reading) {
    const bool is_text = node(reading).kind == Kind::kText;
    if (kept >= kKeptMax || (is_text && texts >= kKeptTextsMax)) return true;
    ++kept;
    texts += is_text ? 1 : 0;
    return false;
  });
}

bool Machine::MayEnd(const Readings& readings) {
  return std::any_of(readings.begin(), readings.end(),
                     [](const Reading& reading) { return reading.node == 0; });
}

}  // namespace quartet::grammar
