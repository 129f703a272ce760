// Regular expressions as parts of a grammar: the subset of ECMA-262 that describes text without
// looking around in it.
//
// Known: literal characters; . ; classes [a-z] and [^a-z]; \d \D \w \W \s \S (the characters that
// are in them whether a dialect means ASCII or Unicode); \n \r \t \f \v \0 \xHH \uHHHH \u{H...} and
// escaped punctuation; groups ( ), (?: ) and (?<name> ); alternatives |; the repetitions * + ? {n}
// {n,} {n,m}, also lazy; ^ at the beginning and $ at the end of the expression, or of one of the
// alternatives that it consists of. Refused by name: looking ahead and behind, references to
// groups, \b and \B, \p and \P, flags, possessive repetitions, anchors elsewhere, and repetitions
// of what can be empty if they cannot be written without it.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_REGEX_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_REGEX_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/text/grammar/json_text.h"
#include "services/grammar/builder.h"
#include "services/grammar/char_set.h"

namespace quartet::text {

inline constexpr size_t kRegexBytesMax = 16 << 10;
inline constexpr uint32_t kRegexRepeatMax = 100'000;

// A parsed expression.
struct Regex {
  enum class Kind { kEmpty, kCharacter, kSequence, kEither, kRepeat };
  Kind kind = Kind::kEmpty;
  grammar::CharSet set;  // kCharacter: one of these
  uint32_t min = 0;      // kRepeat, of parts[0]
  uint32_t max = 0;
  std::vector<Regex> parts;
};

// One of the alternatives that an expression consists of.
struct RegexWay {
  bool at_start = false;  // it begins with ^
  bool at_end = false;    // it ends with $
  Regex regex;
};

// InvalidArgument says what is not understood and at which byte.
absl::StatusOr<std::vector<RegexWay>> ParseRegex(std::string_view pattern);

struct RegexOptions {
  TextForm form = TextForm::kRaw;
  // Whether the expression describes all of the text. If not, as in JSON Schema, any text may stand
  // before and behind it where it has no anchors.
  bool whole = true;
  // Characters that the text must not have.
  grammar::CharSet without;
};

grammar::Expr RegexExpr(const std::vector<RegexWay>& ways, const RegexOptions& options,
                        grammar::GrammarBuilder* builder, JsonText* json);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_REGEX_H_
