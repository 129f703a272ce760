#include "services/gateway/routing/output_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

class OutputPipelineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded =
        text::Tokenizer::Load(QUARTET_SOURCE_DIR "/models/quartet-demo-exl3/tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = loaded->release();
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    tokenizer_ = nullptr;
  }

  static std::vector<int32_t> Ids(const std::string& text) { return *tokenizer_->Encode(text); }

  struct Result {
    std::string reasoning;
    std::string content;
    std::string calls;
    std::vector<int32_t> ids;
    uint32_t completion_tokens = 0;
    uint32_t reasoning_tokens = 0;
    bool stopped = false;
    bool operator==(const Result&) const = default;
  };

  // Feeds `per_call` ids at a time.
  static Result Run(const std::vector<int32_t>& ids, const OutputOptions& options,
                    size_t per_call) {
    OutputPipeline pipeline(tokenizer_, options);
    Result result;
    auto take = [&](OutputPipeline::Output out) {
      for (const text::TextPiece& piece : out.pieces) {
        switch (piece.kind) {
          case text::TextKind::kReasoning:
            result.reasoning += piece.text;
            break;
          case text::TextKind::kContent:
            result.content += piece.text;
            break;
          default:
            result.calls += piece.kind == text::TextKind::kCallEnd ? ";" : piece.text;
        }
      }
    };
    for (size_t i = 0; i < ids.size() && !pipeline.stopped(); i += per_call) {
      OutputPipeline::Output out;
      pipeline.Append({ids.data() + i, std::min(per_call, ids.size() - i)}, &out);
      take(std::move(out));
    }
    OutputPipeline::Output out;
    pipeline.Finish(text::OutputEnd::kStop, &out);
    take(std::move(out));
    result.completion_tokens = pipeline.completion_tokens();
    result.reasoning_tokens = pipeline.reasoning_tokens();
    result.stopped = pipeline.stopped();
    return result;
  }

  static Result RunAllWays(const std::vector<int32_t>& ids, const OutputOptions& options) {
    const Result whole = Run(ids, options, ids.size());
    for (size_t per_call : {1, 2, 3, 7}) {
      EXPECT_EQ(Run(ids, options, per_call), whole)
          << "the result depends on how the ids are cut: " << per_call;
    }
    return whole;
  }

  static const text::Tokenizer* tokenizer_;
};
const text::Tokenizer* OutputPipelineTest::tokenizer_ = nullptr;

TEST_F(OutputPipelineTest, SplitsReasoningAndCountsItsTokens) {
  const std::vector<int32_t> thought = Ids("one two</think>");
  std::vector<int32_t> ids = Ids("one two</think>The answer.");
  ids.push_back(1991);
  const Result result = RunAllWays(
      ids, {.text = {.split = true, .opens_think = true}, .end_ids = {1984, 1991, 1993}});
  EXPECT_EQ(result.reasoning, "one two");
  EXPECT_EQ(result.content, "The answer.");
  EXPECT_EQ(result.completion_tokens, ids.size()) << "the end token counts";
  EXPECT_EQ(result.reasoning_tokens, thought.size()) << "the closing tag counts as reasoning";
}

TEST_F(OutputPipelineTest, StopStringsAreLookedForInContentOnly) {
  const Result result =
      RunAllWays(Ids("a STOP b</think>c STOP d"),
                 {.text = {.split = true, .opens_think = true, .stop = {"STOP"}}});
  EXPECT_EQ(result.reasoning, "a STOP b");
  EXPECT_EQ(result.content, "c ");
  EXPECT_TRUE(result.stopped);
}

TEST_F(OutputPipelineTest, OnlyTokensUpToTheStopStringCount) {
  const std::vector<int32_t> before = Ids("alpha END OF");
  std::vector<int32_t> ids = before;
  for (int32_t id : Ids(" delta and more")) ids.push_back(id);
  const Result result = RunAllWays(ids, {.text = {.stop = {"END OF"}}});
  EXPECT_EQ(result.content, "alpha ");
  EXPECT_EQ(result.completion_tokens, before.size());
}

TEST_F(OutputPipelineTest, AMatchThatWaitedForALongerOneEndsWhereItEnded) {
  const std::vector<int32_t> before = Ids("ab");
  std::vector<int32_t> ids = before;
  for (int32_t id : Ids("d")) ids.push_back(id);
  ids.push_back(1991);
  const Result result = RunAllWays(ids, {.text = {.stop = {"ab", "abc"}}, .end_ids = {1991}});
  EXPECT_EQ(result.content, "");
  EXPECT_EQ(result.completion_tokens, before.size());

  std::vector<int32_t> ends = before;
  ends.push_back(1991);
  const Result at_end = RunAllWays(ends, {.text = {.stop = {"ab", "abc"}}, .end_ids = {1991}});
  EXPECT_TRUE(at_end.stopped) << "decided when the sequence ended";
  EXPECT_EQ(at_end.completion_tokens, before.size());
}

TEST_F(OutputPipelineTest, WithOneCallOnlyTheTokensUpToItsEndCount) {
  text::AnswerTextOptions options{
      .split = true,
      .opens_think = true,
      .tools = std::make_shared<const text::Tools>(*text::ParseJson(R"([{"name":"f"}])")),
      .one_call = true};
  const std::string call = "<tool_call>f<arg_key>k</arg_key><arg_value>1</arg_value></tool_call>";
  const std::vector<int32_t> before = Ids("hm</think>" + call);
  const std::vector<int32_t> ids = Ids("hm</think>" + call + call + "more");
  const Result one = RunAllWays(ids, {.text = options});
  EXPECT_EQ(one.calls, "f{\"k\": 1};");
  EXPECT_TRUE(one.stopped);
  EXPECT_EQ(one.completion_tokens, before.size());
  EXPECT_EQ(one.reasoning_tokens, Ids("hm</think>").size());

  options.one_call = false;
  const Result all = RunAllWays(ids, {.text = options});
  EXPECT_EQ(all.calls, "f{\"k\": 1};f{\"k\": 1};");
  EXPECT_EQ(all.content, "more");
  EXPECT_EQ(all.completion_tokens, ids.size());
}

TEST_F(OutputPipelineTest, TheStopStringCanBeKept) {
  EXPECT_EQ(RunAllWays(Ids("x STOP y"), {.text = {.stop = {"STOP"}, .include_stop_string = true}})
                .content,
            "x STOP");
}

TEST_F(OutputPipelineTest, WithoutSplitTagsAreText) {
  EXPECT_EQ(RunAllWays(Ids("a</think>b"), {}).content, "a</think>b");
}

TEST_F(OutputPipelineTest,
       EndTokensAreShownOnlyIfTheyDoNotEndTheOutputAndSpecialTokensAreNotSkipped) {
  const std::vector<int32_t> ids = {Ids("a")[0], 1991, Ids("b")[0]};
  EXPECT_EQ(RunAllWays(ids, {.end_ids = {1991}}).content, "ab");
  EXPECT_EQ(RunAllWays(ids, {.skip_special_tokens = true}).content, "ab");
  EXPECT_EQ(RunAllWays(ids, {.skip_special_tokens = false}).content, "a<|user|>b");
}

TEST_F(OutputPipelineTest, ACharacterThatIsNeverCompletedIsReplacedAtTheEnd) {
  const std::vector<int32_t> ids = Ids("x\xF0\x9F\x8C\xA4");
  ASSERT_GT(ids.size(), 2u);
  const std::vector<int32_t> cut(ids.begin(), ids.end() - 1);
  EXPECT_EQ(RunAllWays(cut, {}).content, "x\xEF\xBF\xBD");
}

}  // namespace
}  // namespace quartet::gateway
