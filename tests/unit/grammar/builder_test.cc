#include "services/grammar/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

using ::testing::HasSubstr;

TextAutomaton Letters() {
  return TextAutomaton::OfUnits(SpellUtf8(CharSet::Of('a', 'z')));
}

Grammar Built(GrammarBuilder& builder, Expr start) {
  absl::StatusOr<Grammar> grammar = builder.Build(start);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *std::move(grammar);
}

TEST(GrammarBuilder, SequencesAndAlternatives) {
  GrammarBuilder b;
  const Expr start = b.Seq({b.Literal("a"), b.Alt({b.Literal("bc"), b.Literal("d"), b.Empty()}),
                            b.Optional(b.Literal("!"))});
  const Grammar grammar = Built(b, start);
  for (const char* text : {"a", "abc", "ad", "a!", "abc!"}) EXPECT_TRUE(Accepts(grammar, text));
  for (const char* text : {"", "ab", "ad!!", "b"}) EXPECT_FALSE(Accepts(grammar, text));
}

TEST(GrammarBuilder, TextsCountCharacters) {
  GrammarBuilder b;
  const Grammar grammar = Built(b, b.Text(Letters(), 2, 4));
  EXPECT_FALSE(Accepts(grammar, "a"));
  EXPECT_TRUE(Accepts(grammar, "ab"));
  EXPECT_TRUE(Accepts(grammar, "abcd"));
  EXPECT_FALSE(Begins(grammar, "abcde"));
}

TEST(GrammarBuilder, AMillionRepetitionsTakeNoMoreNodesThanThree) {
  size_t nodes = 0;
  for (const uint32_t max : {3U, 1'000'000U}) {
    GrammarBuilder b;
    const Expr item = b.Seq({b.Literal("("), b.Text(Letters(), 0, max), b.Literal(")")});
    const Grammar grammar = Built(b, b.Repeat(item, 2, max));
    EXPECT_FALSE(Accepts(grammar, "(a)"));
    EXPECT_TRUE(Accepts(grammar, "(a)()"));
    EXPECT_TRUE(Accepts(grammar, "(a)()(abc)"));
    EXPECT_EQ(Accepts(grammar, "()()()()"), max > 3);
    if (nodes == 0) nodes = grammar.nodes().size();
    EXPECT_EQ(grammar.nodes().size(), nodes);
  }
}

TEST(GrammarBuilder, RepetitionsInsideOfRepetitionsCountForThemselves) {
  GrammarBuilder b;
  const Expr inner = b.Seq({b.Literal("["), b.Repeat(b.Literal("x"), 1, 2), b.Literal("]")});
  const Grammar grammar = Built(b, b.Repeat(inner, 2, 2));
  EXPECT_TRUE(Accepts(grammar, "[x][xx]"));
  EXPECT_FALSE(Begins(grammar, "[xxx"));
  EXPECT_FALSE(Begins(grammar, "[x][x]["));
  EXPECT_FALSE(Accepts(grammar, "[x]"));
}

TEST(GrammarBuilder, RulesMayContainThemselves) {
  GrammarBuilder b;
  const Expr rule = b.NewRule();
  b.Define(rule, b.Seq({b.Literal("("), b.Optional(rule), b.Literal(")")}));
  const Grammar grammar = Built(b, rule);
  EXPECT_TRUE(Accepts(grammar, "((()))"));
  EXPECT_FALSE(Accepts(grammar, "((())"));
  EXPECT_FALSE(Begins(grammar, "(()))"));
  EXPECT_TRUE(Accepts(grammar, std::string(5000, '(') + std::string(5000, ')')));
}

TEST(GrammarBuilder, ChoicesShareBeginnings) {
  GrammarBuilder b;
  const Grammar grammar = Built(b, b.Choice({"team", "tea", "ten", "tea", "\xE2\x82\xAC"}));
  for (const char* text : {"team", "tea", "ten", "\xE2\x82\xAC"}) {
    EXPECT_TRUE(Accepts(grammar, text));
  }
  for (const char* text : {"te", "teams", "", "\xE2"}) EXPECT_FALSE(Accepts(grammar, text));
  Machine machine(std::make_shared<const Grammar>(grammar));
  EXPECT_EQ(machine.Start().size(), 2U);
}

TEST(GrammarBuilder, WhatCannotBeCompletedIsLeftOut) {
  GrammarBuilder b;
  const Expr endless = b.NewRule();
  b.Define(endless, b.Seq({b.Literal("x"), endless}));
  const Expr start =
      b.Alt({b.Literal("a"), b.Seq({b.Literal("b"), endless}), b.Seq({b.Literal("c"), b.Never()})});
  const Grammar grammar = Built(b, start);
  EXPECT_TRUE(Accepts(grammar, "a"));
  EXPECT_FALSE(Begins(grammar, "b"));
  EXPECT_FALSE(Begins(grammar, "c"));
}

TEST(GrammarBuilder, RefusesWhatHasNoAnswer) {
  GrammarBuilder b;
  EXPECT_THAT(std::string(b.Build(b.Seq({b.Literal("a"), b.Never()})).status().message()),
              HasSubstr("no answer"));
}

TEST(GrammarBuilder, RefusesRulesThatComeBackToThemselvesWithoutReading) {
  GrammarBuilder b;
  const Expr rule = b.NewRule();
  b.Define(rule,
           b.Alt({b.Literal("a"), b.Seq({b.Optional(b.Literal("b")), rule, b.Literal("c")})}));
  EXPECT_THAT(std::string(b.Build(rule).status().message()), HasSubstr("comes back to itself"));
}

TEST(GrammarBuilder, RefusesToRepeatWhatMayBeEmpty) {
  GrammarBuilder b;
  const Expr start = b.Repeat(b.Optional(b.Literal("a")), 0, 5);
  EXPECT_THAT(std::string(b.Build(start).status().message()), HasSubstr("may be empty"));
}

Grammar Rich() {
  GrammarBuilder b;
  const Expr rule = b.NewRule();
  b.Define(rule, b.Seq({b.Literal("("), b.Repeat(rule, 0, 7), b.Text(Letters(), 1, 900),
                        b.Alt({b.Token("<tag>"), b.Literal(")")})}));
  return Built(b, rule);
}

TEST(GrammarBytes, ComeBackEqual) {
  const Grammar grammar = Rich();
  const std::string bytes = grammar.Serialize();
  const auto parsed = Grammar::Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->nodes(), grammar.nodes());
  EXPECT_EQ(parsed->start(), grammar.start());
  EXPECT_EQ(parsed->token_names(), grammar.token_names());
  EXPECT_EQ(parsed->Serialize(), bytes);
  EXPECT_TRUE(Accepts(*parsed, "((a)((b)(c)d)e)"));
}

TEST(GrammarBytes, EveryCutIsRefused) {
  const std::string bytes = Rich().Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Grammar::Parse(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(Grammar::Parse(bytes + std::string(1, '\0')).ok());
}

// Damage is refused, or makes another grammar that keeps what grammars promise.
TEST(GrammarBytes, DamageIsRefusedOrHarmless) {
  const std::string bytes = Rich().Serialize();
  std::mt19937 random(3);
  int parsed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
      damaged[random() % damaged.size()] = static_cast<char>(random() % 12);
    }
    const auto grammar = Grammar::Parse(damaged);
    if (!grammar.ok()) continue;
    ++parsed;
    EXPECT_TRUE(CheckGrammar(*grammar).ok());
    EXPECT_FALSE(Machine(std::make_shared<const Grammar>(*grammar)).Start().empty());
  }
  EXPECT_GT(parsed, 0);
}

}  // namespace
}  // namespace quartet::grammar
