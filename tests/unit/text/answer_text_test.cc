#include "services/gateway/text/answer_text.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/unit/text/message.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

struct Answer {
  Message message;
  std::string stop;  // "string S", "call" or nothing
  uint32_t complete_calls = 0;

  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  PrintTo(answer.message, out);
  *out << " stop \"" << answer.stop << "\" calls " << answer.complete_calls;
}

Answer Feed(const std::vector<std::string>& chunks, const AnswerTextOptions& options) {
  AnswerText text(options);
  std::vector<TextPiece> pieces;
  for (const std::string& chunk : chunks) text.Append(chunk, &pieces);
  text.Finish(OutputEnd::kStop, &pieces);
  Answer answer{ToMessage(pieces), "", text.complete_calls()};
  if (text.stopped()) {
    answer.stop = text.stopped_by_string() ? "string " + text.stop_string() : "call";
  }
  return answer;
}

Answer AnswerOf(const std::string& text, const AnswerTextOptions& options) {
  const Answer whole = Feed({text}, options);
  EXPECT_EQ(Feed(SingleBytes(text), options), whole);
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(Feed(RandomCuts(text, random), options), whole);
  return whole;
}

AnswerTextOptions WithTools(std::vector<std::string> stop = {}) {
  return {.split = true,
          .tools = MakeTools(R"({"properties":{"s":{"type":"string"}}})"),
          .stop = std::move(stop)};
}

const std::string kCall =
    "<tool_call>f<arg_key>s</arg_key><arg_value>x END y</arg_value></tool_call>";
const Call kParsed = {"f", R"({"s": "x END y"})"};

TEST(AnswerText, WithoutSplitEverythingIsContent) {
  const std::string text = "a</think>" + kCall;
  EXPECT_EQ(AnswerOf(text, {}), (Answer{{"", text, {}}}));
}

TEST(AnswerText, StopStringsAreNotLookedForInCallsAndReasoning) {
  AnswerTextOptions options = WithTools({"END"});
  options.opens_think = true;
  EXPECT_EQ(AnswerOf("an END</think>b " + kCall + " c END d", options),
            (Answer{{"an END", "b  c ", {kParsed}}, "string END", 1}));
}

TEST(AnswerText, AStopStringDoesNotReachAcrossACall) {
  EXPECT_EQ(AnswerOf("EN" + kCall + "D", WithTools({"END"})),
            (Answer{{"", "END", {kParsed}}, "", 1}));
  EXPECT_EQ(AnswerOf("ab" + kCall + "c", WithTools({"ab", "abc"})),
            (Answer{{"", "", {}}, "string ab", 0}))
      << "the longer one cannot follow any more";
}

TEST(AnswerText, StopStringsMayBeLookedForInReasoningTooEachRunForItself) {
  AnswerTextOptions options = WithTools({"END"});
  options.opens_think = true;
  options.stop_in_reasoning = true;
  EXPECT_EQ(AnswerOf("an END b</think>c", options), (Answer{{"an ", "", {}}, "string END", 0}));
  EXPECT_EQ(AnswerOf("a EN</think>D b END", options),
            (Answer{{"a EN", "D b ", {}}, "string END", 0}));
  options.include_stop_string = true;
  EXPECT_EQ(AnswerOf("an END b", options), (Answer{{"an END", "", {}}, "string END", 0}));
}

TEST(AnswerText, AnAnswerOfNothingButReasoningMayBeSaidAsContent) {
  AnswerTextOptions options = WithTools();
  options.opens_think = true;
  options.nonempty_content = true;
  EXPECT_EQ(AnswerOf("only this", options), (Answer{{"only this", "only this", {}}, "", 0}));
  EXPECT_EQ(AnswerOf("this</think>and that", options), (Answer{{"this", "and that", {}}, "", 0}));
  EXPECT_EQ(AnswerOf("this" + kCall, options), (Answer{{"this", "", {kParsed}}, "", 1}));
  AnswerText cut(options);
  std::vector<TextPiece> pieces;
  cut.Append("cut off", &pieces);
  cut.Finish(OutputEnd::kLength, &pieces);
  EXPECT_EQ(ToMessage(pieces).content, "") << "it might have gone on to content";
}

TEST(AnswerText, WithOneCallTheAnswerEndsBehindIt) {
  AnswerTextOptions options = WithTools();
  options.one_call = true;
  EXPECT_EQ(AnswerOf("a" + kCall + kCall + "b", options),
            (Answer{{"", "a", {kParsed}}, "call", 1}));
  EXPECT_EQ(AnswerOf("<tool_call>h</tool_call>" + kCall + "b", options),
            (Answer{{"", "<tool_call>h</tool_call>", {kParsed}}, "call", 1}))
      << "a block that is no call does not count";
  EXPECT_EQ(AnswerOf("a", options), (Answer{{"", "a", {}}}));
}

TEST(AnswerText, PublicBugWithAStopStringInPieces) {
  int run = 0;
  for (const Value& c : LoadJson("tests/data/chat/cases.json").Get("cases").list()) {
    if (c.Get("kind").string() != "stop") continue;
    ++run;
    const Value expect = c.Get("expect");
    std::vector<std::string> stops;
    for (const Value& stop : c.Get("request").Get("stop").list()) stops.push_back(stop.string());
    AnswerText text({.split = true, .stop = stops});
    std::vector<TextPiece> pieces;
    for (size_t i = 0; i < c.Get("chunks").list().size(); ++i) {
      text.Append(c.Get("chunks").list()[i].string(), &pieces);
      const std::string most = expect.Get("released_after_each_chunk_at_most").list()[i].string();
      EXPECT_TRUE(most.starts_with(ToMessage(pieces).content)) << "after chunk " << i;
    }
    text.Finish(OutputEnd::kStop, &pieces);
    EXPECT_EQ(ToMessage(pieces).content, expect.Get("content").string());
    EXPECT_EQ(text.stop_string(), expect.Get("stop_reason").string());
  }
  EXPECT_EQ(run, 1);
}

}  // namespace
}  // namespace quartet::text
