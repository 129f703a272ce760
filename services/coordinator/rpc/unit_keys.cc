#include "services/coordinator/rpc/unit_keys.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cassert>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace quartet::coordinator {
namespace {

// Numbers are little-endian, strings follow their length in bytes as a u64.
class Fields {
 public:
  void Number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void U32(uint32_t value) { Number(value, 4); }
  void U64(uint64_t value) { Number(value, 8); }
  void String(std::string_view value) {
    U64(value.size());
    bytes_.append(value);
  }
  void Key(const UnitKey& key) {
    U64(key.high);
    U64(key.low);
  }
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }

  absl::StatusOr<UnitKey> Hash() const {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    if (EVP_Digest(bytes_.data(), bytes_.size(), digest, &size, EVP_sha256(), nullptr) != 1 ||
        size != 32) {
      return absl::InternalError("SHA-256 failed in libcrypto");
    }
    const auto word = [&digest](int first) {
      uint64_t value = 0;
      for (int i = 0; i < 8; ++i) value |= uint64_t{digest[first + i]} << (8 * i);
      return value;
    };
    return UnitKey{word(0), word(8)};
  }

 private:
  std::string bytes_;
};

}  // namespace

absl::StatusOr<UnitKey> RootKey(const KeyDomain& domain) {
  Fields fields;
  fields.String("quartet prefix root");
  fields.U32(kKeyFormat);
  fields.String(domain.model_fingerprint);
  fields.String(domain.numerics_fingerprint);
  fields.String(domain.salt);
  fields.String(domain.adapter_digest);
  return fields.Hash();
}

absl::StatusOr<UnitKey> NextUnitKey(const UnitKey& previous, std::span<const int32_t> unit,
                                    uint64_t begin, std::span<const ImageSpan> images) {
  const uint64_t end = begin + unit.size();
  Fields fields;
  fields.Reserve(128 + 4 * unit.size());
  fields.String("quartet prefix unit");
  fields.Key(previous);
  fields.U64(unit.size());
  for (int32_t token : unit) fields.U32(static_cast<uint32_t>(token));
  const auto touches = [&](const ImageSpan& image) {
    return image.first_token < end && image.first_token + image.n_tokens > begin;
  };
  fields.U64(static_cast<uint64_t>(std::ranges::count_if(images, touches)));
  for (const ImageSpan& image : images) {
    if (!touches(image)) continue;
    const uint64_t first = std::max(image.first_token, begin);
    fields.String(image.digest);
    fields.U64(first - image.first_token);
    // Where in the unit, too: an id that looks like a placeholder beside the image's own ones must
    // not leave open which of them are the image.
    fields.U64(first - begin);
  }
  return fields.Hash();
}

absl::StatusOr<std::vector<UnitKey>> UnitKeys(const UnitKey& root, std::span<const int32_t> tokens,
                                              std::span<const ImageSpan> images,
                                              uint32_t unit_tokens) {
  std::vector<UnitKey> keys;
  keys.reserve(tokens.size() / unit_tokens);
  UnitKey previous = root;
  for (size_t begin = 0; begin + unit_tokens <= tokens.size(); begin += unit_tokens) {
    // Images stand in order, so the ones of this unit are next to each other.
    const auto first = std::ranges::partition_point(images, [&](const ImageSpan& image) {
      return image.first_token + image.n_tokens <= begin;
    });
    const auto last = std::partition_point(first, images.end(), [&](const ImageSpan& image) {
      return image.first_token < begin + unit_tokens;
    });
    absl::StatusOr<UnitKey> key =
        NextUnitKey(previous, tokens.subspan(begin, unit_tokens), begin, {first, last});
    if (!key.ok()) return key.status();
    keys.push_back(*key);
    previous = *key;
  }
  return keys;
}

UnitChain::UnitChain(const UnitKey& root, std::span<const UnitKey> keys,
                     std::span<const int32_t> prompt, std::vector<ImageSpan> images,
                     uint32_t unit_tokens)
    : unit_tokens_(unit_tokens),
      images_(std::move(images)),
      last_(keys.empty() ? root : keys.back()),
      begin_(keys.size() * uint64_t{unit_tokens}) {
  assert(prompt.size() - begin_ < unit_tokens);
  unit_.reserve(unit_tokens);
  unit_.assign(prompt.begin() + static_cast<std::ptrdiff_t>(begin_), prompt.end());
}

absl::StatusOr<std::vector<UnitKey>> UnitChain::Append(std::span<const int32_t> tokens) {
  std::vector<UnitKey> keys;
  for (const int32_t token : tokens) {
    unit_.push_back(token);
    if (unit_.size() < unit_tokens_) continue;
    const absl::StatusOr<UnitKey> key = NextUnitKey(last_, unit_, begin_, images_);
    if (!key.ok()) return key.status();
    keys.push_back(*key);
    last_ = *key;
    begin_ += unit_tokens_;
    unit_.clear();
  }
  return keys;
}

}  // namespace quartet::coordinator
