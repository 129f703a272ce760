// POST /v1/chat/completions, not streamed, and the small GET paths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawReply;

class ChatApiTest : public GatewayTest {
 protected:
  void SetUp() override { Start(); }

  void ExpectError(const RawReply& reply, int status, const std::string& type,
                   const std::string& param, const std::string& message_part) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(At(reply.body, "error.type"), type);
    EXPECT_EQ(At(reply.body, "error.param"), param);
    EXPECT_THAT(At(reply.body, "error.message"), HasSubstr(message_part));
  }
};

TEST_F(ChatApiTest, AnAnswerHasReasoningContentAndUsage) {
  const RawReply reply = Chat();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(At(reply.body, "object"), "chat.completion");
  EXPECT_THAT(At(reply.body, "id"), ::testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(At(reply.body, "model"), "m");
  EXPECT_EQ(At(reply.body, "choices.0.message.role"), "assistant");
  EXPECT_EQ(At(reply.body, "choices.0.message.content"), "Hello there.");
  EXPECT_EQ(At(reply.body, "choices.0.message.reasoning_content"), "I think.");
  EXPECT_EQ(At(reply.body, "choices.0.message.reasoning"), "I think.");
  EXPECT_EQ(At(reply.body, "choices.0.message.refusal"), "null");
  EXPECT_EQ(At(reply.body, "choices.0.message.tool_calls"), "<none>");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(At(reply.body, "choices.0.stop_reason"), "null");
  EXPECT_EQ(At(reply.body, "choices.1"), "<none>");
  const size_t prompt = LastSeen().prompt_ids.size();
  const size_t output = Ids("I think.</think>Hello there.").size() + 1;
  EXPECT_EQ(At(reply.body, "usage.prompt_tokens"), absl::StrCat(prompt));
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), absl::StrCat(output))
      << "the end token included";
  EXPECT_EQ(At(reply.body, "usage.total_tokens"), absl::StrCat(prompt + output));
  EXPECT_EQ(At(reply.body, "usage.prompt_tokens_details.cached_tokens"), "0");
  EXPECT_EQ(At(reply.body, "usage.completion_tokens_details.reasoning_tokens"),
            absl::StrCat(Ids("I think.</think>").size()));
}

TEST_F(ChatApiTest, TheEngineGetsTheRenderedPromptAndTheModelsEnds) {
  Chat(R"("request_id":"abc 1","cache_salt":"s","cache_read_only":true)");
  const testing::SeenSequence seen = LastSeen();
  EXPECT_EQ(seen.prompt_ids,
            Ids("[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi<|assistant|><think>"));
  EXPECT_THAT(seen.end_ids, ElementsAre(1984, 1991, 1993));
  EXPECT_EQ(seen.first_padding_id, 2020);
  EXPECT_EQ(seen.max_tokens, 4096 - seen.prompt_ids.size()) << "what is left of the context";
  EXPECT_EQ(seen.temperature, 0) << "the model's files say do_sample: false";
  EXPECT_EQ(seen.request_id, "abc_1");
  EXPECT_EQ(seen.cache_salt, "s");
  EXPECT_TRUE(seen.cache_read_only);
}

TEST_F(ChatApiTest, SamplingFieldsReachTheEngine) {
  Chat(
      R"("temperature":0.5,"top_p":0.25,"top_k":7,"min_p":0.125,"seed":42,"max_completion_tokens":9,"ignore_eos":true)");
  const testing::SeenSequence seen = LastSeen();
  EXPECT_EQ(seen.temperature, 0.5f);
  EXPECT_EQ(seen.top_p, 0.25f);
  EXPECT_EQ(seen.top_k, 7);
  EXPECT_EQ(seen.min_p, 0.125f);
  EXPECT_EQ(seen.seed, 42u);
  EXPECT_EQ(seen.max_tokens, 9u);
  EXPECT_TRUE(seen.ignore_eos);
}

TEST_F(ChatApiTest, WithoutASeedEachRequestGetsAnother) {
  Chat();
  const uint64_t first = LastSeen().seed;
  Chat();
  EXPECT_NE(LastSeen().seed, first);
}

TEST_F(ChatApiTest, ATokenLimitEndsWithLength) {
  const RawReply reply = Chat(R"("max_tokens":2)");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "length");
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), "2");
  EXPECT_EQ(At(reply.body, "choices.0.message.content"), "null") << "all of it was reasoning";
}

TEST_F(ChatApiTest, AStopStringCutsContentAndTheSequence) {
  Answer("no END here</think>alpha END omega");
  script()->hold_at = Ids("no END here</think>alpha END").size() + 1;
  const RawReply reply = Chat(R"("stop":["END","zzz"])");
  EXPECT_EQ(At(reply.body, "choices.0.message.reasoning_content"), "no END here");
  EXPECT_EQ(At(reply.body, "choices.0.message.content"), "alpha ");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(At(reply.body, "choices.0.stop_reason"), "END");
  const auto counted = static_cast<uint32_t>(Ids("no END here</think>alpha END").size());
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), absl::StrCat(counted));
  EXPECT_TRUE(engine_->WaitFor(
      [&](const auto& seen) { return seen.at(0).truncated == counted && seen.at(0).ended; }));
}

TEST_F(ChatApiTest, AStopIdEndsWithItsNumber) {
  Answer("x</think>one two three");
  const int32_t stop = Ids("x</think>one two three").back();
  const RawReply reply = Chat(absl::StrCat(R"("stop_token_ids":[)", stop, "]"));
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(At(reply.body, "choices.0.stop_reason"), absl::StrCat(stop));
}

TEST_F(ChatApiTest, TokenIdsAreReturnedOnRequest) {
  const RawReply reply = Chat(R"("return_token_ids":true)");
  std::string ids = boost::json::serialize(boost::json::value_from(script()->ids));
  EXPECT_EQ(At(reply.body, "choices.0.token_ids"), ids);
  EXPECT_EQ(At(reply.body, "choices.0.prompt_token_ids"),
            boost::json::serialize(boost::json::value_from(LastSeen().prompt_ids)));
}

TEST_F(ChatApiTest, ReasoningCanBeLeftOut) {
  const RawReply reply = Chat(R"("include_reasoning":false)");
  EXPECT_EQ(At(reply.body, "choices.0.message.reasoning_content"), "<none>");
  EXPECT_EQ(At(reply.body, "choices.0.message.content"), "Hello there.");
}

TEST_F(ChatApiTest, MalformedBodiesAreTheClientsFault) {
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  for (const std::string& body :
       {std::string(""), std::string("{"), std::string("not json"), std::string("[]"),
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"),
        std::string("\xEF\xBB\xBF{}"), std::string("{} {}"), std::string("{\"a\":NaN}"),
        "{\"messages\":" + deep + "}"}) {
    const RawReply reply = Post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(At(reply.body, "error.type"), "invalid_request_error") << body;
  }
  EXPECT_TRUE(engine_->seen().empty());
  EXPECT_EQ(Chat().status, 200);
}

TEST_F(ChatApiTest, ErrorsNameTheField) {
  ExpectError(Chat(R"("temperature":3)"), 400, "invalid_request_error", "temperature",
              "from 0 to 2");
  ExpectError(Chat(R"("model":"gpt-9")"), 404, "invalid_request_error", "model",
              "'gpt-9' does not exist");
  EXPECT_EQ(At(Chat(R"("model":"gpt-9")").body, "error.code"), "model_not_found");
  ExpectError(Post("/v1/chat/completions", R"({"messages":[{"role":"wizard","content":"x"}]})"),
              400, "invalid_request_error", "messages[0].role", "");
  EXPECT_EQ(Chat(R"("model":"m")").status, 200);
}

TEST_F(ChatApiTest, ImagesAreRefusedAndSaidTo) {
  ExpectError(Post("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":[{"type":"text","text":"?"},)"
                   R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]})"),
              400, "invalid_request_error", "messages[0].content[1].image_url",
              "images are not supported");
}

TEST_F(ChatApiTest, APromptThatLeavesNoRoomIsRefusedWithItsExactCounts) {
  ASSERT_EQ(Chat().status, 200);
  const size_t prompt = LastSeen().prompt_ids.size();
  const size_t before = engine_->seen().size();
  const RawReply reply = Chat(absl::StrCat("\"max_tokens\":", 4096 - prompt + 1));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(reply.body, "error.code"), "context_length_exceeded");
  EXPECT_EQ(At(reply.body, "error.param"), "messages");
  EXPECT_THAT(At(reply.body, "error.message"), HasSubstr("4096"));
  EXPECT_THAT(At(reply.body, "error.message"), HasSubstr(absl::StrCat(prompt)));
  EXPECT_EQ(engine_->seen().size(), before) << "nothing went to the engine";
  EXPECT_EQ(Chat(absl::StrCat("\"max_tokens\":", 4096 - prompt)).status, 200)
      << "exactly full is allowed";
}

TEST_F(ChatApiTest, PublicBugReportsThatConcernThisServer) {
  std::ifstream file(QUARTET_SOURCE_DIR "/tests/data/chat/cases.json");
  std::stringstream text;
  text << file.rdbuf();
  int checked = 0;
  const boost::json::value file_content = boost::json::parse(text.str());
  for (const auto& entry : file_content.at("cases").as_array()) {
    const auto& item = entry.as_object();
    if (item.at("kind") != "http" || item.at("expect").at("status") != 400) continue;
    std::string body = boost::json::serialize(item.at("request").at("body"));
    body = absl::StrReplaceAll(
        body, {{"154880", "2048"}});  // the id just outside the loaded model's vocabulary
    const RawReply reply = Post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 400) << item.at("id");
    EXPECT_EQ(At(reply.body, "error.type"),
              item.at("expect").at("error").at("type").as_string().c_str());
    EXPECT_EQ(At(reply.body, "error.param"),
              item.at("expect").at("error").at("param").as_string().c_str());
    EXPECT_EQ(Chat().status, 200) << "the server is alive after " << item.at("id");
    ++checked;
  }
  EXPECT_EQ(checked, 2);
}

class ServerOptionsTest : public GatewayTest {};

TEST_F(ServerOptionsTest, StopStringsInReasoningAndAnswersThatAreNeverEmpty) {
  config_.stop_in_reasoning = true;
  config_.nonempty_content = true;
  Start();
  const RawReply stopped = Chat(R"("stop":"think")");
  EXPECT_EQ(At(stopped.body, "choices.0.message.reasoning_content"), "I ");
  EXPECT_EQ(At(stopped.body, "choices.0.message.content"), "null");
  EXPECT_EQ(At(stopped.body, "choices.0.stop_reason"), "think");
  Answer("I think.");
  const RawReply thought = Chat();
  EXPECT_EQ(At(thought.body, "choices.0.message.content"), "I think.");
  EXPECT_EQ(At(thought.body, "choices.0.message.reasoning_content"), "I think.");
}

TEST_F(ServerOptionsTest, AnyModelNameMayBeServed) {
  config_.any_model_name = true;
  Start();
  const RawReply reply = Chat(R"("model":"gpt-9")");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(At(reply.body, "model"), "m") << "the answer says which it was";
  EXPECT_EQ(At(Get("/v1/models/gpt-9").body, "id"), "m");
  EXPECT_EQ(Post("/tokenize", R"({"prompt":"hi","model":"gpt-9"})").status, 200);
}

TEST_F(ChatApiTest, ModelsAreListedByTheirServedName) {
  const std::string list = Get("/v1/models").body;
  EXPECT_EQ(At(list, "object"), "list");
  EXPECT_EQ(At(list, "data.0.id"), "m");
  EXPECT_EQ(At(list, "data.0.object"), "model");
  EXPECT_EQ(At(list, "data.0.max_model_len"), "4096");
  EXPECT_EQ(At(Get("/v1/models/m").body, "id"), "m");
  EXPECT_EQ(At(Get("/v1/models/%6D").body, "id"), "m");
  const RawReply unknown = Get("/v1/models/x");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(At(unknown.body, "error.code"), "model_not_found");
}

TEST_F(ChatApiTest, HealthAndMetricsIncludeTheEngine) {
  Chat();
  EXPECT_EQ(Get("/livez").status, 200);
  EXPECT_EQ(Get("/readyz").status, 200);
  EXPECT_EQ(At(Get("/health").body, "status"), "ok");
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(
      metrics,
      HasSubstr("quartet_gateway_generations_total{endpoint=\"chat\",outcome=\"finished\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("quartet_steps_total 7")) << "the coordinator's own";
}

TEST_F(GatewayTest, MetricsHaveOpenTelemetrysNamesOnlyWhenAskedFor) {
  Start();
  EXPECT_EQ(Chat().status, 200);
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("vllm:request_params_n_count"));
  EXPECT_THAT(metrics, Not(HasSubstr("gen_ai_")));
}

TEST_F(GatewayTest, OpenTelemetrysMetricsTellEndpointsAndErrorsApart) {
  config_.otel_metrics = true;
  Start();
  EXPECT_EQ(Chat().status, 200);
  EXPECT_EQ(Completion().status, 200);
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("quartet_otel_conventions_info{version=\"1.37.0\"} 1\n"));
  for (const char* operation : {"chat", "text_completion"}) {
    for (const char* name : {"request_duration", "time_to_first_token", "time_per_output_token"}) {
      EXPECT_THAT(metrics, ContainsRegex("gen_ai_server_" + std::string(name) +
                                         "_seconds_count.gen_ai_operation_name=\"" + operation +
                                         "\",gen_ai_provider_name=\"quartet\",[^\n]* 1\n"));
    }
  }
  EXPECT_THAT(metrics, Not(HasSubstr("error_type")));
}

}  // namespace
}  // namespace quartet::gateway
