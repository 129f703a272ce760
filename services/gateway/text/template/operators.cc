#include "services/gateway/text/template/operators.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// What Python's repr escapes: control and format characters, private use, and all separators but
// the space. Characters that no version of Unicode has assigned are left out: Python's own list of
// them changes with its version.
constexpr Range kUnprintable[] = {
    {0x0, 0x1F},        {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
    {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},
    {0x8E2, 0x8E2},     {0x1680, 0x1680},   {0x180E, 0x180E},   {0x2000, 0x200F},
    {0x2028, 0x202F},   {0x205F, 0x2064},   {0x2066, 0x206F},   {0x3000, 0x3000},
    {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},   {0x110BD, 0x110BD},
    {0x110CD, 0x110CD}, {0x13430, 0x13438}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
    {0xE0001, 0xE0001}, {0xE0020, 0xE007F}, {0xF0000, 0xFFFFD}, {0x100000, 0x10FFFD},
};

bool IsPrintable(char32_t c) {
  const auto* range = std::lower_bound(std::begin(kUnprintable), std::end(kUnprintable), c,
                                       [](const Range& r, char32_t x) { return r.last < x; });
  return range == std::end(kUnprintable) || c < range->first;
}

void AppendPythonString(std::string_view text, std::string* out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out->push_back(quote);
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const auto c = static_cast<uint32_t>(step.code_point);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (IsPrintable(step.code_point)) {
      out->append(text.substr(0, step.bytes));
    } else if (c < 0x100) {
      absl::StrAppendFormat(out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(out, "\\U%08x", c);
    }
    text.remove_prefix(step.bytes);
  }
  out->push_back(quote);
}

void AppendPrinted(const Value& value, bool inside, std::string* out) {
  switch (value.type()) {
    case Value::Type::kUndefined:
      if (inside) out->append("Undefined");
      return;
    case Value::Type::kNone:
      out->append("None");
      return;
    case Value::Type::kBool:
      out->append(value.boolean() ? "True" : "False");
      return;
    case Value::Type::kInteger:
    case Value::Type::kFloat:
      out->append(value.NumberText());
      return;
    case Value::Type::kString:
      if (inside) {
        AppendPythonString(value.string(), out);
      } else {
        out->append(value.string());
      }
      return;
    case Value::Type::kList: {
      out->push_back('[');
      bool first = true;
      for (const Value& item : value.list()) {
        if (!first) out->append(", ");
        first = false;
        AppendPrinted(item, true, out);
      }
      out->push_back(']');
      return;
    }
    case Value::Type::kObject: {
      out->push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.entries()) {
        if (!first) out->append(", ");
        first = false;
        AppendPythonString(key, out);
        out->append(": ");
        AppendPrinted(item, true, out);
      }
      out->push_back('}');
      return;
    }
    case Value::Type::kOpaque:
      out->append("<").append(value.TypeName()).append(">");
      return;
  }
}

std::string Describe(const Value& value) {
  return std::string(value.TypeName());
}

Value MismatchedTypes(TemplateRuntime& runtime, const char* op, const Value& a, const Value& b) {
  return runtime.Fail(
      absl::StrCat("'", op, "' cannot be applied to ", Describe(a), " and ", Describe(b)));
}

const char* Spelling(ArithmeticOp op) {
  constexpr const char* kNames[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kNames[static_cast<int>(op)];
}

std::optional<int64_t> AsInteger(const Value& value) {
  if (value.is_integer()) return value.integer();
  if (value.is_bool()) return value.boolean() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> AsNumber(const Value& value) {
  if (value.is_number()) return value.number();
  if (value.is_bool()) return value.boolean() ? 1.0 : 0.0;
  return std::nullopt;
}

Value IntegerArithmetic(TemplateRuntime& runtime, ArithmeticOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case ArithmeticOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case ArithmeticOp::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case ArithmeticOp::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case ArithmeticOp::kFloorDivide:
    case ArithmeticOp::kModulo: {
      if (b == 0) return runtime.Fail("division by zero");
      if (b == -1) {  // INT64_MIN / -1 overflows
        if (op == ArithmeticOp::kModulo) return Value::Integer(0);
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      // Python rounds towards minus infinity; the remainder has the sign of the divisor.
      const bool adjust = a % b != 0 && (a < 0) != (b < 0);
      result = op == ArithmeticOp::kModulo ? a % b + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
      break;
    }
    case ArithmeticOp::kPower: {
      if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
      result = 1;
      // More than 64 factors only ever fit for -1, 0 and 1.
      if (b > 64 && (a < -1 || a > 1)) overflow = true;
      const int64_t times = b > 64 ? 64 + (b & 1) : b;
      for (int64_t i = 0; i < times && !overflow; ++i) {
        overflow = __builtin_mul_overflow(result, a, &result);
      }
      break;
    }
    case ArithmeticOp::kDivide:
      break;  // gives a float, see below
  }
  if (overflow) return runtime.Fail("an integer does not fit 64 bits");
  return Value::Integer(result);
}

}  // namespace

std::string PrintValue(const Value& value) {
  std::string out;
  AppendPrinted(value, false, &out);
  return out;
}

Value Arithmetic(TemplateRuntime& runtime, ArithmeticOp op, const Value& a, const Value& b) {
  if (op == ArithmeticOp::kAdd && a.is_string() && b.is_string()) {
    return runtime.NewString(a.string() + b.string());
  }
  if (op == ArithmeticOp::kAdd && a.is_list() && b.is_list()) {
    Value::List items = a.list();
    items.insert(items.end(), b.list().begin(), b.list().end());
    return runtime.NewList(std::move(items));
  }
  if (op == ArithmeticOp::kMultiply && a.is_string() && b.is_integer()) {
    const size_t times = b.integer() > 0 ? static_cast<size_t>(b.integer()) : 0;
    if (!a.string().empty() && times > runtime.bytes_max() / a.string().size()) {
      return runtime.FailLimit(
          absl::StrCat("makes a text of more than ", runtime.bytes_max(), " bytes"));
    }
    std::string out;
    out.reserve(times * a.string().size());
    if (!a.string().empty()) {
      for (size_t i = 0; i < times; ++i) out += a.string();
    }
    return runtime.NewString(std::move(out));
  }
  const std::optional<int64_t> ia = AsInteger(a);
  const std::optional<int64_t> ib = AsInteger(b);
  if (ia && ib && op != ArithmeticOp::kDivide) return IntegerArithmetic(runtime, op, *ia, *ib);
  const std::optional<double> x = AsNumber(a);
  const std::optional<double> y = AsNumber(b);
  if (!x || !y) return MismatchedTypes(runtime, Spelling(op), a, b);
  switch (op) {
    case ArithmeticOp::kAdd:
      return Value::Float(*x + *y);
    case ArithmeticOp::kSubtract:
      return Value::Float(*x - *y);
    case ArithmeticOp::kMultiply:
      return Value::Float(*x * *y);
    case ArithmeticOp::kPower:
      return Value::Float(std::pow(*x, *y));
    default:
      break;
  }
  if (*y == 0.0) return runtime.Fail("division by zero");
  switch (op) {
    case ArithmeticOp::kDivide:
      return Value::Float(*x / *y);
    case ArithmeticOp::kFloorDivide:
      return Value::Float(std::floor(*x / *y));
    default:
      return Value::Float(*x - *y * std::floor(*x / *y));
  }
}

bool Compare(TemplateRuntime& runtime, CompareOp op, const Value& a, const Value& b) {
  if (!runtime.Charge(std::min(a.weight(), b.weight()) / 256)) return false;
  switch (op) {
    case CompareOp::kEqual:
      return a.Equals(b);
    case CompareOp::kNotEqual:
      return !a.Equals(b);
    case CompareOp::kIn:
    case CompareOp::kNotIn: {
      bool found = false;
      if (b.is_string() && a.is_string()) {
        if (!runtime.Charge(b.string().size() / 256)) return false;
        found = b.string().find(a.string()) != std::string::npos;
      } else if (b.is_list()) {
        if (!runtime.Charge(b.weight() / 64)) return false;
        for (const Value& item : b.list()) found = found || item.Equals(a);
      } else if (b.is_object()) {
        found = a.is_string() && b.Find(a.string()) != nullptr;
      } else if (!b.is_undefined()) {
        MismatchedTypes(runtime, "in", a, b);
      }
      return found == (op == CompareOp::kIn);
    }
    default:
      break;
  }
  int order = 0;
  const std::optional<double> x = AsNumber(a);
  const std::optional<double> y = AsNumber(b);
  if (a.is_string() && b.is_string()) {
    order = a.string().compare(b.string());
  } else if (a.is_integer() && b.is_integer()) {
    order = a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  } else if (x && y) {
    order = *x < *y ? -1 : *x > *y;
  } else {
    MismatchedTypes(runtime, "<", a, b);
    return false;
  }
  switch (op) {
    case CompareOp::kLess:
      return order < 0;
    case CompareOp::kLessEqual:
      return order <= 0;
    case CompareOp::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

Value GetItem(TemplateRuntime& runtime, const Value& container, const Value& key) {
  if (container.is_object()) {
    return key.is_string() ? container.Get(key.string()) : Value();
  }
  const std::optional<int64_t> wanted = AsInteger(key);
  if (!wanted) return {};
  int64_t index = *wanted;
  if (container.is_list()) {
    const int64_t size = static_cast<int64_t>(container.list().size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) return {};
    return container.list()[static_cast<size_t>(index)];
  }
  if (container.is_string()) {
    const std::string& text = container.string();
    if (!runtime.Charge(text.size() / 256)) return {};
    if (index < 0) index += static_cast<int64_t>(CountCodePoints(text));
    if (index < 0) return {};
    const size_t at = CodePointOffset(text, static_cast<size_t>(index));
    if (at >= text.size()) return {};
    return runtime.NewString(text.substr(at, NextUtf8(std::string_view(text).substr(at)).bytes));
  }
  return {};
}

Value GetSlice(TemplateRuntime& runtime, const Value& container, std::optional<int64_t> begin,
               std::optional<int64_t> end, int64_t step) {
  if (step == 0) return runtime.Fail("a slice needs a step other than 0");
  if (!container.is_list() && !container.is_string()) {
    return runtime.Fail(absl::StrCat("a value of type ", Describe(container), " cannot be sliced"));
  }
  const Value::List items = Iterate(runtime, container);
  if (runtime.failed()) return {};
  const int64_t size = static_cast<int64_t>(items.size());
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? size : size - 1;
  const auto bound = [&](std::optional<int64_t> wanted, int64_t otherwise) {
    if (!wanted) return otherwise;
    const int64_t from_start = *wanted < 0 ? *wanted + size : *wanted;
    return std::min(std::max(from_start, lowest), highest);
  };
  Value::List picked;
  const int64_t first = bound(begin, step > 0 ? lowest : highest);
  const int64_t last = bound(end, step > 0 ? highest : lowest);
  // Steps beyond the size behave alike; the clamp keeps the sum below from overflowing.
  const int64_t stride = std::min(std::max(step, -size - 1), size + 1);
  for (int64_t i = first; stride > 0 ? i < last : i > last; i += stride) {
    picked.push_back(items[static_cast<size_t>(i)]);
  }
  if (container.is_list()) return runtime.NewList(std::move(picked));
  std::string text;
  for (const Value& character : picked) text += character.string();
  return runtime.NewString(std::move(text));
}

Value::List Iterate(TemplateRuntime& runtime, const Value& value) {
  switch (value.type()) {
    case Value::Type::kUndefined:
      return {};
    case Value::Type::kList:
      if (!runtime.Charge(value.list().size() / 4)) return {};
      return value.list();
    case Value::Type::kObject: {
      if (!runtime.Charge(value.entries().size())) return {};
      Value::List keys;
      keys.reserve(value.entries().size());
      for (const auto& [key, item] : value.entries()) keys.push_back(Value::String(key));
      return keys;
    }
    case Value::Type::kString: {
      if (!runtime.Charge(value.string().size())) return {};
      Value::List characters;
      std::string_view rest = value.string();
      while (!rest.empty()) {
        const size_t bytes = NextUtf8(rest).bytes;
        characters.push_back(Value::String(std::string(rest.substr(0, bytes))));
        rest.remove_prefix(bytes);
      }
      return characters;
    }
    default:
      runtime.Fail(absl::StrCat("a value of type ", Describe(value), " cannot be iterated"));
      return {};
  }
}

std::optional<int64_t> Length(const Value& value) {
  switch (value.type()) {
    case Value::Type::kUndefined:
      return 0;
    case Value::Type::kString:
      return static_cast<int64_t>(CountCodePoints(value.string()));
    case Value::Type::kList:
      return static_cast<int64_t>(value.list().size());
    case Value::Type::kObject:
      return static_cast<int64_t>(value.entries().size());
    default:
      return std::nullopt;
  }
}

}  // namespace quartet::text
