#include "services/gateway/text/tool_schema.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "services/gateway/text/json.h"
#include "services/gateway/text/unicode.h"

namespace quartet::text {
namespace {

constexpr int kDepthMax = 20;
// Branches that refer to further branches can make a walk exponentially long.
constexpr int kStepsMax = 10000;

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// One step of a JSON pointer inside a URL: first %XX, then ~1 and ~0.
std::string PointerKey(std::string_view step) {
  std::string bytes;
  for (size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '%' && i + 2 < step.size()) {
      const auto high = HexDigit(step[i + 1]);
      const auto low = HexDigit(step[i + 2]);
      if (high && low) {
        bytes.push_back(static_cast<char>(*high * 16 + *low));
        i += 2;
        continue;
      }
    }
    bytes.push_back(step[i]);
  }
  std::string key;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '~' && i + 1 < bytes.size() && (bytes[i + 1] == '0' || bytes[i + 1] == '1')) {
      key.push_back(bytes[++i] == '0' ? '~' : '/');
    } else {
      key.push_back(bytes[i]);
    }
  }
  return key;
}

class SchemaWalk {
 public:
  explicit SchemaWalk(const Value& root) : root_(root) {}

  JsonTypes Types(const Value& schema, int depth) {
    if (depth > kDepthMax || ++steps_ > kStepsMax || !schema.is_object()) {
      return JsonTypes::Unknown();
    }
    JsonTypes types = JsonTypes::Unknown();
    if (const Value* type = schema.Find("type")) types = types & NamedTypes(*type);
    if (const Value* values = schema.Find("enum"); values && values->is_list()) {
      JsonTypes listed;
      for (const Value& value : values->list()) listed = listed | JsonTypes::Of(value);
      types = types & listed;
    }
    if (const Value* value = schema.Find("const")) types = types & JsonTypes::Of(*value);
    if (const Value* reference = schema.Find("$ref")) {
      const Value* target = reference->is_string() ? Resolve(reference->string()) : nullptr;
      if (target) types = types & Types(*target, depth + 1);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      const Value* branches = schema.Find(key);
      if (!branches || !branches->is_list()) continue;
      JsonTypes either;
      for (const Value& branch : branches->list()) {
        either = either | Types(branch, depth + 1);
        if (!either.known()) break;
      }
      types = types & either;
    }
    if (const Value* branches = schema.Find("allOf"); branches && branches->is_list()) {
      for (const Value& branch : branches->list()) types = types & Types(branch, depth + 1);
    }
    return types;
  }

 private:
  static JsonTypes NamedTypes(const Value& type) {
    if (type.is_string()) return JsonTypes::Named(type.string());
    if (!type.is_list()) return JsonTypes::Unknown();
    JsonTypes types;
    for (const Value& name : type.list()) {
      types = types | (name.is_string() ? JsonTypes::Named(name.string()) : JsonTypes::Unknown());
    }
    return types;
  }

  // "#", "#/$defs/Name": what it names inside the root. Null for anything else.
  const Value* Resolve(std::string_view reference) const {
    if (!reference.starts_with('#')) return nullptr;
    reference.remove_prefix(1);
    const Value* at = &root_;
    while (!reference.empty()) {
      if (reference[0] != '/') return nullptr;
      reference.remove_prefix(1);
      const size_t end = std::min(reference.find('/'), reference.size());
      const std::string key = PointerKey(reference.substr(0, end));
      reference.remove_prefix(end);
      if (at->is_list()) {
        const bool number = !key.empty() && key.size() < 7 &&
                            std::all_of(key.begin(), key.end(),
                                        [](char c) { return HexDigit(c).value_or(10) < 10; });
        const size_t index = number ? std::stoul(key) : at->list().size();
        at = index < at->list().size() ? &at->list()[index] : nullptr;
      } else {
        at = at->Find(key);
      }
      if (!at) return nullptr;
    }
    return at;
  }

  const Value& root_;
  int steps_ = 0;
};

// The value that the whole of `text` is, in JSON's spelling or Python's.
std::optional<Value> ReadValue(std::string_view text) {
  if (text == "True") return Value::Bool(true);
  if (text == "False") return Value::Bool(false);
  if (text == "None") return Value::None();
  absl::StatusOr<Value> value = ParseJson(text);
  if (!value.ok()) return std::nullopt;
  return *std::move(value);
}

std::string ToJson(const Value& value) {
  std::string out;
  // Cannot fail: the value was JSON.
  (void)AppendJson(value, {}, &out);
  return out;
}

std::string StringJson(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

}  // namespace

JsonTypes JsonTypes::Named(std::string_view name) {
  if (name == "null") return JsonTypes(kNull);
  if (name == "boolean") return JsonTypes(kBoolean);
  if (name == "integer") return JsonTypes(kInteger);
  if (name == "number") return JsonTypes(kInteger | kFraction);
  if (name == "string") return JsonTypes(kString);
  if (name == "array") return JsonTypes(kArray);
  if (name == "object") return JsonTypes(kObject);
  return Unknown();
}

JsonTypes JsonTypes::Of(const Value& value) {
  switch (value.type()) {
    case Value::Type::kNone:
      return JsonTypes(kNull);
    case Value::Type::kBool:
      return JsonTypes(kBoolean);
    case Value::Type::kInteger:
      return JsonTypes(kInteger);
    case Value::Type::kFloat:
      // Infinite: what no double holds. A number that large is written without a fraction.
      return JsonTypes(std::isinf(value.number()) || std::trunc(value.number()) == value.number()
                           ? kInteger
                           : kFraction);
    case Value::Type::kString:
      return JsonTypes(kString);
    case Value::Type::kList:
      return JsonTypes(kArray);
    case Value::Type::kObject:
      return JsonTypes(kObject);
    case Value::Type::kUndefined:
    case Value::Type::kOpaque:
      break;
  }
  return Unknown();
}

Tools::Tools(const Value& list) {
  if (!list.is_list()) return;
  for (const Value& item : list.list()) {
    const Value nested = item.Get("function");
    const Value& function = nested.is_object() ? nested : item;
    const Value name = function.Get("name");
    if (name.is_string()) tools_.push_back({name.string(), function.Get("parameters")});
  }
}

const Tools::Tool* Tools::Find(std::string_view name) const {
  const auto found = std::find_if(tools_.begin(), tools_.end(),
                                  [name](const Tool& tool) { return tool.name == name; });
  return found == tools_.end() ? nullptr : &*found;
}

bool Tools::Has(std::string_view name) const {
  return Find(name) != nullptr;
}

bool Tools::MayBecomeName(std::string_view text) const {
  text = StripLeft(text);
  const std::string_view name = StripRight(text);
  return std::any_of(tools_.begin(), tools_.end(), [&](const Tool& tool) {
    return tool.name == name || std::string_view(tool.name).starts_with(text);
  });
}

JsonTypes Tools::ArgumentTypes(std::string_view name, std::string_view key) const {
  const Tool* tool = Find(name);
  const Value* properties = tool ? tool->parameters.Find("properties") : nullptr;
  const Value* schema = properties ? properties->Find(key) : nullptr;
  return schema ? SchemaWalk(tool->parameters).Types(*schema, 0) : JsonTypes::Unknown();
}

std::shared_ptr<const Tools> ActiveTools(const Value& body) {
  const Value tools = body.Get("tools");
  const Value choice = body.Get("tool_choice");
  if (!tools.is_list() || tools.list().empty() ||
      (choice.is_string() && choice.string() == "none")) {
    return nullptr;
  }
  return std::make_shared<const Tools>(tools);
}

std::string ArgumentJson(JsonTypes types, std::string_view text) {
  if (types.OnlyString()) return StringJson(text);
  if (!types.known()) {
    const absl::StatusOr<Value> value = ParseJson(text);
    return value.ok() && !value->is_string() ? ToJson(*value) : StringJson(text);
  }
  std::optional<Value> value = ReadValue(Strip(text));
  // "5" in quotes is a five where no string is allowed.
  if (value && value->is_string() && !types.Holds(JsonTypes(JsonTypes::kString))) {
    value = ReadValue(Strip(value->string()));
  }
  if (value && !value->is_string() && types.Holds(JsonTypes::Of(*value))) return ToJson(*value);
  return StringJson(text);
}

}  // namespace quartet::text
