// Cuts text into pre-tokens, the units inside which byte pairs are merged.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_PRETOKENIZER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_PRETOKENIZER_H_

#include <cstddef>
#include <string_view>

namespace quartet::text {

// The regular expression that NextPreToken implements; a tokenizer.json must have exactly this one.
// It is matched by hand: a general matcher needs limits that long inputs reach.
inline constexpr std::string_view kPreTokenRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Bytes of the first pre-token of `text`, which must be well-formed UTF-8 and not empty. At least
// 1; every character belongs to exactly one pre-token. Linear in the length of the pre-token.
size_t NextPreToken(std::string_view text);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_PRETOKENIZER_H_
