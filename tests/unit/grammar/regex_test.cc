#include "services/gateway/text/grammar/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Grammar> Compile(const std::string& pattern) {
  text::AnswerForm form;
  form.content = text::ContentForm{.regex = pattern};
  return text::AnswerGrammar(form, DemoTokenizer());
}

void Expect(const std::string& pattern, const std::vector<std::string>& accepted,
            const std::vector<std::string>& refused) {
  const absl::StatusOr<Grammar> grammar = Compile(pattern);
  ASSERT_TRUE(grammar.ok()) << pattern << "\n" << grammar.status();
  for (const std::string& text : accepted) {
    EXPECT_TRUE(Accepts(*grammar, text)) << pattern << " should accept " << text;
  }
  for (const std::string& text : refused) {
    EXPECT_FALSE(Accepts(*grammar, text)) << pattern << " should refuse " << text;
  }
}

TEST(Regex, CharactersAndClasses) {
  Expect("a.c",
         {"abc",
          "a\xE2\x82\xAC"
          "c"},
         {"a\nc", "ac", "abcd"});
  Expect("[a-cx-]", {"a", "c", "x", "-"}, {"d", ""});
  Expect("[^a-c]", {"d", "\n", "\xF0\x9F\x98\x80"}, {"a"});
}

TEST(Regex, Escapes) {
  Expect(R"(\d\w\s)", {"1a ", "2_\t"}, {"a1 ", "1a_"});
  Expect(R"(\D\W\S)", {"a-x", "\xC3\xA9 y"}, {"1-x", "a-\xC2\xA0"});
  Expect(R"(\x41\u00e9\u{1F600}\uD83D\uDE00)", {"A\xC3\xA9\xF0\x9F\x98\x80\xF0\x9F\x98\x80"},
         {"A"});
  Expect(R"(\.\*\[\]\{\}\(\)\\\/\-\^\$\|\?\+)", {R"(.*[]{}()\/-^$|?+)"}, {});
  Expect(R"([\d\-\]a-c\n])", {"5", "-", "]", "b", "\n"}, {"d"});
}

// ECMA-262 means ASCII by \w and \d, Python and others mean Unicode.
TEST(Regex, ClassesHoldWhatAllDialectsPutThere) {
  const std::string e_acute = "\xC3\xA9";
  const std::string arabic_one = "\xD9\xA1";
  const std::string dash = "\xE2\x80\x93";
  Expect(R"(\w)", {"a", "_"}, {e_acute, arabic_one});
  Expect(R"(\W)", {"-", dash}, {"a", e_acute, arabic_one});
  Expect(R"([^\w])", {"-", dash}, {"a", e_acute, arabic_one});
  Expect(R"(\D)", {"a", e_acute, dash, "\xE5\xA4\xA9"}, {"1", arabic_one});
  Expect(R"([^\d])", {"a", e_acute}, {"1", arabic_one});
  Expect(R"([^\W])", {"a"}, {"-", e_acute});
  Expect(R"([^\s])", {"a", e_acute}, {" ", "\xC2\xA0", "\x1C"});
  Expect(R"([^\S])", {" ", "\t"}, {"a", "\xC2\xA0"});
}

TEST(Regex, Repetitions) {
  Expect("a*b+c?", {"b", "aabbc"}, {"a", "bcc"});
  Expect("a{3}", {"aaa"}, {"aa", "aaaa"});
  Expect("(ab){2,}", {"abab", "ababab"}, {"ab", "aba"});
  Expect("(a|bc){1,3}?", {"a", "bca", "bcbcbc"}, {"", "aaaa"});
  Expect("(?:x?){2,3}", {"", "x", "xxx"}, {"xxxx"});
  Expect("(a*)*", {"", "aaaa"}, {"b"});
  Expect("[a-z]{1000}", {std::string(1000, 'q')}, {std::string(1001, 'q')});
}

TEST(Regex, AlternativesGroupsAndAnchors) {
  Expect("^(?:red|gr(?<name>een|ey))$", {"red", "green", "grey"}, {"gre", "redgreen"});
  Expect("^a$|b", {"a", "b"}, {"ab"});
  Expect("a||b", {"a", "", "b"}, {"ab"});
}

TEST(Regex, WhatIsNotSupportedIsNamed) {
  const auto error = [](const std::string& pattern) {
    return std::string(Compile(pattern).status().message());
  };
  EXPECT_THAT(error("a(?=b)"), HasSubstr("looking ahead"));
  EXPECT_THAT(error("(?<!a)b"), HasSubstr("looking behind"));
  EXPECT_THAT(error(R"((a)\1)"), HasSubstr("reference"));
  EXPECT_THAT(error(R"(\bword)"), HasSubstr("\\b"));
  EXPECT_THAT(error(R"(\p{L})"), HasSubstr("\\p"));
  EXPECT_THAT(error("(?i)a"), HasSubstr("flag"));
  EXPECT_THAT(error("a++"), HasSubstr("possessive"));
  EXPECT_THAT(error("a$b"), HasSubstr("$"));
  EXPECT_THAT(error("a^b"), HasSubstr("^"));
  EXPECT_THAT(error("(a?b?)*"), HasSubstr("empty"));
  for (const char* wrong : {"(a", "a)", "[a", "a{2", "a{3,2}", "*a", "{1}", "a**", "[z-a]", "\\",
                            R"(\u12)", R"(\uD800)", "[^\\s\\S]x\xFF", "a{100001}", "(?<n"}) {
    EXPECT_FALSE(Compile(wrong).ok()) << wrong;
  }
}

// Small patterns and texts over few letters, against std::regex.
TEST(Regex, AgreesWithAnotherImplementation) {
  std::mt19937 random(11);
  const std::vector<std::string> atoms = {"a", "b", "[ab]", "(ab)", "(a|bb)", ".", "[^a]"};
  const std::vector<std::string> counts = {"", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}"};
  int accepted = 0;
  for (int round = 0; round < 300; ++round) {
    std::string pattern;
    for (size_t parts = 1 + random() % 4; parts > 0; --parts) {
      pattern += atoms[random() % atoms.size()] + counts[random() % counts.size()];
      if (parts > 1 && random() % 5 == 0) pattern += "|";
    }
    const absl::StatusOr<Grammar> grammar = Compile(pattern);
    ASSERT_TRUE(grammar.ok()) << pattern << grammar.status();
    const std::regex expected(pattern);
    for (int n = 0; n < 60; ++n) {
      std::string text;
      for (size_t size = random() % 6; size > 0; --size) text += "abc"[random() % 3];
      const bool accepts = std::regex_match(text, expected);
      accepted += accepts;
      EXPECT_EQ(Accepts(*grammar, text), accepts) << pattern << " on " << text;
    }
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace quartet::grammar
