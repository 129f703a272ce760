#include "services/gateway/text/template/filters.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/template/methods.h"
#include "services/gateway/text/template/operators.h"
#include "services/gateway/text/template/tests.h"
#include "services/gateway/text/unicode.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

// Short names: every filter has this signature.
using R = TemplateRuntime;
using A = TemplateArguments;

// Filters on text take any value and use what it prints.
std::string TextOf(const Value& value) {
  return PrintValue(value);
}

std::string CapitalizeText(std::string_view text) {
  if (text.empty()) return "";
  const size_t first = NextUtf8(text).bytes;
  return ToUpper(text.substr(0, first)) + ToLower(text.substr(first));
}

Value Capitalize(R& r, const Value& v, const A&) {
  return r.NewString(CapitalizeText(TextOf(v)));
}
Value Upper(R& r, const Value& v, const A&) {
  return r.NewString(ToUpper(TextOf(v)));
}
Value Lower(R& r, const Value& v, const A&) {
  return r.NewString(ToLower(TextOf(v)));
}
Value AsString(R& r, const Value& v, const A&) {
  return v.is_string() ? v : r.NewString(TextOf(v));
}
Value Unchanged(R&, const Value& v, const A&) {
  return v;
}

Value Title(R& r, const Value& v, const A&) {
  std::string out;
  std::string word;
  for (const char c : TextOf(v)) {
    const bool separator = c == ' ' || c == '-' || c == '(' || c == '[' || c == '{' || c == '<' ||
                           c == '\n' || c == '\t';
    if (separator) {
      out += CapitalizeText(word);
      out.push_back(c);
      word.clear();
    } else {
      word.push_back(c);
    }
  }
  return r.NewString(out + CapitalizeText(word));
}

Value Trim(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "trim", {"chars"})) return {};
  const Value* characters = a.Get(0, "chars");
  TemplateArguments arguments;
  if (characters != nullptr) arguments.positional.push_back(*characters);
  return CallMethod(r, r.NewString(TextOf(v)), "strip", arguments);
}

Value ToJsonFilter(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 4, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"})) {
    return {};
  }
  JsonStyle style;
  if (const Value* value = a.Get(0, "ensure_ascii")) style.ensure_ascii = value->Truthy();
  if (const Value* value = a.Get(1, "indent"); value != nullptr && !value->is_none()) {
    if (!value->is_integer() || value->integer() < 0 || value->integer() > 100) {
      return r.Fail("tojson: indent must be an integer from 0 to 100");
    }
    style.indent = static_cast<int>(value->integer());
  }
  if (const Value* value = a.Get(2, "separators"); value != nullptr && !value->is_none()) {
    if (!value->is_list() || value->list().size() != 2 || !value->list()[0].is_string() ||
        !value->list()[1].is_string()) {
      return r.Fail("tojson: separators must be a pair of strings");
    }
    style.item_separator = value->list()[0].string();
    style.key_separator = value->list()[1].string();
  }
  if (const Value* value = a.Get(3, "sort_keys")) style.sort_keys = value->Truthy();
  std::string out;
  if (absl::Status status = AppendJson(v, style, &out); !status.ok()) {
    return r.Fail(std::string(status.message()));
  }
  return r.NewString(std::move(out));
}

Value LengthFilter(R& r, const Value& v, const A&) {
  const std::optional<int64_t> length = Length(v);
  if (!length) return r.Fail(absl::StrCat("a value of type ", Av(v.TypeName()), " has no length"));
  return Value::Integer(*length);
}

// The attribute "a.b" or item number of a value.
Value Attribute(R& r, const Value& value, const Value& name) {
  if (!name.is_string()) return GetItem(r, value, name);
  Value current = value;
  std::string_view rest = name.string();
  while (true) {
    const size_t point = rest.find('.');
    const std::string_view part = rest.substr(0, point);
    int64_t index = 0;
    current = absl::SimpleAtoi(Av(part), &index) ? GetItem(r, current, Value::Integer(index))
                                                 : current.Get(part);
    if (point == std::string_view::npos) return current;
    rest.remove_prefix(point + 1);
  }
}

Value Join(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 2, "join", {"d", "attribute"})) return {};
  const Value* separator = a.Get(0, "d");
  const Value* attribute = a.Get(1, "attribute");
  const std::string between = separator == nullptr ? "" : TextOf(*separator);
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(r, v)) {
    if (!first) out += between;
    first = false;
    out += TextOf(attribute == nullptr ? item : Attribute(r, item, *attribute));
    if (out.size() > r.bytes_max()) break;
  }
  return r.NewString(std::move(out));
}

Value Items(R& r, const Value& v, const A&) {
  if (v.is_undefined()) return r.NewList({});
  if (!v.is_object()) {
    return r.Fail(absl::StrCat("items needs a mapping, got a value of type ", Av(v.TypeName())));
  }
  return CallMethod(r, v, "items", {});
}

Value Default(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 2, "default", {"default_value", "boolean"})) return {};
  const Value* otherwise = a.Get(0, "default_value");
  const Value* boolean = a.Get(1, "boolean");
  const bool use = v.is_undefined() || (boolean != nullptr && boolean->Truthy() && !v.Truthy());
  if (!use) return v;
  return otherwise == nullptr ? Value::String("") : *otherwise;
}

Value Replace(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 3, "replace", {"old", "new", "count"})) return {};
  const Value* old_text = a.Get(0, "old");
  const Value* new_text = a.Get(1, "new");
  const Value* count = a.Get(2, "count");
  if (old_text == nullptr || new_text == nullptr) return r.Fail("replace needs two texts");
  TemplateArguments arguments;
  arguments.positional = {Value::String(TextOf(*old_text)), Value::String(TextOf(*new_text))};
  if (count != nullptr && !count->is_none()) arguments.positional.push_back(*count);
  return CallMethod(r, r.NewString(TextOf(v)), "replace", arguments);
}

Value First(R& r, const Value& v, const A&) {
  const Value::List items = Iterate(r, v);
  return items.empty() ? Value() : items.front();
}

Value Last(R& r, const Value& v, const A&) {
  const Value::List items = Iterate(r, v);
  return items.empty() ? Value() : items.back();
}

Value AsList(R& r, const Value& v, const A&) {
  return v.is_list() ? v : r.NewList(Iterate(r, v));
}

Value Reverse(R& r, const Value& v, const A&) {
  return GetSlice(r, v.is_object() ? AsList(r, v, {}) : v, std::nullopt, std::nullopt, -1);
}

Value AsInt(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "int", {"default"})) return {};
  const Value* otherwise = a.Get(0, "default");
  int64_t integer = 0;
  double number = 0.0;
  if (v.is_integer()) return v;
  if (v.is_bool()) return Value::Integer(v.boolean() ? 1 : 0);
  const bool text = v.is_string();
  if (text && absl::SimpleAtoi(Av(Strip(v.string())), &integer)) return Value::Integer(integer);
  if (text && !absl::SimpleAtod(Av(Strip(v.string())), &number)) number = NAN;
  if (v.is_number()) number = v.number();
  if ((text || v.is_number()) && std::fabs(number) < 9.2e18) {
    return Value::Integer(static_cast<int64_t>(number));
  }
  return otherwise == nullptr ? Value::Integer(0) : *otherwise;
}

Value AsFloat(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "float", {"default"})) return {};
  const Value* otherwise = a.Get(0, "default");
  double number = 0.0;
  if (v.is_number()) return Value::Float(v.number());
  if (v.is_string() && absl::SimpleAtod(Av(Strip(v.string())), &number))
    return Value::Float(number);
  return otherwise == nullptr ? Value::Float(0.0) : *otherwise;
}

Value Abs(R& r, const Value& v, const A&) {
  if (v.is_integer() && v.integer() >= 0) return v;
  if (v.is_integer()) {
    return Arithmetic(r, ArithmeticOp::kSubtract, Value::Integer(0), v);
  }
  if (v.is_number()) return Value::Float(std::fabs(v.number()));
  return r.Fail("abs needs a number");
}

Value Indent(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 3, "indent", {"width", "first", "blank"})) return {};
  const Value* width = a.Get(0, "width");
  const Value* first = a.Get(1, "first");
  const Value* blank = a.Get(2, "blank");
  std::string indent(4, ' ');
  if (width != nullptr && width->is_string()) {
    indent = width->string();
  } else if (width != nullptr) {
    if (!width->is_integer() || width->integer() < 0 || width->integer() > 1000) {
      return r.Fail("indent: width must be an integer from 0 to 1000 or a text");
    }
    indent.assign(static_cast<size_t>(width->integer()), ' ');
  }
  const bool indent_blank = blank != nullptr && blank->Truthy();
  const std::string text = TextOf(v);
  std::string out = first != nullptr && first->Truthy() ? indent : "";
  for (size_t i = 0; i < text.size(); ++i) {
    out.push_back(text[i]);
    if (text[i] != '\n') continue;
    const bool blank_line = i + 1 == text.size() || text[i + 1] == '\n';
    if (!blank_line || indent_blank) out += indent;
    if (out.size() > r.bytes_max()) break;
  }
  return r.NewString(std::move(out));
}

// select and reject test items; selectattr and rejectattr an attribute of them.
template <bool by_attribute, bool keep>
Value Choose(R& r, const Value& v, const A& a) {
  size_t next = by_attribute ? 1 : 0;
  if (a.positional.size() < next) return r.Fail("selectattr and rejectattr need an attribute");
  TestFunction test = nullptr;
  A arguments;
  if (a.positional.size() > next) {
    const Value& name = a.positional[next];
    if (name.is_string()) {
      const std::string& spelled = name.string();
      test = FindTest(spelled == "==" ? "eq" : spelled == "!=" ? "ne" : std::string_view(spelled));
    }
    if (test == nullptr) return r.Fail(absl::StrCat("there is no test '", TextOf(name), "'"));
    for (size_t i = next + 1; i < a.positional.size(); ++i) {
      arguments.positional.push_back(a.positional[i]);
    }
  }
  Value::List out;
  for (const Value& item : Iterate(r, v)) {
    const Value tested = by_attribute ? Attribute(r, item, a.positional[0]) : item;
    const bool holds = test == nullptr ? tested.Truthy() : test(r, tested, arguments);
    if (r.failed()) return {};
    if (holds == keep) out.push_back(item);
  }
  return r.NewList(std::move(out));
}

Value Map(R& r, const Value& v, const A& a) {
  const Value* attribute = a.positional.empty() ? a.Get(0, "attribute") : nullptr;
  const Value* otherwise = attribute == nullptr ? nullptr : a.Get(1, "default");
  FilterFunction filter = nullptr;
  A arguments;
  if (attribute == nullptr) {
    if (a.positional.empty() || !a.positional[0].is_string()) {
      return r.Fail("map needs the name of a filter, or attribute=");
    }
    filter = FindFilter(a.positional[0].string());
    if (filter == nullptr) {
      return r.Fail(absl::StrCat("there is no filter '", a.positional[0].string(), "'"));
    }
    arguments.positional.assign(a.positional.begin() + 1, a.positional.end());
    arguments.keyword = a.keyword;
  }
  Value::List out;
  for (const Value& item : Iterate(r, v)) {
    if (!r.Charge(1)) return {};
    if (filter != nullptr) {
      out.push_back(filter(r, item, arguments));
    } else {
      Value found = Attribute(r, item, *attribute);
      out.push_back(found.is_undefined() && otherwise != nullptr ? *otherwise : std::move(found));
    }
    if (r.failed()) return {};
  }
  return r.NewList(std::move(out));
}

struct Entry {
  std::string_view name;
  FilterFunction function;
};

constexpr Entry kFilters[] = {
    {"abs", Abs},
    {"capitalize", Capitalize},
    {"count", LengthFilter},
    {"d", Default},
    {"default", Default},
    {"first", First},
    {"float", AsFloat},
    {"indent", Indent},
    {"int", AsInt},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", LengthFilter},
    {"list", AsList},
    {"lower", Lower},
    {"map", Map},
    {"reject", Choose<false, false>},
    {"rejectattr", Choose<true, false>},
    {"replace", Replace},
    {"reverse", Reverse},
    {"safe", Unchanged},
    {"select", Choose<false, true>},
    {"selectattr", Choose<true, true>},
    {"string", AsString},
    {"title", Title},
    {"tojson", ToJsonFilter},
    {"trim", Trim},
    {"upper", Upper},
};

}  // namespace

FilterFunction FindFilter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace quartet::text
