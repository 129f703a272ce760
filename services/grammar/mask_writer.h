#ifndef QUARTET_SERVICES_GRAMMAR_MASK_WRITER_H_
#define QUARTET_SERVICES_GRAMMAR_MASK_WRITER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/grammar/machine.h"
#include "services/grammar/mask_maker.h"

namespace quartet::grammar {

// Works out one mask, by walking the vocabulary's tree and the machine together, texts excepted: of
// these it is known (text_table.h).
class MaskWriter {
 public:
  MaskWriter(const LoadedGrammar& grammar, Machine* machine);

  // As MaskMaker::MaskOf. To be called once.
  Mask Write(const Readings& readings);

 private:
  // The sets of readings that walks have come to, and where each byte leads from them. Many tokens
  // lead to the same few.
  struct ReadingsSet {
    Readings readings;
    ByteSet first;
    std::array<uint32_t, 256> next;
  };

  // False if the tokens that leave the text are too many to look at one by one.
  bool AddText(const Reading& reading);
  void AddAdded(const Readings& readings);
  // Allows the tokens below a node of the vocabulary's tree that can be read from a set of
  // readings.
  void WalkBelow(uint32_t node, uint32_t set);
  uint32_t SetOf(const Readings& readings);
  uint32_t NextSet(uint32_t set, uint8_t byte);

  const LoadedGrammar& grammar_;
  const Vocabulary& vocabulary_;
  Machine& machine_;
  Mask mask_;
  std::vector<ReadingsSet> sets_;
  absl::flat_hash_map<Readings, uint32_t> set_ids_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_MASK_WRITER_H_
