#include "services/gateway/text/template/methods.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/template/operators.h"
#include "services/gateway/text/unicode.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

using R = TemplateRuntime;
using A = TemplateArguments;
using Method = Value (*)(R&, const Value&, const A&);

struct Entry {
  std::string_view name;
  Method function;
};

// Removes characters of `set` from the chosen ends; white space if there is no set.
std::string_view StripSet(std::string_view text, const std::string* set, bool left, bool right) {
  if (set == nullptr) {
    if (left) text = StripLeft(text);
    return right ? StripRight(text) : text;
  }
  while (left && !text.empty()) {
    const size_t bytes = NextUtf8(text).bytes;
    if (set->find(text.substr(0, bytes)) == std::string::npos) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (set->find(text.substr(begin)) == std::string::npos) break;
    text = text.substr(0, begin);
  }
  return text;
}

template <bool left, bool right>
Value StripMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "strip")) return {};
  const Value* set = a.Get(0, "");
  if (set != nullptr && !set->is_string() && !set->is_none()) return r.Fail("strip needs a text");
  const bool given = set != nullptr && set->is_string();
  return r.NewString(
      std::string(StripSet(v.string(), given ? &set->string() : nullptr, left, right)));
}

// The limit of a split or a replacement; -1 is none. False after a failure.
bool LimitArgument(R& r, const Value* value, int64_t* limit) {
  *limit = -1;
  if (value == nullptr || value->is_none()) return true;
  if (!value->is_integer()) {
    r.Fail("a count must be an integer");
    return false;
  }
  *limit = value->integer();
  return true;
}

Value SplitOnSpace(R& r, std::string_view text, int64_t limit) {
  Value::List parts;
  text = StripLeft(text);
  while (!text.empty() && limit != 0) {
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Step step = NextUtf8(text.substr(end));
      if (IsPythonSpace(step.code_point)) break;
      end += step.bytes;
    }
    parts.push_back(r.NewString(std::string(text.substr(0, end))));
    text = StripLeft(text.substr(end));
    --limit;
  }
  if (!text.empty()) parts.push_back(r.NewString(std::string(text)));
  return r.NewList(std::move(parts));
}

template <bool from_right>
Value SplitMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 2, "split", {"sep", "maxsplit"})) return {};
  const Value* separator = a.Get(0, "sep");
  int64_t limit = 0;
  if (!LimitArgument(r, a.Get(1, "maxsplit"), &limit)) return {};
  std::string_view text = v.string();
  if (!r.Charge(text.size() / 16)) return {};
  if (separator == nullptr || separator->is_none()) {
    if (from_right && limit >= 0) return r.Fail("rsplit with a count needs a separator");
    return SplitOnSpace(r, text, limit);
  }
  if (!separator->is_string() || separator->string().empty()) {
    return r.Fail("split needs a text that is not empty");
  }
  const std::string& between = separator->string();
  Value::List parts;
  while (limit != 0) {
    const size_t at = from_right ? text.rfind(between) : text.find(between);
    if (at == std::string_view::npos) break;
    const std::string_view part =
        from_right ? text.substr(at + between.size()) : text.substr(0, at);
    parts.push_back(Value::String(std::string(part)));
    text = from_right ? text.substr(0, at) : text.substr(at + between.size());
    --limit;
  }
  parts.push_back(Value::String(std::string(text)));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return r.NewList(std::move(parts));
}

Value SplitLines(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 0, "splitlines")) return {};
  Value::List lines;
  std::string_view text = v.string();
  while (!text.empty()) {
    const size_t end = text.find_first_of("\r\n");
    lines.push_back(Value::String(std::string(text.substr(0, end))));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + (text.substr(end, 2) == "\r\n" ? 2 : 1));
  }
  return r.NewList(std::move(lines));
}

template <bool at_start>
Value StartsOrEnds(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "startswith and endswith")) return {};
  if (a.positional.empty()) return r.Fail("startswith and endswith need a text");
  Value::List wanted = {a.positional[0]};
  if (wanted[0].is_list()) wanted = a.positional[0].list();
  const std::string_view text = v.string();
  for (const Value& item : wanted) {
    if (!item.is_string()) return r.Fail("startswith and endswith need a text");
    const size_t size = item.string().size();
    if (size > text.size()) continue;
    if ((at_start ? text.substr(0, size) : text.substr(text.size() - size)) == item.string()) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

Value UpperMethod(R& r, const Value& v, const A&) {
  return r.NewString(ToUpper(v.string()));
}
Value LowerMethod(R& r, const Value& v, const A&) {
  return r.NewString(ToLower(v.string()));
}

Value CapitalizeMethod(R& r, const Value& v, const A&) {
  const std::string_view text = v.string();
  if (text.empty()) return v;
  const size_t first = NextUtf8(text).bytes;
  return r.NewString(ToUpper(text.substr(0, first)) + ToLower(text.substr(first)));
}

Value ReplaceMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 3, "replace", {"count"})) return {};
  if (a.positional.size() < 2 || !a.positional[0].is_string() || !a.positional[1].is_string()) {
    return r.Fail("replace needs two texts");
  }
  int64_t limit = 0;
  if (!LimitArgument(r, a.Get(2, "count"), &limit)) return {};
  const std::string_view text = v.string();
  const std::string& from = a.positional[0].string();
  const std::string& to = a.positional[1].string();
  std::string out;
  size_t copied = 0;
  if (from.empty()) {
    // Python puts the new text between all characters.
    for (size_t i = 0; i <= text.size() && limit != 0 && out.size() <= r.bytes_max(); --limit) {
      out += to;
      const size_t bytes = i < text.size() ? NextUtf8(text.substr(i)).bytes : 0;
      out.append(text.substr(i, bytes));
      copied = i + bytes;
      i += bytes == 0 ? 1 : bytes;
    }
  } else {
    for (size_t at = text.find(from); at != std::string_view::npos && limit != 0;
         at = text.find(from, copied), --limit) {
      out.append(text.substr(copied, at - copied));
      out += to;
      copied = at + from.size();
      if (out.size() > r.bytes_max()) break;
    }
  }
  out.append(text.substr(std::min(copied, text.size())));
  return r.NewString(std::move(out));
}

Value FindMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "find")) return {};
  if (a.positional.empty() || !a.positional[0].is_string()) return r.Fail("find needs a text");
  if (!r.Charge(v.string().size() / 256)) return {};
  const size_t at = v.string().find(a.positional[0].string());
  if (at == std::string::npos) return Value::Integer(-1);
  return Value::Integer(
      static_cast<int64_t>(CountCodePoints(std::string_view(v.string()).substr(0, at))));
}

Value CountMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "count")) return {};
  if (a.positional.empty() || !a.positional[0].is_string() || a.positional[0].string().empty()) {
    return r.Fail("count needs a text that is not empty");
  }
  if (!r.Charge(v.string().size() / 256)) return {};
  const std::string& wanted = a.positional[0].string();
  int64_t count = 0;
  for (size_t at = v.string().find(wanted); at != std::string::npos;
       at = v.string().find(wanted, at + wanted.size())) {
    ++count;
  }
  return Value::Integer(count);
}

Value JoinMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 1, "join")) return {};
  if (a.positional.empty()) return r.Fail("join needs a list");
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(r, a.positional[0])) {
    if (!item.is_string()) return r.Fail("join needs a list of texts");
    if (!first) out += v.string();
    first = false;
    out += item.string();
    if (out.size() > r.bytes_max()) break;
  }
  return r.NewString(std::move(out));
}

Value ItemsMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 0, "items")) return {};
  Value::List out;
  out.reserve(v.entries().size());
  for (const auto& [key, value] : v.entries()) {
    out.push_back(r.NewList({Value::String(key), value}));
  }
  return r.NewList(std::move(out));
}

Value KeysMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 0, "keys")) return {};
  return r.NewList(Iterate(r, v));
}

Value ValuesMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 0, "values")) return {};
  Value::List out;
  for (const auto& [key, value] : v.entries()) out.push_back(value);
  return r.NewList(std::move(out));
}

Value GetMethod(R& r, const Value& v, const A& a) {
  if (!r.CheckArguments(a, 2, "get")) return {};
  if (a.positional.empty()) return r.Fail("get needs a key");
  const Value& key = a.positional[0];
  const Value* found = key.is_string() ? v.Find(key.string()) : nullptr;
  if (found != nullptr) return *found;
  return a.positional.size() > 1 ? a.positional[1] : Value::None();
}

constexpr Entry kTextMethods[] = {
    {"capitalize", CapitalizeMethod},
    {"count", CountMethod},
    {"endswith", StartsOrEnds<false>},
    {"find", FindMethod},
    {"join", JoinMethod},
    {"lower", LowerMethod},
    {"lstrip", StripMethod<true, false>},
    {"replace", ReplaceMethod},
    {"rsplit", SplitMethod<true>},
    {"rstrip", StripMethod<false, true>},
    {"split", SplitMethod<false>},
    {"splitlines", SplitLines},
    {"startswith", StartsOrEnds<true>},
    {"strip", StripMethod<true, true>},
    {"upper", UpperMethod},
};

constexpr Entry kMappingMethods[] = {
    {"get", GetMethod},
    {"items", ItemsMethod},
    {"keys", KeysMethod},
    {"values", ValuesMethod},
};

Method FindTextMethod(std::string_view name) {
  for (const Entry& entry : kTextMethods) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

Method FindMappingMethod(std::string_view name) {
  for (const Entry& entry : kMappingMethods) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

Method FindFor(const Value& receiver, std::string_view name) {
  if (receiver.is_string()) return FindTextMethod(name);
  if (receiver.is_object()) return FindMappingMethod(name);
  return nullptr;
}

}  // namespace

bool IsMethodName(std::string_view name) {
  return FindTextMethod(name) != nullptr || FindMappingMethod(name) != nullptr;
}

bool HasMethod(const Value& receiver, std::string_view name) {
  return FindFor(receiver, name) != nullptr;
}

Value CallMethod(TemplateRuntime& runtime, const Value& receiver, std::string_view name,
                 const TemplateArguments& arguments) {
  if (runtime.failed()) return {};
  const Method method = FindFor(receiver, name);
  if (method == nullptr) {
    return runtime.Fail(absl::StrCat("a value of type ", Av(receiver.TypeName()),
                                     " has no method '", Av(name), "'"));
  }
  return method(runtime, receiver, arguments);
}

}  // namespace quartet::text
