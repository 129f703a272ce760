#include "services/gateway/text/output_splitter.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/text/message.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

Message Text(std::string reasoning, std::string content) {
  return {std::move(reasoning), std::move(content), {}};
}

TEST(Reasoning, EndsAtTheClosingTag) {
  EXPECT_EQ(MessageOf("Six times nine.</think>54"), Text("Six times nine.", "54"));
  EXPECT_EQ(MessageOf("</think>54"), Text("", "54"));
}

TEST(Reasoning, IsKeptVerbatim) {
  EXPECT_EQ(MessageOf("  a \n\n</think>b"), Text("  a \n\n", "b"));
  EXPECT_EQ(MessageOf("a < b </ think> <think> c</think>d"),
            Text("a < b </ think> <think> c", "d"));
}

TEST(Reasoning, StaysReasoningWhenItNeverEnds) {
  EXPECT_EQ(MessageOf("all of it </thi"), Text("all of it </thi", ""));
}

TEST(Reasoning, ARepeatedOpeningTagIsDroppedAtTheVeryStart) {
  EXPECT_EQ(MessageOf("<think>a</think>b"), Text("a", "b"));
  EXPECT_EQ(MessageOf("<think><think>a</think>b"), Text("<think>a", "b"));
  EXPECT_EQ(MessageOf("<thinks>a</think>b"), Text("<thinks>a", "b"));
  EXPECT_EQ(MessageOf("<thi"), Text("<thi", ""));
}

TEST(Reasoning, CanStartAgainInContent) {
  EXPECT_EQ(MessageOf("a</think>b<think>c</think>d"), Text("ac", "bd"));
  EXPECT_EQ(MessageOf("b<think>c</think>d", {.opens_think = false}), Text("c", "bd"));
}

TEST(Content, DropsAStrayClosingTag) {
  EXPECT_EQ(MessageOf("a</think>b</think>c"), Text("a", "bc"));
}

TEST(Content, KeepsItsWhiteSpace) {
  EXPECT_EQ(MessageOf("a</think>\n\nb \n"), Text("a", "\n\nb \n"));
  EXPECT_EQ(MessageOf("a</think>\n\n"), Text("a", "\n\n"));
  EXPECT_EQ(MessageOf("a</think> </think> b"), Text("a", "  b"));
  EXPECT_EQ(MessageOf("a</think> <think>b"), Text("ab", " "));
}

TEST(Content, HoldsTheTagsOfCallsWithoutTools) {
  EXPECT_EQ(MessageOf("see <tool_call>x</tool_call></think>\n<tool_call>y</tool_call>"),
            Text("see <tool_call>x</tool_call>", "\n<tool_call>y</tool_call>"));
}

TEST(Splitter, HoldsTextOnlyWhileItCouldBeATag) {
  OutputSplitter splitter(true, nullptr);
  std::vector<TextPiece> out;
  splitter.Append("ab</th", &out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "ab");
  splitter.Append("e", &out);
  EXPECT_EQ(out[0].text, "ab</the");
}

TEST(Splitter, TokensCountAsReasoningUpToTheClosingTag) {
  OutputSplitter splitter(true, nullptr);
  std::vector<TextPiece> out;
  int reasoning_tokens = 0;
  for (const char* token : {"one", " two", "</think>", "three"}) {
    reasoning_tokens += splitter.in_reasoning();
    splitter.Append(token, &out);
  }
  EXPECT_EQ(reasoning_tokens, 3);
}

TEST(Splitter, WhiteSpaceIsThatOfUnicode) {
  const Start tools = {.tools = MakeTools("{}")};
  EXPECT_EQ(MessageOf("</think>\u3000\n<tool_call>\u00A0f\u2003</tool_call>\u3000", tools),
            (Message{"", "", {{"f", "{}"}}}));
}

TEST(Splitter, BrokenCharactersAreReplaced) {
  EXPECT_EQ(MessageOf("a\xE3\x80</think>\xFF"
                      "b"),
            Text("a\uFFFD", "\uFFFDb"));
}

}  // namespace
}  // namespace quartet::text
