#include "services/gateway/text/json.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

// Recursive descent; the depth limit bounds the stack. After a failure error_ is set and every
// method returns at once.
class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  absl::StatusOr<Value> Parse() {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") {
      return absl::InvalidArgumentError(
          "invalid JSON at line 1, column 1: a byte order mark is not allowed; send the text "
          "without it");
    }
    Value value;
    SkipSpace();
    if (!ParseValue(0, &value)) return Error();
    SkipSpace();
    if (position_ != text_.size()) {
      Fail("unexpected text after the end of the value");
      return Error();
    }
    return value;
  }

 private:
  bool Fail(std::string_view what) {
    if (error_.empty()) {
      error_ = what;
      error_position_ = position_;
    }
    return false;
  }

  absl::Status Error() const {
    const std::string_view before = text_.substr(0, error_position_);
    const size_t line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t line_begin =
        before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    return absl::InvalidArgumentError(absl::StrFormat(
        "invalid JSON at line %d, column %d: %s", line, error_position_ - line_begin + 1, error_));
  }

  void SkipSpace() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n' ||
                                        text_[position_] == '\r' || text_[position_] == '\t')) {
      ++position_;
    }
  }

  bool Consume(char c) {
    if (position_ < text_.size() && text_[position_] == c) {
      ++position_;
      return true;
    }
    return false;
  }

  bool ParseValue(int depth, Value* out) {
    if (++values_ > kJsonValuesMax) {
      return Fail(absl::StrCat("more than ", kJsonValuesMax, " values"));
    }
    if (position_ == text_.size()) return Fail("the text ends where a value is expected");
    switch (text_[position_]) {
      case '{':
        return ParseObject(depth, out);
      case '[':
        return ParseList(depth, out);
      case '"': {
        std::string string;
        if (!ParseString(&string)) return false;
        *out = Value::String(std::move(string));
        return true;
      }
      case 't':
        return ParseWord("true", Value::Bool(true), out);
      case 'f':
        return ParseWord("false", Value::Bool(false), out);
      case 'n':
        return ParseWord("null", Value::None(), out);
      default:
        return ParseNumber(out);
    }
  }

  bool ParseWord(std::string_view word, Value value, Value* out) {
    if (text_.substr(position_, word.size()) != word) return Fail("unexpected word");
    position_ += word.size();
    *out = std::move(value);
    return true;
  }

  bool EnterLevel(int depth) {
    if (depth < kJsonDepthMax) return true;
    return Fail(absl::StrCat("nested deeper than ", kJsonDepthMax, " levels"));
  }

  bool ParseObject(int depth, Value* out) {
    if (!EnterLevel(depth)) return false;
    ++position_;
    Value::Entries entries;
    SkipSpace();
    if (!Consume('}')) {
      while (true) {
        SkipSpace();
        if (position_ == text_.size() || text_[position_] != '"') {
          return Fail("a key in double quotes is expected");
        }
        std::string key;
        Value value;
        if (!ParseString(&key)) return false;
        SkipSpace();
        if (!Consume(':')) return Fail("':' is expected after a key");
        SkipSpace();
        if (!ParseValue(depth + 1, &value)) return false;
        entries.emplace_back(std::move(key), std::move(value));
        SkipSpace();
        if (Consume('}')) break;
        if (!Consume(',')) return Fail("',' or '}' is expected");
      }
    }
    *out = Value::MakeObject(std::move(entries));
    return true;
  }

  bool ParseList(int depth, Value* out) {
    if (!EnterLevel(depth)) return false;
    ++position_;
    Value::List items;
    SkipSpace();
    if (!Consume(']')) {
      while (true) {
        Value value;
        SkipSpace();
        if (!ParseValue(depth + 1, &value)) return false;
        items.push_back(std::move(value));
        SkipSpace();
        if (Consume(']')) break;
        if (!Consume(',')) return Fail("',' or ']' is expected");
      }
    }
    *out = Value::MakeList(std::move(items));
    return true;
  }

  bool IsDigit() const {
    return position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9';
  }

  bool ParseNumber(Value* out) {
    const size_t begin = position_;
    Consume('-');
    if (!IsDigit()) {
      position_ = begin;
      return Fail("a value is expected");
    }
    if (!Consume('0')) {
      while (IsDigit()) ++position_;
    }
    if (Consume('.')) {
      if (!IsDigit()) return Fail("a digit is expected after the decimal point");
      while (IsDigit()) ++position_;
    }
    if (Consume('e') || Consume('E')) {
      if (!Consume('+')) Consume('-');
      if (!IsDigit()) return Fail("a digit is expected in the exponent");
      while (IsDigit()) ++position_;
    }
    *out = Value::NumberToken(text_.substr(begin, position_ - begin));
    return true;
  }

  std::optional<uint32_t> ParseHex4() {
    if (text_.size() - position_ < 4) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) {
      const char c = text_[position_ + i];
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if (c >= 'a' && c <= 'f') {
        value = value * 16 + (c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        value = value * 16 + (c - 'A' + 10);
      } else {
        return std::nullopt;
      }
    }
    position_ += 4;
    return value;
  }

  // After "\u".
  bool ParseUnicodeEscape(std::string* out) {
    const std::optional<uint32_t> unit = ParseHex4();
    if (!unit) return Fail("\\u needs four hexadecimal digits");
    char32_t c = *unit;
    if (c >= 0xD800 && c <= 0xDBFF && text_.substr(position_, 2) == "\\u") {
      const size_t before = position_;
      position_ += 2;
      const std::optional<uint32_t> low = ParseHex4();
      if (!low) return Fail("\\u needs four hexadecimal digits");
      if (*low >= 0xDC00 && *low <= 0xDFFF) {
        c = 0x10000 + ((c - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        position_ = before;  // the first was alone; the second is read again by itself
      }
    }
    if (c >= 0xD800 && c <= 0xDFFF) c = kReplacementCharacter;
    AppendUtf8(c, out);
    return true;
  }

  bool ParseString(std::string* out) {
    ++position_;
    while (true) {
      size_t end = position_;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
             static_cast<unsigned char>(text_[end]) >= 0x20 &&
             static_cast<unsigned char>(text_[end]) < 0x80) {
        ++end;
      }
      out->append(text_.substr(position_, end - position_));
      position_ = end;
      if (position_ == text_.size()) return Fail("a string does not end");
      const unsigned char c = static_cast<unsigned char>(text_[position_]);
      if (c == '"') {
        ++position_;
        return true;
      }
      if (c < 0x20) return Fail("a control character in a string must be escaped");
      if (c >= 0x80) {
        const Utf8Step step = NextUtf8(text_.substr(position_));
        if (step.kind != Utf8Step::Kind::kCharacter) return Fail("a string is not valid UTF-8");
        out->append(text_.substr(position_, step.bytes));
        position_ += step.bytes;
        continue;
      }
      if (!ParseEscape(out)) return false;
    }
  }

  bool ParseEscape(std::string* out) {
    ++position_;
    if (position_ == text_.size()) return Fail("a string does not end");
    const char c = text_[position_++];
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out->push_back(c);
        return true;
      case 'b':
        out->push_back('\b');
        return true;
      case 'f':
        out->push_back('\f');
        return true;
      case 'n':
        out->push_back('\n');
        return true;
      case 'r':
        out->push_back('\r');
        return true;
      case 't':
        out->push_back('\t');
        return true;
      case 'u':
        return ParseUnicodeEscape(out);
      default:
        --position_;
        return Fail("unknown escape in a string");
    }
  }

  std::string_view text_;
  size_t position_ = 0;
  int64_t values_ = 0;
  std::string error_;
  size_t error_position_ = 0;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, std::string* out) : style_(style), out_(out) {
    item_separator_ = style.item_separator;
    if (item_separator_.empty()) item_separator_ = style.spaces && style.indent < 0 ? ", " : ",";
    key_separator_ = style.key_separator;
    if (key_separator_.empty()) key_separator_ = style.spaces ? ": " : ":";
  }

  absl::Status Write(const Value& value, int level) {
    switch (value.type()) {
      case Value::Type::kUndefined:
      case Value::Type::kOpaque:
        return absl::InvalidArgumentError(
            absl::StrCat("a value of type ", Av(value.TypeName()), " cannot be written as JSON"));
      case Value::Type::kNone:
        out_->append("null");
        return absl::OkStatus();
      case Value::Type::kBool:
        out_->append(value.boolean() ? "true" : "false");
        return absl::OkStatus();
      case Value::Type::kInteger:
      case Value::Type::kFloat:
        if (value.has_spelling() || std::isfinite(value.number())) {
          out_->append(value.NumberText());
        } else {
          out_->append("null");
        }
        return absl::OkStatus();
      case Value::Type::kString:
        AppendJsonString(value.string(), out_, style_.ensure_ascii);
        return absl::OkStatus();
      case Value::Type::kList:
        return WriteList(value.list(), level);
      case Value::Type::kObject:
        return WriteObject(value.entries(), level);
    }
    return absl::OkStatus();
  }

 private:
  void NewLine(int level) {
    if (style_.indent < 0) return;
    out_->push_back('\n');
    out_->append(static_cast<size_t>(level) * static_cast<size_t>(style_.indent), ' ');
  }

  absl::Status WriteList(const Value::List& items, int level) {
    out_->push_back('[');
    bool first = true;
    for (const Value& item : items) {
      if (!first) out_->append(item_separator_);
      first = false;
      NewLine(level + 1);
      if (absl::Status status = Write(item, level + 1); !status.ok()) return status;
    }
    if (!items.empty()) NewLine(level);
    out_->push_back(']');
    return absl::OkStatus();
  }

  absl::Status WriteObject(const Value::Entries& entries, int level) {
    std::vector<const Value::Entry*> order;
    order.reserve(entries.size());
    for (const Value::Entry& entry : entries) order.push_back(&entry);
    if (style_.sort_keys) {
      std::sort(order.begin(), order.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out_->push_back('{');
    bool first = true;
    for (const Value::Entry* entry : order) {
      if (!first) out_->append(item_separator_);
      first = false;
      NewLine(level + 1);
      AppendJsonString(entry->first, out_, style_.ensure_ascii);
      out_->append(key_separator_);
      if (absl::Status status = Write(entry->second, level + 1); !status.ok()) return status;
    }
    if (!entries.empty()) NewLine(level);
    out_->push_back('}');
    return absl::OkStatus();
  }

  const JsonStyle& style_;
  std::string item_separator_;
  std::string key_separator_;
  std::string* out_;
};

// The noncharacters of which control token markers are made must survive, or the markers could not
// be undone.
bool IsMarkerCharacter(char32_t c) {
  return c >= 0xFDD0 && c <= 0xFDEF;
}

}  // namespace

absl::StatusOr<Value> ParseJson(std::string_view text) {
  return JsonParser(text).Parse();
}

absl::Status AppendJson(const Value& value, const JsonStyle& style, std::string* out) {
  return JsonWriter(style, out).Write(value, 0);
}

void AppendJsonString(std::string_view text, std::string* out, bool ensure_ascii) {
  out->push_back('"');
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !ensure_ascii)) {
      ++i;
      continue;
    }
    out->append(text.substr(begin, i - begin));
    size_t bytes = 1;
    switch (c) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      case '\b':
        out->append("\\b");
        break;
      case '\f':
        out->append("\\f");
        break;
      default: {
        const Utf8Step step = NextUtf8(text.substr(i));
        bytes = step.bytes;
        if (IsMarkerCharacter(step.code_point)) {
          out->append(text.substr(i, bytes));
        } else if (step.code_point >= 0x10000) {
          const char32_t rest = step.code_point - 0x10000;
          absl::StrAppendFormat(out, "\\u%04x\\u%04x", 0xD800 + (rest >> 10),
                                0xDC00 + (rest & 0x3FF));
        } else {
          absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(step.code_point));
        }
      }
    }
    i += bytes;
    begin = i;
  }
  out->append(text.substr(begin));
  out->push_back('"');
}

}  // namespace quartet::text
