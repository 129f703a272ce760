// Masks against trying every token, and what speculation does to a constraint.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "services/gateway/text/json.h"
#include "services/grammar/builder.h"
#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

// Forms of answers that together use every kind of node.
std::vector<text::AnswerForm> Forms() {
  const auto json = [](std::string_view text) { return text::ParseJson(text).value(); };
  std::vector<text::AnswerForm> forms;
  const auto content = [&](text::ContentForm form, bool think = false) {
    forms.push_back({.content = std::move(form), .opens_think = think});
  };
  for (const char* schema : {
           "true",
           R"({"properties":{"name":{"type":"string"},"n":{"type":"integer","minimum":-3},)"
           R"("tags":{"items":{"type":"string","maxLength":6},"minItems":1,"maxItems":3},)"
           R"("\u9f8d":{"enum":["tool","the tool",5,null]}},"required":["name","tags"]})",
           R"({"type":"string","minLength":3,"maxLength":9})",
           R"({"type":"string","pattern":"^[a-z]+( [a-z]+){0,3}\\.$"})",
           R"({"anyOf":[{"type":"number","minimum":0.25,"maximum":40},{"type":"array","items":)"
           R"({"$ref":"#"}},{"type":"object","additionalProperties":{"type":"boolean"}}]})",
       }) {
    content({.json_schema = json(schema)});
    content({.json_schema = json(schema)}, true);
  }
  content({.json_object = true});
  content({.regex = "(the|a|an)? ?[a-z]{2,12}([0-9]+|[a-z0-9]*x)"});
  content({.choices = {"the tool", "the", "there", "a"}});
  const text::Value tools = json(
      R"([{"name":"get","parameters":{"properties":{"q":{"type":"string"},"k":{"type":"string",)"
      R"("maxLength":5},"m":{"type":"object"}},"required":["q"]}},{"name":"go"}])");
  for (const bool required : {true, false}) {
    text::AnswerForm form;
    form.tools = text::ToolForm{tools, {}, required, true};
    form.opens_think = required;
    forms.push_back(form);
  }
  return forms;
}

TEST(Mask, EqualsTryingEveryToken) {
  const auto vocabulary = DemoVocabulary();
  MaskMaker maker(vocabulary);
  std::mt19937 random(17);
  int states = 0;
  for (const text::AnswerForm& form : Forms()) {
    const auto grammar = text::AnswerGrammar(form, DemoTokenizer());
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    for (int walk = 0; walk < 3; ++walk) {
      Matcher matcher = MatcherFor(*grammar, &maker);
      for (int step = 0; step < 40 && !matcher.ended(); ++step, ++states) {
        const auto mask = matcher.MaskOf(matcher.state(), &maker);
        ASSERT_EQ(*mask, TriedMask(matcher)) << "walk " << walk << ", step " << step;
        const int32_t token = RandomToken(*mask, *vocabulary, random);
        ASSERT_GE(token, 0) << "no token is allowed";
        ASSERT_TRUE(matcher.Advance(token));
      }
    }
  }
  EXPECT_GT(states, 1000);
  EXPECT_GT(maker.hits(), 0U);
}

// With so many tokens what can follow a text is kept in another form.
TEST(Mask, EqualsTryingEveryTokenOfALargeVocabulary) {
  const std::vector<std::string> pieces = {"a", "b",  " ", "\"", "<", "/",    "</th", "ink>",
                                           ">", "\\", "n", ",",  "}", "\xC3", "\xA9"};
  std::mt19937 random(3);
  std::set<std::string> texts;
  while (texts.size() < 40'000) {
    std::string text;
    for (size_t n = 2 + random() % 6; n > 0; --n) text += pieces[random() % pieces.size()];
    texts.insert(text);
  }
  texts.insert(std::string(40, 'a'));
  const auto vocabulary = SmallVocabulary({texts.begin(), texts.end()}, {"</think>"});
  MaskMaker maker(vocabulary);
  const auto expect = [&](const text::AnswerForm& form,
                          const std::vector<std::string>& beginnings) {
    const auto grammar = text::AnswerGrammar(form, DemoTokenizer());
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    for (const std::string& beginning : beginnings) {
      Matcher matcher = MatcherFor(*grammar, &maker);
      ASSERT_TRUE(matcher.AdvanceBytes(beginning)) << beginning;
      EXPECT_EQ(*matcher.MaskOf(matcher.state(), &maker), TriedMask(matcher)) << beginning;
    }
  };
  const auto schema = text::ParseJson(
      R"({"properties":{"a":{"type":"string","minLength":3,"maxLength":30},"b":{"type":"string"}}})");
  expect({.content = text::ContentForm{.json_schema = *schema}},
         {"", R"({"a":")", R"({"a":"ab)", R"({"a":"abc\)", "{\"a\":\"\xC3",
          R"({"a":")" + std::string(27, 'a'), R"({"a":")" + std::string(30, 'a'), R"({"b":")",
          R"({"b":"\)", R"({"b":"\uD83D)", "{\"b\":\"\xC3"});
  expect({.content = text::ContentForm{.json_object = true}, .opens_think = true},
         {"", "a", "<", "</", "</t", "</think", "</think>", "</think>{\""});
}

TEST(Mask, IsTheSameFromACacheThatHoldsNext) {
  const auto vocabulary = DemoVocabulary();
  MaskMaker large(vocabulary);
  MaskMaker small(vocabulary, {.masks = 2, .grammars = 1});
  const Grammar grammar = SchemaGrammar("true");
  Matcher a = MatcherFor(grammar, &large);
  Matcher b = MatcherFor(grammar, &small);
  std::mt19937 random(4);
  for (int step = 0; step < 200 && !a.ended(); ++step) {
    const auto mask = a.MaskOf(a.state(), &large);
    ASSERT_EQ(*mask, *b.MaskOf(b.state(), &small));
    const int32_t token = RandomToken(*mask, *vocabulary, random);
    ASSERT_TRUE(a.Advance(token));
    ASSERT_TRUE(b.Advance(token));
  }
}

// Grammars are loaded on the threads that take requests, while the engine's follows answers.
TEST(Mask, IsTheSameWhileOtherThreadsUseTheMaker) {
  const auto vocabulary = DemoVocabulary();
  const std::vector<std::string> schemas = {
      R"({"type":"string","maxLength":40})", R"({"type":"array","items":{"type":"number"}})",
      R"({"type":"string","pattern":"^[a-z ]+[.!?]$"})", "true"};
  const auto walk = [&](MaskMaker* maker, const Grammar& grammar, unsigned seed) {
    std::vector<Mask> masks;
    std::mt19937 random(seed);
    Matcher matcher = MatcherFor(grammar, maker);
    for (int step = 0; step < 60 && !matcher.ended(); ++step) {
      masks.push_back(*matcher.MaskOf(matcher.state(), maker));
      if (!matcher.Advance(RandomToken(masks.back(), *vocabulary, random))) break;
    }
    return masks;
  };
  std::vector<Grammar> grammars;
  for (const std::string& schema : schemas) grammars.push_back(SchemaGrammar(schema));
  MaskMaker shared(vocabulary, {.masks = 16, .grammars = 2});
  std::vector<std::vector<Mask>> together(8);
  {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < together.size(); ++i) {
      threads.emplace_back([&, i] { together[i] = walk(&shared, grammars[i % 4], i); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (unsigned i = 0; i < together.size(); ++i) {
    MaskMaker own(vocabulary);
    EXPECT_EQ(together[i], walk(&own, grammars[i % 4], i)) << schemas[i % 4];
  }
}

// More readings at the same time than are followed for long: some are given up, but what a mask
// allows can be read, and the answer can be completed.
TEST(Mask, ManyReadingsAtTheSameTime) {
  std::string schema = R"({"anyOf":[)";
  for (int i = 0; i < 150; ++i) {
    schema += std::string(i > 0 ? "," : "") + R"({"pattern":"^[a-z]+ ?[a-z0-9]{)" +
              std::to_string(i + 3) + R"(}$"})";
  }
  const auto vocabulary = DemoVocabulary();
  MaskMaker maker(vocabulary);
  std::mt19937 random(8);
  Matcher matcher = MatcherFor(SchemaGrammar(schema + "]}"), &maker);
  for (int step = 0; step < 400 && !matcher.ended(); ++step) {
    const auto mask = matcher.MaskOf(matcher.state(), &maker);
    if (step % 4 == 0) {
      ASSERT_EQ(*mask, TriedMask(matcher)) << step;
    }
    const int32_t token = matcher.MayEnd() ? kDemoEnd : RandomToken(*mask, *vocabulary, random);
    ASSERT_GE(token, 0);
    ASSERT_TRUE(matcher.Advance(token)) << step;
  }
  EXPECT_TRUE(matcher.ended());
}

TEST(Mask, EndTokensAreAllowedOnlyWhereTheAnswerMayEnd) {
  MaskMaker maker(DemoVocabulary());
  Matcher matcher = MatcherFor(SchemaGrammar(R"({"type":"integer"})"), &maker);
  const auto ends = [&] {
    const auto mask = matcher.MaskOf(matcher.state(), &maker);
    bool all = true;
    for (const int32_t id : DemoVocabulary()->end_ids()) all = all && Allowed(*mask, id);
    return all;
  };
  EXPECT_FALSE(ends());
  EXPECT_FALSE(matcher.Advance(kDemoEnd));
  ASSERT_TRUE(matcher.AdvanceBytes("1"));
  EXPECT_TRUE(ends());
  EXPECT_FALSE(matcher.MustEnd());
  ASSERT_TRUE(matcher.AdvanceBytes(std::string(17, '2')));
  EXPECT_TRUE(matcher.MustEnd());
  ASSERT_TRUE(matcher.Advance(kDemoEnd));
  EXPECT_TRUE(matcher.ended());
  EXPECT_FALSE(matcher.MayEnd());
  EXPECT_FALSE(matcher.Advance(kDemoEnd));
  EXPECT_EQ(*matcher.MaskOf(matcher.state(), &maker), DemoVocabulary()->EmptyMask());
}

TEST(Mask, PaddingAndOtherSpecialTokensAreNeverAllowedInContent) {
  MaskMaker maker(DemoVocabulary());
  Matcher matcher = MatcherFor(SchemaGrammar("true"), &maker);
  ASSERT_TRUE(matcher.AdvanceBytes("\"<"));
  const auto mask = matcher.MaskOf(matcher.state(), &maker);
  for (const char* name : {"[gMASK]", "<|user|>", "<think>", "<tool_call>"}) {
    EXPECT_FALSE(Allowed(*mask, DemoToken(name))) << name;
    EXPECT_FALSE(matcher.Advance(DemoToken(name))) << name;
  }
  for (int32_t id = 2020; id < 2048; ++id) EXPECT_FALSE(Allowed(*mask, id));
  EXPECT_FALSE(matcher.Advance(-1));
  EXPECT_FALSE(matcher.Advance(2048));
}

// Tokens that hold the first bytes of a character, the last ones, or both.
TEST(Mask, TokensMayCutCharacters) {
  const auto vocabulary = SmallVocabulary(
      {"\xE2\x82", "\xAC\"", "\xAC\xE2", "\xC3", "a\xF0\x9F", "\x98\x80", "\"}", "\xED\xA0"}, {});
  MaskMaker maker(vocabulary);
  const Grammar grammar = SchemaGrammar(R"({"type":"string","minLength":2,"maxLength":2})");
  Matcher matcher = MatcherFor(grammar, &maker);
  const auto mask = [&] { return matcher.MaskOf(matcher.state(), &maker); };
  ASSERT_TRUE(matcher.AdvanceBytes("\""));
  EXPECT_EQ(*mask(), TriedMask(matcher));
  EXPECT_TRUE(Allowed(*mask(), 256));   // E2 82
  EXPECT_FALSE(Allowed(*mask(), 257));  // AC "
  EXPECT_TRUE(Allowed(*mask(), 260));   // a F0 9F
  EXPECT_FALSE(Allowed(*mask(), 263));  // a surrogate
  ASSERT_TRUE(matcher.Advance(256));
  EXPECT_EQ(*mask(), TriedMask(matcher));
  EXPECT_FALSE(Allowed(*mask(), 257));  // one character only, and two are wanted
  EXPECT_TRUE(Allowed(*mask(), 258));   // AC E2
  EXPECT_FALSE(Allowed(*mask(), 'a'));
  ASSERT_TRUE(matcher.Advance(258));
  EXPECT_EQ(*mask(), TriedMask(matcher));
  ASSERT_TRUE(matcher.Advance(0x82));
  EXPECT_TRUE(Allowed(*mask(), 257));  // AC "
  EXPECT_EQ(*mask(), TriedMask(matcher));
  ASSERT_TRUE(matcher.Advance(257));
  EXPECT_TRUE(matcher.MustEnd());
}

TEST(Mask, TokensMayEndOneTextAndBeginTheNext) {
  const auto vocabulary = SmallVocabulary({"\",\"", "\", \"ab", "a\",", "aa\",\"b", "\"]"}, {});
  MaskMaker maker(vocabulary);
  Matcher matcher = MatcherFor(
      SchemaGrammar(R"({"items":{"type":"string","minLength":2,"maxLength":3},"maxItems":2})"),
      &maker);
  for (const char* bytes : {"[\"", "a", "b", "c", "\"", ",", "\"x", "y"}) {
    ASSERT_TRUE(matcher.AdvanceBytes(bytes));
    ASSERT_EQ(*matcher.MaskOf(matcher.state(), &maker), TriedMask(matcher)) << bytes;
  }
}

TEST(Mask, OneOfSeveralTokensOfTheSameTextIsAsGoodAsTheOther) {
  const auto vocabulary = SmallVocabulary({"true", "true", ""}, {});
  MaskMaker maker(vocabulary);
  Matcher matcher = MatcherFor(SchemaGrammar(R"({"type":"boolean"})"), &maker);
  const auto mask = matcher.MaskOf(matcher.state(), &maker);
  EXPECT_TRUE(Allowed(*mask, 256));
  EXPECT_TRUE(Allowed(*mask, 257));
  EXPECT_FALSE(Allowed(*mask, 258));  // an empty token says nothing
  EXPECT_EQ(*mask, TriedMask(matcher));
}

TEST(MaskMaker, RefusesGrammarsThatItCannotFollow) {
  MaskMaker maker(SmallVocabulary({}, {"<known>"}));
  EXPECT_FALSE(maker.Load("").ok());
  EXPECT_FALSE(maker.Load("quartet grammar 1\n").ok());
  GrammarBuilder b;
  const auto grammar = b.Build(b.Seq({b.Token("<known>"), b.Token("<unknown>")}));
  ASSERT_TRUE(grammar.ok());
  const auto loaded = maker.Load(grammar->Serialize());
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(loaded.status().message().find("<unknown>"), std::string::npos);
}

TEST(Vocabulary, ComesBackFromItsBytes) {
  const auto parsed = Vocabulary::Parse(DemoVocabulary()->Serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->size(), DemoVocabulary()->size());
  EXPECT_EQ(parsed->end_ids(), DemoVocabulary()->end_ids());
  EXPECT_EQ(parsed->Serialize(), DemoVocabulary()->Serialize());
  EXPECT_FALSE(Vocabulary::Parse(parsed->Serialize() + "x").ok());
  EXPECT_FALSE(Vocabulary::Create({{TokenText::Kind::kText, "a"}}, {1}).ok());
}

std::vector<int32_t> Encoded(std::string_view text) {
  const auto ids = DemoTokenizer().Encode(text);
  EXPECT_TRUE(ids.ok());
  return *ids;
}

TEST(Constraint, TellsHowManyDraftsAreAccepted) {
  MaskMaker maker(DemoVocabulary());
  auto constraint = Constraint::Create(
      SchemaGrammar(R"({"type":"object","properties":{"name":{"type":"string"}}})").Serialize(),
      &maker);
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  ASSERT_TRUE(constraint->Advance(Encoded("{\"name")).ok());
  std::vector<int32_t> drafts = Encoded("\": \"the");
  const size_t good = drafts.size();
  drafts.push_back(DemoToken("<think>"));
  drafts.push_back(DemoToken("the"));
  EXPECT_EQ(constraint->AcceptedDrafts(drafts), good);
  // Drafts change nothing that is certain.
  EXPECT_EQ(constraint->AcceptedDrafts(Encoded("x")), 0U);
  EXPECT_EQ(constraint->AcceptedDrafts(drafts), good);
  ASSERT_TRUE(constraint->Advance(Encoded("\": \"a\"}")).ok());
  EXPECT_TRUE(constraint->MustEnd());
  EXPECT_EQ(constraint->AcceptedDrafts(std::vector<int32_t>{kDemoEnd, kDemoEnd}), 1U);
  EXPECT_EQ(*constraint->MaskAt(1), DemoVocabulary()->EmptyMask());
  ASSERT_TRUE(constraint->Advance(std::vector<int32_t>{kDemoEnd}).ok());
  EXPECT_TRUE(constraint->ended());
}

TEST(Constraint, ATokenThatIsNotAllowedIsAnError) {
  MaskMaker maker(DemoVocabulary());
  auto constraint = Constraint::Create(SchemaGrammar("true").Serialize(), &maker);
  ASSERT_TRUE(constraint.ok());
  const std::vector<int32_t> tokens = {DemoToken("["), DemoToken("}")};
  EXPECT_EQ(constraint->Advance(tokens).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(constraint->Advance(Encoded("]")).ok());
  EXPECT_TRUE(constraint->MustEnd());
}

// However drafts were tried, taken and given up, what is allowed is what a fresh matcher allows.
TEST(Constraint, SpeculationLeavesNoTrace) {
  const auto vocabulary = DemoVocabulary();
  MaskMaker maker(vocabulary);
  std::mt19937 random(23);
  for (const text::AnswerForm& form : Forms()) {
    const auto grammar = text::AnswerGrammar(form, DemoTokenizer());
    ASSERT_TRUE(grammar.ok());
    auto constraint = Constraint::Create(grammar->Serialize(), &maker);
    ASSERT_TRUE(constraint.ok());
    Matcher plain = MatcherFor(*grammar, &maker);
    for (int round = 0; round < 25 && !plain.ended(); ++round) {
      // Drafts that follow the masks, then perhaps any token.
      std::vector<int32_t> drafts;
      Matcher ahead = plain;
      for (size_t n = random() % 5; n > 0 && !ahead.ended(); --n) {
        const auto mask = ahead.MaskOf(ahead.state(), &maker);
        drafts.push_back(RandomToken(*mask, *vocabulary, random));
        ASSERT_TRUE(ahead.Advance(drafts.back()));
      }
      const size_t good = drafts.size();
      drafts.push_back(static_cast<int32_t>(random() % vocabulary->size()));
      const size_t accepted = constraint->AcceptedDrafts(drafts);
      ASSERT_GE(accepted, good);
      for (size_t position = 0; position <= accepted; ++position) {
        Matcher fresh = plain;
        for (size_t i = 0; i < position; ++i) ASSERT_TRUE(fresh.Advance(drafts[i]));
        ASSERT_EQ(*constraint->MaskAt(position), TriedMask(fresh));
      }
      const size_t taken = random() % (accepted + 1);
      const std::vector<int32_t> certain(drafts.begin(),
                                         drafts.begin() + static_cast<std::ptrdiff_t>(taken));
      ASSERT_TRUE(constraint->Advance(certain).ok());
      for (const int32_t token : certain) ASSERT_TRUE(plain.Advance(token));
      ASSERT_EQ(constraint->MayEnd(), plain.MayEnd());
    }
  }
}

TEST(Constraint, LongAnswersGiveTheirMemoryBack) {
  MaskMaker maker(DemoVocabulary());
  auto constraint = Constraint::Create(
      SchemaGrammar(R"({"items":{"items":{"type":"integer"}},"maxItems":100000})").Serialize(),
      &maker);
  ASSERT_TRUE(constraint.ok());
  const std::vector<int32_t> item = Encoded("[1],");
  ASSERT_TRUE(constraint->Advance(Encoded("[")).ok());
  for (int i = 0; i < 40000; ++i) ASSERT_TRUE(constraint->Advance(item).ok()) << i;
  ASSERT_TRUE(constraint->Advance(Encoded("[]]")).ok());
  EXPECT_TRUE(constraint->MustEnd());
}

}  // namespace
}  // namespace quartet::grammar
