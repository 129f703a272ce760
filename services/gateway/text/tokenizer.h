// Byte-level BPE as a checkpoint's tokenizer.json describes it.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TOKENIZER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet::text {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special;
};

struct EncodeOptions {
  // Whether text that spells an added token ("<|user|>") becomes that token. If not, it is ordinary
  // text.
  bool match_added_tokens = true;
};

// Text to ids and ids to bytes. Immutable after loading; every method may be called from any number
// of threads.
//
// Encoding costs O(n log n) however the text is built (a megabyte of letters is one pre-token),
// needs a few dozen bytes of memory for each byte of the longest pre-token, and belongs off the
// event loop for long texts.
class Tokenizer {
 public:
  // Reads a tokenizer.json. Everything in it that would change ids and is not implemented (a
  // normalizer, another pre-tokenizer, byte_fallback, ...) is refused with a message that names the
  // file and the field.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const std::string& path);
  // The same from the file's text; `name` stands for the file in messages.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromJson(
      std::string_view json, std::string_view name = "tokenizer.json");

  virtual ~Tokenizer() = default;

  // Ill-formed UTF-8 is replaced by U+FFFD (one for each maximal ill-formed subpart) before
  // anything else. Nothing is added in front or behind. InvalidArgument above 1 GiB of text.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      EncodeOptions options = {}) const = 0;

  // Encodes a rendered prompt in which a ControlTokenEscaper of this tokenizer has hidden the added
  // tokens that stand in clients' text: added tokens are matched first, then the markers inside
  // each piece are turned back into the text that they stand for, which is encoded as ordinary
  // text. Without markers the result is that of Encode.
  virtual absl::StatusOr<std::vector<int32_t>> EncodeRendered(std::string_view rendered) const = 0;

  // The bytes that a token stands for; they may be part of a character. Empty for ids without text
  // (padding rows and ids outside the vocabulary). The view lives as long as the tokenizer.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  virtual bool IsAdded(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  // Whether the id names a token (of the base vocabulary or added).
  virtual bool HasToken(int32_t id) const = 0;

  // The id of the added token with this content, else of the base token with these bytes.
  virtual std::optional<int32_t> TokenId(std::string_view text) const = 0;

  // The highest id of a token, plus one. The model's vocab_size may be larger: the rest are padding
  // rows.
  virtual int32_t vocab_size() const = 0;
  // In order of their ids.
  virtual const std::vector<AddedToken>& added_tokens() const = 0;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TOKENIZER_H_
