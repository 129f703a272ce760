#include "services/gateway/access/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/gateway/text/absl_strings.h"

namespace quartet::gateway {
namespace {

using text::Av;

constexpr size_t kNameBytesMax = 64;
constexpr size_t kSaltBytes = 16;
constexpr int64_t kLimitMax = 1'000'000'000'000;
constexpr std::string_view kBearer = "bearer ";

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

// The bytes that `hex` spells, if they are `bytes` many.
std::optional<std::string> Unhex(absl::string_view hex, size_t bytes) {
  if (hex.size() != 2 * bytes || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
    return std::nullopt;
  }
  return absl::HexStringToBytes(hex);
}

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(Av(what));
}

absl::Status ReadLimit(absl::string_view word, KeyLimits* limits) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(word, absl::MaxSplits('=', 1));
  int64_t* target = parts.first == "requests"              ? &limits->requests
                    : parts.first == "tokens"              ? &limits->tokens
                    : parts.first == "requests-per-minute" ? &limits->requests_per_minute
                    : parts.first == "tokens-per-minute"   ? &limits->tokens_per_minute
                                                           : nullptr;
  if (target == nullptr) {
    return Wrong(
        "an unknown word stands behind the digest; right would be requests=N, tokens=N, "
        "requests-per-minute=N or tokens-per-minute=N");
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(parts.second, &value) || value < 0 || value > kLimitMax) {
    return Wrong(
        absl::StrCat(parts.first, " must be a whole number from 0 (no limit) to ", kLimitMax));
  }
  *target = value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiKeys::Digest> ApiKeys::DigestOf(std::string_view salt, std::string_view key) {
  std::string bytes(salt);
  bytes += key;
  Digest digest{};
  const bool done =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1;
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (!done) return absl::InternalError("SHA-256 is not available");
  return digest;
}

absl::StatusOr<ApiKeys::Key> ApiKeys::ParseLine(std::string_view line, const KeyLimits& defaults) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(Av(line), absl::ByAnyChar(" \t"), absl::SkipEmpty());
  const std::vector<absl::string_view> parts = absl::StrSplit(words[0], ':');
  if (parts.size() != 3) {
    return Wrong(
        "it is not of the form name:salt:digest; `quartet key` makes such a line from a key");
  }
  Key key;
  if (!IsName(parts[0])) {
    return Wrong(
        absl::StrCat("the name must be 1 to ", kNameBytesMax, " letters, digits, '-', '_' or '.'"));
  }
  key.name = std::string(parts[0]);
  const std::optional<std::string> salt = Unhex(parts[1], kSaltBytes);
  if (!salt) {
    return Wrong(absl::StrCat("the salt must be ", 2 * kSaltBytes, " hex digits, not ",
                              parts[1].size(), " characters"));
  }
  key.salt = *salt;
  const std::optional<std::string> digest = Unhex(parts[2], key.digest.size());
  if (!digest) {
    return Wrong(absl::StrCat("the digest must be ", 2 * key.digest.size(), " hex digits, not ",
                              parts[2].size(), " characters"));
  }
  std::copy(digest->begin(), digest->end(), key.digest.begin());
  key.limits = defaults;
  for (size_t i = 1; i < words.size(); ++i) {
    if (absl::Status read = ReadLimit(words[i], &key.limits); !read.ok()) return read;
  }
  return key;
}

absl::StatusOr<ApiKeys> ApiKeys::Parse(std::string_view text, std::string_view file,
                                       const KeyLimits& defaults) {
  ApiKeys keys;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(Av(text), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const auto wrong = [&](std::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(Av(file), " line ", number, ": ", Av(what)));
    };
    absl::StatusOr<Key> key = ParseLine({line.data(), line.size()}, defaults);
    if (!key.ok()) return wrong(std::string(key.status().message()));
    for (const Key& other : keys.keys_) {
      if (other.name == key->name) return wrong("a key of this name stands above");
    }
    if (keys.keys_.size() == kApiKeysMax) {
      return wrong(absl::StrCat("there are more than ", kApiKeysMax, " keys"));
    }
    keys.keys_.push_back(*std::move(key));
  }
  if (keys.keys_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Av(file), " holds no key; `quartet key` makes a line from one"));
  }
  return keys;
}

std::optional<size_t> ApiKeys::Find(std::string_view key) const {
  if (key.empty() || key.size() > kApiKeyBytesMax) return std::nullopt;
  std::optional<size_t> found;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const absl::StatusOr<Digest> digest = DigestOf(keys_[i].salt, key);
    if (!digest.ok()) return std::nullopt;
    if (CRYPTO_memcmp(digest->data(), keys_[i].digest.data(), digest->size()) == 0) found = i;
  }
  return found;
}

absl::StatusOr<std::string> MakeApiKeyLine(std::string_view name, std::string_view key) {
  if (!IsName(Av(name))) {
    return Wrong(
        absl::StrCat("the name must be 1 to ", kNameBytesMax, " letters, digits, '-', '_' or '.'"));
  }
  if (key.size() < kApiKeyBytesMin || key.size() > kApiKeyBytesMax) {
    return Wrong(absl::StrCat("the key has ", key.size(), " bytes; right would be ",
                              kApiKeyBytesMin, " to ", kApiKeyBytesMax,
                              ", made by chance, as `openssl rand -hex 32` does"));
  }
  if (!std::all_of(key.begin(), key.end(),
                   [](unsigned char c) { return absl::ascii_isgraph(c); })) {
    return Wrong(
        "the key must be of printable ASCII characters without spaces: it goes in a header");
  }
  std::string salt(kSaltBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(salt.data()), kSaltBytes) != 1) {
    return absl::InternalError("the system gave no random bytes");
  }
  const absl::StatusOr<ApiKeys::Digest> digest = ApiKeys::DigestOf(salt, key);
  if (!digest.ok()) return digest.status();
  const absl::string_view bytes(reinterpret_cast<const char*>(digest->data()), digest->size());
  return absl::StrCat(Av(name), ":", absl::BytesToHexString(salt), ":",
                      absl::BytesToHexString(bytes));
}

std::string_view BearerKey(std::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(Av(authorization), Av(kBearer))) return "";
  const absl::string_view key =
      absl::StripAsciiWhitespace(Av(authorization.substr(kBearer.size())));
  return {key.data(), key.size()};
}

}  // namespace quartet::gateway
