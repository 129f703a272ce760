#include "services/gateway/text/grammar/answer_grammar.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/grammar/json_schema.h"
#include "services/gateway/text/grammar/json_text.h"
#include "services/gateway/text/grammar/regex.h"
#include "services/gateway/text/grammar/tool_form.h"
#include "services/gateway/text/tags.h"
#include "services/grammar/builder.h"

namespace quartet::text {
namespace {

using grammar::CharSet;
using grammar::Expr;
using grammar::kUnlimited;
using grammar::TextAutomaton;

constexpr size_t kChoicesMax = 4096;
constexpr size_t kChoiceBytesMax = 64 << 10;
// White space between the reasoning and what follows it.
constexpr uint32_t kLeadingSpaceMax = 2;

class AnswerWriter {
 public:
  AnswerWriter(const AnswerForm& form, const Tokenizer& tokenizer)
      : form_(form),
        tokenizer_(tokenizer),
        deadline_(std::chrono::steady_clock::now() + kSchemaTimeMax),
        json_(&builder_) {}

  absl::StatusOr<grammar::Grammar> Write() {
    std::vector<Expr> bodies;
    std::optional<Expr> calls;
    if (form_.content) {
      absl::StatusOr<Expr> content = Content(*form_.content);
      if (!content.ok()) return content.status();
      bodies.push_back(*content);
    }
    if (form_.tools) {
      absl::StatusOr<Expr> call = ToolCallExpr(form_.tools->tools, form_.tools->names, tokenizer_,
                                               deadline_, &builder_, &json_);
      if (!call.ok()) return call.status();
      const Expr rule = builder_.NewRule();
      builder_.Define(rule, *call);
      const bool free = !form_.content && !form_.tools->required;
      calls = free ? FreeCalls(rule) : Calls(rule);
      bodies.push_back(free ? builder_.Seq({FreeText(), builder_.Optional(*calls)}) : *calls);
    }
    if (bodies.empty()) {
      return absl::InvalidArgumentError("an answer's grammar needs a form of content or tools");
    }
    Expr answer = builder_.Alt(std::move(bodies));
    if (form_.opens_think) answer = Reasoned(answer, calls);
    absl::StatusOr<grammar::Grammar> built = builder_.Build(answer);
    if (!built.ok()) {
      const std::string subject = form_.content ? "the response format: " : "the tools: ";
      return absl::InvalidArgumentError(
          absl::StrCat(subject, std::string(built.status().message())));
    }
    return built;
  }

 private:
  absl::StatusOr<Expr> Content(const ContentForm& form) {
    if (form.json_schema) {
      if (absl::Status status = CheckSchemaSize(*form.json_schema); !status.ok()) return status;
      SchemaCompiler compiler(*form.json_schema, {}, deadline_, &builder_, &json_);
      return compiler.Json(compiler.reader().root_goal());
    }
    if (form.json_object) return json_.AnyObject();
    if (form.regex) {
      absl::StatusOr<std::vector<RegexWay>> ways = ParseRegex(*form.regex);
      if (!ways.ok()) return ways.status();
      return RegexExpr(*ways, {.form = TextForm::kRaw, .whole = true}, &builder_, &json_);
    }
    if (form.choices.empty() || form.choices.size() > kChoicesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "choice: ", form.choices.size(), " strings, at least 1 and at most ", kChoicesMax));
    }
    size_t bytes = 0;
    for (const std::string& choice : form.choices) bytes += choice.size();
    if (bytes > kChoiceBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("choice: ", bytes, " bytes together, at most ", kChoiceBytesMax));
    }
    return builder_.Choice(form.choices);
  }

  // Calls with nothing but a line break between them.
  Expr Calls(Expr call) {
    if (!form_.tools->parallel) return call;
    const Expr next = builder_.Seq({builder_.Optional(builder_.Literal("\n")), call});
    return builder_.Seq({call, builder_.Repeat(next, 0, kUnlimited)});
  }

  // A call, and text and calls after it.
  Expr FreeCalls(Expr call) {
    if (!form_.tools->parallel) return call;
    const Expr rule = builder_.NewRule();
    builder_.Define(rule, builder_.Seq({call, FreeText(), builder_.Optional(rule)}));
    return rule;
  }

  Expr FreeText() {
    return builder_.Text(
        TextAutomaton::Without({std::string(kCallOpen)}, TextAutomaton::Unit::kByte), 0, kUnlimited,
        grammar::kMarkersAreText | grammar::kSpecialsAreText);
  }

  Expr Reasoned(Expr answer, std::optional<Expr> calls) {
    std::vector<std::string> ends = {std::string(kThinkClose)};
    if (calls) ends.emplace_back(kCallOpen);
    const Expr reasoning =
        builder_.Text(TextAutomaton::Without(ends, TextAutomaton::Unit::kByte), 0, kUnlimited,
                      grammar::kMarkersAreText | grammar::kSpecialsAreText);
    const Expr space =
        json_.Characters(CharSet::Of(' ') | CharSet::Of('\n'), 0, kLeadingSpaceMax, TextForm::kRaw);
    // The tag ends the reasoning also where ordinary tokens spell it.
    const Expr close =
        builder_.Alt({TagExpr(kThinkClose, tokenizer_, &builder_), builder_.Literal(kThinkClose)});
    const Expr rest = builder_.Seq({close, space, answer});
    return builder_.Seq({reasoning, calls ? builder_.Alt({rest, *calls}) : rest});
  }

  const AnswerForm& form_;
  const Tokenizer& tokenizer_;
  const std::chrono::steady_clock::time_point deadline_;
  grammar::GrammarBuilder builder_;
  JsonText json_;
};

}  // namespace

absl::StatusOr<grammar::Grammar> AnswerGrammar(const AnswerForm& form, const Tokenizer& tokenizer) {
  return AnswerWriter(form, tokenizer).Write();
}

absl::StatusOr<grammar::Vocabulary> GrammarVocabulary(const Tokenizer& tokenizer,
                                                      const EndTokens& end) {
  using Kind = grammar::TokenText::Kind;
  std::vector<grammar::TokenText> tokens(static_cast<size_t>(end.vocab_size));
  for (int32_t id = 0; id < end.first_padding_id; ++id) {
    if (!tokenizer.HasToken(id)) continue;
    grammar::TokenText& token = tokens[static_cast<size_t>(id)];
    token.kind = !tokenizer.IsAdded(id)    ? Kind::kText
                 : tokenizer.IsSpecial(id) ? Kind::kSpecial
                                           : Kind::kMarker;
    token.bytes = std::string(tokenizer.TokenBytes(id));
  }
  return grammar::Vocabulary::Create(std::move(tokens), end.ids);
}

}  // namespace quartet::text
