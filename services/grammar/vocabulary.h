// The model's tokens, arranged so that all that begin alike are looked at together.
#ifndef QUARTET_SERVICES_GRAMMAR_VOCABULARY_H_
#define QUARTET_SERVICES_GRAMMAR_VOCABULARY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/grammar/char_set.h"

namespace quartet::grammar {

// One bit for each id of the vocabulary, bit i of word w being id 32 w + i. Set: allowed.
using Mask = std::vector<uint32_t>;

inline void Allow(int32_t id, Mask* mask) {
  (*mask)[static_cast<uint32_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
}
inline bool Allowed(const Mask& mask, int32_t id) {
  return (mask[static_cast<uint32_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

inline void Unite(const Mask& added, Mask* mask) {
  for (size_t i = 0; i < mask->size(); ++i) (*mask)[i] |= added[i];
}

struct TokenText {
  enum class Kind : uint8_t {
    kNone,     // no text: a padding row. Never allowed.
    kText,     // ordinary: its bytes, which may be parts of characters
    kMarker,   // an added token that is not special, such as <tool_call>
    kSpecial,  // a special one
  };
  Kind kind = Kind::kNone;
  std::string bytes;
};

// Immutable, thread safe.
class Vocabulary {
 public:
  static constexpr size_t kTokensMax = 1 << 20;
  static constexpr size_t kTokenBytesMax = 1 << 12;
  static constexpr size_t kAddedMax = 1 << 14;

  // `tokens` by id. `end_ids` end an answer, and mean nothing else. InvalidArgument if an id or a
  // size is out of range.
  static absl::StatusOr<Vocabulary> Create(std::vector<TokenText> tokens,
                                           std::vector<int32_t> end_ids);

  // The same as bytes, for processes that have no tokenizer.
  std::string Serialize() const;
  static absl::StatusOr<Vocabulary> Parse(std::string_view bytes);

  size_t size() const { return tokens_.size(); }
  size_t nodes() const { return bytes_.size(); }
  size_t mask_words() const { return (tokens_.size() + 31) / 32; }
  Mask EmptyMask() const { return Mask(mask_words()); }
  const TokenText& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  bool Has(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < tokens_.size(); }
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  bool IsEnd(int32_t id) const;
  // Markers and special tokens that do not end an answer.
  const std::vector<int32_t>& added_ids() const { return added_ids_; }
  // The added token with this text.
  std::optional<int32_t> AddedId(std::string_view text) const;
  // The bytes of the longest ordinary token.
  size_t token_bytes_max() const { return token_bytes_max_; }

  // The tree of the ordinary tokens' bytes. Node 0 is the root. A node's children are neighbours,
  // in the order of their bytes.
  uint32_t first_child(uint32_t node) const { return first_child_[node]; }
  uint32_t children(uint32_t node) const { return children_[node]; }
  uint8_t byte(uint32_t node) const { return bytes_[node]; }
  uint32_t parent(uint32_t node) const { return parent_[node]; }
  // The child for `byte`, or 0.
  uint32_t Child(uint32_t node, uint8_t byte) const;
  // The nodes of one byte, in rising order.
  std::span<const uint32_t> NodesOf(uint8_t byte) const {
    return std::span(by_byte_).subspan(by_byte_end_[byte],
                                       by_byte_end_[byte + 1u] - by_byte_end_[byte]);
  }
  // The ids that end at a node: one, and rarely more.
  int32_t first_id(uint32_t node) const { return first_id_[node]; }  // -1: none
  int32_t next_id(int32_t id) const { return next_id_[static_cast<size_t>(id)]; }

 private:
  Vocabulary() = default;
  void BuildTree();
  void SortNodes();

  std::vector<TokenText> tokens_;
  std::vector<int32_t> end_ids_;
  std::vector<int32_t> added_ids_;
  size_t token_bytes_max_ = 0;
  std::vector<uint32_t> first_child_;
  std::vector<uint16_t> children_;
  std::vector<uint8_t> bytes_;
  std::vector<uint32_t> parent_;
  std::vector<uint32_t> by_byte_;
  std::array<size_t, 257> by_byte_end_{};  // entry i + 1 is where byte i's end
  std::vector<int32_t> first_id_;
  std::vector<int32_t> next_id_;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_VOCABULARY_H_
