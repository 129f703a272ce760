#include "services/gateway/text/reasoning.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

struct Split {
  std::string reasoning;
  std::string content;

  bool operator==(const Split&) const = default;
};

void PrintTo(const Split& split, std::ostream* out) {
  *out << "reasoning \"" << split.reasoning << "\" content \"" << split.content << '"';
}

struct Start {
  bool opens_think = true;
  bool tools_active = false;
};

Split Feed(const std::vector<std::string>& pieces, Start start) {
  ReasoningSplitter splitter(start.opens_think, start.tools_active);
  std::vector<TextPiece> out;
  for (const std::string& piece : pieces) splitter.Append(piece, &out);
  splitter.Finish(&out);
  Split split;
  for (const TextPiece& piece : out) {
    EXPECT_FALSE(piece.text.empty());
    (piece.kind == TextKind::kReasoning ? split.reasoning : split.content) += piece.text;
  }
  return split;
}

// The split of `text`, which must be the same however it is cut.
Split SplitOf(const std::string& text, Start start = {}) {
  const Split whole = Feed({text}, start);
  EXPECT_EQ(Feed(SingleBytes(text), start), whole);
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(Feed(RandomCuts(text, random), start), whole);
  return whole;
}

TEST(Reasoning, EndsAtTheClosingTag) {
  EXPECT_EQ(SplitOf("Six times nine.</think>54"), (Split{"Six times nine.", "54"}));
  EXPECT_EQ(SplitOf("</think>54"), (Split{"", "54"}));
}

TEST(Reasoning, IsKeptVerbatim) {
  EXPECT_EQ(SplitOf("  a \n\n</think>b"), (Split{"  a \n\n", "b"}));
  EXPECT_EQ(SplitOf("a < b </ think> <think> c</think>d"),
            (Split{"a < b </ think> <think> c", "d"}));
}

TEST(Reasoning, StaysReasoningWhenItNeverEnds) {
  EXPECT_EQ(SplitOf("all of it </thi"), (Split{"all of it </thi", ""}));
}

TEST(Reasoning, ARepeatedOpeningTagIsDroppedAtTheVeryStart) {
  EXPECT_EQ(SplitOf("<think>a</think>b"), (Split{"a", "b"}));
  EXPECT_EQ(SplitOf("<thinks>a</think>b"), (Split{"<thinks>a", "b"}));
  EXPECT_EQ(SplitOf("<thi"), (Split{"<thi", ""}));
}

TEST(Reasoning, CanStartAgainInContent) {
  EXPECT_EQ(SplitOf("a</think>b<think>c</think>d"), (Split{"ac", "bd"}));
  EXPECT_EQ(SplitOf("b<think>c</think>d", {.opens_think = false}), (Split{"c", "bd"}));
}

TEST(Reasoning, AStrayClosingTagInContentIsDropped) {
  EXPECT_EQ(SplitOf("a</think>b</think>c"), (Split{"a", "bc"}));
}

TEST(Reasoning, WhiteSpaceBeforeContentIsKept) {
  EXPECT_EQ(SplitOf("a</think>\n\nb"), (Split{"a", "\n\nb"}));
  EXPECT_EQ(SplitOf("a</think>\n\n"), (Split{"a", "\n\n"}));
  EXPECT_EQ(SplitOf("a</think> </think> b"), (Split{"a", "  b"}));
}

TEST(Reasoning, CallTagsAreTextWithoutTools) {
  EXPECT_EQ(SplitOf("see <tool_call>x</tool_call></think>\n<tool_call>y"),
            (Split{"see <tool_call>x</tool_call>", "\n<tool_call>y"}));
}

TEST(Reasoning, EndsAtACallWhenToolsAreActive) {
  const Start tools = {.tools_active = true};
  EXPECT_EQ(SplitOf("let me<tool_call>f</tool_call>", tools),
            (Split{"let me", "<tool_call>f</tool_call>"}));
  // White space before a call says nothing.
  EXPECT_EQ(SplitOf("a</think>\n\n<tool_call>f</tool_call>", tools),
            (Split{"a", "<tool_call>f</tool_call>"}));
  // Tags in a call's arguments are data.
  EXPECT_EQ(
      SplitOf("</think><tool_call>f<arg_value><think></arg_value></tool_call>b<think>c", tools),
      (Split{"c", "<tool_call>f<arg_value><think></arg_value></tool_call>b"}));
}

TEST(Reasoning, TextIsHeldOnlyWhileItCouldBeATag) {
  ReasoningSplitter splitter(true, false);
  std::vector<TextPiece> out;
  splitter.Append("ab</th", &out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "ab");
  splitter.Append("e", &out);
  EXPECT_EQ(out[0].text, "ab</the");
}

TEST(Reasoning, TokensCountAsReasoningUpToTheClosingTag) {
  ReasoningSplitter splitter(true, false);
  std::vector<TextPiece> out;
  int reasoning_tokens = 0;
  for (const char* token : {"one", " two", "</think>", "three"}) {
    reasoning_tokens += splitter.in_reasoning();
    splitter.Append(token, &out);
  }
  EXPECT_EQ(reasoning_tokens, 3);
}

TEST(Reasoning, PublicBugCasesSplitRight) {
  int run = 0;
  for (const Value& c : LoadJson("tests/data/chat/cases.json").Get("cases").list()) {
    if (c.Get("kind").string() != "parse") continue;
    ++run;
    std::string text;
    for (const Value& chunk : c.Get("chunks").list()) text += chunk.string();
    const bool tools = c.Get("request").Get("tools").Truthy();
    const Split split = SplitOf(
        text, {.opens_think = c.Get("prompt_tail").string() == "<think>", .tools_active = tools});
    const Value reasoning = c.Get("expect").Get("reasoning_content");
    EXPECT_EQ(split.reasoning, reasoning.is_string() ? reasoning.string() : "")
        << c.Get("id").string();
    if (!tools) {
      EXPECT_EQ(split.content, c.Get("expect").Get("content").string());
    }
  }
  EXPECT_EQ(run, 7);
}

}  // namespace
}  // namespace quartet::text
