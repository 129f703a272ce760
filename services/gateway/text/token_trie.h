// Finds the longest of many strings that starts at a place in a text.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TOKEN_TRIE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TOKEN_TRIE_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace quartet::text {

// Filled once, then read by any thread.
class TokenTrie {
 public:
  struct Match {
    size_t bytes = 0;  // 0: no match
    int32_t value = -1;
  };

  bool empty() const { return values_.empty(); }

  // Empty strings are ignored. A string that is added again takes the later value.
  void Add(std::string_view text, int32_t value) {
    if (text.empty()) return;
    starts_[static_cast<unsigned char>(text[0])] = true;
    uint32_t node = 0;
    for (const char c : text) {
      const uint32_t next = static_cast<uint32_t>(edges_.size()) + 1;
      node = edges_.try_emplace(EdgeKey(node, c), next).first->second;
    }
    values_[node] = value;
  }

  // The longest string that stands at the beginning of `text`.
  Match LongestAtStart(std::string_view text) const {
    Match best;
    if (text.empty() || !starts_[static_cast<unsigned char>(text[0])]) return best;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(EdgeKey(node, text[i]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (const auto value = values_.find(node); value != values_.end()) {
        best = {i + 1, value->second};
      }
    }
    return best;
  }

  // The first place where any string stands; `at` is the size of `text` if there is none.
  Match FindFirst(std::string_view text, size_t* at) const {
    for (size_t i = 0; i < text.size(); ++i) {
      if (!starts_[static_cast<unsigned char>(text[i])]) continue;
      if (const Match match = LongestAtStart(text.substr(i)); match.bytes > 0) {
        *at = i;
        return match;
      }
    }
    *at = text.size();
    return {};
  }

 private:
  static uint64_t EdgeKey(uint32_t node, char c) {
    return (static_cast<uint64_t>(node) << 8) | static_cast<unsigned char>(c);
  }

  std::array<bool, 256> starts_{};
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // (node, byte) -> node; node 0 is the root
  absl::flat_hash_map<uint32_t, int32_t> values_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TOKEN_TRIE_H_
