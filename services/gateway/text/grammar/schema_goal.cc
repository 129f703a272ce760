#include "services/gateway/text/grammar/schema_goal.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

constexpr uint32_t kCountMax = 1'000'000'000;

// Which types a keyword says something about; 0 for those that concern all or only describe.
struct Keyword {
  std::string_view name;
  uint8_t types;
};
constexpr uint8_t kNumeric = Wanted::kInteger | Wanted::kNumber;
constexpr Keyword kKeywords[] = {
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"allOf", 0},
    {"$ref", 0},
    {"properties", Wanted::kObject},
    {"required", Wanted::kObject},
    {"additionalProperties", Wanted::kObject},
    {"minProperties", Wanted::kObject},
    {"maxProperties", Wanted::kObject},
    {"items", Wanted::kArray},
    {"prefixItems", Wanted::kArray},
    {"minItems", Wanted::kArray},
    {"maxItems", Wanted::kArray},
    {"uniqueItems", Wanted::kArray},
    {"minLength", Wanted::kString},
    {"maxLength", Wanted::kString},
    {"pattern", Wanted::kString},
    {"minimum", kNumeric},
    {"maximum", kNumeric},
    {"exclusiveMinimum", kNumeric},
    {"exclusiveMaximum", kNumeric},
    {"$defs", 0},
    {"definitions", 0},
    {"format", 0},
    {"title", 0},
    {"description", 0},
    {"default", 0},
    {"example", 0},
    {"examples", 0},
    {"deprecated", 0},
    {"readOnly", 0},
    {"writeOnly", 0},
    {"contentEncoding", 0},
    {"contentMediaType", 0},
    {"contentSchema", 0},
    {"discriminator", 0},
    {"$schema", 0},
    {"$id", 0},
    {"$comment", 0},
};

const Keyword* FindKeyword(std::string_view name) {
  const auto found = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                  [name](const Keyword& keyword) { return keyword.name == name; });
  return found == std::end(kKeywords) ? nullptr : found;
}

std::optional<uint8_t> TypeNamed(std::string_view name) {
  if (name == "null") return Wanted::kNull;
  if (name == "boolean") return Wanted::kBoolean;
  if (name == "integer") return Wanted::kInteger;
  if (name == "number") return Wanted::kNumber | Wanted::kInteger;
  if (name == "string") return Wanted::kString;
  if (name == "array") return Wanted::kArray;
  if (name == "object") return Wanted::kObject;
  return std::nullopt;
}

constexpr uint8_t kAllTypes = 127;

// The types that `value` is of: 3.0 is an integer too.
uint8_t TypesOf(const Value& value) {
  switch (value.type()) {
    case Value::Type::kBool:
      return Wanted::kBoolean;
    case Value::Type::kInteger:
    case Value::Type::kFloat: {
      const absl::StatusOr<Decimal> number = Decimal::Parse(value.NumberText());
      const bool whole = number.ok() && number->fraction.empty();
      return whole ? kNumeric : uint8_t{Wanted::kNumber};
    }
    case Value::Type::kString:
      return Wanted::kString;
    case Value::Type::kList:
      return Wanted::kArray;
    case Value::Type::kObject:
      return Wanted::kObject;
    default:
      return Wanted::kNull;
  }
}

std::string JsonOf(const Value& value) {
  std::string text;
  AppendJson(value, {.sort_keys = true}, &text).IgnoreError();
  return text;
}

// One step of a JSON pointer.
std::string EscapedStep(std::string_view step) {
  std::string escaped;
  for (const char c : step) {
    if (c == '~') {
      escaped += "~0";
    } else if (c == '/') {
      escaped += "~1";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// The other way; a $ref may have %XX in it too.
std::string UnescapedStep(std::string_view step) {
  const auto hex = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) return (c | 0x20) - 'a' + 10;
    return -1;
  };
  std::string bytes;
  for (size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '%' && i + 2 < step.size() && hex(step[i + 1]) >= 0 && hex(step[i + 2]) >= 0) {
      bytes += static_cast<char>(hex(step[i + 1]) * 16 + hex(step[i + 2]));
      i += 2;
    } else {
      bytes += step[i];
    }
  }
  std::string key;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '~' && i + 1 < bytes.size() && (bytes[i + 1] == '0' || bytes[i + 1] == '1')) {
      key += bytes[++i] == '0' ? '~' : '/';
    } else {
      key += bytes[i];
    }
  }
  return key;
}

// What a step of a pointer leads to, or null.
const Value* StepInto(const Value& at, const std::string& key) {
  const bool is_index = at.is_list() && !key.empty() && key.size() < 7 &&
                        key.find_first_not_of("0123456789") == std::string::npos;
  if (!is_index) return at.Find(key);
  const size_t index = std::stoul(key);
  return index < at.list().size() ? &at.list()[index] : nullptr;
}

void AddUse(SchemaUse use, Goal* goal) {
  const auto place = std::lower_bound(goal->begin(), goal->end(), use);
  if (place == goal->end() || *place != use) goal->insert(place, use);
}

}  // namespace

SchemaReader::SchemaReader(const Value& root, SchemaReaderOptions options)
    : root_(root), options_(options) {
  pointers_[&root_] = "#";
}

std::string SchemaReader::PointerOf(const Goal& goal) const {
  const auto found = goal.empty() ? pointers_.end() : pointers_.find(goal.front().schema);
  return found == pointers_.end() ? "#" : found->second;
}

absl::Status SchemaReader::Wrong(const Value& schema, std::string_view keyword,
                                 std::string_view what) const {
  const auto found = pointers_.find(&schema);
  return absl::InvalidArgumentError(absl::StrCat("schema: \"", Av(keyword.substr(0, 100)), "\" at ",
                                                 found == pointers_.end() ? "#" : found->second,
                                                 " ", Av(what)));
}

const Value* SchemaReader::Child(const Value& parent, const Value& child, std::string_view step) {
  pointers_.try_emplace(&child, pointers_[&parent] + "/" + std::string(step));
  return &child;
}

absl::Status SchemaReader::CheckKeywords(const Value& schema) {
  if (schema.is_bool()) return absl::OkStatus();
  if (!schema.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("schema: at ", PointerOf({SchemaUse{&schema}}), " there is a value of type ",
                     Av(schema.TypeName()), ", where an object or a boolean is expected"));
  }
  if (options_.ignore_unsupported) return absl::OkStatus();
  for (const auto& [name, value] : schema.entries()) {
    if (name.starts_with("x-")) continue;
    if (FindKeyword(name) == nullptr) return Wrong(schema, name, "is not supported");
  }
  const Value* unique = schema.Find("uniqueItems");
  if (unique != nullptr && !(unique->is_bool() && !unique->boolean())) {
    return Wrong(schema, "uniqueItems", "is not supported, unless false");
  }
  return absl::OkStatus();
}

absl::StatusOr<const Value*> SchemaReader::Resolve(const std::string& reference,
                                                   const std::string& pointer) {
  const auto wrong = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("schema: the $ref \"", reference.substr(0, 200),
                                                   "\" at ", pointer, " ", Av(what)));
  };
  if (reference != "#" && !reference.starts_with("#/")) {
    return wrong("is not supported: only # and #/... are");
  }
  const Value* at = &root_;
  std::string_view rest = std::string_view(reference).substr(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view step = rest.substr(0, rest.find('/'));
    rest.remove_prefix(step.size());
    const std::string key = UnescapedStep(step);
    const Value* next = StepInto(*at, key);
    if (next == nullptr) return wrong("names nothing in the schema");
    at = Child(*at, *next, EscapedStep(key));
  }
  return at;
}

// A $ref is relative to the nearest $id. Here all are relative to the root.
absl::Status SchemaReader::CheckBase(std::string_view pointer) const {
  const Value* at = &root_;
  for (size_t end = 0; end != std::string_view::npos && end < pointer.size();) {
    const size_t begin = pointer.find('/', end);
    if (begin == std::string_view::npos) break;
    end = pointer.find('/', begin + 1);
    const std::string_view step = pointer.substr(begin + 1, end - begin - 1);
    at = StepInto(*at, UnescapedStep(step));
    if (at == nullptr) break;
    const Value* id = at->Find("$id");
    if (id != nullptr && id->is_string() && !id->string().starts_with('#')) {
      return Wrong(*at, "$id", "is not supported above a $ref, which would be relative to it");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Goal> SchemaReader::Expand(const Goal& goal) {
  Goal expanded;
  std::vector<SchemaUse> open;
  for (const SchemaUse& use : goal) (use.expanded ? expanded : open).push_back(use);
  // What is new in the goal is followed though it be known: where the choice of an alternative
  // leads back to the schema of the choice, that must be made again.
  for (size_t given = open.size(); !open.empty();) {
    SchemaUse use = open.back();
    open.pop_back();
    const bool is_given = open.size() < given;
    given = std::min(given, open.size());
    use.expanded = true;
    if (!is_given && std::binary_search(expanded.begin(), expanded.end(), use)) continue;
    const Value& schema = *use.schema;
    if (absl::Status status = CheckKeywords(schema); !status.ok()) return status;
    AddUse(use, &expanded);
    if (const Value* reference = schema.Find("$ref")) {
      if (!reference->is_string()) return Wrong(schema, "$ref", "must be a string");
      const std::string pointer = PointerOf({SchemaUse{&schema}});
      if (absl::Status status = CheckBase(pointer); !status.ok()) return status;
      absl::StatusOr<const Value*> target = Resolve(reference->string(), pointer);
      if (!target.ok()) return target.status();
      open.push_back({*target});
    }
    if (const Value* all = schema.Find("allOf")) {
      if (!all->is_list() || all->list().empty()) {
        return Wrong(schema, "allOf", "must be an array of at least one schema");
      }
      for (size_t i = 0; i < all->list().size(); ++i) {
        open.push_back({Child(schema, all->list()[i], absl::StrCat("allOf/", i))});
      }
    }
  }
  return expanded;
}

absl::StatusOr<std::optional<SchemaReader::Alternatives>> SchemaReader::FindAlternatives(
    const Goal& expanded) {
  for (size_t i = 0; i < expanded.size(); ++i) {
    for (const bool any : {true, false}) {
      const SchemaUse& use = expanded[i];
      if (any ? use.any_of_done : use.one_of_done) continue;
      const std::string_view keyword = any ? "anyOf" : "oneOf";
      const Value* list = use.schema->Find(keyword);
      if (list == nullptr) continue;
      if (!list->is_list() || list->list().empty()) {
        return Wrong(*use.schema, keyword, "must be an array of at least one schema");
      }
      SchemaUse chosen = use;
      (any ? chosen.any_of_done : chosen.one_of_done) = true;
      Alternatives found{.goals = {}, .one_of = any ? nullptr : use.schema};
      for (size_t branch = 0; branch < list->list().size(); ++branch) {
        Goal goal;
        for (size_t other = 0; other < expanded.size(); ++other) {
          AddUse(other == i ? chosen : expanded[other], &goal);
        }
        AddUse({Child(*use.schema, list->list()[branch], absl::StrCat(Av(keyword), "/", branch))},
               &goal);
        found.goals.push_back(std::move(goal));
      }
      return found;
    }
  }
  return std::nullopt;
}

absl::StatusOr<uint32_t> SchemaReader::Count(const Value& schema, std::string_view keyword,
                                             uint32_t fallback) {
  const Value* value = schema.Find(keyword);
  if (value == nullptr) return fallback;
  if (!(TypesOf(*value) & Wanted::kInteger) || value->number() < 0 || value->number() > kCountMax) {
    return Wrong(schema, keyword, absl::StrCat("must be an integer from 0 to ", kCountMax));
  }
  return static_cast<uint32_t>(value->number());
}

absl::Status SchemaReader::WantTypes(const Goal& goal, Wanted* wanted) {
  wanted->types = kAllTypes;
  bool named = false;
  uint8_t mentioned = 0;
  for (const SchemaUse& use : goal) {
    const Value& schema = *use.schema;
    if (schema.is_bool()) {
      if (!schema.boolean()) wanted->types = 0;
      continue;
    }
    for (const auto& [name, value] : schema.entries()) {
      if (const Keyword* keyword = FindKeyword(name)) mentioned |= keyword->types;
    }
    if (schema.Find("enum") != nullptr || schema.Find("const") != nullptr) named = true;
    const Value* type = schema.Find("type");
    if (type == nullptr) continue;
    named = true;
    uint8_t types = 0;
    const Value::List names = type->is_list() ? type->list() : Value::List{*type};
    for (const Value& name : names) {
      const auto known = name.is_string() ? TypeNamed(name.string()) : std::nullopt;
      if (!known) return Wrong(schema, "type", "names a type that JSON Schema does not have");
      types |= *known;
    }
    wanted->types &= types;
  }
  wanted->types_allowed = wanted->types;
  // Who limits strings but names no type means a string.
  if (!named && mentioned != 0) wanted->types &= mentioned;
  return absl::OkStatus();
}

absl::Status SchemaReader::WantValues(const Goal& goal, Wanted* wanted) {
  for (const SchemaUse& use : goal) {
    for (const std::string_view keyword : {"enum", "const"}) {
      const Value* listed = use.schema->Find(keyword);
      if (listed == nullptr) continue;
      if (keyword == "enum" && !listed->is_list()) {
        return Wrong(*use.schema, keyword, "must be an array");
      }
      const Value::List values = keyword == "enum" ? listed->list() : Value::List{*listed};
      if (!wanted->has_values) {
        wanted->has_values = true;
        wanted->values = values;
      } else {
        std::set<std::string> known;
        for (const Value& value : values) known.insert(JsonOf(value));
        std::erase_if(wanted->values,
                      [&](const Value& value) { return !known.contains(JsonOf(value)); });
      }
    }
  }
  if (!wanted->has_values) return absl::OkStatus();
  std::vector<Value> satisfying;
  for (const Value& value : wanted->values) {
    absl::StatusOr<bool> satisfies = Satisfies(value, *wanted, PointerOf(goal));
    if (!satisfies.ok()) return satisfies.status();
    if (*satisfies) satisfying.push_back(value);
  }
  wanted->values = std::move(satisfying);
  return absl::OkStatus();
}

absl::StatusOr<bool> SchemaReader::Satisfies(const Value& value, const Wanted& wanted,
                                             const std::string& pointer) const {
  if ((TypesOf(value) & wanted.types) == 0) return false;
  const auto unsupported = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("schema: enum or const together with ", Av(what),
                                                   " at ", pointer, " is not supported"));
  };
  if (value.is_number()) {
    const absl::StatusOr<Decimal> number = Decimal::Parse(value.NumberText());
    if (!number.ok()) {
      return wanted.range.unlimited() ? absl::StatusOr<bool>(true) : number.status();
    }
    return wanted.range.Contains(*number);
  }
  if (value.is_string()) {
    if (!wanted.pattern.empty()) return unsupported("pattern");
    const size_t length = CountCodePoints(value.string());
    return length >= wanted.length_min && length <= wanted.length_max;
  }
  const bool plain_list = wanted.prefix_items.empty() && !wanted.items;
  if (value.is_list()) {
    if (!plain_list) return unsupported("items");
    return value.list().size() >= wanted.items_min && value.list().size() <= wanted.items_max;
  }
  const bool plain_object = wanted.properties.empty() && wanted.others && wanted.others->empty();
  if (value.is_object() && !plain_object) return unsupported("properties");
  return true;
}

absl::Status SchemaReader::WantScalars(const Value& schema, Wanted* wanted) {
  const auto min = Count(schema, "minLength", 0);
  const auto max = Count(schema, "maxLength", grammar::kUnlimited);
  if (!min.ok()) return min.status();
  if (!max.ok()) return max.status();
  wanted->length_min = std::max(wanted->length_min, *min);
  wanted->length_max = std::min(wanted->length_max, *max);
  if (const Value* pattern = schema.Find("pattern")) {
    if (!pattern->is_string()) return Wrong(schema, "pattern", "must be a string");
    if (!wanted->pattern.empty() && wanted->pattern != pattern->string()) {
      return Wrong(schema, "pattern", "together with another pattern is not supported");
    }
    wanted->pattern = pattern->string();
    wanted->pattern_pointer = PointerOf({SchemaUse{&schema}});
  }
  for (const std::string_view keyword :
       {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const Value* value = schema.Find(keyword);
    if (value == nullptr) continue;
    if (!value->is_number()) return Wrong(schema, keyword, "must be a number");
    absl::StatusOr<Decimal> number = Decimal::Parse(value->NumberText());
    if (!number.ok()) return Wrong(schema, keyword, std::string(number.status().message()));
    NumberBound bound{*std::move(number), keyword.starts_with("exclusive")};
    if (keyword.ends_with("inimum")) {
      wanted->range.RaiseLow(std::move(bound));
    } else {
      wanted->range.LowerHigh(std::move(bound));
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::WantItems(const Goal& goal, Wanted* wanted) {
  size_t prefix = 0;
  for (const SchemaUse& use : goal) {
    const Value& schema = *use.schema;
    const auto min = Count(schema, "minItems", 0);
    const auto max = Count(schema, "maxItems", grammar::kUnlimited);
    if (!min.ok()) return min.status();
    if (!max.ok()) return max.status();
    wanted->items_min = std::max(wanted->items_min, *min);
    wanted->items_max = std::min(wanted->items_max, *max);
    if (const Value* items = schema.Find("prefixItems")) {
      if (!items->is_list()) return Wrong(schema, "prefixItems", "must be an array");
      prefix = std::max(prefix, items->list().size());
    }
    if (const Value* items = schema.Find("items"); items != nullptr && items->is_list()) {
      return Wrong(schema, "items", "must be a schema; for a tuple use prefixItems");
    }
  }
  const auto goal_at = [&](size_t index) {
    Goal at;
    for (const SchemaUse& use : goal) {
      const Value& schema = *use.schema;
      const Value* list = schema.Find("prefixItems");
      if (list != nullptr && index < list->list().size()) {
        AddUse({Child(schema, list->list()[index], absl::StrCat("prefixItems/", index))}, &at);
      } else if (const Value* items = schema.Find("items")) {
        AddUse({Child(schema, *items, "items")}, &at);
      }
    }
    return at;
  };
  for (size_t i = 0; i < prefix; ++i) wanted->prefix_items.push_back(goal_at(i));
  if (Goal rest = goal_at(prefix); !rest.empty()) wanted->items = std::move(rest);
  return absl::OkStatus();
}

absl::Status SchemaReader::WantProperties(const Goal& goal, Wanted* wanted) {
  std::set<std::string> names;
  std::set<std::string> required;
  bool declared = false;
  bool others_named = false;
  uint32_t members_max = grammar::kUnlimited;
  uint32_t members_min = 0;
  Goal others;
  const auto mention = [&](const std::string& name) {
    if (names.insert(name).second) wanted->properties.push_back({name});
  };
  // In the order of the document, not of where its parts lie in memory.
  std::vector<const Value*> schemas;
  for (const SchemaUse& use : goal) schemas.push_back(use.schema);
  std::stable_sort(schemas.begin(), schemas.end(),
                   [&](const Value* a, const Value* b) { return pointers_[a] < pointers_[b]; });
  for (const Value* schema : schemas) {
    if (const Value* properties = schema->Find("properties")) {
      if (!properties->is_object()) return Wrong(*schema, "properties", "must be an object");
      declared = true;
      for (const auto& [name, property] : properties->entries()) mention(name);
    }
    if (const Value* other = schema->Find("additionalProperties")) {
      others_named = true;
      AddUse({Child(*schema, *other, "additionalProperties")}, &others);
    }
    const auto min = Count(*schema, "minProperties", 0);
    const auto max = Count(*schema, "maxProperties", grammar::kUnlimited);
    if (!min.ok()) return min.status();
    if (!max.ok()) return max.status();
    members_min = std::max(members_min, *min);
    members_max = std::min(members_max, *max);
  }
  for (const Value* schema : schemas) {
    const Value* list = schema->Find("required");
    if (list == nullptr) continue;
    if (!list->is_list()) return Wrong(*schema, "required", "must be an array of strings");
    for (const Value& name : list->list()) {
      if (!name.is_string()) return Wrong(*schema, "required", "must be an array of strings");
      mention(name.string());
      required.insert(name.string());
    }
  }
  for (Wanted::Property& property : wanted->properties) {
    property.required = required.contains(property.name);
    for (const Value* schema : schemas) {
      const Value* properties = schema->Find("properties");
      const Value* own = properties == nullptr ? nullptr : properties->Find(property.name);
      if (own != nullptr) {
        AddUse({Child(*schema, *own, "properties/" + EscapedStep(property.name))}, &property.goal);
      } else if (const Value* other = schema->Find("additionalProperties")) {
        AddUse({Child(*schema, *other, "additionalProperties")}, &property.goal);
      }
    }
  }
  if (others_named || !declared) wanted->others = std::move(others);
  if (members_max != grammar::kUnlimited) {
    if (wanted->properties.size() > members_max) {
      return Wrong(*schemas.front(), "maxProperties",
                   "below the number of declared properties is not supported");
    }
    wanted->others_max = members_max - static_cast<uint32_t>(wanted->properties.size());
  }
  if (members_min > required.size()) {
    return Wrong(*schemas.front(), "minProperties",
                 "above the number of required properties is not supported");
  }
  return absl::OkStatus();
}

absl::StatusOr<Wanted> SchemaReader::Want(const Goal& expanded) {
  Wanted wanted;
  if (absl::Status status = WantTypes(expanded, &wanted); !status.ok()) return status;
  for (const SchemaUse& use : expanded) {
    if (!use.schema->is_object()) continue;
    if (absl::Status status = WantScalars(*use.schema, &wanted); !status.ok()) return status;
  }
  if (absl::Status status = WantItems(expanded, &wanted); !status.ok()) return status;
  if (absl::Status status = WantProperties(expanded, &wanted); !status.ok()) return status;
  if (absl::Status status = WantValues(expanded, &wanted); !status.ok()) return status;
  return wanted;
}

}  // namespace quartet::text
