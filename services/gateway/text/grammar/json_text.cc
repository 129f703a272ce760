#include "services/gateway/text/grammar/json_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

using grammar::Bytes;
using grammar::ByteSet;
using grammar::BytesOf;
using grammar::CharSet;
using grammar::Expr;
using grammar::kUnlimited;
using grammar::Spelling;
using grammar::TextAutomaton;

ByteSet HexDigits() {
  return BytesOf("0123456789abcdefABCDEF");
}

// Other keys that share a longer beginning with a name are left out.
constexpr size_t kSharedCharactersMax = 256;

// The characters that stand in a JSON string as they are.
CharSet PlainCharacters() {
  return ~(CharSet::Of(0, 0x1F) | CharSet::Of('"') | CharSet::Of('\\'));
}

struct ShortEscape {
  char32_t character;
  char letter;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                         {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

// One spelling for each character of `set`.
std::vector<Spelling> SpellInJson(const CharSet& set) {
  std::vector<Spelling> spellings = grammar::SpellUtf8(set & PlainCharacters());
  CharSet rest = set & ~PlainCharacters();
  for (const ShortEscape& escape : kShortEscapes) {
    if (!rest.Contains(escape.character)) continue;
    spellings.push_back({BytesOf("\\"), BytesOf({&escape.letter, 1})});
    rest = rest & ~CharSet::Of(escape.character);
  }
  for (char32_t c = 0; c < 0x20; ++c) {
    if (!rest.Contains(c)) continue;
    const char digit = "0123456789abcdef"[c % 16];
    const char upper = "0123456789ABCDEF"[c % 16];
    spellings.push_back({BytesOf("\\"), BytesOf("u"), BytesOf("0"), BytesOf("0"),
                         BytesOf(c < 16 ? "0" : "1"), BytesOf(std::string{digit, upper})});
  }
  return spellings;
}

// All spellings of all characters. Surrogates come in pairs only.
const TextAutomaton& AnyCharacterInJson() {
  static const TextAutomaton automaton = [] {
    std::vector<Spelling> spellings = grammar::SpellUtf8(PlainCharacters());
    const ByteSet hex = HexDigits();
    const ByteSet backslash = BytesOf("\\");
    const ByteSet u = BytesOf("u");
    const ByteSet d = BytesOf("dD");
    spellings.push_back({backslash, BytesOf("\"\\/bfnrt")});
    spellings.push_back({backslash, u, hex & ~d, hex, hex, hex});
    spellings.push_back({backslash, u, d, BytesOf("01234567"), hex, hex});
    spellings.push_back({backslash, u, d, BytesOf("89abAB"), hex, hex, backslash, u, d,
                         BytesOf("cdefCDEF"), hex, hex});
    return TextAutomaton::OfUnits(spellings);
  }();
  return automaton;
}

}  // namespace

Expr JsonText::Characters(const CharSet& set, uint32_t min, uint32_t max, TextForm form) {
  if (max == 0) return builder_.Empty();
  if (set.empty()) return min == 0 ? builder_.Empty() : builder_.Never();
  std::string key(1, form == TextForm::kJson ? 'j' : 'r');
  for (const CharSet::Range& range : set.ranges()) {
    absl::StrAppend(&key, " ", static_cast<uint32_t>(range.first), "-",
                    static_cast<uint32_t>(range.last));
  }
  auto found = automatons_.find(key);
  if (found == automatons_.end()) {
    found = automatons_
                .emplace(std::move(key),
                         TextAutomaton::OfUnits(form == TextForm::kJson ? SpellInJson(set)
                                                                        : grammar::SpellUtf8(set)))
                .first;
  }
  return builder_.Text(found->second, min, max);
}

Expr JsonText::Colon() {
  return builder_.Seq({builder_.Literal(":"), builder_.Optional(builder_.Literal(" "))});
}

Expr JsonText::Comma() {
  return builder_.Seq({builder_.Literal(","), builder_.Optional(builder_.Literal(" "))});
}

Expr JsonText::AnyCharacters(uint32_t min, uint32_t max) {
  return builder_.Text(AnyCharacterInJson(), min, max);
}

Expr JsonText::String(uint32_t min, uint32_t max) {
  return builder_.Seq({builder_.Literal("\""), AnyCharacters(min, max), builder_.Literal("\"")});
}

Expr JsonText::Boolean() {
  return builder_.Alt({builder_.Literal("true"), builder_.Literal("false")});
}

Expr JsonText::Integer() {
  const Expr positive = builder_.Seq({Characters(CharSet::Of('1', '9'), 1, 1, TextForm::kRaw),
                                      Characters(CharSet::Of('0', '9'), 0, 17, TextForm::kRaw)});
  return builder_.Alt(
      {builder_.Literal("0"), builder_.Seq({builder_.Optional(builder_.Literal("-")), positive})});
}

Expr JsonText::Number() {
  const CharSet digits = CharSet::Of('0', '9');
  const Expr whole = builder_.Alt(
      {builder_.Literal("0"), builder_.Seq({Characters(CharSet::Of('1', '9'), 1, 1, TextForm::kRaw),
                                            Characters(digits, 0, 17, TextForm::kRaw)})});
  const Expr fraction =
      builder_.Seq({builder_.Literal("."), Characters(digits, 1, 16, TextForm::kRaw)});
  const Expr exponent =
      builder_.Seq({builder_.Choice({"e", "E"}), builder_.Optional(builder_.Choice({"+", "-"})),
                    Characters(digits, 1, 2, TextForm::kRaw)});
  return builder_.Seq({builder_.Optional(builder_.Literal("-")), whole, builder_.Optional(fraction),
                       builder_.Optional(exponent)});
}

Expr JsonText::List(Expr item, uint32_t min, uint32_t max) {
  if (max == 0) return min == 0 ? builder_.Empty() : builder_.Never();
  const Expr more = builder_.Repeat(builder_.Seq({Comma(), item}), min > 0 ? min - 1 : 0,
                                    max == kUnlimited ? kUnlimited : max - 1);
  const Expr some = builder_.Seq({item, more});
  return min == 0 ? builder_.Optional(some) : some;
}

Expr JsonText::AnyObject() {
  if (any_object_) return *any_object_;
  any_object_ = builder_.NewRule();
  const Expr member = builder_.Seq({String(1), Colon(), AnyValue()});
  builder_.Define(*any_object_, builder_.Seq({builder_.Literal("{"), List(member, 0, kUnlimited),
                                              builder_.Literal("}")}));
  return *any_object_;
}

Expr JsonText::AnyArray() {
  if (any_array_) return *any_array_;
  any_array_ = builder_.NewRule();
  builder_.Define(*any_array_, builder_.Seq({builder_.Literal("["), List(AnyValue(), 0, kUnlimited),
                                             builder_.Literal("]")}));
  return *any_array_;
}

Expr JsonText::AnyValue() {
  if (any_value_) return *any_value_;
  any_value_ = builder_.NewRule();
  builder_.Define(*any_value_,
                  builder_.Alt({AnyObject(), AnyArray(), String(), Number(), Boolean(), Null()}));
  return *any_value_;
}

Expr JsonText::Exactly(const Value& value) {
  std::vector<Expr> parts;
  if (value.is_list()) {
    parts.push_back(builder_.Literal("["));
    for (const Value& item : value.list()) {
      if (parts.size() > 1) parts.push_back(Comma());
      parts.push_back(Exactly(item));
    }
    parts.push_back(builder_.Literal("]"));
  } else if (value.is_object()) {
    parts.push_back(builder_.Literal("{"));
    for (const auto& [key, member] : value.entries()) {
      if (parts.size() > 1) parts.push_back(Comma());
      std::string name;
      AppendJsonString(key, &name);
      parts.push_back(builder_.Literal(name));
      parts.push_back(Colon());
      parts.push_back(Exactly(member));
    }
    parts.push_back(builder_.Literal("}"));
  } else {
    std::string text;
    // Scalars can always be written.
    AppendJson(value, {}, &text).IgnoreError();
    parts.push_back(builder_.Literal(text));
  }
  return builder_.Seq(std::move(parts));
}

Expr JsonText::OtherKey(const std::vector<std::string>& names) {
  std::vector<std::u32string> unique;
  const CharSet plain = PlainCharacters();
  for (const std::string& name : names) {
    std::u32string characters;
    for (size_t at = 0; at < name.size();) {
      const Utf8Step step = NextUtf8(std::string_view(name).substr(at));
      characters.push_back(step.code_point);
      at += step.bytes;
    }
    // Other keys are written without escapes, so that they cannot be a name that needs one.
    const bool reachable = std::all_of(characters.begin(), characters.end(),
                                       [&](char32_t c) { return plain.Contains(c); });
    if (reachable && !characters.empty()) unique.push_back(std::move(characters));
  }
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  return builder_.Seq({builder_.Literal("\""), OtherKeyFrom(unique, 0), Colon()});
}

// `names` are equal up to `at`. What remains of the key, with the closing quote.
Expr JsonText::OtherKeyFrom(const std::vector<std::u32string>& names, size_t at) {
  if (at == kSharedCharactersMax) return builder_.Never();
  const Expr quote = builder_.Literal("\"");
  CharSet others = PlainCharacters();
  std::vector<Expr> ways;
  bool is_name = false;
  for (size_t i = 0; i < names.size();) {
    if (names[i].size() == at) {
      is_name = true;
      ++i;
      continue;
    }
    const char32_t c = names[i][at];
    std::vector<std::u32string> group;
    for (; i < names.size() && names[i][at] == c; ++i) group.push_back(names[i]);
    others = others & ~CharSet::Of(c);
    std::string character;
    AppendUtf8(c, &character);
    ways.push_back(builder_.Seq({builder_.Literal(character), OtherKeyFrom(group, at + 1)}));
  }
  ways.push_back(
      builder_.Seq({Characters(others, 1, 1, TextForm::kRaw),
                    Characters(PlainCharacters(), 0, kUnlimited, TextForm::kRaw), quote}));
  if (at > 0 && !is_name) ways.push_back(quote);
  return builder_.Alt(std::move(ways));
}

}  // namespace quartet::text
