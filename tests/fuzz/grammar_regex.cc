#include "services/gateway/text/grammar/regex.h"
#include "services/grammar/builder.h"
#include "tests/fuzz/text_fuzz_target.h"

// Whatever the expression is, it is refused or a grammar, in both ways to write characters.
QUARTET_FUZZ_TARGET(FuzzGrammarRegex) {
  using namespace quartet::text;
  if (input.size() > 400) return;
  const auto ways = ParseRegex(input);
  if (!ways.ok()) return;
  for (const TextForm form : {TextForm::kRaw, TextForm::kJson}) {
    quartet::grammar::GrammarBuilder builder;
    JsonText json(&builder);
    const auto grammar = builder.Build(
        RegexExpr(*ways, {.form = form, .whole = form == TextForm::kRaw}, &builder, &json));
    if (!grammar.ok()) continue;
    quartet::fuzz::Require(quartet::grammar::Grammar::Parse(grammar->Serialize()).ok());
  }
}
