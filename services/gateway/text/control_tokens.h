// Keeps control tokens that clients type apart from those that the template writes.
//
// A chat template joins both into one string, and encoding that string cannot tell a typed
// "<|assistant|>" from a real one. So, before rendering, each added token's text inside client text
// is replaced by a marker of noncharacters: U+FDD0 and three digits of the token's index to base
// 31, written as U+FDD1..U+FDEF. After rendering, everything that still spells an added token comes
// from the template; Tokenizer::EncodeRendered undoes the markers piece by piece.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_CONTROL_TOKENS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_CONTROL_TOKENS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/tokenizer.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// The number of added tokens that markers can name. The very last marker is kept free: see
// kCutMarker.
inline constexpr size_t kMarkableTokensMax = 31 * 31 * 31 - 1;

// A marker that stands for no token: where a rendered prompt is to be cut.
inline constexpr std::string_view kCutMarker = "\xEF\xB7\x90\xEF\xB7\xAF\xEF\xB7\xAF\xEF\xB7\xAF";

// Whether `text` holds one of the noncharacters U+FDD0..U+FDEF, of which markers are made.
bool HoldsMarkerCharacter(std::string_view text);

// Finds added tokens in text. Immutable, thread safe. Keeps no reference to the tokenizer.
class ControlTokenEscaper {
 public:
  // `tokens` in the order that gives their indices: Tokenizer::added_tokens().
  explicit ControlTokenEscaper(const std::vector<AddedToken>& tokens);
  ~ControlTokenEscaper();
  ControlTokenEscaper(ControlTokenEscaper&&) noexcept;
  ControlTokenEscaper& operator=(ControlTokenEscaper&&) noexcept;

  // `text` with every added token's text replaced by its marker; at each place the longest token
  // wins. The text must not hold marker characters already: callers refuse such text with
  // HoldsMarkerCharacter.
  std::string Escape(std::string_view text) const;
  // Escapes every string and every key inside `value`.
  Value EscapeDeep(const Value& value) const;
  // Turns markers back into the text that they stand for. Other uses of the noncharacters stay as
  // they are.
  std::string Unescape(std::string_view text) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_CONTROL_TOKENS_H_
