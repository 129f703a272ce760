#include "services/gateway/text/template/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/unicode.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

using Kind = TemplateToken::Kind;

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsNamePart(char c) {
  return IsNameStart(c) || IsDigit(c);
}
bool IsSpace(char c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D);
}

constexpr std::array<std::string_view, 7> kLongOperators = {
    "**", "//", "==", "!=", ">=", "<=", "->"};
constexpr std::string_view kShortOperators = "+-*/%~[](){}<>=.:|,;";

// CR LF and CR become LF, as a template file is read in text mode; one line break at the end is
// dropped.
std::string NormaliseLineBreaks(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, std::string_view name) : source_(std::move(source)), name_(name) {}

  absl::StatusOr<std::vector<TemplateToken>> Run() {
    while (position_ < source_.size() && error_.empty()) Text();
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    Add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Fail(std::string_view what) {
    if (error_.empty()) error_ = absl::StrCat(name_, ":", line_, ": ", Av(what));
  }

  void Add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  // Moves on, counting lines.
  void Skip(size_t bytes) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(position_),
                   source_.begin() + static_cast<ptrdiff_t>(position_ + bytes), '\n'));
    position_ += bytes;
  }

  std::string_view Rest() const { return std::string_view(source_).substr(position_); }
  bool At(std::string_view text) const { return Rest().substr(0, text.size()) == text; }

  void SkipSpace() {
    while (position_ < source_.size() && IsSpace(source_[position_])) Skip(1);
  }

  // The text before a tag that begins with `mark` ('{', '%' or '#'), shortened as the tag's sign or
  // lstrip_blocks say.
  void EmitText(std::string_view text, char mark, char sign) {
    const size_t begin = position_;
    const bool line_start = begin == 0 || source_[begin - 1] == '\n';
    std::string_view kept = text;
    if (sign == '-') {
      kept = StripRight(text);
    } else if (sign != '+' && mark != '{') {
      const size_t line_break = text.rfind('\n');
      const size_t tail = line_break == std::string_view::npos ? 0 : line_break + 1;
      if ((tail > 0 || line_start) && Strip(text.substr(tail)).empty()) kept = text.substr(0, tail);
    }
    if (!kept.empty()) Add(Kind::kText, std::string(kept));
    Skip(text.size());
  }

  // After a tag's closing mark: `sign` is the one before the mark. Blocks and comments also swallow
  // one line break.
  void SkipAfterTag(char sign, bool trims) {
    if (sign == '-') {
      while (position_ < source_.size()) {
        const Utf8Step step = NextUtf8(Rest());
        if (!IsPythonSpace(step.code_point)) break;
        Skip(step.bytes);
      }
    } else if (trims && sign != '+' && At("\n")) {
      Skip(1);
    }
  }

  static char SignOf(std::string_view rest) {
    return rest.size() > 2 && (rest[2] == '-' || rest[2] == '+') ? rest[2] : '\0';
  }

  // Text up to the next tag, and that tag.
  void Text() {
    const std::string_view rest = Rest();
    size_t at = 0;
    while (true) {
      at = rest.find('{', at);
      if (at == std::string_view::npos || at + 1 >= rest.size()) {
        Add(Kind::kText, std::string(rest));
        Skip(rest.size());
        return;
      }
      const char mark = rest[at + 1];
      if (mark == '{' || mark == '%' || mark == '#') break;
      ++at;
    }
    const char mark = rest[at + 1];
    const char sign = SignOf(rest.substr(at));
    EmitText(rest.substr(0, at), mark, sign);
    if (mark == '#') {
      Comment();
    } else if (mark == '%' && RawBlock()) {
      return;
    } else {
      Add(mark == '{' ? Kind::kPrintBegin : Kind::kBlockBegin, "");
      Skip(sign == '\0' ? 2 : 3);
      Tag(mark == '{');
    }
  }

  void Comment() {
    const size_t begin = SignOf(Rest()) == '\0' ? 2 : 3;
    const size_t end = Rest().find("#}", begin);
    if (end == std::string_view::npos) return Fail("a comment does not end: '#}' is missing");
    const char last = end > begin ? source_[position_ + end - 1] : '\0';
    Skip(end + 2);
    SkipAfterTag(last == '-' || last == '+' ? last : '\0', true);
  }

  // Length of "{%- word -%}" at `at`, with its signs; 0 if it is something else.
  size_t WordTag(size_t at, std::string_view word, char* open, char* close) const {
    const std::string_view text = std::string_view(source_).substr(at);
    if (text.substr(0, 2) != "{%") return 0;
    *open = SignOf(text);
    size_t i = *open == '\0' ? 2 : 3;
    while (i < text.size() && IsSpace(text[i])) ++i;
    if (text.substr(i, word.size()) != word) return 0;
    i += word.size();
    while (i < text.size() && IsSpace(text[i])) ++i;
    *close = '\0';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) *close = text[i++];
    return text.substr(i, 2) == "%}" ? i + 2 : 0;
  }

  bool RawBlock() {
    char open;
    char close;
    const size_t begin = WordTag(position_, "raw", &open, &close);
    if (begin == 0) return false;
    Skip(begin);
    SkipAfterTag(close, false);
    for (size_t at = source_.find("{%", position_); at != std::string::npos;
         at = source_.find("{%", at + 1)) {
      const size_t bytes = WordTag(at, "endraw", &open, &close);
      if (bytes == 0) continue;
      EmitText(std::string_view(source_).substr(position_, at - position_), '%', open);
      Skip(bytes);
      SkipAfterTag(close, true);
      return true;
    }
    Fail("a raw block does not end: '{% endraw %}' is missing");
    return true;
  }

  // Everything inside a tag, and its end. Inside brackets '}}' and '%}' are no ends.
  void Tag(bool print) {
    const std::string_view end = print ? "}}" : "%}";
    int brackets = 0;
    while (error_.empty()) {
      SkipSpace();
      if (position_ == source_.size()) {
        return Fail(absl::StrCat("a tag does not end: '", Av(end), "' is missing"));
      }
      if (brackets == 0) {
        const char sign = source_[position_];
        const bool signed_end = (sign == '-' || sign == '+') && Rest().substr(1, 2) == end;
        if (signed_end || At(end)) {
          Add(print ? Kind::kPrintEnd : Kind::kBlockEnd, "");
          Skip(signed_end ? 3 : 2);
          return SkipAfterTag(signed_end ? sign : '\0', !print);
        }
      }
      Word(&brackets);
    }
  }

  void Word(int* brackets) {
    const char c = source_[position_];
    if (IsNameStart(c)) {
      size_t bytes = 1;
      while (bytes < Rest().size() && IsNamePart(Rest()[bytes])) ++bytes;
      Add(Kind::kName, std::string(Rest().substr(0, bytes)));
      return Skip(bytes);
    }
    if (IsDigit(c)) return Number();
    if (c == '"' || c == '\'') return QuotedString(c);
    for (const std::string_view op : kLongOperators) {
      if (At(op)) {
        Add(Kind::kOperator, std::string(op));
        return Skip(op.size());
      }
    }
    if (kShortOperators.find(c) == std::string_view::npos) {
      const size_t bytes = NextUtf8(Rest()).bytes;
      return Fail(absl::StrCat("unexpected character '", Av(Rest().substr(0, bytes)), "'"));
    }
    if (c == '(' || c == '[' || c == '{') ++*brackets;
    if (c == ')' || c == ']' || c == '}') {
      if (*brackets == 0) return Fail(absl::StrCat("unexpected '", std::string(1, c), "'"));
      --*brackets;
    }
    Add(Kind::kOperator, std::string(1, c));
    Skip(1);
  }

  void Number() {
    const std::string_view rest = Rest();
    size_t bytes = 0;
    const auto digits = [&] {
      while (bytes < rest.size() && (IsDigit(rest[bytes]) || rest[bytes] == '_')) ++bytes;
    };
    digits();
    bool is_float = false;
    // In a.0.b the digits after the first point are an index, not the beginning of a fraction.
    const bool after_point = position_ > 0 && source_[position_ - 1] == '.';
    if (!after_point && bytes + 1 < rest.size() && rest[bytes] == '.' && IsDigit(rest[bytes + 1])) {
      is_float = true;
      ++bytes;
      digits();
    }
    if (!after_point && bytes < rest.size() && (rest[bytes] == 'e' || rest[bytes] == 'E')) {
      size_t exponent = bytes + 1;
      if (exponent < rest.size() && (rest[exponent] == '+' || rest[exponent] == '-')) ++exponent;
      if (exponent < rest.size() && IsDigit(rest[exponent])) {
        is_float = true;
        bytes = exponent;
        digits();
      }
    }
    std::string text(rest.substr(0, bytes));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(is_float ? Kind::kFloat : Kind::kInteger, std::move(text));
    Skip(bytes);
  }

  void QuotedString(char quote) {
    const int first_line = line_;
    std::string out;
    size_t i = position_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        if (!Escape(&i, &out)) return Fail("a string holds an incomplete \\x or \\u escape");
      } else {
        out.push_back(source_[i++]);
      }
    }
    if (i >= source_.size()) return Fail("a string does not end");
    Skip(i + 1 - position_);
    tokens_.push_back({Kind::kString, std::move(out), first_line});
  }

  // `*i` is at a backslash that is not the last character.
  bool Escape(size_t* i, std::string* out) const {
    const char c = source_[*i + 1];
    *i += 2;
    constexpr std::string_view kFrom = "ntrabfv\\'\"";
    constexpr std::string_view kTo = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t at = kFrom.find(c); at != std::string_view::npos) {
      out->push_back(kTo[at]);
      return true;
    }
    if (c == '\n') return true;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      char32_t value = 0;
      for (size_t k = 0; k < digits; ++k, ++*i) {
        const char d = *i < source_.size() ? source_[*i] : '\0';
        const bool letter = (d >= 'a' && d <= 'f') || (d >= 'A' && d <= 'F');
        if (!IsDigit(d) && !letter) return false;
        value = value * 16 + static_cast<char32_t>(IsDigit(d) ? d - '0' : (d | 0x20) - 'a' + 10);
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return false;
      AppendUtf8(value, out);
      return true;
    }
    out->push_back('\\');
    out->push_back(c);
    return true;
  }

  const std::string source_;
  const std::string name_;
  size_t position_ = 0;
  int line_ = 1;
  std::vector<TemplateToken> tokens_;
  std::string error_;
};

}  // namespace

absl::StatusOr<std::vector<TemplateToken>> TokenizeTemplate(std::string_view source,
                                                            std::string_view name) {
  if (!IsValidUtf8(source)) {
    return absl::InvalidArgumentError(absl::StrCat(Av(name), ": the template is not valid UTF-8"));
  }
  return Lexer(NormaliseLineBreaks(source), name).Run();
}

}  // namespace quartet::text
