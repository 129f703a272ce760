#include "services/grammar/text_automaton.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "services/grammar/byte_codec.h"

namespace quartet::grammar {
namespace {

using Row = std::array<uint16_t, 256>;

// What may follow: the rests of spellings, as strings of their byte sets so that they can be
// compared.
using Rests = std::set<std::vector<std::string>>;

std::vector<std::string> Comparable(const Spelling& spelling) {
  std::vector<std::string> places;
  for (const ByteSet& set : spelling) places.push_back(set.to_string());
  return places;
}

bool Holds(const std::string& place, unsigned byte) {
  return place[255 - byte] == '1';
}

}  // namespace

TextAutomaton TextAutomaton::OfUnits(const std::vector<Spelling>& spellings) {
  Rests start;
  for (const Spelling& spelling : spellings) start.insert(Comparable(spelling));
  std::map<Rests, uint16_t> states = {{start, 0}};
  std::deque<Rests> open = {start};
  Rows rows;
  std::vector<uint8_t> boundary;
  while (!open.empty()) {
    const Rests rests = std::move(open.front());
    open.pop_front();
    Row row;
    for (unsigned byte = 0; byte < 256; ++byte) {
      Rests after;
      bool complete = false;
      for (const std::vector<std::string>& rest : rests) {
        if (!Holds(rest.front(), byte)) continue;
        complete = complete || rest.size() == 1;
        if (rest.size() > 1) after.emplace(rest.begin() + 1, rest.end());
      }
      if (complete) {
        row[byte] = 0;
      } else if (after.empty()) {
        row[byte] = kDead;
      } else {
        const auto [found, fresh] = states.emplace(after, static_cast<uint16_t>(states.size()));
        if (fresh) open.push_back(std::move(after));
        row[byte] = found->second;
      }
    }
    rows.push_back(row);
    boundary.push_back(rows.size() == 1);
  }
  return FromRows(rows, std::move(boundary));
}

TextAutomaton TextAutomaton::Without(const std::vector<std::string>& texts, Unit unit) {
  // One state for each beginning of one of the texts: the longest that what was read ends with.
  std::map<std::string, uint16_t> states = {{"", 0}};
  std::vector<std::string> beginnings = {""};
  for (const std::string& text : texts) {
    for (size_t n = 1; n < text.size(); ++n) {
      const std::string beginning = text.substr(0, n);
      if (states.emplace(beginning, static_cast<uint16_t>(states.size())).second) {
        beginnings.push_back(beginning);
      }
    }
  }
  Rows rows(beginnings.size());
  for (size_t state = 0; state < rows.size(); ++state) {
    rows[state].fill(0);
    for (unsigned byte = 0; byte < 128; ++byte) {
      std::string read = beginnings[state] + static_cast<char>(byte);
      if (std::any_of(texts.begin(), texts.end(),
                      [&](const std::string& text) { return read.ends_with(text); })) {
        rows[state][byte] = kDead;
        continue;
      }
      while (!states.contains(read)) read.erase(0, 1);
      rows[state][byte] = states.at(read);
    }
  }
  std::vector<uint8_t> boundary(rows.size(), 1);
  if (unit == Unit::kCharacter) {
    const TextAutomaton wide = OfUnits(SpellUtf8(CharSet::Of(0x80, 0x10FFFF)));
    const auto offset = static_cast<uint16_t>(rows.size() - 1);  // its state 0 is ours
    const auto translated = [&](uint16_t next) {
      return next == kDead || next == 0 ? next : static_cast<uint16_t>(next + offset);
    };
    for (Row& row : rows) {
      for (unsigned byte = 128; byte < 256; ++byte) row[byte] = translated(wide.Next(0, byte));
    }
    for (uint16_t state = 1; state < wide.states(); ++state) {
      Row row;
      for (unsigned byte = 0; byte < 256; ++byte) row[byte] = translated(wide.Next(state, byte));
      rows.push_back(row);
      boundary.push_back(0);
    }
  }
  return FromRows(rows, std::move(boundary));
}

TextAutomaton TextAutomaton::FromRows(const Rows& rows, std::vector<uint8_t> boundary) {
  TextAutomaton automaton;
  automaton.boundary_ = std::move(boundary);
  std::map<std::vector<uint16_t>, uint8_t> classes;
  std::vector<const std::vector<uint16_t>*> columns;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::vector<uint16_t> column;
    for (const Row& row : rows) column.push_back(row[byte]);
    const auto [found, fresh] = classes.emplace(column, static_cast<uint8_t>(classes.size()));
    if (fresh) columns.push_back(&found->first);
    automaton.class_of_[byte] = found->second;
  }
  automaton.classes_ = classes.size();
  for (size_t state = 0; state < rows.size(); ++state) {
    for (const auto* column : columns) automaton.next_.push_back((*column)[state]);
  }

  ByteWriter writer;
  writer.Number(automaton.classes_);
  for (const uint8_t c : automaton.class_of_) writer.Byte(c);
  writer.Number(automaton.states());
  for (const uint8_t b : automaton.boundary_) writer.Byte(b);
  for (const uint16_t next : automaton.next_) writer.Number(next);
  automaton.key_ = writer.Take();
  automaton.FillFirst();
  return automaton;
}

void TextAutomaton::FillFirst() {
  first_.resize(states());
  for (size_t state = 0; state < states(); ++state) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (Next(static_cast<uint16_t>(state), static_cast<uint8_t>(byte)) != kDead) {
        first_[state].set(byte);
      }
    }
  }
}

absl::StatusOr<TextAutomaton> TextAutomaton::Parse(std::string_view key) {
  TextAutomaton automaton;
  ByteReader reader(key);
  automaton.classes_ = reader.Number(256);
  for (uint8_t& c : automaton.class_of_) c = reader.Byte();
  const size_t states = reader.Number(kStatesMax);
  for (size_t i = 0; i < states && reader.ok(); ++i) {
    automaton.boundary_.push_back(reader.Byte());
  }
  for (size_t i = 0; i < states * automaton.classes_ && reader.ok(); ++i) {
    automaton.next_.push_back(static_cast<uint16_t>(reader.Number(kDead)));
  }
  if (!reader.ok() || !reader.AtEnd()) {
    return absl::InvalidArgumentError(
        "grammar: a text automaton is cut short, too long or holds a "
        "number out of range");
  }
  if (absl::Status status = automaton.Check(); !status.ok()) return status;
  automaton.key_ = std::string(key);
  automaton.FillFirst();
  return automaton;
}

absl::Status TextAutomaton::Check() const {
  const auto wrong = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (states() == 0 || boundary_[0] != 1) {
    return wrong("grammar: a text automaton's state 0 must exist and be a boundary");
  }
  for (const uint8_t b : boundary_) {
    if (b > 1) return wrong("grammar: a text automaton's boundary marks must be 0 or 1");
  }
  for (const uint8_t c : class_of_) {
    if (c >= classes_) return wrong("grammar: a text automaton names a byte class that it lacks");
  }
  // Classes that no byte has would be ways on that nobody can take.
  std::vector<bool> used(classes_);
  for (const uint8_t c : class_of_) used[c] = true;
  if (std::find(used.begin(), used.end(), false) != used.end()) {
    return wrong("grammar: a text automaton has a byte class without bytes");
  }
  std::vector<std::vector<uint16_t>> from(states());
  for (size_t state = 0; state < states(); ++state) {
    bool way_on = false;
    for (size_t c = 0; c < classes_; ++c) {
      const uint16_t next = next_[state * classes_ + c];
      if (next == kDead) continue;
      if (next >= states()) return wrong("grammar: a text automaton names a state that it lacks");
      from[next].push_back(static_cast<uint16_t>(state));
      way_on = true;
    }
    if (!way_on) return wrong("grammar: a text automaton has a state without a way on");
  }
  std::vector<bool> ends(states());
  std::vector<uint16_t> open;
  for (size_t state = 0; state < states(); ++state) {
    if (boundary_[state] == 0) continue;
    ends[state] = true;
    open.push_back(static_cast<uint16_t>(state));
  }
  while (!open.empty()) {
    const uint16_t state = open.back();
    open.pop_back();
    for (const uint16_t before : from[state]) {
      if (ends[before]) continue;
      ends[before] = true;
      open.push_back(before);
    }
  }
  if (std::find(ends.begin(), ends.end(), false) != ends.end()) {
    return wrong("grammar: a text automaton has a state from which text cannot end");
  }
  return absl::OkStatus();
}

}  // namespace quartet::grammar
