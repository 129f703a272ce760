// Runs the fuzz targets over a small corpus: inputs that are right, and random damage to them.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "services/grammar/builder.h"
#include "tests/unit/grammar/support.h"

namespace quartet::fuzz {

void FuzzGrammarBytes(std::string_view input);
void FuzzGrammarRegex(std::string_view input);
void FuzzGrammarSchema(std::string_view input);
void FuzzGrammarVocabulary(std::string_view input);

namespace {

// A target fails by ending the process, so that surviving is what is tested.
void RunTarget(void (*target)(std::string_view), const std::vector<std::string>& seeds,
               const std::string& bytes, int rounds) {
  std::mt19937 random(9);
  for (const std::string& seed : seeds) {
    target(seed);
    for (int round = 0; round < rounds; ++round) {
      std::string damaged = seed;
      for (size_t changes = 1 + random() % 3; changes > 0 && !damaged.empty(); --changes) {
        const size_t at = random() % damaged.size();
        const std::string piece = damaged.substr(at, 1 + random() % 8);
        switch (random() % 3) {
          case 0:
            damaged[at] = bytes[random() % bytes.size()];
            break;
          case 1:
            damaged.erase(at, piece.size());
            break;
          default:
            damaged.insert(random() % damaged.size(), piece);
        }
      }
      target(damaged);
    }
  }
}

TEST(GrammarFuzzCorpus, Bytes) {
  grammar::GrammarBuilder b;
  const grammar::Expr rule = b.NewRule();
  const auto letters =
      grammar::TextAutomaton::OfUnits(grammar::SpellUtf8(grammar::CharSet::Of('a', 0x20AC)));
  b.Define(rule, b.Seq({b.Literal("("), b.Repeat(rule, 0, 3), b.Text(letters, 1, 9, 1),
                        b.Alt({b.Token("<tag>"), b.Literal("})")})}));
  RunTarget(FuzzGrammarBytes, {b.Build(rule)->Serialize()}, std::string("\0\1\2\3\4\5\6\7", 8),
            3000);
}

TEST(GrammarFuzzCorpus, Vocabulary) {
  const auto vocabulary = grammar::SmallVocabulary({"ab", "\xE2\x82", "ab"}, {"<tag>"});
  RunTarget(FuzzGrammarVocabulary, {vocabulary->Serialize()}, std::string("\0\1\2\3\xFF", 5), 2000);
}

TEST(GrammarFuzzCorpus, Schema) {
  RunTarget(FuzzGrammarSchema,
            {R"({"type":"object","properties":{"a":{"type":["string","null"],"maxLength":3},)"
             R"("b":{"$ref":"#/$defs/c"}},"required":["b"],"$defs":{"c":{"anyOf":[{"items":)"
             R"({"$ref":"#"},"maxItems":2},{"minimum":-1.5,"maximum":20}]}}})",
             R"({"allOf":[{"enum":[1,"a",{"b":[]}]},{"pattern":"^[a-f]{2,3}$"}],"minItems":1})",
             R"({"prefixItems":[{"const":"x"},true],"items":false,"additionalProperties":{}})"},
            "{}[]\",:0159aeint$#/", 400);
}

TEST(GrammarFuzzCorpus, Regex) {
  RunTarget(FuzzGrammarRegex,
            {R"(^(ab|[^a-c\d]{2,5})*?x+$|\u00e9\.{3}(?<n>\w|\s)?)", "[\\n-\\r\"\\\\]+.{0,7}"},
            "()[]{}|*+?^$\\.,-19ab", 400);
}

}  // namespace
}  // namespace quartet::fuzz
