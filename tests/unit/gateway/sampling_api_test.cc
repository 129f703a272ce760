// What shapes a draw and what is told of it: n, penalties, biases, budgets and log-probabilities,
// over HTTP and gRPC, as far as the gateway goes.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/quartet/v1/inference.grpc.pb.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::RawReply;
using testing::ScriptedLogprob;
using testing::SeenSequence;

class SamplingApiTest : public GatewayTest {
 protected:
  void SetUp() override {
    config_.listen_grpc = "127.0.0.1:0";
    Start();
  }

  static std::string Token(size_t i) { return absl::StrCat("choices.0.logprobs.content.", i); }
};

TEST_F(SamplingApiTest, WhatShapesTheDrawReachesTheEngine) {
  const RawReply reply =
      Chat(R"("presence_penalty":0.5,"frequency_penalty":-1,"repetition_penalty":1.5,)"
           R"("min_tokens":2,"logit_bias":{"7":3,"9":-100})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const SeenSequence seen = LastSeen();
  EXPECT_EQ(seen.presence_penalty, 0.5f);
  EXPECT_EQ(seen.frequency_penalty, -1.0f);
  EXPECT_EQ(seen.repetition_penalty, 1.5f);
  EXPECT_EQ(seen.min_tokens, 2u);
  EXPECT_THAT(seen.logit_bias, ElementsAre(Pair(7, 3.0f), Pair(9, -100.0f)));
  EXPECT_THAT(seen.banned_ids, IsEmpty());
  EXPECT_FALSE(seen.logprobs);
  EXPECT_EQ(seen.thinking_tokens, std::nullopt);
}

TEST_F(SamplingApiTest, ToolChoiceNoneBansTheTokenThatOpensACall) {
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  ASSERT_EQ(Chat(tool).status, 200);
  EXPECT_THAT(LastSeen().banned_ids, IsEmpty());
  ASSERT_EQ(Chat(tool + R"(,"tool_choice":"none")").status, 200);
  EXPECT_EQ(LastSeen().banned_ids, Ids("<tool_call>"));
}

TEST_F(SamplingApiTest, AThinkingBudgetNamesTheTokensThatEndReasoning) {
  ASSERT_EQ(Chat(R"("thinking_token_budget":5)").status, 200);
  EXPECT_EQ(LastSeen().thinking_tokens, 5u);
  EXPECT_TRUE(LastSeen().thinking_open) << "the prompt ends with <think>";
  EXPECT_EQ(LastSeen().thinking_end_ids, Ids("</think>"));
  ASSERT_EQ(
      Chat(R"("thinking_budget":0,"tools":[{"type":"function","function":{"name":"f"}}])").status,
      200);
  EXPECT_EQ(LastSeen().thinking_tokens, 0u);
  EXPECT_EQ(LastSeen().thinking_end_ids, Ids("</think><tool_call>"));
}

TEST_F(SamplingApiTest, ChoicesAreSequencesOfTheirOwnAndThePromptCountsOnce) {
  const RawReply reply = Chat(R"("n":3,"seed":5,"return_token_ids":true)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  std::vector<uint32_t> choices;
  size_t prompt = 0;
  for (const SeenSequence& seen : engine_->seen()) {
    choices.push_back(seen.choice);
    EXPECT_EQ(seen.seed, 5u);
    prompt = seen.prompt_ids.size();
  }
  std::ranges::sort(choices);
  EXPECT_THAT(choices, ElementsAre(0, 1, 2));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(At(reply.body, absl::StrCat("choices.", i, ".index")), absl::StrCat(i));
    EXPECT_EQ(At(reply.body, absl::StrCat("choices.", i, ".message.content")), "Hello there.");
    EXPECT_NE(At(reply.body, absl::StrCat("choices.", i, ".prompt_token_ids")), "<none>");
  }
  EXPECT_EQ(At(reply.body, "usage.prompt_tokens"), absl::StrCat(prompt));
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), absl::StrCat(3 * script()->ids.size()));
}

TEST_F(SamplingApiTest, ChoicesOfSeveralPromptsComePromptByPrompt) {
  const RawReply reply =
      Post("/v1/completions", R"({"prompt":["a","bb c"],"n":2,"echo":true,"max_tokens":1})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const char* begins[] = {"a", "a", "bb c", "bb c"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(At(reply.body, absl::StrCat("choices.", i, ".text")).starts_with(begins[i])) << i;
  }
  EXPECT_EQ(At(reply.body, "usage.prompt_tokens"),
            absl::StrCat(Ids("a").size() + Ids("bb c").size()));
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), "4");
}

TEST_F(SamplingApiTest, StopStringsAreInactiveInTheFirstTokens) {
  script()->ids = Ids("a b a b");
  ASSERT_GE(script()->ids.size(), 4u);
  const std::string stop = R"("stop":"b","min_tokens":)";
  EXPECT_EQ(At(Completion(R"("stop":"b")").body, "choices.0.text"), "a ");
  EXPECT_EQ(At(Completion(stop + "2").body, "choices.0.text"), "a b a ");
  EXPECT_EQ(At(Completion(stop + "4").body, "choices.0.text"), "a b a b");
}

TEST_F(SamplingApiTest, ChatLogprobsCoverEverySampledToken) {
  const RawReply reply = Chat(R"("logprobs":true,"top_logprobs":2)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::vector<int32_t> ids = script()->ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(std::stof(At(reply.body, Token(i) + ".logprob")), ScriptedLogprob(i)) << i;
    EXPECT_EQ(std::stof(At(reply.body, Token(i) + ".top_logprobs.1.logprob")),
              ScriptedLogprob(i) - 1.0f);
    EXPECT_EQ(At(reply.body, Token(i) + ".top_logprobs.2"), "<none>");
  }
  EXPECT_EQ(At(reply.body, Token(ids.size())), "<none>");
  EXPECT_EQ(At(reply.body, Token(0) + ".token"), "I");
  EXPECT_EQ(At(reply.body, Token(0) + ".bytes"), "[73]");
  EXPECT_EQ(At(reply.body, "choices.0.logprobs.refusal"), "null");
  EXPECT_EQ(LastSeen().top_logprobs, 2u);
  EXPECT_EQ(At(Chat().body, "choices.0.logprobs"), "null");
}

TEST_F(SamplingApiTest, PartsOfCharactersKeepTheirBytes) {
  // The bytes of an emoji that the vocabulary has no token for.
  script()->ids = Ids("\xF0\x9F\xAB\xA8");
  ASSERT_GT(script()->ids.size(), 1u);
  const RawReply reply = Chat(R"("logprobs":true)");
  std::string bytes;
  for (size_t i = 0; i < script()->ids.size(); ++i) {
    EXPECT_THAT(At(reply.body, Token(i) + ".token"), HasSubstr("\xEF\xBF\xBD"));
    for (size_t b = 0; At(reply.body, absl::StrCat(Token(i), ".bytes.", b)) != "<none>"; ++b) {
      bytes += static_cast<char>(std::stoi(At(reply.body, absl::StrCat(Token(i), ".bytes.", b))));
    }
  }
  EXPECT_EQ(bytes, "\xF0\x9F\xAB\xA8");
}

TEST_F(SamplingApiTest, StreamedLogprobsAreThoseOfTheWholeAnswer) {
  for (const size_t burst : {1, 3, 100}) {
    script()->ids_per_event = burst;
    const RawReply reply =
        Post("/v1/chat/completions", ChatBody(R"("logprobs":true,"stream":true)"));
    std::vector<float> logprobs;
    for (const std::string& event : Events(reply)) {
      if (event == "[DONE]" || At(event, "choices.0.logprobs") == "null") continue;
      for (size_t i = 0; At(event, Token(i)) != "<none>"; ++i) {
        logprobs.push_back(std::stof(At(event, Token(i) + ".logprob")));
      }
    }
    ASSERT_EQ(logprobs.size(), script()->ids.size()) << burst;
    for (size_t i = 0; i < logprobs.size(); ++i) EXPECT_EQ(logprobs[i], ScriptedLogprob(i));
  }
}

TEST_F(SamplingApiTest, LogprobsEndWhereAStopStringEndsTheText) {
  script()->ids_per_event = 100;
  script()->ids = Ids("one two three four");
  const RawReply reply = Completion(R"("logprobs":0,"stop":" two")");
  EXPECT_EQ(At(reply.body, "choices.0.text"), "one");
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), absl::StrCat(Ids("one two").size()));
  const std::string path = "choices.0.logprobs.token_logprobs.";
  EXPECT_NE(At(reply.body, absl::StrCat(path, Ids("one two").size() - 1)), "<none>");
  EXPECT_EQ(At(reply.body, absl::StrCat(path, Ids("one two").size())), "<none>");
}

TEST_F(SamplingApiTest, CompletionLogprobsBeginWithTheEchoedPrompt) {
  const std::vector<int32_t> prompt = Ids("some text");
  const RawReply reply =
      Post("/v1/completions", R"({"prompt":"some text","echo":true,"logprobs":1,"max_tokens":2})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto at = [&](const std::string& path) {
    return At(reply.body, "choices.0.logprobs." + path);
  };
  EXPECT_EQ(at("token_logprobs.0"), "null");
  EXPECT_EQ(at("top_logprobs.0"), "null");
  size_t offset = 0;
  for (size_t i = 0; i < prompt.size() + 2; ++i) {
    EXPECT_EQ(at(absl::StrCat("text_offset.", i)), absl::StrCat(offset)) << i;
    offset += at(absl::StrCat("tokens.", i)).size();
    if (i == 0) continue;
    const size_t place = i < prompt.size() ? i : i - prompt.size();
    EXPECT_EQ(std::stof(at(absl::StrCat("token_logprobs.", i))), ScriptedLogprob(place)) << i;
  }
  EXPECT_EQ(offset, At(reply.body, "choices.0.text").size());
  EXPECT_EQ(at(absl::StrCat("tokens.", prompt.size() + 2)), "<none>");
  EXPECT_EQ(LastSeen().prompt_top_logprobs, 1u);
}

TEST_F(SamplingApiTest, APromptAloneIsScoredWithoutAnAnswer) {
  const std::vector<int32_t> prompt = Ids("some text");
  const RawReply reply =
      Post("/v1/completions", R"({"prompt":"some text","echo":true,"logprobs":0,"max_tokens":0})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(At(reply.body, "choices.0.text"), "some text");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "length");
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), "0");
  const std::string path = "choices.0.logprobs.token_logprobs.";
  EXPECT_NE(At(reply.body, absl::StrCat(path, prompt.size() - 1)), "<none>");
  EXPECT_EQ(At(reply.body, absl::StrCat(path, prompt.size())), "<none>");
  EXPECT_EQ(LastSeen().max_tokens, 1u);
}

TEST_F(SamplingApiTest, PromptLogprobsNameTheTokensByTheirIds) {
  const std::vector<int32_t> prompt = Ids("some text");
  const RawReply reply = Post("/v1/completions", R"({"prompt":"some text","prompt_logprobs":1})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(At(reply.body, "choices.0.prompt_logprobs.0"), "null");
  const std::string second = "choices.0.prompt_logprobs.1.";
  EXPECT_EQ(std::stof(At(reply.body, absl::StrCat(second, prompt[1], ".logprob"))), -0.25f);
  EXPECT_EQ(std::stof(At(reply.body, absl::StrCat(second, prompt[1] + 1, ".logprob"))), -0.75f);
  EXPECT_EQ(At(reply.body, "choices.0.logprobs"), "null");
  const RawReply chat = Chat(R"("prompt_logprobs":0)");
  EXPECT_EQ(At(chat.body, "prompt_logprobs.0"), "null");
  EXPECT_NE(At(chat.body, absl::StrCat("prompt_logprobs.", LastSeen().prompt_ids.size() - 1)),
            "<none>");
}

TEST_F(SamplingApiTest, TheSameByGrpc) {
  const auto channel =
      grpc::CreateChannel(gateway_->grpc_address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  v1::GenerateRequest request;
  request.set_chat_request_json(R"({"messages":[{"role":"user","content":"Hi"}]})");
  request.set_n(2);
  request.set_logprobs(true);
  request.set_top_logprobs(1);
  request.set_thinking_token_budget(4);
  v1::SamplingParams* sampling = request.mutable_sampling();
  sampling->set_frequency_penalty(1);
  sampling->set_min_tokens(3);
  sampling->set_choice(10);
  (*sampling->mutable_logit_bias())[6] = 2;
  sampling->add_banned_ids(8);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  std::vector<std::vector<v1::TokenLogprob>> logprobs(2);
  std::vector<std::string> texts(2);
  int finished = 0;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    ASSERT_LT(response.choice(), 2u);
    texts[response.choice()] += response.text();
    for (const v1::TokenLogprob& one : response.logprobs()) {
      logprobs[response.choice()].push_back(one);
    }
    finished += response.has_finish();
  }
  const grpc::Status status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(finished, 2);
  const std::vector<int32_t> ids = script()->ids;
  for (int choice = 0; choice < 2; ++choice) {
    EXPECT_EQ(texts[choice], "Hello there.");
    ASSERT_EQ(logprobs[choice].size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(logprobs[choice][i].id(), ids[i]);
      EXPECT_EQ(logprobs[choice][i].logprob(), ScriptedLogprob(i));
      ASSERT_EQ(logprobs[choice][i].top_size(), 1);
      EXPECT_EQ(logprobs[choice][i].top(0).id(), ids[i] + 1);
    }
    EXPECT_EQ(logprobs[choice][0].token(), "I");
  }
  std::vector<uint32_t> choices;
  for (const SeenSequence& seen : engine_->seen()) choices.push_back(seen.choice);
  std::ranges::sort(choices);
  EXPECT_THAT(choices, ElementsAre(10, 11));
  const SeenSequence seen = LastSeen();
  EXPECT_EQ(seen.frequency_penalty, 1.0f);
  EXPECT_EQ(seen.min_tokens, 3u);
  EXPECT_THAT(seen.logit_bias, ElementsAre(Pair(6, 2.0f)));
  EXPECT_THAT(seen.banned_ids, ElementsAre(8));
  EXPECT_EQ(seen.thinking_tokens, 4u);
}

}  // namespace
}  // namespace quartet::gateway
