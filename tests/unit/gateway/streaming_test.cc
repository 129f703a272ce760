// Streams: their events, and what happens to the engine when their readers are slow or gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::HasSubstr;
using testing::PostText;
using testing::RawClient;
using testing::RawReply;
using testing::SeenSequence;

class StreamingTest : public GatewayTest {
 protected:
  // Texts of a stream joined, by field of the delta.
  static std::string Joined(const std::vector<std::string>& events, const std::string& field) {
    std::string text;
    for (const std::string& event : events) {
      const std::string piece = At(event, "choices.0.delta." + field);
      if (event != "[DONE]" && piece != "<none>") text += piece;
    }
    return text;
  }
  static auto Cancelled(size_t index) {
    return [index](const std::vector<SeenSequence>& seen) {
      return seen.size() > index && seen[index].cancelled;
    };
  }
};

TEST_F(StreamingTest, AChatStreamHasTheExpectedEvents) {
  Start();
  const RawReply reply = Chat(R"("stream":true)");
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(reply.headers.at("x-accel-buffering"), "no");
  EXPECT_EQ(reply.headers.count("content-length"), 0u);
  const auto events = Events(reply);
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(At(events[0], "choices.0.delta.role"), "assistant");
  EXPECT_EQ(At(events[0], "choices.0.delta.content"), "");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(At(events[events.size() - 2], "choices.0.finish_reason"), "stop");
  EXPECT_EQ(Joined(events, "reasoning_content"), "I think.");
  EXPECT_EQ(Joined(events, "reasoning"), "I think.");
  EXPECT_EQ(Joined(events, "content"), "Hello there.");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(At(events[i], "id"), At(events[0], "id"));
    EXPECT_EQ(At(events[i], "created"), At(events[0], "created"));
    EXPECT_EQ(At(events[i], "object"), "chat.completion.chunk");
    EXPECT_EQ(At(events[i], "usage"), "<none>");
    if (i + 2 < events.size()) {
      EXPECT_EQ(At(events[i], "choices.0.finish_reason"), "null");
    }
  }
}

TEST_F(StreamingTest, TheTextDoesNotDependOnHowTheEngineCutsIt) {
  Answer("so \xF0\x9F\x8C\xA4 it is</think>  well END then");
  Start();
  const std::string fields = R"("stop":["END"])";
  const std::string whole = Chat(fields).body;
  for (size_t burst : {1, 2, 5, 100}) {
    script()->ids_per_event = burst;
    const RawReply reply = Chat(fields + R"(,"stream":true)");
    const auto events = Events(reply);
    EXPECT_EQ(Joined(events, "content"), At(whole, "choices.0.message.content")) << burst;
    EXPECT_EQ(Joined(events, "reasoning_content"), At(whole, "choices.0.message.reasoning_content"))
        << burst;
  }
}

TEST_F(StreamingTest, TheUsageChunkComesOnlyWhenAskedForLastAndWithoutChoices) {
  Answer("a</think>b");
  Start();
  auto events = Events(Chat(R"("stream":true)"));
  for (const std::string& event : events) EXPECT_THAT(event, ::testing::Not(HasSubstr("usage")));

  events = Events(Chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_GE(events.size(), 3u);
  const std::string& last = events[events.size() - 2];
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(At(last, "choices"), "[]");
  const int prompt = std::stoi(At(last, "usage.prompt_tokens"));
  const int completion = std::stoi(At(last, "usage.completion_tokens"));
  EXPECT_EQ(completion, static_cast<int>(script()->ids.size())) << "every sampled token";
  EXPECT_EQ(At(last, "usage.total_tokens"), absl::StrCat(prompt + completion));
  for (size_t i = 0; i + 2 < events.size(); ++i) EXPECT_EQ(At(events[i], "usage"), "null");

  const RawReply refused = Chat(R"("stream":false,"stream_options":{"include_usage":true})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(At(refused.body, "error.param"), "stream_options");
}

TEST_F(StreamingTest, PublicBugReportsAboutStreams) {
  std::ifstream file(QUARTET_SOURCE_DIR "/tests/data/chat/cases.json");
  std::stringstream text;
  text << file.rdbuf();
  const boost::json::value content = boost::json::parse(text.str());
  Start();
  int checked = 0;
  for (const boost::json::value& item : content.at("cases").as_array()) {
    if (item.at("kind") != "sse") continue;
    for (const boost::json::value& variant : item.at("variants").as_array()) {
      ++checked;
      std::string fields = boost::json::serialize(variant.at("request"));
      fields = fields.substr(1, fields.size() - 2);
      const boost::json::object& expect = variant.at("expect").as_object();
      if (const auto* status = expect.if_contains("status")) {
        const RawReply refused = Chat(fields);
        EXPECT_EQ(refused.status, status->as_int64());
        EXPECT_EQ(At(refused.body, "error.type"),
                  expect.at("error").at("type").as_string().c_str());
        EXPECT_EQ(At(refused.body, "error.param"),
                  expect.at("error").at("param").as_string().c_str());
        continue;
      }
      std::string answer;
      for (const boost::json::value& chunk : variant.at("engine_chunks").as_array()) {
        answer += chunk.as_string();
      }
      Answer(answer);
      const auto events = Events(Chat(fields));
      ASSERT_GE(events.size(), 3u);
      EXPECT_EQ(events.back(), expect.at("last_data").as_string().c_str());
      int with_usage = 0;
      for (size_t i = 0; i + 1 < events.size(); ++i) {
        const bool has_usage = At(events[i], "usage.total_tokens") != "<none>";
        with_usage += has_usage;
        EXPECT_EQ(At(events[i], "choices") == "[]", has_usage) << events[i];
        EXPECT_EQ(has_usage, expect.contains("usage_chunk_choices") && i + 2 == events.size());
      }
      EXPECT_EQ(with_usage, expect.at("chunks_with_usage_object").as_int64());
    }
  }
  EXPECT_EQ(checked, 3);
}

TEST_F(StreamingTest, UsageCanRunAlong) {
  Start();
  const auto events = Events(Chat(
      R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"));
  EXPECT_EQ(At(events[0], "usage.completion_tokens"), "0");
  int before = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const int now = std::stoi(At(events[i], "usage.completion_tokens"));
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_EQ(before, static_cast<int>(script()->ids.size()));
}

TEST_F(StreamingTest, CompletionStreamsCarryTextEchoAndIds) {
  Start();
  const auto events =
      Events(Post("/v1/completions",
                  R"({"prompt":["hi","ho"],"echo":true,"stream":true,"return_token_ids":true})"));
  std::string texts[2];
  std::vector<std::string> ids[2];
  int finishes = 0;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const int index = std::stoi(At(event, "choices.0.index"));
    texts[index] += At(event, "choices.0.text");
    if (At(event, "choices.0.finish_reason") != "null") ++finishes;
    if (const std::string some = At(event, "choices.0.token_ids"); some != "<none>")
      ids[index].push_back(some);
  }
  EXPECT_EQ(texts[0], "hiI think.</think>Hello there.");
  EXPECT_EQ(texts[1], "hoI think.</think>Hello there.");
  EXPECT_EQ(ids[0].size(), script()->ids.size());
  EXPECT_EQ(ids[0].back(), "[1991]") << "the end token included";
  EXPECT_EQ(finishes, 2);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(StreamingTest, NothingIsSentBeforeTheEngineHasAdmittedTheRequest) {
  script()->refusal = absl::ResourceExhaustedError("the queue is full");
  Start();
  const RawReply reply = Chat(R"("stream":true)");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(At(reply.body, "error.type"), "rate_limit_error");
}

TEST_F(StreamingTest, AFaultInMidStreamIsAnEventAndThenDone) {
  script()->fail_at = 3;
  Start();
  const RawReply reply = Chat(R"("stream":true)");
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.complete);
  const auto events = Events(reply);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(At(events[events.size() - 2], "error.type"), "server_error");
}

TEST_F(StreamingTest, DroppingAClientCancelsItsSequence) {
  script()->hold_at = 3;
  Start();
  {
    RawClient client(address_);
    client.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
    EXPECT_EQ(client.ReadHead().status, 200);
    EXPECT_NE(client.ReadEvent(), "");
  }
  EXPECT_TRUE(engine_->WaitFor(Cancelled(0)));
}

TEST_F(StreamingTest, DroppingAClientThatWaitsForAWholeAnswerCancelsToo) {
  script()->hold_at = 3;
  Start();
  RawClient client(address_);
  client.Send(PostText("/v1/chat/completions", ChatBody("")));
  ASSERT_TRUE(
      engine_->WaitFor([](const auto& seen) { return !seen.empty() && seen[0].tokens_sent == 3; }));
  client.HalfClose();
  EXPECT_TRUE(engine_->WaitFor(Cancelled(0)));
}

TEST_F(StreamingTest, DroppingAClientWhoseRequestIsQueuedCancelsToo) {
  script()->hold_admission = true;
  Start();
  RawClient client(address_);
  client.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  ASSERT_TRUE(engine_->WaitFor([](const auto& seen) { return !seen.empty(); }));
  client.Reset();
  EXPECT_TRUE(engine_->WaitFor(Cancelled(0)));
}

TEST_F(StreamingTest, AllSequencesOfARequestAreCancelled) {
  script()->hold_at = 1;
  Start();
  RawClient client(address_);
  client.Send(PostText("/v1/completions", R"({"prompt":["a","b","c"],"stream":true})"));
  ASSERT_TRUE(engine_->WaitFor([](const auto& seen) { return seen.size() == 3; }));
  client.Close();
  EXPECT_TRUE(engine_->WaitFor([](const std::vector<SeenSequence>& seen) {
    return seen[0].cancelled && seen[1].cancelled && seen[2].cancelled;
  }));
}

TEST_F(StreamingTest, ASlowReaderHoldsTheEngineBackAndLosesNothing) {
  config_.http.send_buffer_bytes = 8 << 10;
  script()->repeat = true;
  script()->ids = Ids("word ");
  Start();
  engine_->SetMaxModelLen(1 << 20);
  while (At(Get("/v1/models").body, "data.0.max_model_len") == "4096") {
  }
  constexpr int kTokens = 40'000;
  RawClient client(address_, 8 << 10);
  client.Send(PostText("/v1/completions",
                       absl::StrCat(R"({"prompt":"x","stream":true,"max_tokens":)", kTokens, "}")));
  ASSERT_EQ(client.ReadHead().status, 200);
  // The gateway stops taking tokens; those on the way fill the transport's window and then the
  // engine waits.
  size_t before = 0, now = 0;
  do {
    before = now;
    engine_->WaitFor([&](const auto& seen) { return seen.at(0).tokens_sent > before + 1000; },
                     absl::Milliseconds(300));
    now = LastSeen().tokens_sent;
  } while (now > before);
  EXPECT_LT(now, static_cast<size_t>(kTokens))
      << "the engine ran ahead of a reader that does not read";
  EXPECT_TRUE(LastSeen().paused) << "and is told to make no more";
  client.SetReceiveBuffer(1 << 20);
  std::string event, last;
  std::string text;
  while ((event = client.ReadEvent()) != "" && event != "data: [DONE]") {
    const size_t at = event.find("\"text\":\"") + 8;
    text += event.substr(at, event.find('"', at) - at);
    last = event;
  }
  EXPECT_EQ(event, "data: [DONE]");
  EXPECT_THAT(last, HasSubstr("\"finish_reason\":\"length\""));
  std::string expected;
  const std::string piece = "word ";
  const size_t per_piece = Ids(piece).size();
  for (size_t i = 0; i < kTokens / per_piece; ++i) expected += piece;
  EXPECT_EQ(text.substr(0, expected.size()), expected);
  EXPECT_GT(LastSeen().resumes, 0);
}

TEST_F(StreamingTest, AReaderThatStopsIsCancelled) {
  config_.http.send_buffer_bytes = 8 << 10;
  config_.http.slow_reader_timeout = std::chrono::milliseconds(200);
  script()->repeat = true;
  script()->ids = Ids("word ");
  Start();
  engine_->SetMaxModelLen(1 << 20);
  while (At(Get("/v1/models").body, "data.0.max_model_len") == "4096") {
  }
  RawClient client(address_, 8 << 10);
  client.Send(PostText("/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":500000})"));
  EXPECT_TRUE(engine_->WaitFor(Cancelled(0)));
}

TEST_F(StreamingTest, SixteenStreamsAtOnceEachGetTheirOwnText) {
  Start();
  std::vector<std::thread> threads;
  std::vector<std::string> texts(16);
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto events =
          Events(Post("/v1/completions", absl::StrCat(R"({"prompt":"client )", i,
                                                      R"( says: ","echo":true,"stream":true})")));
      for (const std::string& event : events) {
        if (event != "[DONE]") texts[i] += At(event, "choices.0.text");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i], absl::StrCat("client ", i, " says: I think.</think>Hello there."));
  }
}

}  // namespace
}  // namespace quartet::gateway
