// Reads bytes by a grammar.
#ifndef QUARTET_SERVICES_GRAMMAR_MACHINE_H_
#define QUARTET_SERVICES_GRAMMAR_MACHINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "services/grammar/grammar.h"

namespace quartet::grammar {

// One way to have read all bytes so far. Where several are possible, they are followed side by
// side.
struct Reading {
  uint32_t node;  // a kLiteral, kText or kToken that goes on; or kReturn: all of the answer is read
  uint32_t state;  // kLiteral: bytes that have been read; kText: the automaton's state
  uint32_t count;  // kText: units that are complete; no more than `min` if there is no limit
  uint32_t stack;  // what comes after it: a frame of the machine
  bool operator==(const Reading&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Reading& r) {
    return H::combine(std::move(h), r.node, r.state, r.count, r.stack);
  }
};
using Readings = std::vector<Reading>;

// Above this number of readings at the same time the later ones are given up. What remains is still
// completed to an answer that the grammar allows.
inline constexpr size_t kReadingsMax = 4096;

// What a part of an answer is inside of: a kCall, or a kRepeat with the number of the repetition.
struct Frame {
  uint32_t node;
  uint32_t count;
  uint32_t below;  // another frame; 0 is the bottom
  bool operator==(const Frame&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Frame& f) {
    return H::combine(std::move(h), f.node, f.count, f.below);
  }
};

// Holds the stacks of any number of readings of one grammar; equal stacks are one. Used by one
// thread at a time.
class Machine {
 public:
  explicit Machine(std::shared_ptr<const Grammar> grammar);

  const Grammar& grammar() const { return *grammar_; }
  const Node& node(const Reading& reading) const { return grammar_->nodes()[reading.node]; }
  const Frame& frame(uint32_t stack) const { return frames_[stack]; }

  Readings Start();
  // What `byte` makes of the readings; nothing if it is not allowed.
  void Step(const Readings& from, uint8_t byte, Readings* to);
  // What an added token makes of the readings: of those that wait for the token `name` (an index
  // into the grammar's names, if it is there), and of the texts in which, by their flags, it counts
  // as its `text`. A text does not end inside of it.
  void StepAdded(const Readings& from, std::optional<uint32_t> name, std::string_view text,
                 uint8_t flag, Readings* to);
  // What comes after a text that ends here.
  void AfterText(const Reading& text, Readings* to);
  // The bytes that Step allows, without those that go on in a text if `texts` is false.
  ByteSet First(const Readings& readings, bool texts) const;

  static bool MayEnd(const Readings& readings);
  // Gives up readings that are too many to be followed for long: the later ones, and sooner those
  // inside of texts, which cost more. To be called between tokens only, so that masks, which look
  // at readings one by one, and Step agree on what a token can do.
  void Prune(Readings* readings) const;

  // Frames are only ever added; Rewind gives up those that were added since frames() was `count`.
  size_t frames() const { return frames_.size(); }
  void Rewind(size_t count);
  // Takes over what another machine of the same grammar has read.
  Readings Import(const Machine& other, const Readings& readings);

 private:
  struct Place {
    uint32_t node;
    uint32_t count;  // of a kRepeat: completed repetitions
    uint32_t stack;
    bool operator==(const Place&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Place& p) {
      return H::combine(std::move(h), p.node, p.count, p.stack);
    }
  };

  uint32_t Push(Frame frame);
  // Begins a set of readings in `to`, adds to it all that can be read at a place, and so on.
  void Begin(Readings* to);
  void Add(Reading reading, Readings* to);
  void Enter(Place place, Readings* to);
  // One byte more of a text. False if that is not allowed.
  bool TextGoesOn(const Node& node, uint8_t byte, Reading* reading) const;
  // Adds a text after its last byte: it may go on, or what comes after it begins.
  void AddText(const Node& node, const Reading& reading, Readings* to);
  bool SeenBefore(const Place& place);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Frame> frames_;
  absl::flat_hash_map<Frame, uint32_t> frame_ids_;

  // Of the set that is being made: kept here so that their memory is used again.
  std::vector<Place> open_;
  std::vector<Place> seen_;
  absl::flat_hash_set<Place> many_seen_;
  absl::flat_hash_set<Reading> many_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_MACHINE_H_
