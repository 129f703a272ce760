#include "services/gateway/openai/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet::gateway {
namespace {

const AnswerHead kHead{
    .id = "chatcmpl-1", .created_unix_s = 5, .model = "m", .system_fingerprint = "quartet-x"};
const std::string kOpen =
    R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"m","system_fingerprint":"quartet-x","choices":)";

TEST(AnswerWriter, ChatChunksCarryReasoningUnderBothNames) {
  AnswerWriter writer(kHead, {.chat = true, .stream = true}, 1);
  EXPECT_EQ(
      writer.FirstChunk(0, nullptr, nullptr),
      kOpen +
          R"([{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})");
  const auto chunks = writer.Chunks(
      {.pieces = {{text::TextKind::kReasoning, "r\n"}, {text::TextKind::kContent, "c\""}}});
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(
      chunks[0],
      kOpen +
          R"([{"index":0,"delta":{"reasoning_content":"r\n","reasoning":"r\n"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(
      chunks[1],
      kOpen + R"([{"index":0,"delta":{"content":"c\""},"logprobs":null,"finish_reason":null}]})");
  const auto last =
      writer.Chunks({.finish = ChoiceFinish{.kind = FinishKind::kStopString, .stop_string = "S"}});
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(
      last[0],
      kOpen +
          R"([{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":"S"}]})");
}

TEST(AnswerWriter, UpdatesWithoutVisibleTextMakeNoChunk) {
  AnswerWriter writer(kHead, {.chat = true, .stream = true, .include_reasoning = false}, 1);
  EXPECT_TRUE(writer.Chunks({.pieces = {{text::TextKind::kReasoning, "r"}}, .ids = {1}}).empty());
}

TEST(AnswerWriter, IdsGoWithTheFirstPieceOfTheirText) {
  AnswerWriter writer(kHead, {.chat = true, .stream = true, .return_token_ids = true}, 1);
  const auto chunks =
      writer.Chunks({.pieces = {{text::TextKind::kReasoning, "r"}, {text::TextKind::kContent, "c"}},
                     .ids = {1, 2}});
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_NE(chunks[0].find(R"("token_ids":[1,2])"), std::string::npos);
  EXPECT_EQ(chunks[1].find("token_ids"), std::string::npos);
  EXPECT_EQ(writer.Chunks({.ids = {3}}).size(), 1u) << "ids that made no text yet are not lost";
}

TEST(AnswerWriter, UsageIsNullInChunksAndAnObjectInTheLastOne) {
  AnswerWriter writer(kHead, {.chat = true, .stream = true, .include_usage = true}, 1);
  const auto chunks =
      writer.Chunks({.pieces = {{text::TextKind::kContent, "c"}},
                     .usage = {.prompt_tokens = 3, .completion_tokens = 2, .reasoning_tokens = 1}});
  EXPECT_TRUE(chunks[0].ends_with(R"(,"usage":null})")) << chunks[0];
  EXPECT_EQ(
      writer.UsageChunk(),
      kOpen +
          R"([],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,)"
          R"("prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":1}}})");
}

// A call's first delta names it; what follows carries its index and arguments only.
TEST(AnswerWriter, ChunksOfCallsHaveTheirOwnShape) {
  AnswerWriter writer(kHead, {.chat = true, .stream = true}, 1);
  const auto chunks = writer.Chunks({.pieces = {{text::TextKind::kCallName, "f", 1},
                                                {text::TextKind::kCallArguments, "{\"a\": 1}", 1},
                                                {text::TextKind::kCallEnd, "", 1}}});
  ASSERT_EQ(chunks.size(), 2u) << "the end of a call is no chunk";
  EXPECT_THAT(
      chunks[0],
      ::testing::ContainsRegex(
          R"re("delta":."tool_calls":.."index":1,"id":"call_[A-Za-z0-9]{24}","type":"function",)re"
          R"re("function":."name":"f","arguments":""....,"logprobs":null,"finish_reason":null)re"));
  EXPECT_EQ(
      chunks[1],
      kOpen +
          R"([{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\": 1}"}}]},)"
          R"("logprobs":null,"finish_reason":null}]})");
}

TEST(AnswerWriter, AWholeMessageHasItsCallsAndNullForNoContent) {
  AnswerWriter writer(kHead, {.chat = true}, 1);
  writer.Collect(
      {.pieces = {{text::TextKind::kCallName, "f", 0}, {text::TextKind::kCallArguments, "{", 0}}});
  writer.Collect({.pieces = {{text::TextKind::kCallArguments, "}", 0},
                             {text::TextKind::kCallEnd, "", 0},
                             {text::TextKind::kCallName, "g", 1},
                             {text::TextKind::kCallArguments, "{}", 1},
                             {text::TextKind::kCallEnd, "", 1}},
                  .finish = ChoiceFinish{.complete_calls = 2}});
  EXPECT_THAT(
      writer.Whole({}, {}),
      ::testing::ContainsRegex(
          R"re("content":null,"tool_calls":.."id":"call_[A-Za-z0-9]{24}","type":"function",)re"
          R"re("function":."name":"f","arguments":".."..,."id":"call_[A-Za-z0-9]{24}",)re"
          R"re("type":"function","function":."name":"g","arguments":".."...,"refusal":null.,)re"
          R"re("logprobs":null,"finish_reason":"tool_calls","stop_reason":null)re"));
}

TEST(AnswerWriter, FinishReasonsFollowTheEndAndTheCalls) {
  EXPECT_EQ(FinishReasonName({}), "stop");
  EXPECT_EQ(FinishReasonName({.complete_calls = 1}), "tool_calls");
  EXPECT_EQ(FinishReasonName({.kind = FinishKind::kStopString, .complete_calls = 1}), "tool_calls");
  EXPECT_EQ(FinishReasonName({.kind = FinishKind::kCall, .complete_calls = 1}), "tool_calls");
  EXPECT_EQ(FinishReasonName({.kind = FinishKind::kLength, .complete_calls = 1}), "length");
}

TEST(AnswerWriter, ReasoningThatWasNeverClosedLeavesContentNull) {
  AnswerWriter writer(kHead, {.chat = true}, 1);
  writer.Collect({.pieces = {{text::TextKind::kReasoning, "hm"}},
                  .finish = ChoiceFinish{.kind = FinishKind::kLength}});
  const std::string whole = writer.Whole({}, {});
  EXPECT_NE(
      whole.find(R"("content":null,"reasoning_content":"hm","reasoning":"hm","refusal":null)"),
      std::string::npos)
      << whole;
  EXPECT_NE(whole.find(R"("finish_reason":"length","stop_reason":null)"), std::string::npos)
      << whole;
}

}  // namespace
}  // namespace quartet::gateway
