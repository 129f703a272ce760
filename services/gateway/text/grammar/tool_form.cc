#include "services/gateway/text/grammar/tool_form.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/grammar/alternatives.h"
#include "services/gateway/text/grammar/json_schema.h"
#include "services/gateway/text/tags.h"

namespace quartet::text {
namespace {

using grammar::CharSet;
using grammar::Expr;
using grammar::kUnlimited;
using grammar::TextAutomaton;

constexpr uint32_t kFreeKeyCharactersMax = 64;

const TextAutomaton& ValueCharacters() {
  static const TextAutomaton automaton =
      TextAutomaton::Without({std::string(kValueClose)}, TextAutomaton::Unit::kCharacter);
  return automaton;
}

// Writes the arguments of one tool.
class ArgumentsWriter {
 public:
  ArgumentsWriter(const Value& parameters, bool strict, const Tokenizer& tokenizer,
                  std::chrono::steady_clock::time_point deadline, grammar::GrammarBuilder* builder,
                  JsonText* json)
      : tokenizer_(tokenizer),
        builder_(*builder),
        json_(*json),
        compiler_(parameters, {.ignore_unsupported = !strict}, deadline, builder, json) {}

  absl::StatusOr<Expr> Write() {
    SchemaReader& reader = compiler_.reader();
    absl::StatusOr<Goal> goal = reader.Expand(reader.root_goal());
    if (!goal.ok()) return goal.status();
    auto alternatives = AlternativesOf(*goal, &reader);
    if (!alternatives.ok()) return alternatives.status();
    if (*alternatives) {
      std::vector<Expr> ways;
      for (const Goal& alternative : **alternatives) {
        absl::StatusOr<Goal> expanded = reader.Expand(alternative);
        if (!expanded.ok()) return expanded.status();
        absl::StatusOr<Expr> way = Arguments(*expanded);
        if (!way.ok()) return way;
        ways.push_back(*way);
      }
      return builder_.Alt(std::move(ways));
    }
    return Arguments(*goal);
  }

 private:
  Expr Tag(std::string_view tag) { return TagExpr(tag, tokenizer_, &builder_); }
  Expr LineBreak() { return builder_.Optional(builder_.Literal("\n")); }

  absl::StatusOr<Expr> Arguments(const Goal& goal) {
    absl::StatusOr<Wanted> wanted = compiler_.reader().Want(goal);
    if (!wanted.ok()) return wanted.status();
    std::vector<Expr> arguments;
    for (const Wanted::Property& property : wanted->properties) {
      absl::StatusOr<Expr> value = ValueOf(property.goal);
      if (!value.ok()) return value.status();
      const Expr argument = Argument(builder_.Literal(property.name), *value);
      arguments.push_back(property.required ? argument : builder_.Optional(argument));
    }
    if (wanted->others && wanted->properties.empty()) {
      absl::StatusOr<Expr> value = ValueOf(*wanted->others);
      if (!value.ok()) return value.status();
      const CharSet key = ~(CharSet::Of(0, ' ') | CharSet::Of('<'));
      arguments.push_back(builder_.Repeat(
          Argument(json_.Characters(key, 1, kFreeKeyCharactersMax, TextForm::kRaw), *value), 0,
          wanted->others_max));
    }
    return builder_.Seq(std::move(arguments));
  }

  Expr Argument(Expr key, Expr value) {
    return builder_.Seq({LineBreak(), Tag(kKeyOpen), key, Tag(kKeyClose), LineBreak(),
                         Tag(kValueOpen), value, Tag(kValueClose)});
  }

  absl::StatusOr<Expr> ValueOf(const Goal& goal) {
    if (goal.empty()) return builder_.Text(ValueCharacters(), 0, kUnlimited, kMarkers);
    const auto [found, fresh] = rules_.try_emplace(goal);
    if (!fresh) return found->second;
    const Expr rule = builder_.NewRule();
    found->second = rule;
    absl::StatusOr<Expr> body = DefineValue(goal);
    if (!body.ok()) return body;
    builder_.Define(rule, *body);
    return rule;
  }

  absl::StatusOr<Expr> DefineValue(const Goal& goal) {
    absl::StatusOr<Goal> expanded = compiler_.reader().Expand(goal);
    if (!expanded.ok()) return expanded.status();
    auto alternatives = AlternativesOf(*expanded, &compiler_.reader());
    if (!alternatives.ok()) return alternatives.status();
    if (*alternatives) {
      std::vector<Expr> ways;
      for (const Goal& alternative : **alternatives) {
        absl::StatusOr<Expr> way = ValueOf(alternative);
        if (!way.ok()) return way;
        ways.push_back(*way);
      }
      return builder_.Alt(std::move(ways));
    }
    absl::StatusOr<Wanted> wanted = compiler_.reader().Want(*expanded);
    if (!wanted.ok()) return wanted.status();
    absl::StatusOr<Expr> json = compiler_.JsonButStrings(*wanted);
    if (!json.ok() || (wanted->types & Wanted::kString) == 0) return json;
    absl::StatusOr<Expr> string = RawString(*wanted);
    if (!string.ok()) return string;
    return builder_.Alt({*string, *json});
  }

  absl::StatusOr<Expr> RawString(const Wanted& wanted) {
    if (wanted.has_values) {
      std::vector<std::string> strings;
      for (const Value& value : wanted.values) {
        if (!value.is_string()) continue;
        if (value.string().find(kValueClose) == std::string::npos)
          strings.push_back(value.string());
      }
      return builder_.Choice(std::move(strings));
    }
    // A text by a pattern could spell the closing tag, if it may have its first character.
    const RegexOptions options{.form = TextForm::kRaw, .whole = false, .without = CharSet::Of('<')};
    return compiler_.StringText(wanted, options, &ValueCharacters());
  }

  static constexpr uint8_t kMarkers = grammar::kMarkersAreText;

  const Tokenizer& tokenizer_;
  grammar::GrammarBuilder& builder_;
  JsonText& json_;
  SchemaCompiler compiler_;
  std::map<Goal, Expr> rules_;
};

}  // namespace

Expr TagExpr(std::string_view tag, const Tokenizer& tokenizer, grammar::GrammarBuilder* builder) {
  const std::optional<int32_t> id = tokenizer.TokenId(tag);
  return id && tokenizer.IsAdded(*id) ? builder->Token(tag) : builder->Literal(tag);
}

absl::StatusOr<Expr> ToolCallExpr(const Value& tools, const std::vector<std::string>& names,
                                  const Tokenizer& tokenizer,
                                  std::chrono::steady_clock::time_point deadline,
                                  grammar::GrammarBuilder* builder, JsonText* json) {
  static const Value no_arguments = Value::MakeObject(
      {{"type", Value::String("object")}, {"additionalProperties", Value::Bool(false)}});
  std::vector<Expr> calls;
  std::vector<std::string> found;
  for (const Value& tool : tools.is_list() ? tools.list() : Value::List{}) {
    const Value nested = tool.Get("function");
    const Value function = nested.is_object() ? nested : tool;
    const Value name = function.Get("name");
    if (!name.is_string() || name.string().empty()) continue;
    const bool chosen =
        names.empty() || std::find(names.begin(), names.end(), name.string()) != names.end();
    if (!chosen) continue;
    found.push_back(name.string());
    const Value* declared = function.Find("parameters");
    const Value& parameters = declared == nullptr ? no_arguments : *declared;
    const Value strict = function.Get("strict");
    const auto wrong = [&](const absl::Status& status) {
      return absl::InvalidArgumentError(absl::StrCat("tool \"", name.string().substr(0, 200),
                                                     "\": ", std::string(status.message())));
    };
    if (absl::Status status = CheckSchemaSize(parameters); !status.ok()) return wrong(status);
    absl::StatusOr<Expr> arguments =
        ArgumentsWriter(parameters, strict.is_bool() && strict.boolean(), tokenizer, deadline,
                        builder, json)
            .Write();
    if (!arguments.ok()) return wrong(arguments.status());
    calls.push_back(builder->Seq({builder->Literal(name.string()), *arguments}));
  }
  for (const std::string& name : names) {
    if (std::find(found.begin(), found.end(), name) == found.end()) {
      return absl::InvalidArgumentError(absl::StrCat("tool_choice names the tool \"",
                                                     name.substr(0, 200),
                                                     "\", which is not among the tools"));
    }
  }
  return builder->Seq({TagExpr(kCallOpen, tokenizer, builder), builder->Alt(std::move(calls)),
                       builder->Optional(builder->Literal("\n")),
                       TagExpr(kCallClose, tokenizer, builder)});
}

}  // namespace quartet::text
