#include "services/gateway/access/fair_key.h"

#include <openssl/evp.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "services/gateway/access/api_keys.h"

namespace quartet::gateway {
namespace {

uint64_t Digest(std::string_view kind, std::string_view value) {
  std::string bytes(kind);
  bytes += value;
  unsigned char digest[EVP_MAX_MD_SIZE] = {};
  unsigned int size = 0;
  // Without SHA-256 all would share one key, which is right too.
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) return 0;
  uint64_t key = 0;
  for (int i = 0; i < 8; ++i) key = key << 8 | digest[i];
  return key;
}

}  // namespace

uint64_t FairKey(std::string_view authorization, std::string_view user) {
  const std::string_view token = BearerKey(authorization);
  if (!token.empty()) return Digest("token:", token);
  return user.empty() ? 0 : Digest("user:", user);
}

std::string SaltOfKey(std::string_view authorization) {
  const uint64_t key = FairKey(authorization, "");
  return key == 0 ? "" : absl::StrCat("key ", absl::Hex(key, absl::kZeroPad16));
}

}  // namespace quartet::gateway
