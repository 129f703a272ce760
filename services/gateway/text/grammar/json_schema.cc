#include "services/gateway/text/grammar/json_schema.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/grammar/alternatives.h"
#include "services/gateway/text/grammar/number_range.h"
#include "services/gateway/text/grammar/regex.h"
#include "services/gateway/text/json.h"

namespace quartet::text {
namespace {

using grammar::CharSet;
using grammar::Expr;
using grammar::kUnlimited;

constexpr uint8_t kNumbers = Wanted::kInteger | Wanted::kNumber;

// If the expression is one repeated class of characters from ^ to $: how often. Such a pattern and
// limits of the length are one.
const Regex* OnlyClass(const std::vector<RegexWay>& ways) {
  if (ways.size() != 1 || !ways[0].at_start || !ways[0].at_end) return nullptr;
  const Regex& regex = ways[0].regex;
  const bool one =
      regex.kind == Regex::Kind::kRepeat && regex.parts[0].kind == Regex::Kind::kCharacter;
  return one ? &regex : nullptr;
}

}  // namespace

absl::Status CheckSchemaSize(const Value& schema) {
  if (schema.depth() > kSchemaDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("schema: nested ", schema.depth(), " levels deep, at most ", kSchemaDepthMax));
  }
  if (schema.weight() > kSchemaBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("schema: about ", schema.weight(), " bytes, at most ", kSchemaBytesMax));
  }
  return absl::OkStatus();
}

SchemaCompiler::SchemaCompiler(const Value& root, SchemaReaderOptions options,
                               std::chrono::steady_clock::time_point deadline,
                               grammar::GrammarBuilder* builder, JsonText* json)
    : reader_(root, options), deadline_(deadline), builder_(*builder), json_(*json) {}

absl::StatusOr<Expr> SchemaCompiler::Json(const Goal& goal) {
  const Expr rule = RuleFor(goal);
  if (absl::Status status = DefineRules(); !status.ok()) return status;
  return rule;
}

Expr SchemaCompiler::RuleFor(const Goal& goal) {
  if (goal.empty()) return json_.AnyValue();
  const auto [found, fresh] = rules_.try_emplace(goal);
  if (fresh) {
    found->second = builder_.NewRule();
    undefined_.emplace_back(goal, found->second);
  }
  return found->second;
}

absl::Status SchemaCompiler::DefineRules() {
  while (!undefined_.empty()) {
    if (absl::Status status = CheckLimits(); !status.ok()) return status;
    const auto [goal, rule] = std::move(undefined_.front());
    undefined_.pop_front();
    absl::StatusOr<Expr> body = Define(goal);
    if (!body.ok()) return body.status();
    builder_.Define(rule, *body);
  }
  return absl::OkStatus();
}

absl::Status SchemaCompiler::CheckLimits() const {
  if (builder_.size() > kSchemaPartsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("schema: its combinations make more than ", kSchemaPartsMax,
                     " parts of a grammar; use fewer alternatives inside of one another"));
  }
  if (std::chrono::steady_clock::now() > deadline_) {
    return absl::InvalidArgumentError(absl::StrCat("schema: compiling it takes longer than ",
                                                   kSchemaTimeMax.count(), " ms; make it smaller"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Expr> SchemaCompiler::Define(const Goal& goal) {
  absl::StatusOr<Goal> expanded = reader_.Expand(goal);
  if (!expanded.ok()) return expanded.status();
  if (*expanded != goal) return RuleFor(*expanded);
  auto alternatives = AlternativesOf(goal, &reader_);
  if (!alternatives.ok()) return alternatives.status();
  if (*alternatives) {
    std::vector<Expr> ways;
    for (const Goal& alternative : **alternatives) ways.push_back(RuleFor(alternative));
    return builder_.Alt(std::move(ways));
  }
  absl::StatusOr<Wanted> wanted = reader_.Want(goal);
  if (!wanted.ok()) return wanted.status();
  return OfTypes(*wanted, wanted->types);
}

absl::StatusOr<Expr> SchemaCompiler::JsonButStrings(const Wanted& wanted) {
  absl::StatusOr<Expr> json =
      OfTypes(wanted, static_cast<uint8_t>(wanted.types & ~Wanted::kString));
  if (!json.ok()) return json;
  if (absl::Status status = DefineRules(); !status.ok()) return status;
  return json;
}

absl::StatusOr<Expr> SchemaCompiler::OfTypes(const Wanted& wanted, uint8_t types) {
  std::vector<Expr> ways;
  if (wanted.has_values) {
    std::vector<std::string> scalars;
    for (const Value& value : wanted.values) {
      if (value.is_string() && (types & Wanted::kString) == 0) continue;
      if (value.is_list() || value.is_object()) {
        ways.push_back(json_.Exactly(value));
      } else {
        AppendJson(value, {}, &scalars.emplace_back()).IgnoreError();
      }
    }
    ways.push_back(builder_.Choice(std::move(scalars)));
    return builder_.Alt(std::move(ways));
  }
  if ((types & Wanted::kObject) != 0) ways.push_back(Object(wanted));
  if ((types & Wanted::kArray) != 0) ways.push_back(Array(wanted));
  if ((types & Wanted::kString) != 0) {
    absl::StatusOr<Expr> string = String(wanted);
    if (!string.ok()) return string;
    ways.push_back(*string);
  }
  if ((types & kNumbers) != 0) {
    const bool integers = (types & Wanted::kNumber) == 0;
    if (wanted.range.unlimited()) {
      ways.push_back(integers ? json_.Integer() : json_.Number());
    } else {
      ways.push_back(integers ? IntegersIn(wanted.range, &builder_, &json_)
                              : NumbersIn(wanted.range, &builder_, &json_));
    }
  }
  if ((types & Wanted::kBoolean) != 0) ways.push_back(json_.Boolean());
  if ((types & Wanted::kNull) != 0) ways.push_back(json_.Null());
  return builder_.Alt(std::move(ways));
}

absl::StatusOr<Expr> SchemaCompiler::StringText(const Wanted& wanted, const RegexOptions& options,
                                                const grammar::TextAutomaton* characters) {
  if (wanted.pattern.empty()) {
    if (characters != nullptr) {
      return builder_.Text(*characters, wanted.length_min, wanted.length_max,
                           options.form == TextForm::kRaw ? grammar::kMarkersAreText : 0);
    }
    return json_.AnyCharacters(wanted.length_min, wanted.length_max);
  }
  absl::StatusOr<std::vector<RegexWay>> ways = ParseRegex(wanted.pattern);
  if (!ways.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("schema: \"pattern\" at ",
                                                   wanted.pattern_pointer, ": ",
                                                   std::string(ways.status().message())));
  }
  if (wanted.length_min > 0 || wanted.length_max != kUnlimited) {
    const Regex* repeated = OnlyClass(*ways);
    if (repeated == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "schema: \"pattern\" at ", wanted.pattern_pointer,
          " together with minLength or maxLength is only supported if it is one repeated class, "
          "such as ^[a-z]+$"));
    }
    Regex limited = *repeated;
    limited.min = std::max(limited.min, wanted.length_min);
    limited.max = std::min(limited.max, wanted.length_max);
    if (limited.min > limited.max) return builder_.Never();
    (*ways)[0].regex = std::move(limited);
  }
  return RegexExpr(*ways, options, &builder_, &json_);
}

absl::StatusOr<Expr> SchemaCompiler::String(const Wanted& wanted) {
  absl::StatusOr<Expr> text =
      StringText(wanted, {.form = TextForm::kJson, .whole = false}, /*characters=*/nullptr);
  if (!text.ok()) return text;
  return builder_.Seq({builder_.Literal("\""), *text, builder_.Literal("\"")});
}

Expr SchemaCompiler::Array(const Wanted& wanted) {
  const Expr close = builder_.Literal("]");
  if (wanted.items_min > wanted.items_max) return builder_.Never();
  const Expr item = wanted.items ? RuleFor(*wanted.items) : json_.AnyValue();
  const auto prefix =
      static_cast<uint32_t>(std::min<size_t>(wanted.prefix_items.size(), wanted.items_max));
  const bool only_prefix = !wanted.prefix_items.empty() && !wanted.items;
  const uint32_t items_max = only_prefix ? std::max(prefix, wanted.items_min) : wanted.items_max;
  const auto left = [prefix](uint32_t count) {
    return count == kUnlimited ? kUnlimited : count > prefix ? count - prefix : 0;
  };
  // What follows the prefix; before that, what follows each of its items.
  Expr rest = builder_.Never();
  if (prefix == 0) {
    rest = json_.List(item, wanted.items_min, items_max);
  } else {
    rest = builder_.Repeat(builder_.Seq({json_.Comma(), item}), left(wanted.items_min),
                           left(items_max));
  }
  rest = builder_.Seq({rest, close});
  for (uint32_t i = prefix; i-- > 0;) {
    const Expr next = builder_.Seq(
        {i == 0 ? builder_.Empty() : json_.Comma(), RuleFor(wanted.prefix_items[i]), rest});
    rest = builder_.NewRule();
    builder_.Define(rest, i >= wanted.items_min ? builder_.Alt({next, close}) : next);
  }
  return builder_.Seq({builder_.Literal("["), rest});
}

Expr SchemaCompiler::OtherMembers(const Wanted& wanted, bool first) {
  if (!wanted.others || wanted.others_max == 0) return builder_.Empty();
  std::vector<std::string> names;
  for (const Wanted::Property& property : wanted.properties) names.push_back(property.name);
  const Expr member = builder_.Seq({json_.OtherKey(names), RuleFor(*wanted.others)});
  if (first) return json_.List(member, 0, wanted.others_max);
  return builder_.Repeat(builder_.Seq({json_.Comma(), member}), 0, wanted.others_max);
}

Expr SchemaCompiler::Object(const Wanted& wanted) {
  const Expr close = builder_.Literal("}");
  // What follows the properties so far, by whether there was one.
  Expr if_first = builder_.Seq({OtherMembers(wanted, true), close});
  Expr if_not = builder_.Seq({OtherMembers(wanted, false), close});
  for (size_t i = wanted.properties.size(); i-- > 0;) {
    const Wanted::Property& property = wanted.properties[i];
    std::string key;
    AppendJsonString(property.name, &key);
    const Expr member =
        builder_.Seq({builder_.Literal(key), json_.Colon(), RuleFor(property.goal)});
    const auto with = [&](bool first, Expr without) {
      const Expr present = builder_.Seq({first ? builder_.Empty() : json_.Comma(), member, if_not});
      const Expr rule = builder_.NewRule();
      builder_.Define(rule, property.required ? present : builder_.Alt({present, without}));
      return rule;
    };
    const Expr first = with(true, if_first);
    if_not = with(false, if_not);
    if_first = first;
  }
  return builder_.Seq({builder_.Literal("{"), if_first});
}

}  // namespace quartet::text
