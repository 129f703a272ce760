// JSON as parts of a grammar.
//
// What is generated is JSON on one line: after a ':' and after a ',' one space may stand, and no
// other white space. So an answer cannot go on for ever without saying anything.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_JSON_TEXT_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_JSON_TEXT_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/value.h"
#include "services/grammar/builder.h"
#include "services/grammar/char_set.h"
#include "services/grammar/text_automaton.h"

namespace quartet::text {

// How characters are written down.
enum class TextForm {
  kJson,  // inside of a JSON string, with escapes where they are needed
  kRaw,   // as they are
};

// Makes parts with one builder, which must outlive it.
class JsonText {
 public:
  explicit JsonText(grammar::GrammarBuilder* builder) : builder_(*builder) {}

  // `min` to `max` characters of `set`. In JSON, one spelling for each character.
  grammar::Expr Characters(const grammar::CharSet& set, uint32_t min, uint32_t max, TextForm form);

  grammar::Expr Colon();
  grammar::Expr Comma();
  // `min` to `max` characters of a string. All spellings that JSON has.
  grammar::Expr AnyCharacters(uint32_t min, uint32_t max);
  // A string of such characters, quotes around it.
  grammar::Expr String(uint32_t min = 0, uint32_t max = grammar::kUnlimited);
  grammar::Expr Null() { return builder_.Literal("null"); }
  grammar::Expr Boolean();
  // Up to 18 digits.
  grammar::Expr Integer();
  // Up to 18 digits before the point, 16 behind it, two in the exponent.
  grammar::Expr Number();
  grammar::Expr AnyObject();
  grammar::Expr AnyArray();
  grammar::Expr AnyValue();
  // `min` to `max` of `item` with commas between them. `item` must not be able to be empty.
  grammar::Expr List(grammar::Expr item, uint32_t min, uint32_t max);

  // Exactly this value.
  grammar::Expr Exactly(const Value& value);
  // A string, with its quotes and a colon behind it, of at least one character and none of `names`.
  grammar::Expr OtherKey(const std::vector<std::string>& names);

 private:
  grammar::Expr OtherKeyFrom(const std::vector<std::u32string>& names, size_t at);

  grammar::GrammarBuilder& builder_;
  std::map<std::string, grammar::TextAutomaton> automatons_;  // by form and ranges
  std::optional<grammar::Expr> any_value_;
  std::optional<grammar::Expr> any_object_;
  std::optional<grammar::Expr> any_array_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_JSON_TEXT_H_
