// The merging step of byte-pair encoding.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_BPE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quartet::text {

// Which pairs of tokens merge into which token, and in what order of preference. Filled once, then
// read by any thread.
class BpeMerges {
 public:
  // The id of the token of each single byte.
  std::array<int32_t, 256> byte_ids{};

  // A pair that is added again takes the later rank.
  void Add(int32_t left, int32_t right, int32_t rank, int32_t merged);

  // Appends the tokens of `bytes`. Of all neighbouring pairs that can merge the one of the lowest
  // rank merges first, the leftmost of equals, until none can. O(n log n) time, O(n) memory.
  // `bytes` is at most 1 GiB.
  void Encode(std::string_view bytes, std::vector<int32_t>* out) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t merged;
  };
  const Merge* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_BPE_H_
