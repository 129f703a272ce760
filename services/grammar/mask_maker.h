// Which tokens a grammar allows next.
#ifndef QUARTET_SERVICES_GRAMMAR_MASK_MAKER_H_
#define QUARTET_SERVICES_GRAMMAR_MASK_MAKER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "services/grammar/machine.h"
#include "services/grammar/text_table.h"
#include "services/grammar/vocabulary.h"

namespace quartet::grammar {

// A grammar that was brought together with a vocabulary.
struct LoadedGrammar {
  std::shared_ptr<const Grammar> grammar;
  std::shared_ptr<const Vocabulary> vocabulary;
  uint32_t serial = 0;                             // its own among those that one maker has loaded
  std::vector<std::shared_ptr<TextTable>> tables;  // by automaton
  std::vector<int32_t> token_ids;                  // by index of the token's name
  absl::flat_hash_map<int32_t, uint32_t> token_names;  // the other way
};

struct MaskMakerLimits {
  // Masks that are remembered: one takes a bit for each token.
  size_t masks = 2048;
  // Grammars that are kept when nothing uses them.
  size_t grammars = 32;
};

// One for each model. Holds what its grammars share. Thread safe.
class MaskMaker {
 public:
  explicit MaskMaker(std::shared_ptr<const Vocabulary> vocabulary, MaskMakerLimits limits = {});

  // The grammar from its bytes. InvalidArgument if they are none, or name a token that the
  // vocabulary lacks. The first grammar with a certain kind of text takes milliseconds, so that
  // masks do not: whatever must be quick should find the grammar loaded.
  absl::StatusOr<std::shared_ptr<const LoadedGrammar>> Load(std::string_view bytes);

  // The tokens of which each leads `machine`, which reads by `grammar`, on from `readings`: one
  // more token can be read and the answer still be completed. End tokens are among them if the
  // answer may end.
  std::shared_ptr<const Mask> MaskOf(const LoadedGrammar& grammar, Machine* machine,
                                     const Readings& readings);

  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }

 private:
  using Key = std::vector<uint32_t>;

  Key KeyOf(const LoadedGrammar& grammar, const Machine& machine, const Readings& readings) const;
  std::shared_ptr<const Mask> Remembered(const Key& key);
  void Remember(Key key, std::shared_ptr<const Mask> mask);

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const MaskMakerLimits limits_;
  std::atomic<uint64_t> hits_ = 0;
  std::atomic<uint64_t> misses_ = 0;

  std::mutex mutex_;  // guards all below; nothing is worked out under it
  uint32_t serials_ = 0;
  std::map<std::string, std::shared_ptr<const LoadedGrammar>, std::less<>> grammars_;
  std::deque<std::string> grammar_order_;  // of loading
  std::map<std::string, std::shared_ptr<TextTable>> tables_;
  // When the first is full, it becomes the second.
  absl::flat_hash_map<Key, std::shared_ptr<const Mask>> recent_;
  absl::flat_hash_map<Key, std::shared_ptr<const Mask>> older_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_MASK_MAKER_H_
