#include "services/gateway/text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

struct Result {
  std::string text;
  std::optional<std::string> stop;
  uint64_t end = 0;

  bool operator==(const Result&) const = default;
};

void PrintTo(const Result& result, std::ostream* out) {
  *out << '"' << result.text << "\" stop " << result.stop.value_or("none") << " end " << result.end;
}

Result Feed(const std::vector<std::string>& pieces, const std::vector<std::string>& stops,
            bool include = false) {
  StopMatcher matcher(stops, {.include_stop_string = include});
  Result result;
  for (const std::string& piece : pieces) result.text += matcher.Append(piece);
  result.text += matcher.Finish();
  if (matcher.stopped()) {
    result.stop = matcher.stop_string();
    result.end = matcher.match_end();
  }
  return result;
}

TEST(StopStrings, NeverLeakTheirBeginning) {
  int run = 0;
  for (const Value& c : LoadJson("tests/data/chat/cases.json").Get("cases").list()) {
    if (c.Get("kind").string() != "stop") continue;
    ++run;
    std::vector<std::string> stops;
    for (const Value& stop : c.Get("request").Get("stop").list()) stops.push_back(stop.string());
    StopMatcher matcher(stops);
    std::string seen;
    const Value::List& chunks = c.Get("chunks").list();
    std::string whole;
    for (size_t i = 0; i < chunks.size(); ++i) {
      whole += chunks[i].string();
      seen += matcher.Append(chunks[i].string());
      const std::string& most =
          c.Get("expect").Get("released_after_each_chunk_at_most").list()[i].string();
      EXPECT_EQ(most.substr(0, seen.size()), seen) << "chunk " << i;
    }
    seen += matcher.Finish();
    EXPECT_EQ(seen, c.Get("expect").Get("content").string());
    ASSERT_TRUE(matcher.stopped());
    EXPECT_EQ(matcher.stop_string(), c.Get("expect").Get("stop_reason").string());
    EXPECT_EQ(whole.substr(matcher.match_begin(), matcher.match_end() - matcher.match_begin()),
              matcher.stop_string());
  }
  EXPECT_EQ(run, 1);
}

TEST(StopStrings, TheEarliestBeginningWinsThenTheLongest) {
  EXPECT_EQ(Feed({"xxabcd"}, {"bc", "abcd"}), (Result{"xx", "abcd", 6}));
  EXPECT_EQ(Feed({"xxabce"}, {"bc", "abcd"}), (Result{"xxa", "bc", 5}));
  EXPECT_EQ(Feed({"ab", "c"}, {"ab", "abc"}), (Result{"", "abc", 3}));
  EXPECT_EQ(Feed({"ab", "d"}, {"ab", "abc"}), (Result{"", "ab", 2}));
  // At the end nothing longer can follow.
  EXPECT_EQ(Feed({"ab"}, {"ab", "abc"}), (Result{"", "ab", 2}));
}

TEST(StopStrings, WhatCannotMatchAnyMoreIsReleased) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.Append("a st"), "a ");
  EXPECT_EQ(matcher.Append("ep s"), "step ");
  EXPECT_EQ(matcher.Finish(), "s");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStrings, TheMatchIsKeptOnRequest) {
  EXPECT_EQ(Feed({"one END two"}, {"END"}, true), (Result{"one END", "END", 7}));
}

TEST(StopStrings, NothingFollowsAMatch) {
  StopMatcher matcher({"#"});
  EXPECT_EQ(matcher.Append("a#b"), "a");
  EXPECT_EQ(matcher.Append("c"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopStrings, WithoutStringsTextPasses) {
  EXPECT_EQ(Feed({"a", "", "b"}, {}), (Result{"ab", std::nullopt, 0}));
  EXPECT_EQ(Feed({"ab"}, {""}), (Result{"ab", std::nullopt, 0}));
}

TEST(StopStrings, TheTokenOfTheMatchCanBeFound) {
  StopMatcher matcher({"END"});
  const std::vector<std::string> tokens = {"x", "E", "N", "D!", "y"};
  std::vector<uint64_t> fed;
  uint64_t bytes = 0;
  for (const std::string& token : tokens) {
    matcher.Append(token);
    fed.push_back(bytes += token.size());
  }
  ASSERT_TRUE(matcher.stopped());
  EXPECT_EQ(std::lower_bound(fed.begin(), fed.end(), matcher.match_end()) - fed.begin(), 3);
}

TEST(StopStrings, TheResultDoesNotDependOnTheCutting) {
  std::mt19937 random(7);
  const std::vector<std::vector<std::string>> stop_sets = {
      {"ab", "abc", "bcd"}, {"aab"}, {"aaaa", "ba"}, {"\xC3\xA9", "b\xC3"}, {"abcabd", "cab"}};
  for (int round = 0; round < 400; ++round) {
    const std::vector<std::string>& stops =
        stop_sets[static_cast<size_t>(round) % stop_sets.size()];
    std::string text;
    for (int i = 0; i < 24; ++i) text += std::string("aaabbccd").substr(random() % 8, 1);
    if (round % 3 == 0) text.insert(random() % text.size(), "\xC3\xA9");
    const Result whole = Feed({text}, stops);
    EXPECT_EQ(Feed(SingleBytes(text), stops), whole) << text;
    for (int cut = 0; cut < 200 / 20; ++cut) {
      EXPECT_EQ(Feed(RandomCuts(text, random), stops), whole) << text;
    }
    // The definition, read literally.
    size_t begin = std::string::npos;
    std::string stop;
    for (const std::string& s : stops) {
      const size_t at = text.find(s);
      if (at < begin || (at == begin && at != std::string::npos && s.size() > stop.size())) {
        begin = at;
        stop = s;
      }
    }
    EXPECT_EQ(whole.text, text.substr(0, begin));
    EXPECT_EQ(whole.stop.value_or(""), stop);
  }
}

TEST(StopMatcher, TextThatIsSkippedHoldsNoMatchAndBeginsNone) {
  StopMatcher matcher({"ab"});
  EXPECT_EQ(matcher.Skip("xaba"), "xaba");
  EXPECT_EQ(matcher.Append("bc"), "bc");
  EXPECT_EQ(matcher.Append("a"), "");
  EXPECT_EQ(matcher.Skip("b"), "ab") << "what was held comes first";
  EXPECT_EQ(matcher.Append("cabd"), "c");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.match_begin(), 9u);
  EXPECT_EQ(matcher.Skip("x"), "");
}

}  // namespace
}  // namespace quartet::text
