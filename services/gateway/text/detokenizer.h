// Ids to text, as they arrive.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_DETOKENIZER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "services/gateway/text/tokenizer.h"

namespace quartet::text {

// Puts characters together from bytes that arrive in any pieces. At most 3 bytes are held back: the
// beginning of a character that could still be completed. Ill-formed bytes become U+FFFD, one for
// each maximal ill-formed subpart. The text does not depend on how the bytes were cut. One stream,
// one thread at a time.
class Utf8Assembler {
 public:
  // Appends what can be released now to `out`.
  void Append(std::string_view bytes, std::string* out);
  // The end of the stream: a character that was left incomplete becomes U+FFFD.
  void Flush(std::string* out);

 private:
  std::string pending_;
};

// One stream of sampled ids to text. Starts empty: a prompt is not fed to it. Used by one thread at
// a time; the tokenizer must outlive it. Ids without text (padding rows, ids outside the
// vocabulary) add nothing.
class Detokenizer {
 public:
  struct Options {
    // Leaves out the tokens that the tokenizer calls special. Tags like <think> are not special and
    // stay.
    bool skip_special_tokens = false;
  };
  explicit Detokenizer(const Tokenizer* tokenizer) : Detokenizer(tokenizer, Options{}) {}
  Detokenizer(const Tokenizer* tokenizer, Options options);

  // The text that this token completes; may be empty.
  std::string Append(int32_t id);
  // What is left at the end of the stream.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  Options options_;
  Utf8Assembler assembler_;
};

// The text of a whole sequence.
std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   Detokenizer::Options options = {});

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_DETOKENIZER_H_
