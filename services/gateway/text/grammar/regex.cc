#include "services/gateway/text/grammar/regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

using grammar::CharSet;
using grammar::Expr;
using grammar::kUnlimited;

constexpr int kDepthMax = 64;
// Each makes the automaton of a class larger.
constexpr size_t kClassRangesMax = 256;

CharSet Digits() {
  return CharSet::Of('0', '9');
}
CharSet WordCharacters() {
  return Digits() | CharSet::Of('a', 'z') | CharSet::Of('A', 'Z') | CharSet::Of('_');
}
CharSet AsciiSpace() {
  return CharSet::Of('\t', '\r') | CharSet::Of(' ');
}
// What any dialect calls white space, for the complement.
CharSet AllSpace() {
  return AsciiSpace() | CharSet::Of(0x1C, 0x1F) | CharSet::Of(0x85) | CharSet::Of(0xA0) |
         CharSet::Of(0x1680) | CharSet::Of(0x2000, 0x200A) | CharSet::Of(0x2028, 0x2029) |
         CharSet::Of(0x202F) | CharSet::Of(0x205F) | CharSet::Of(0x3000) | CharSet::Of(0xFEFF);
}
CharSet Ascii() {
  return CharSet::Of(0, 0x7F);
}
// Dialects differ in which letters and digits beyond ASCII are \w and \d. These are not in any:
// large blocks without digits, and punctuation.
CharSet NoDigits() {
  return (Ascii() & ~Digits()) | CharSet::Of(0x80, 0x65F) | CharSet::Of(0x1E00, 0x206F) |
         CharSet::Of(0x3000, 0xA61F);
}
CharSet NoWordCharacters() {
  return (Ascii() & ~WordCharacters()) | CharSet::Of(0xA1, 0xA9) | CharSet::Of(0xAB, 0xB1) |
         CharSet::Of(0x2010, 0x2027) | CharSet::Of(0x2030, 0x203E) | CharSet::Of(0x2041, 0x2053) |
         CharSet::Of(0x2055, 0x205E) | CharSet::Of(0x3001, 0x3003) | CharSet::Of(0x3008, 0x3011);
}
CharSet LineEnds() {
  return CharSet::Of('\n') | CharSet::Of('\r') | CharSet::Of(0x2028, 0x2029);
}

bool Nullable(const Regex& regex) {
  switch (regex.kind) {
    case Regex::Kind::kEmpty:
      return true;
    case Regex::Kind::kCharacter:
      return false;
    case Regex::Kind::kSequence:
      return std::all_of(regex.parts.begin(), regex.parts.end(), Nullable);
    case Regex::Kind::kEither:
      return std::any_of(regex.parts.begin(), regex.parts.end(), Nullable);
    case Regex::Kind::kRepeat:
      return regex.min == 0 || Nullable(regex.parts[0]);
  }
  return true;
}

// The same without the empty text, where that is simple to say.
std::optional<Regex> WithoutEmpty(const Regex& regex) {
  if (!Nullable(regex)) return regex;
  if (regex.kind == Regex::Kind::kRepeat && !Nullable(regex.parts[0])) {
    Regex some = regex;
    some.min = 1;
    return some;
  }
  if (regex.kind == Regex::Kind::kEither) {
    Regex some{.kind = Regex::Kind::kEither};
    for (const Regex& part : regex.parts) {
      if (part.kind == Regex::Kind::kEmpty) continue;
      std::optional<Regex> some_part = WithoutEmpty(part);
      if (!some_part) return std::nullopt;
      some.parts.push_back(*std::move(some_part));
    }
    if (!some.parts.empty()) return some;
  }
  if (regex.kind == Regex::Kind::kSequence && regex.parts.size() == 1) {
    return WithoutEmpty(regex.parts[0]);
  }
  return std::nullopt;
}

// A class of characters where dialects differ: what is in it in all of them, and in any.
struct ClassOf {
  CharSet all;
  CharSet any;
};

// Recursive descent; the depth limit bounds the stack. After a failure error_ is set and what is
// returned does not matter.
class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : text_(pattern) {}

  absl::StatusOr<std::vector<RegexWay>> Parse() {
    if (text_.size() > kRegexBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("the regular expression has ", text_.size(),
                                                     " bytes, at most ", kRegexBytesMax));
    }
    if (!IsValidUtf8(text_)) {
      return absl::InvalidArgumentError("the regular expression is not valid UTF-8");
    }
    std::vector<RegexWay> ways;
    do {
      RegexWay way;
      while (Take("^")) way.at_start = true;
      way.regex = Sequence(0, &way.at_end);
      ways.push_back(std::move(way));
    } while (error_.empty() && Take("|"));
    if (error_.empty() && at_ < text_.size()) Fail("a ) without a (");
    if (!error_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the regular expression has ", error_, " at byte ", error_at_));
    }
    return ways;
  }

 private:
  Regex Fail(std::string_view what) {
    if (error_.empty()) {
      error_ = what;
      error_at_ = at_;
    }
    at_ = text_.size();
    return {};
  }

  bool Take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }

  char32_t TakeCharacter() {
    const Utf8Step step = NextUtf8(text_.substr(at_));
    at_ += step.bytes;
    return step.code_point;
  }

  static Regex Character(CharSet set) {
    return {.kind = Regex::Kind::kCharacter, .set = std::move(set)};
  }

  Regex Either(int depth) {
    Regex either{.kind = Regex::Kind::kEither};
    do {
      either.parts.push_back(Sequence(depth, nullptr));
    } while (error_.empty() && Take("|"));
    return either.parts.size() == 1 ? std::move(either.parts[0]) : either;
  }

  // `at_end` says whether it ended with $, and is null where it may not.
  Regex Sequence(int depth, bool* at_end) {
    Regex sequence{.kind = Regex::Kind::kSequence};
    while (error_.empty() && at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_[at_] == '$') {
        const bool last = at_ + 1 == text_.size() || text_[at_ + 1] == '|' || text_[at_ + 1] == '$';
        if (at_end == nullptr || !last) return Fail("a $ that is not at the end of all");
        ++at_;
        *at_end = true;
        continue;
      }
      sequence.parts.push_back(Repeated(Atom(depth)));
    }
    if (sequence.parts.empty()) return {};
    return sequence.parts.size() == 1 ? std::move(sequence.parts[0]) : sequence;
  }

  std::optional<uint32_t> Count() {
    const size_t begin = at_;
    uint32_t count = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      count = std::min(count * 10 + static_cast<uint32_t>(text_[at_] - '0'), kRegexRepeatMax + 1);
      ++at_;
    }
    return at_ == begin ? std::nullopt : std::optional(count);
  }

  // What follows an atom.
  Regex Repeated(Regex atom) {
    if (!error_.empty() || at_ == text_.size()) return atom;
    uint32_t min = 0;
    uint32_t max = kUnlimited;
    if (Take("+")) {
      min = 1;
    } else if (Take("?")) {
      max = 1;
    } else if (Take("{")) {
      const std::optional<uint32_t> from = Count();
      if (!from) return Fail("a { without a count; write \\{ for the character");
      min = max = *from;
      if (Take(",")) max = Count().value_or(kUnlimited);
      if (!Take("}")) return Fail("a { without a count; write \\{ for the character");
      if (min > kRegexRepeatMax || (max > kRegexRepeatMax && max != kUnlimited)) {
        return Fail(absl::StrCat("a count above ", kRegexRepeatMax));
      }
      if (min > max) return Fail("a repetition whose least count is above its most");
    } else if (!Take("*")) {
      return atom;
    }
    if (Take("+")) return Fail("a possessive repetition, which is not supported");
    Take("?");  // lazy: the same texts
    if (at_ < text_.size() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')) {
      return Fail("a repetition of a repetition");
    }
    if (Nullable(atom) && max > 1) {
      std::optional<Regex> some = WithoutEmpty(atom);
      if (!some) return Fail("a repetition of what can be empty, which is not supported");
      atom = *std::move(some);
      min = 0;
    }
    Regex repeat{.kind = Regex::Kind::kRepeat, .min = min, .max = max};
    repeat.parts.push_back(std::move(atom));
    return repeat;
  }

  Regex Atom(int depth) {
    if (depth > kDepthMax) return Fail(absl::StrCat("more than ", kDepthMax, " nested groups"));
    if (Take("(")) return Group(depth);
    if (Take("[")) return Class();
    if (Take(".")) return Character(~LineEnds());
    if (Take("\\")) return Character(Escape().all);
    const char c = text_[at_];
    if (c == '*' || c == '+' || c == '?') return Fail("a repetition of nothing");
    if (c == '{') return Fail("a { without anything before it; write \\{ for the character");
    if (c == '^') return Fail("a ^ that is not at the beginning of all");
    return Character(CharSet::Of(TakeCharacter()));
  }

  Regex Group(int depth) {
    if (Take("?")) {
      if (Take("<=") || Take("<!")) return Fail("looking behind, which is not supported");
      if (Take("=") || Take("!")) return Fail("looking ahead, which is not supported");
      if (Take("P<") || Take("<")) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return Fail("a group's name without an end");
        at_ = end + 1;
      } else if (!Take(":")) {
        return Fail("a kind of group or flag that is not supported");
      }
    }
    Regex inner = Either(depth + 1);
    if (error_.empty() && !Take(")")) return Fail("a ( without a )");
    return inner;
  }

  char32_t Hex(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<char32_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        value = value * 16 + static_cast<char32_t>((c | 0x20) - 'a' + 10);
      } else {
        Fail("too few hexadecimal digits");
        return 0;
      }
      ++at_;
    }
    return value;
  }

  // Behind "\u". A pair of escaped surrogates is one character.
  char32_t UnicodeEscape() {
    if (Take("{")) {
      const size_t end = text_.find('}', at_);
      if (end == std::string_view::npos || end - at_ > 6 || end == at_) {
        Fail("a \\u{ without 1 to 6 hexadecimal digits and a }");
        return 0;
      }
      const char32_t c = Hex(end - at_);
      Take("}");
      return c;
    }
    const char32_t unit = Hex(4);
    if (unit < 0xD800 || unit > 0xDFFF) return unit;
    const char32_t low = unit < 0xDC00 && Take("\\u") ? Hex(4) : 0;
    if (low < 0xDC00 || low > 0xDFFF) {
      Fail("half of a surrogate pair");
      return 0;
    }
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
  }

  // Behind a backslash: a class of characters, or one.
  ClassOf Escape() {
    if (at_ == text_.size()) {
      Fail("a \\ at its end");
      return {};
    }
    const char32_t c = TakeCharacter();
    switch (c) {
      case 'd':
        return {Digits(), ~NoDigits()};
      case 'D':
        return {NoDigits(), ~Digits()};
      case 'w':
        return {WordCharacters(), ~NoWordCharacters()};
      case 'W':
        return {NoWordCharacters(), ~WordCharacters()};
      case 's':
        return {AsciiSpace(), AllSpace()};
      case 'S':
        return {~AllSpace(), ~AsciiSpace()};
      default:
        return One(EscapedCharacter(c));
    }
  }

  static ClassOf One(const CharSet& set) { return {set, set}; }

  CharSet EscapedCharacter(char32_t c) {
    switch (c) {
      case 'n':
        return CharSet::Of('\n');
      case 'r':
        return CharSet::Of('\r');
      case 't':
        return CharSet::Of('\t');
      case 'f':
        return CharSet::Of('\f');
      case 'v':
        return CharSet::Of('\v');
      case '0':
        return CharSet::Of(0);
      case 'x':
        return CharSet::Of(Hex(2));
      case 'u':
        return CharSet::Of(UnicodeEscape());
      default:
        break;
    }
    const bool letter_or_digit = WordCharacters().Contains(c) && c != '_';
    if (letter_or_digit) {
      const char name = static_cast<char>(c);
      if (name >= '1' && name <= '9') {
        Fail("a reference to a group, which is not supported");
      } else {
        Fail(absl::StrCat("\\", std::string(1, name), ", which is not supported"));
      }
      return {};
    }
    return CharSet::Of(c);
  }

  // One member of a class, or nothing at its end.
  ClassOf ClassMember() {
    if (!Take("\\")) return One(CharSet::Of(TakeCharacter()));
    return Take("b") ? One(CharSet::Of('\b')) : Escape();
  }

  static std::optional<char32_t> OnlyCharacter(const CharSet& set) {
    const bool one = set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last;
    return one ? std::optional(set.ranges()[0].first) : std::nullopt;
  }

  Regex Class() {
    const bool negated = Take("^");
    ClassOf set;
    while (error_.empty() && !Take("]")) {
      if (at_ == text_.size()) return Fail("a [ without a ]");
      ClassOf member = ClassMember();
      const bool range = at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']';
      if (range) {
        ++at_;
        const std::optional<char32_t> first = OnlyCharacter(member.all);
        const std::optional<char32_t> last = OnlyCharacter(ClassMember().all);
        if (!error_.empty()) return {};
        if (!first || !last || *first > *last) return Fail("a range of characters without sense");
        member = One(CharSet::Of(*first, *last));
      }
      set = {set.all | member.all, set.any | member.any};
      if (std::max(set.all.ranges().size(), set.any.ranges().size()) > kClassRangesMax) {
        return Fail(absl::StrCat("a class of more than ", kClassRangesMax, " ranges"));
      }
    }
    CharSet allowed = negated ? ~set.any : std::move(set.all);
    if (error_.empty() && allowed.empty()) return Fail("a class without characters");
    return Character(std::move(allowed));
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string error_;
  size_t error_at_ = 0;
};

class RegexWriter {
 public:
  RegexWriter(const RegexOptions& options, grammar::GrammarBuilder* builder, JsonText* json)
      : options_(options), builder_(*builder), json_(*json) {}

  Expr Write(const Regex& regex) {
    switch (regex.kind) {
      case Regex::Kind::kEmpty:
        return builder_.Empty();
      case Regex::Kind::kCharacter:
        return Characters(regex.set, 1, 1);
      case Regex::Kind::kSequence: {
        std::vector<Expr> parts;
        for (const Regex& part : regex.parts) parts.push_back(Write(part));
        return builder_.Seq(std::move(parts));
      }
      case Regex::Kind::kEither: {
        std::vector<Expr> parts;
        for (const Regex& part : regex.parts) parts.push_back(Write(part));
        return builder_.Alt(std::move(parts));
      }
      case Regex::Kind::kRepeat:
        if (regex.parts[0].kind == Regex::Kind::kCharacter) {
          return Characters(regex.parts[0].set, regex.min, regex.max);
        }
        return builder_.Repeat(Write(regex.parts[0]), regex.min, regex.max);
    }
    return builder_.Never();
  }

  Expr Characters(const CharSet& set, uint32_t min, uint32_t max) {
    const CharSet allowed = options_.without.empty() ? set : set & ~options_.without;
    const bool one = allowed.ranges().size() == 1 &&
                     allowed.ranges()[0].first == allowed.ranges()[0].last && min == 1 && max == 1;
    if (one) {
      std::string character;
      AppendUtf8(allowed.ranges()[0].first, &character);
      if (options_.form == TextForm::kRaw) return builder_.Literal(character);
      std::string quoted;
      AppendJsonString(character, &quoted);
      return builder_.Literal(std::string_view(quoted).substr(1, quoted.size() - 2));
    }
    return json_.Characters(allowed, min, max, options_.form);
  }

 private:
  const RegexOptions& options_;
  grammar::GrammarBuilder& builder_;
  JsonText& json_;
};

}  // namespace

absl::StatusOr<std::vector<RegexWay>> ParseRegex(std::string_view pattern) {
  return RegexParser(pattern).Parse();
}

Expr RegexExpr(const std::vector<RegexWay>& ways, const RegexOptions& options,
               grammar::GrammarBuilder* builder, JsonText* json) {
  RegexWriter writer(options, builder, json);
  std::vector<Expr> exprs;
  for (const RegexWay& way : ways) {
    std::vector<Expr> parts;
    if (!options.whole && !way.at_start) {
      parts.push_back(writer.Characters(CharSet::All(), 0, kUnlimited));
    }
    parts.push_back(writer.Write(way.regex));
    if (!options.whole && !way.at_end) {
      parts.push_back(writer.Characters(CharSet::All(), 0, kUnlimited));
    }
    exprs.push_back(builder->Seq(std::move(parts)));
  }
  return builder->Alt(std::move(exprs));
}

}  // namespace quartet::text
