// POST /v1/responses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
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

const std::string kTools =
    R"("tools":[{"type":"function","name":"add","parameters":{"type":"object",)"
    R"("properties":{"a":{"type":"integer"}}}}])";
const std::string kCall = "<tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>";

class ResponsesApiTest : public GatewayTest {
 protected:
  void SetUp() override { Start(); }

  static std::string Body(const std::string& fields) {
    return absl::StrCat(R"({"input":"Hi")", fields.empty() ? "" : ",", fields, "}");
  }
  RawReply Respond(const std::string& fields = "") { return Post("/v1/responses", Body(fields)); }

  // The data of a stream's events: each names its type twice, and their numbers rise by one.
  static std::vector<std::string> Stream(const RawReply& reply) {
    std::vector<std::string> events;
    std::string_view rest = reply.body;
    while (!rest.empty()) {
      const size_t line = rest.find("\ndata: ");
      const size_t end = rest.find("\n\n");
      if (!rest.starts_with("event: ") || line == std::string_view::npos || end < line) {
        ADD_FAILURE() << "not an event: " << rest;
        break;
      }
      events.emplace_back(rest.substr(line + 7, end - line - 7));
      EXPECT_EQ(At(events.back(), "type"), rest.substr(7, line - 7));
      EXPECT_EQ(At(events.back(), "sequence_number"), absl::StrCat(events.size() - 1));
      rest.remove_prefix(end + 2);
    }
    return events;
  }
  static std::vector<std::string> Types(const std::vector<std::string>& events) {
    std::vector<std::string> types;
    for (const std::string& event : events) {
      const std::string type = At(event, "type");
      if (types.empty() || types.back() != type) types.push_back(type);
    }
    return types;
  }
  // The deltas of one kind, joined.
  static std::string Joined(const std::vector<std::string>& events, const std::string& kind) {
    std::string text;
    for (const std::string& event : events) {
      if (At(event, "type") == "response." + kind + ".delta") text += At(event, "delta");
    }
    return text;
  }
};

TEST_F(ResponsesApiTest, AResponseHasItemsAndUsage) {
  script()->cached_tokens = 3;
  const RawReply reply = Respond(R"("instructions":"Be brief.","metadata":{"a":"b"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(LastSeen().prompt_ids, Ids("[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be "
                                       "brief.<|user|>Hi<|assistant|><think>"));
  EXPECT_THAT(At(reply.body, "id"), ContainsRegex("^resp_[A-Za-z0-9]{24}$"));
  EXPECT_EQ(At(reply.body, "object"), "response");
  EXPECT_EQ(At(reply.body, "model"), "m");
  EXPECT_EQ(At(reply.body, "status"), "completed");
  EXPECT_EQ(At(reply.body, "error"), "null");
  EXPECT_EQ(At(reply.body, "incomplete_details"), "null");
  EXPECT_EQ(At(reply.body, "output.0.type"), "reasoning");
  EXPECT_THAT(At(reply.body, "output.0.id"), ContainsRegex("^rs_[A-Za-z0-9]{24}$"));
  EXPECT_EQ(At(reply.body, "output.0.summary"), "[]");
  EXPECT_EQ(At(reply.body, "output.0.content"), R"([{"type":"reasoning_text","text":"I think."}])");
  EXPECT_EQ(At(reply.body, "output.1.type"), "message");
  EXPECT_EQ(At(reply.body, "output.1.role"), "assistant");
  EXPECT_EQ(At(reply.body, "output.1.status"), "completed");
  EXPECT_EQ(At(reply.body, "output.1.content.0.type"), "output_text");
  EXPECT_EQ(At(reply.body, "output.1.content.0.text"), "Hello there.");
  EXPECT_EQ(At(reply.body, "output.1.content.0.annotations"), "[]");
  EXPECT_EQ(At(reply.body, "output.2"), "<none>");
  const size_t prompt = LastSeen().prompt_ids.size();
  const size_t output = Ids("I think.</think>Hello there.").size() + 1;
  EXPECT_EQ(At(reply.body, "usage.input_tokens"), absl::StrCat(prompt));
  EXPECT_EQ(At(reply.body, "usage.input_tokens_details.cached_tokens"), "3");
  EXPECT_EQ(At(reply.body, "usage.output_tokens"), absl::StrCat(output));
  EXPECT_EQ(At(reply.body, "usage.output_tokens_details.reasoning_tokens"),
            absl::StrCat(Ids("I think.</think>").size()));
  EXPECT_EQ(At(reply.body, "usage.total_tokens"), absl::StrCat(prompt + output));
  EXPECT_EQ(At(reply.body, "instructions"), "Be brief.");
  EXPECT_EQ(At(reply.body, "metadata.a"), "b");
  EXPECT_EQ(At(reply.body, "store"), "false");
  EXPECT_EQ(At(reply.body, "tools"), "[]");
  EXPECT_EQ(At(reply.body, "tool_choice"), "auto");
  EXPECT_EQ(At(reply.body, "temperature"), "0") << "the model's files say do_sample: false";
}

TEST_F(ResponsesApiTest, AStreamHasItsEventsInOrder) {
  const RawReply reply = Respond(R"("stream":true)");
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const auto events = Stream(reply);
  EXPECT_THAT(Types(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.reasoning_text.delta",
                          "response.reasoning_text.done", "response.content_part.done",
                          "response.output_item.done", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta",
                          "response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.completed"));
  EXPECT_EQ(At(events[0], "response.status"), "in_progress");
  EXPECT_EQ(At(events[0], "response.output"), "[]");
  EXPECT_EQ(At(events[0], "response.usage"), "null");
  EXPECT_EQ(Joined(events, "reasoning_text"), "I think.");
  EXPECT_EQ(Joined(events, "output_text"), "Hello there.");
  const std::string& last = events.back();
  EXPECT_EQ(At(last, "response.id"), At(events[0], "response.id"));
  EXPECT_EQ(At(last, "response.status"), "completed");
  EXPECT_EQ(At(last, "response.output.0.content.0.text"), "I think.");
  EXPECT_EQ(At(last, "response.output.1.content.0.text"), "Hello there.");
  EXPECT_EQ(At(last, "response.usage.output_tokens"),
            absl::StrCat(Ids("I think.</think>Hello there.").size() + 1));
  // The item that was announced is the one that was told to be done.
  EXPECT_EQ(At(events[2], "item.id"), At(last, "response.output.0.id"));
  EXPECT_EQ(At(events[2], "item.content"), "[]");
  EXPECT_EQ(At(events[2], "item.status"), "in_progress");
  EXPECT_EQ(At(events[events.size() - 2], "item"), At(last, "response.output.1"));
  EXPECT_EQ(At(events[events.size() - 2], "output_index"), "1");
}

TEST_F(ResponsesApiTest, CallsAreItems) {
  Answer("I add.</think>" + kCall + kCall);
  const RawReply reply = Respond(kTools);
  EXPECT_EQ(At(reply.body, "output.1.type"), "function_call");
  EXPECT_EQ(At(reply.body, "output.1.name"), "add");
  EXPECT_EQ(At(reply.body, "output.1.arguments"), "{\"a\": 2}");
  EXPECT_EQ(At(reply.body, "output.1.status"), "completed");
  EXPECT_THAT(At(reply.body, "output.1.call_id"), ContainsRegex("^call_[A-Za-z0-9]{24}$"));
  EXPECT_NE(At(reply.body, "output.1.call_id"), At(reply.body, "output.2.call_id"));
  EXPECT_EQ(At(reply.body, "status"), "completed");
  EXPECT_EQ(At(reply.body, "tools.0.name"), "add") << "as the request had it";

  const auto events = Stream(Respond(kTools + R"(,"stream":true)"));
  EXPECT_EQ(Joined(events, "function_call_arguments"), "{\"a\": 2}{\"a\": 2}");
  int done = 0;
  for (const std::string& event : events) {
    if (At(event, "type") != "response.function_call_arguments.done") continue;
    ++done;
    EXPECT_EQ(At(event, "arguments"), "{\"a\": 2}");
    EXPECT_EQ(At(event, "name"), "add");
  }
  EXPECT_EQ(done, 2);
  EXPECT_EQ(At(events.back(), "response.output.2.arguments"), "{\"a\": 2}");
}

// Bytes of the entries at `path`, joined, and how many there are.
std::pair<std::string, size_t> Entries(const std::string& json, const std::string& path) {
  std::string text;
  for (size_t i = 0;; ++i) {
    const std::string entry = absl::StrCat(path, ".", i);
    if (At(json, entry) == "<none>") return {text, i};
    text += At(json, entry + ".token");
    EXPECT_NE(At(json, entry + ".bytes"), "<none>");
    EXPECT_NE(At(json, entry + ".top_logprobs.1.token"), "<none>");
    EXPECT_EQ(At(json, entry + ".top_logprobs.2"), "<none>");
  }
}

TEST_F(ResponsesApiTest, LogprobsAreThoseOfTheTokensOfTheText) {
  const size_t tokens = Ids("Hello there.").size();
  const size_t before = Ids("I think.</think>").size();
  const std::string wanted = R"("include":["message.output_text.logprobs"],"top_logprobs":2)";
  for (const size_t burst : {1, 3, 100}) {
    script()->ids_per_event = burst;
    const RawReply reply = Respond(wanted);
    const std::string path = "output.1.content.0.logprobs";
    EXPECT_EQ(Entries(reply.body, path), std::pair(std::string("Hello there."), tokens)) << burst;
    EXPECT_EQ(std::stof(At(reply.body, path + ".0.logprob")), testing::ScriptedLogprob(before))
        << "reasoning has none";
    EXPECT_EQ(At(reply.body, "top_logprobs"), "2");

    const auto events = Stream(Respond(wanted + R"(,"stream":true)"));
    std::string streamed;
    for (const std::string& event : events) {
      if (At(event, "type") == "response.output_text.delta") {
        streamed += Entries(event, "logprobs").first;
      } else if (At(event, "type") == "response.output_text.done") {
        EXPECT_EQ(Entries(event, "logprobs").first, "Hello there.") << burst;
      }
    }
    EXPECT_EQ(streamed, "Hello there.") << burst;
    EXPECT_EQ(At(events.back(), "response." + path), At(reply.body, path)) << burst;
  }
  EXPECT_EQ(At(Respond().body, "output.1.content.0.logprobs"), "[]");
}

TEST_F(ResponsesApiTest, LogprobsOfTextBesideACallAreThoseOfTheText) {
  Answer("</think>Now: " + kCall);
  const RawReply reply = Respond(kTools + R"(,"top_logprobs":2)");
  EXPECT_EQ(At(reply.body, "output.0.content.0.text"), "Now: ");
  EXPECT_EQ(Entries(reply.body, "output.0.content.0.logprobs").first, "Now: ");
}

TEST_F(ResponsesApiTest, WhatIsCutOffIsIncomplete) {
  Answer("</think>" + kCall);
  const std::string cut = absl::StrCat(
      kTools, ",\"max_output_tokens\":",
      Ids("</think><tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value>").size());
  const RawReply reply = Respond(cut);
  EXPECT_EQ(At(reply.body, "status"), "incomplete");
  EXPECT_EQ(At(reply.body, "incomplete_details.reason"), "max_output_tokens");
  EXPECT_EQ(At(reply.body, "output.0.status"), "incomplete");
  const auto events = Stream(Respond(cut + R"(,"stream":true)"));
  EXPECT_EQ(At(events.back(), "type"), "response.incomplete");
  EXPECT_THAT(Types(events),
              ::testing::Not(::testing::Contains("response.function_call_arguments.done")));
}

TEST_F(ResponsesApiTest, OutputGoesBackAsInput) {
  Answer("I add.</think>Now: " + kCall);
  const RawReply first = Respond(kTools);
  const std::string output = At(first.body, "output");
  const std::string items = output.substr(1, output.size() - 2) +
                            R"(,{"type":"function_call_output","call_id":")" +
                            At(first.body, "output.2.call_id") + R"(","output":"4"})";
  ASSERT_EQ(Post("/v1/responses", absl::StrCat(R"({"input":[{"role":"user","content":"Hi"},)",
                                               items, "],", kTools, "}"))
                .status,
            200);
  const std::vector<int32_t> tail =
      Ids("<|assistant|><think>I add.</think>Now:" + kCall +
          "<|observation|><tool_response>4</tool_response><|assistant|><think>");
  const std::vector<int32_t> prompt = LastSeen().prompt_ids;
  ASSERT_GT(prompt.size(), tail.size());
  EXPECT_EQ(std::vector<int32_t>(prompt.end() - static_cast<ptrdiff_t>(tail.size()), prompt.end()),
            tail);
}

TEST_F(ResponsesApiTest, ErrorsAreOpenAisAndNameTheField) {
  const auto expect = [](const RawReply& reply, int status, const std::string& param,
                         const std::string& message_part) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(At(reply.body, "error.param"), param);
    EXPECT_THAT(At(reply.body, "error.message"), HasSubstr(message_part));
  };
  expect(Post("/v1/responses", "{}"), 400, "input", "is missing");
  expect(Respond(R"("model":"gpt-9")"), 404, "model", "'gpt-9' does not exist");
  expect(Respond(R"("max_output_tokens":0)"), 400, "max_output_tokens", "max_output_tokens: must");
  expect(Respond(R"("max_output_tokens":5000)"), 400, "input", "4096");
  expect(Respond(R"("reasoning":{"effort":"huge"})"), 400, "reasoning.effort", "must be one of");
  expect(Respond(R"("previous_response_id":"resp_1")"), 400, "previous_response_id", "not stored");
  expect(Post("/v1/responses",
              R"({"input":[{"role":"user","content":"x"},{"role":"user","content":[)"
              R"({"type":"input_image","image_url":"data:image/png;base64,AAAA"}]}]})"),
         400, "input[1].content[0].image_url", "images are not supported");
}

TEST_F(ResponsesApiTest, AFaultInMidStreamIsAFailedResponse) {
  script()->fail_at = 3;
  const auto events = Stream(Respond(R"("stream":true)"));
  EXPECT_EQ(At(events.back(), "type"), "response.failed");
  EXPECT_EQ(At(events.back(), "response.status"), "failed");
  EXPECT_EQ(At(events.back(), "response.error.code"), "server_error");
  EXPECT_EQ(At(events.back(), "response.output.0.status"), "incomplete");
}

TEST_F(ResponsesApiTest, DroppingAClientCancelsItsSequence) {
  script()->hold_at = 3;
  {
    RawClient client(address_);
    client.Send(PostText("/v1/responses", Body(R"("stream":true)")));
    EXPECT_EQ(client.ReadHead().status, 200);
    EXPECT_THAT(client.ReadEvent(), HasSubstr("response.created"));
  }
  EXPECT_TRUE(engine_->WaitFor([](const auto& seen) { return seen.at(0).cancelled; }));
}

}  // namespace
}  // namespace quartet::gateway
