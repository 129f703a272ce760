#ifndef QUARTET_SERVICES_COORDINATOR_RPC_UNIT_KEYS_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_UNIT_KEYS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/coordinator/core/unit_key.h"

// The names of cached prefixes: each unit of 256 tokens has a key that stands for it, for
// everything before it and for everything that its contents depend on. Keys are SHA-256 cut to 128
// bits, taken over fields that each come with their length, so that no two inputs give the same
// bytes. They are also the names of entries on disk: whoever changes what is hashed raises
// kKeyFormat.

namespace quartet::coordinator {

inline constexpr uint32_t kKeyFormat = 1;

// What the contents of pages and snapshots depend on besides the tokens. Two requests can share
// them only if all of it is equal. Any bytes; a part that is not used is empty.
struct KeyDomain {
  std::string model_fingerprint;     // weights, their quantisation, the model's parameters
  std::string numerics_fingerprint;  // versions of the kernels, types of pages and state, ranks
  std::string salt;                  // keeps users apart who must not notice each other's prefixes
  std::string adapter_digest;
};

// An image in a prompt.
struct ImageSpan {
  std::string digest;        // whole digest of the processed pixels and their grid
  uint64_t first_token = 0;  // of its placeholders
  uint64_t n_tokens = 0;
};

// The key that the first unit's key is chained to. Fails only if libcrypto does, as the others.
absl::StatusOr<UnitKey> RootKey(const KeyDomain& domain);

// The keys of the units that are full within the tokens: of unit i, key i. `images`: those of the
// prompt, in order of first_token.
absl::StatusOr<std::vector<UnitKey>> UnitKeys(const UnitKey& root, std::span<const int32_t> tokens,
                                              std::span<const ImageSpan> images,
                                              uint32_t unit_tokens = 256);

// The key of one unit that follows the unit (or root) `previous` and starts at token `begin` of its
// sequence: for a sequence that grows.
absl::StatusOr<UnitKey> NextUnitKey(const UnitKey& previous, std::span<const int32_t> unit,
                                    uint64_t begin, std::span<const ImageSpan> images);

// Names the units of a sequence as its text grows: keeps the last key and the tokens of the unit
// that is not full yet. Not thread safe.
class UnitChain {
 public:
  // Goes on behind a prompt with these keys (see UnitKeys). `images`: those of the prompt.
  UnitChain(const UnitKey& root, std::span<const UnitKey> keys, std::span<const int32_t> prompt,
            std::vector<ImageSpan> images = {}, uint32_t unit_tokens = 256);

  // The keys of the units that these tokens fill.
  absl::StatusOr<std::vector<UnitKey>> Append(std::span<const int32_t> tokens);

 private:
  uint32_t unit_tokens_;
  std::vector<ImageSpan> images_;
  UnitKey last_;
  uint64_t begin_ = 0;         // of the unit that is not full
  std::vector<int32_t> unit_;  // its tokens so far
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_UNIT_KEYS_H_
