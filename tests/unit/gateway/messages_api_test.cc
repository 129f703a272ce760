// POST /v1/messages and POST /v1/messages/count_tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PostText;
using testing::RawClient;
using testing::RawReply;
using testing::SeenSequence;

const std::string kTools = R"("tools":[{"name":"add","input_schema":{"type":"object",)"
                           R"("properties":{"a":{"type":"integer"},"note":{"type":"string"}}}}])";
const std::string kCall =
    "<tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value>"
    "<arg_key>note</arg_key><arg_value>say \"hi\"\n</arg_value></tool_call>";

struct Event {
  std::string type;
  std::string data;
};

class MessagesApiTest : public GatewayTest {
 protected:
  void SetUp() override { Start(); }

  static std::string Body(const std::string& fields) {
    return absl::StrCat(R"({"model":"m","max_tokens":500,)"
                        R"("messages":[{"role":"user","content":"Hi"}])",
                        fields.empty() ? "" : ",", fields, "}");
  }
  RawReply Message(const std::string& fields = "") { return Post("/v1/messages", Body(fields)); }

  // The events of a stream; each names its type twice.
  static std::vector<Event> Stream(const RawReply& reply) {
    std::vector<Event> events;
    std::string_view rest = reply.body;
    while (!rest.empty()) {
      const size_t line = rest.find("\ndata: ");
      const size_t end = rest.find("\n\n");
      if (!rest.starts_with("event: ") || line == std::string_view::npos || end < line) {
        ADD_FAILURE() << "not an event: " << rest;
        break;
      }
      events.push_back({std::string(rest.substr(7, line - 7)),
                        std::string(rest.substr(line + 7, end - line - 7))});
      EXPECT_EQ(At(events.back().data, "type"), events.back().type);
      rest.remove_prefix(end + 2);
    }
    return events;
  }

  // What the deltas of a stream add up to, one line for each block; blocks must not overlap.
  static std::vector<std::string> Blocks(const std::vector<Event>& events) {
    std::vector<std::string> blocks;
    bool open = false;
    for (const Event& event : events) {
      if (event.type == "content_block_start") {
        EXPECT_FALSE(open);
        open = true;
        EXPECT_EQ(At(event.data, "index"), absl::StrCat(blocks.size()));
        const std::string name = At(event.data, "content_block.name");
        blocks.push_back(absl::StrCat(At(event.data, "content_block.type"),
                                      name == "<none>" ? "" : " " + name, ": "));
      } else if (event.type == "content_block_delta" || event.type == "content_block_stop") {
        EXPECT_TRUE(open) << event.data;
        EXPECT_EQ(At(event.data, "index"), absl::StrCat(blocks.size() - 1));
        open = event.type == "content_block_delta";
        for (const char* field : {"thinking", "text", "partial_json"}) {
          const std::string text = At(event.data, absl::StrCat("delta.", field));
          if (text != "<none>") blocks.back() += text;
        }
        if (At(event.data, "delta.type") == "signature_delta") {
          blocks.back() += " [" + At(event.data, "delta.signature") + "]";
        }
      }
    }
    EXPECT_FALSE(open);
    return blocks;
  }
};

TEST_F(MessagesApiTest, AnAnswerIsAMessageOfBlocks) {
  script()->cached_tokens = 3;
  const RawReply reply = Message();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.count("request-id"), 1u);
  EXPECT_EQ(At(reply.body, "type"), "message");
  EXPECT_EQ(At(reply.body, "role"), "assistant");
  EXPECT_EQ(At(reply.body, "model"), "m");
  EXPECT_THAT(At(reply.body, "id"), ContainsRegex("^msg_[A-Za-z0-9]{24}$"));
  EXPECT_EQ(At(reply.body, "content.0.type"), "thinking");
  EXPECT_EQ(At(reply.body, "content.0.thinking"), "I think.");
  EXPECT_EQ(At(reply.body, "content.0.signature"), "quartet");
  EXPECT_EQ(At(reply.body, "content.1.type"), "text");
  EXPECT_EQ(At(reply.body, "content.1.text"), "Hello there.");
  EXPECT_EQ(At(reply.body, "content.2"), "<none>");
  EXPECT_EQ(At(reply.body, "stop_reason"), "end_turn");
  EXPECT_EQ(At(reply.body, "stop_sequence"), "null");
  const SeenSequence seen = LastSeen();
  EXPECT_EQ(seen.max_tokens, 500u);
  EXPECT_EQ(At(reply.body, "usage.input_tokens"), absl::StrCat(seen.prompt_ids.size() - 3));
  EXPECT_EQ(At(reply.body, "usage.cache_read_input_tokens"), "3");
  EXPECT_EQ(At(reply.body, "usage.cache_creation_input_tokens"), "0");
  EXPECT_EQ(At(reply.body, "usage.output_tokens"),
            absl::StrCat(Ids("I think.</think>Hello there.").size() + 1));
  EXPECT_EQ(At(reply.body, "usage.output_tokens_details.thinking_tokens"),
            absl::StrCat(Ids("I think.</think>").size()));
}

TEST_F(MessagesApiTest, ThePromptIsThatOfTheChatRequest) {
  Post("/v1/messages", R"({"max_tokens":5,"system":"Be brief.","thinking":{"type":"disabled"},)"
                       R"("messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]})");
  EXPECT_EQ(LastSeen().prompt_ids, Ids("[gMASK]<sop><|system|>Reasoning Effort: Low<|system|>Be "
                                       "brief.<|user|>Hi<|assistant|><think>"));
}

TEST_F(MessagesApiTest, AStreamHasItsEventsInOrder) {
  script()->cached_tokens = 3;
  const RawReply reply = Message(R"("stream":true)");
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.headers.count("request-id"), 1u);
  const auto events = Stream(reply);
  ASSERT_GT(events.size(), 6u);
  EXPECT_EQ(events[0].type, "message_start");
  EXPECT_EQ(At(events[0].data, "message.content"), "[]");
  EXPECT_EQ(At(events[0].data, "message.stop_reason"), "null");
  EXPECT_EQ(At(events[0].data, "message.usage.input_tokens"),
            absl::StrCat(LastSeen().prompt_ids.size() - 3));
  EXPECT_EQ(At(events[0].data, "message.usage.output_tokens"), "0");
  EXPECT_EQ(At(events[1].data, "content_block"),
            R"({"type":"thinking","thinking":"","signature":""})");
  EXPECT_THAT(Blocks(events), ElementsAre("thinking: I think. [quartet]", "text: Hello there."));
  const Event& last = events[events.size() - 2];
  EXPECT_EQ(last.type, "message_delta");
  EXPECT_EQ(At(last.data, "delta.stop_reason"), "end_turn");
  EXPECT_EQ(At(last.data, "delta.stop_sequence"), "null");
  EXPECT_EQ(At(last.data, "usage.output_tokens"),
            absl::StrCat(Ids("I think.</think>Hello there.").size() + 1));
  EXPECT_EQ(events.back().type, "message_stop");
}

TEST_F(MessagesApiTest, ThinkingCanBeLeftOutOrEmpty) {
  const auto events = Stream(Message(R"("stream":true,"thinking":{"type":"disabled"})"));
  EXPECT_THAT(Blocks(events), ElementsAre("text: Hello there."));
  RawReply reply = Message(R"("thinking":{"type":"disabled"})");
  EXPECT_EQ(At(reply.body, "content.0.text"), "Hello there.");
  reply = Message(R"("thinking":{"type":"adaptive","display":"omitted"})");
  EXPECT_EQ(At(reply.body, "content.0.thinking"), "");
  EXPECT_EQ(At(reply.body, "content.0.signature"), "quartet");
  EXPECT_EQ(At(reply.body, "content.1.text"), "Hello there.");
}

TEST_F(MessagesApiTest, CallsAreBlocksWithTheirInput) {
  Answer("I add.</think>Now:" + kCall + "<tool_call>add</tool_call>");
  const RawReply reply = Message(kTools);
  EXPECT_EQ(At(reply.body, "content.1.text"), "Now:");
  EXPECT_EQ(At(reply.body, "content.2.type"), "tool_use");
  EXPECT_THAT(At(reply.body, "content.2.id"), ContainsRegex("^toolu_[A-Za-z0-9]{24}$"));
  EXPECT_EQ(At(reply.body, "content.2.name"), "add");
  EXPECT_EQ(At(reply.body, "content.2.input"), R"({"a":2,"note":"say \"hi\"\n"})");
  EXPECT_EQ(At(reply.body, "content.3.input"), "{}");
  EXPECT_NE(At(reply.body, "content.2.id"), At(reply.body, "content.3.id"));
  EXPECT_EQ(At(reply.body, "stop_reason"), "tool_use");

  const auto events = Stream(Message(kTools + R"(,"stream":true)"));
  EXPECT_THAT(Blocks(events),
              ElementsAre("thinking: I add. [quartet]",
                          "text: Now:", "tool_use add: {\"a\": 2, \"note\": \"say \\\"hi\\\"\\n\"}",
                          "tool_use add: {}"));
  EXPECT_EQ(At(events[events.size() - 2].data, "delta.stop_reason"), "tool_use");
}

TEST_F(MessagesApiTest, OneCallIsEnoughForThoseWhoSaySo) {
  Answer("</think>" + kCall + kCall);
  const auto events = Stream(Message(
      kTools + R"(,"stream":true,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})"));
  EXPECT_EQ(Blocks(events).size(), 1u);
  EXPECT_EQ(At(events[events.size() - 2].data, "delta.stop_reason"), "tool_use");
}

TEST_F(MessagesApiTest, ACallThatIsCutOffHasNoInput) {
  Answer("</think>" + kCall);
  const size_t cut =
      Ids("</think><tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value>").size();
  const RawReply reply =
      Post("/v1/messages", absl::StrCat(R"({"messages":[{"role":"user","content":"Hi"}],)", kTools,
                                        ",\"max_tokens\":", cut, "}"));
  EXPECT_EQ(At(reply.body, "stop_reason"), "max_tokens");
  EXPECT_EQ(At(reply.body, "content.0.name"), "add");
  EXPECT_EQ(At(reply.body, "content.0.input"), "{}");
}

TEST_F(MessagesApiTest, AStopSequenceIsNamed) {
  Answer("END</think>alpha END omega");
  for (const bool stream : {false, true}) {
    const RawReply reply = Message(stream ? R"("stop_sequences":["END"],"stream":true)"
                                          : R"("stop_sequences":["END"])");
    const auto events = stream ? Stream(reply) : std::vector<Event>();
    const std::string at = stream ? "delta." : "";
    const std::string& end = stream ? events[events.size() - 2].data : reply.body;
    EXPECT_EQ(At(end, at + "stop_reason"), "stop_sequence");
    EXPECT_EQ(At(end, at + "stop_sequence"), "END");
    if (stream) {
      EXPECT_THAT(Blocks(events), ElementsAre("thinking: END [quartet]", "text: alpha "));
    } else {
      EXPECT_EQ(At(reply.body, "content.1.text"), "alpha ");
    }
  }
}

TEST_F(MessagesApiTest, TheAssistantsLastMessageIsContinued) {
  Answer("Reykjavik.");
  const RawReply reply =
      Post("/v1/messages", R"({"max_tokens":9,"messages":[{"role":"user","content":"Hi"},)"
                           R"({"role":"assistant","content":"It is "}]})");
  EXPECT_EQ(LastSeen().prompt_ids, Ids("[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi"
                                       "<|assistant|><think></think>It is "));
  EXPECT_EQ(At(reply.body, "content.0.text"), "Reykjavik.");
}

TEST_F(MessagesApiTest, TokensAreCountedWithoutTheEngine) {
  const std::string fields = kTools + R"(,"system":"Be brief.")";
  ASSERT_EQ(Message(fields).status, 200);
  const size_t before = engine_->seen().size();
  const RawReply reply = Post(
      "/v1/messages/count_tokens",
      absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":"Hi"}],)", fields, "}"));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.body, absl::StrCat("{\"input_tokens\":", LastSeen().prompt_ids.size(), "}"));
  EXPECT_EQ(reply.headers.count("request-id"), 1u);
  EXPECT_EQ(engine_->seen().size(), before);
}

TEST_F(MessagesApiTest, APromptLongerThanTheContextIsCountedAndNotAnswered) {
  std::string words;
  for (int i = 0; i < 5000; ++i) words += "word ";
  const std::string body =
      absl::StrCat(R"({"max_tokens":5,"messages":[{"role":"user","content":")", words, "\"}]}");
  const RawReply count = Post("/v1/messages/count_tokens", body);
  EXPECT_EQ(count.status, 200) << count.body;
  EXPECT_GT(std::stoi(At(count.body, "input_tokens")), 4096);
  const RawReply reply = Post("/v1/messages", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(reply.body, "error.type"), "invalid_request_error");
  EXPECT_THAT(At(reply.body, "error.message"), HasSubstr("4096"));
}

TEST_F(MessagesApiTest, ErrorsHaveTheShapeOfTheApiAndNameTheField) {
  const auto expect = [](const RawReply& reply, int status, const std::string& type,
                         const std::string& message_part) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(At(reply.body, "type"), "error");
    EXPECT_EQ(At(reply.body, "error.type"), type);
    EXPECT_THAT(At(reply.body, "error.message"), HasSubstr(message_part));
  };
  expect(Post("/v1/messages", "{"), 400, "invalid_request_error", "not valid JSON");
  expect(Post("/v1/messages", "[]"), 400, "invalid_request_error", "must be a JSON object");
  expect(Message(R"("model":"claude-9")"), 404, "not_found_error", "'claude-9' does not exist");
  expect(Message(R"("stop_sequences":["a",""])"), 400, "invalid_request_error",
         "stop_sequences[1]: must not be empty");
  expect(Message(R"("top_p":2)"), 400, "invalid_request_error", "top_p: must be");
  expect(Message(kTools + R"(,"tool_choice":{"type":"tool","name":"no"})"), 400,
         "invalid_request_error", "tool_choice: ");
  expect(Message(R"("output_config":{"effort":"huge"})"), 400, "invalid_request_error",
         "output_config.effort");
  script()->refusal = absl::ResourceExhaustedError("64 requests wait");
  expect(Message(), 429, "rate_limit_error", "busy");
  EXPECT_EQ(Message().headers.at("retry-after"), "1");
  script()->refusal = absl::UnavailableError("draining");
  expect(Message(), 529, "overloaded_error", "not available");
  EXPECT_EQ(Message().headers.at("retry-after"), "2");
  script()->refusal = absl::DeadlineExceededError("it passed");
  expect(Message(), 504, "timeout_error", "it passed");
  script()->refusal = absl::InternalError("secret detail");
  expect(Message(), 500, "api_error", "internal error");
}

TEST_F(MessagesApiTest, AFaultInMidStreamIsTheLastEvent) {
  script()->fail_at = 3;
  const auto events = Stream(Message(R"("stream":true)"));
  EXPECT_EQ(events.front().type, "message_start");
  EXPECT_EQ(events.back().type, "error");
  EXPECT_EQ(At(events.back().data, "error.type"), "api_error");
}

TEST_F(MessagesApiTest, DroppingAClientCancelsItsSequence) {
  script()->hold_at = 3;
  {
    RawClient client(address_);
    client.Send(PostText("/v1/messages", Body(R"("stream":true)")));
    EXPECT_EQ(client.ReadHead().status, 200);
    EXPECT_THAT(client.ReadEvent(), HasSubstr("message_start"));
  }
  EXPECT_TRUE(engine_->WaitFor([](const auto& seen) { return seen.at(0).cancelled; }));
}

class SilentMessagesTest : public MessagesApiTest {
 protected:
  void SetUp() override {
    config_.http.ping_interval = std::chrono::milliseconds(20);
    script()->hold_at = 0;
    Start();
  }
};

TEST_F(SilentMessagesTest, AStreamThatIsSilentSendsPings) {
  RawClient client(address_);
  client.Send(PostText("/v1/messages", Body(R"("stream":true)")));
  EXPECT_EQ(client.ReadHead().status, 200);
  EXPECT_THAT(client.ReadEvent(), HasSubstr("message_start"));
  EXPECT_EQ(client.ReadEvent(), "event: ping\ndata: {\"type\":\"ping\"}");
  engine_->Release();
}

TEST_F(MessagesApiTest, ModelsHaveTheFormOfTheApiThatTheVersionHeaderNames) {
  const std::string version = "anthropic-version: 2023-06-01\r\n";
  const auto get = [&](const std::string& path) {
    return testing::Fetch(address_, testing::GetText(path, version));
  };
  const std::string list = get("/v1/models").body;
  EXPECT_EQ(At(list, "data.0.type"), "model");
  EXPECT_EQ(At(list, "data.0.id"), "m");
  EXPECT_EQ(At(list, "data.0.display_name"), "m");
  EXPECT_THAT(At(list, "data.0.created_at"),
              ContainsRegex("^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"));
  EXPECT_EQ(At(list, "data.0.max_input_tokens"), "4096");
  EXPECT_EQ(At(list, "data.1"), "<none>");
  EXPECT_EQ(At(list, "has_more"), "false");
  EXPECT_EQ(At(list, "first_id"), "m");
  EXPECT_EQ(At(list, "last_id"), "m");
  EXPECT_EQ(get("/v1/models/m").body, At(list, "data.0"));
  const RawReply unknown = get("/v1/models/x");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(At(unknown.body, "type"), "error");
  EXPECT_EQ(At(unknown.body, "error.type"), "not_found_error");
}

}  // namespace
}  // namespace quartet::gateway
