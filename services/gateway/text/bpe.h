// The merging step of byte-pair encoding.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_BPE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quartet::text {

// Which pairs of tokens merge into which token, and in what order of preference. Filled once, then
// read by any thread.
class BpeMerges {
 public:
  BpeMerges() : BpeMerges(std::array<int32_t, 256>{}) {}
  // `byte_ids` are the ids of the tokens of single bytes, all different.
  explicit BpeMerges(const std::array<int32_t, 256>& byte_ids);

  // A pair that is added again takes the later rank.
  void Add(int32_t left, int32_t right, int32_t rank, int32_t merged);

  // Appends the tokens of `bytes`. Of all neighbouring pairs that can merge the one of the lowest
  // rank merges first, the leftmost of equals, until none can. O(n log n) time, O(n) memory.
  // `bytes` is at most 1 GiB.
  void Encode(std::string_view bytes, std::vector<int32_t>* out) const;

 private:
  static constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

  struct Merge {
    int32_t rank = kNoRank;
    int32_t merged = 0;
  };
  // Of rank kNoRank if the pair does not merge.
  Merge Find(int32_t left, int32_t right) const;
  const Merge& FindBytes(char left, char right) const;

  void EncodeShort(std::string_view bytes, std::vector<int32_t>* out) const;
  void EncodeLong(std::string_view bytes, std::vector<int32_t>* out) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<int32_t, uint8_t> bytes_;  // by id
  absl::flat_hash_map<uint64_t, Merge> merges_;
  // Those of two single bytes again, by the bytes: every pre-token begins with these look-ups.
  std::vector<Merge> byte_merges_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_BPE_H_
