// POST /v1/completions, not streamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using testing::RawReply;

class CompletionsApiTest : public GatewayTest {
 protected:
  void SetUp() override { Start(); }
};

TEST_F(CompletionsApiTest, TextIsNotSplitAndTagsAreShown) {
  const RawReply reply = Completion();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(At(reply.body, "object"), "text_completion");
  EXPECT_EQ(At(reply.body, "choices.0.text"), "I think.</think>Hello there.");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(LastSeen().prompt_ids, Ids("hi"));
  EXPECT_EQ(LastSeen().max_tokens, 16u) << "the default";
}

TEST_F(CompletionsApiTest, AddedTokensInStringPromptsAreMatched) {
  Post("/v1/completions", R"({"prompt":"[gMASK]<sop><|user|>x"})");
  EXPECT_EQ(LastSeen().prompt_ids.size(), 4u);
  EXPECT_EQ(LastSeen().prompt_ids[2], 1991);
}

TEST_F(CompletionsApiTest, ChoicesComeInTheOrderOfThePrompts) {
  const RawReply reply = Post("/v1/completions", R"({"prompt":["a","bb","ccc"],"echo":true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string answer = "I think.</think>Hello there.";
  EXPECT_EQ(At(reply.body, "choices.0.text"), "a" + answer);
  EXPECT_EQ(At(reply.body, "choices.1.text"), "bb" + answer);
  EXPECT_EQ(At(reply.body, "choices.2.text"), "ccc" + answer);
  EXPECT_EQ(At(reply.body, "choices.2.index"), "2");
  EXPECT_EQ(At(reply.body, "usage.prompt_tokens"),
            absl::StrCat(Ids("a").size() + Ids("bb").size() + Ids("ccc").size()));
}

TEST_F(CompletionsApiTest, IdsArePromptsToo) {
  const std::vector<int32_t> ids = Ids("some text");
  Post("/v1/completions", absl::StrCat("{\"prompt\":[", absl::StrJoin(ids, ","), "]}"));
  EXPECT_EQ(LastSeen().prompt_ids, ids);
  const RawReply reply = Post("/v1/completions", absl::StrCat("{\"echo\":true,\"prompt\":[[",
                                                              absl::StrJoin(ids, ","), "]]}"));
  EXPECT_EQ(At(reply.body, "choices.0.text"), "some textI think.</think>Hello there.");
}

TEST_F(CompletionsApiTest, EchoWithoutTokensAsksNoEngine) {
  const RawReply reply = Completion(R"("echo":true,"max_tokens":0)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(At(reply.body, "choices.0.text"), "hi");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "length");
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), "0");
  EXPECT_TRUE(engine_->seen().empty());
}

TEST_F(CompletionsApiTest, StopStringsAreLookedForInAllText) {
  EXPECT_EQ(At(Completion(R"("stop":"think.")").body, "choices.0.text"), "I ");
  EXPECT_EQ(
      At(Completion(R"("stop":"think.","include_stop_str_in_output":true)").body, "choices.0.text"),
      "I think.");
}

TEST_F(CompletionsApiTest, SpecialTokensAreShownOnRequest) {
  script()->ids = {Ids("a")[0], 1989, Ids("b")[0], end_id()};
  EXPECT_EQ(At(Completion().body, "choices.0.text"), "ab");
  EXPECT_EQ(At(Completion(R"("skip_special_tokens":false)").body, "choices.0.text"), "a<eop>b");
  EXPECT_EQ(
      At(Completion(R"("skip_special_tokens":false,"ignore_eos":true)").body, "choices.0.text"),
      "a<eop>b<|user|>");
}

TEST_F(CompletionsApiTest, TheDefaultLimitShrinksToWhatIsLeftButAskedOnesDoNot) {
  engine_->SetMaxModelLen(Ids("hi").size() + 3);
  while (At(Get("/v1/models").body, "data.0.max_model_len") ==
         "4096") {  // until the gateway has asked again
  }
  EXPECT_EQ(Completion().status, 200);
  EXPECT_EQ(LastSeen().max_tokens, 3u);
  const RawReply reply = Completion(R"("max_tokens":4)");
  EXPECT_EQ(At(reply.body, "error.code"), "context_length_exceeded");
  EXPECT_EQ(At(reply.body, "error.param"), "prompt");
}

TEST_F(CompletionsApiTest, AnEmptyPromptIsRefused) {
  const RawReply reply = Post("/v1/completions", R"({"prompt":""})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(reply.body, "error.param"), "prompt");
}

}  // namespace
}  // namespace quartet::gateway
