// The API keys that a server takes, as a file holds them: hashed, so that who reads the file cannot
// use them.
#ifndef QUARTET_SERVICES_GATEWAY_ACCESS_API_KEYS_H_
#define QUARTET_SERVICES_GATEWAY_ACCESS_API_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet::gateway {

// What one key may use; 0 = any amount.
struct KeyLimits {
  int64_t requests = 0;  // at a time
  int64_t tokens = 0;    // of those requests: their prompts, and the most that they may answer
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and answers together
};

inline constexpr size_t kApiKeysMax = 1000;
inline constexpr size_t kApiKeyFileBytesMax = 1 << 20;
// Shorter keys could be found by trying: a salted SHA-256 is quick to compute.
inline constexpr size_t kApiKeyBytesMin = 16;
inline constexpr size_t kApiKeyBytesMax = 512;

// Immutable and thread safe. Errors never hold what stands in the file or in a key.
class ApiKeys {
 public:
  // A file of lines `name:salt:digest`, both in hex, the digest that of SHA-256 over the salt's
  // bytes and the key; behind it may stand limits of this key: `requests=2 tokens=20000
  // requests-per-minute=60 tokens-per-minute=100000`. What a line does not say comes from
  // `defaults`. Empty lines and those that begin with # are skipped. `file` stands for the file in
  // errors.
  static absl::StatusOr<ApiKeys> Parse(std::string_view text, std::string_view file,
                                       const KeyLimits& defaults);

  // Which key this is. Looks at all of them and compares whole digests, so that the time says
  // nothing about how near a guess came.
  std::optional<size_t> Find(std::string_view key) const;

  size_t size() const { return keys_.size(); }
  const std::string& name(size_t index) const { return keys_[index].name; }
  const KeyLimits& limits(size_t index) const { return keys_[index].limits; }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Key {
    std::string name;
    std::string salt;
    Digest digest;
    KeyLimits limits;
  };
  static absl::StatusOr<Key> ParseLine(std::string_view line, const KeyLimits& defaults);
  static absl::StatusOr<Digest> DigestOf(std::string_view salt, std::string_view key);

  friend absl::StatusOr<std::string> MakeApiKeyLine(std::string_view name, std::string_view key);

  std::vector<Key> keys_;
};

// The line for a key, with a random salt and no limits of its own.
absl::StatusOr<std::string> MakeApiKeyLine(std::string_view name, std::string_view key);

// The key in an Authorization header's value, "Bearer KEY"; empty if there is none.
std::string_view BearerKey(std::string_view authorization);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ACCESS_API_KEYS_H_
