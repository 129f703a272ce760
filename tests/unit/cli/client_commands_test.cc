#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "boost/json.hpp"
#include "tests/unit/cli/fake_http_server.h"
#include "tests/unit/cli/program.h"

namespace quartet::cli {
namespace {

namespace json = boost::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kProgram = QUARTET_BINARY_DIR "/quartet";
constexpr const char* kModels = R"({"object":"list","data":[{"id":"demo","object":"model"}]})";

json::object Body(const SeenRequest& request) {
  return json::parse(request.body).as_object();
}

// Answers a chat with a thought and the number of messages that it was sent.
std::string ChatAnswer(const SeenRequest& request) {
  if (request.line.rfind("GET /v1/models", 0) == 0) return PlainAnswer(200, kModels);
  const auto count = std::to_string(Body(request).at("messages").as_array().size());
  return StreamAnswer({R"({"choices":[{"delta":{"role":"assistant"}}]})",
                       R"({"choices":[{"delta":{"reasoning_content":"let me "}}]})",
                       R"({"choices":[{"delta":{"reasoning_content":"think"}}]})",
                       R"({"choices":[{"delta":{"content":"answer \u001b[31m"}}]})",
                       R"({"choices":[{"delta":{"content":")" + count + R"("}}]})",
                       R"({"choices":[],"usage":{"completion_tokens":5}})", "[DONE]"});
}

Outcome RunChat(const FakeHttpServer& server, const std::string& input,
                const std::vector<std::string>& more = {}) {
  std::vector<std::string> argv = {kProgram, "chat", "--url", server.url()};
  argv.insert(argv.end(), more.begin(), more.end());
  return Program(argv, {}, input).Finish();
}

TEST(ChatCommand, ShowsReasoningAndAnswerOfALineFromAPipe) {
  FakeHttpServer server(ChatAnswer);
  const Outcome outcome = RunChat(server, "hello\n");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "reasoning: let me think\nanswer [31m1\n")
      << "no prompt, no colour, and no escape sequences from the model";
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST(ChatCommand, KeepsTheConversationUntilReset) {
  FakeHttpServer server(ChatAnswer);
  const Outcome outcome = RunChat(server, "one\ntwo\n/reset\nthree\n/quit\nfour\n");
  EXPECT_EQ(outcome.exit_code, 0);
  const std::vector<SeenRequest> seen = server.seen();
  ASSERT_EQ(seen.size(), 4U);  // The list of models and three questions.
  const json::array second = Body(seen[2]).at("messages").as_array();
  ASSERT_EQ(second.size(), 3U);
  EXPECT_EQ(second[0].at("content").as_string(), "one");
  EXPECT_EQ(second[1].at("role").as_string(), "assistant");
  EXPECT_EQ(second[1].at("content").as_string(), "answer \x1b[31m1");
  EXPECT_EQ(second[2].at("content").as_string(), "two");
  EXPECT_EQ(Body(seen[3]).at("messages").as_array().size(), 1U);
}

TEST(ChatCommand, SendsItsFlags) {
  FakeHttpServer server(ChatAnswer);
  RunChat(server, "x\n",
          {"--model", "m", "--system", "be short", "--temperature", "0", "--seed", "7",
           "--max-tokens", "9"});
  const std::vector<SeenRequest> seen = server.seen();
  ASSERT_EQ(seen.size(), 1U) << "a named model need not be looked up";
  const json::object body = Body(seen[0]);
  EXPECT_EQ(body.at("model").as_string(), "m");
  EXPECT_EQ(body.at("messages").as_array()[0].at("role").as_string(), "system");
  EXPECT_EQ(body.at("temperature").to_number<double>(), 0.0);
  EXPECT_EQ(body.at("seed").to_number<int>(), 7);
  EXPECT_EQ(body.at("max_tokens").to_number<int>(), 9);
  EXPECT_TRUE(body.at("stream").as_bool());
}

TEST(ChatCommand, TellsTheTimeWhenAsked) {
  FakeHttpServer server(ChatAnswer);
  EXPECT_THAT(RunChat(server, "x\n", {"--timing"}).out,
              ContainsRegex("\\(5 tokens in [0-9.]+ s, the first after [0-9.]+ s\\)"));
}

TEST(ChatCommand, ARefusedQuestionIsForgottenAndTheExitCodeSaysSo) {
  int questions = 0;
  FakeHttpServer server([&questions](const SeenRequest& request) {
    if (request.line.rfind("POST", 0) == 0 && ++questions == 1) {
      return PlainAnswer(429, R"({"error":{"message":"the queue is full"}})");
    }
    return ChatAnswer(request);
  });
  const Outcome outcome = RunChat(server, "one\ntwo\n");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("HTTP 429: the queue is full"));
  EXPECT_EQ(Body(server.seen().back()).at("messages").as_array().size(), 1U);
}

TEST(ChatCommand, AnErrorInTheStreamIsShown) {
  FakeHttpServer server([](const SeenRequest& request) {
    if (request.line.rfind("GET", 0) == 0) return PlainAnswer(200, kModels);
    return StreamAnswer({R"({"choices":[{"delta":{"content":"begun"}}]})",
                         R"({"error":{"message":"a worker was lost"}})", "[DONE]"});
  });
  const Outcome outcome = RunChat(server, "x\n");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "begun\n");
  EXPECT_THAT(outcome.err, HasSubstr("a worker was lost"));
}

TEST(ChatCommand, SaysHowToStartAClusterWhenNobodyAnswers) {
  unsigned short port = 0;
  { port = FakeHttpServer(ChatAnswer).port(); }
  const Outcome outcome =
      Program({kProgram, "chat", "--url", "http://127.0.0.1:" + std::to_string(port)}, {}, "x\n")
          .Finish();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("quartet serve --model DIR"));
}

// As many token events as max_tokens asks for.
std::string CompletionAnswer(const SeenRequest& request) {
  if (request.line.rfind("GET /v1/models", 0) == 0) return PlainAnswer(200, kModels);
  const int64_t wanted = Body(request).at("max_tokens").as_int64();
  std::vector<std::string> events;
  for (int64_t i = 0; i < wanted; ++i) {
    events.emplace_back(R"({"choices":[{"text":"x","token_ids":[5]}],"usage":null})");
  }
  events.push_back(R"({"choices":[],"usage":{"completion_tokens":)" + std::to_string(wanted) +
                   "}}");
  events.emplace_back("[DONE]");
  return StreamAnswer(events);
}

Outcome RunBench(const FakeHttpServer& server, const std::vector<std::string>& more) {
  std::vector<std::string> argv = {kProgram, "bench", "--url", server.url()};
  argv.insert(argv.end(), more.begin(), more.end());
  return Program(argv, {}).Finish();
}

TEST(BenchCommand, PrintsATableAndWritesJson) {
  const TempFolder folder;
  FakeHttpServer server(CompletionAnswer);
  const Outcome outcome =
      RunBench(server, {"--prompt-tokens", "10", "--output-tokens", "4", "--concurrency", "3",
                        "--requests", "6", "--json", folder / "bench.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("requests +6 of 6\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("TTFT +[0-9.]+ ms +[0-9.]+ ms\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("inter-token +[0-9.]+ ms +[0-9.]+ ms\n"));
  const json::object report = json::parse(ReadWholeFile(folder / "bench.json")).as_object();
  EXPECT_EQ(report.at("requests_ok").as_int64(), 6);
  EXPECT_EQ(report.at("model").as_string(), "demo");
  EXPECT_GT(report.at("output_tokens_per_second").as_double(), 0);
}

TEST(BenchCommand, AsksForExactlyWhatItMeasures) {
  FakeHttpServer server(CompletionAnswer);
  RunBench(server, {"--prompt-tokens", "10", "--output-tokens", "4", "--requests", "2"});
  const std::vector<SeenRequest> seen = server.seen();
  ASSERT_EQ(seen.size(), 3U);
  const json::object body = Body(seen[1]);
  EXPECT_THAT(seen[1].line, StartsWith("POST /v1/completions"));
  EXPECT_EQ(body.at("prompt").as_array().size(), 10U);
  EXPECT_TRUE(body.at("prompt").as_array()[0].is_int64());
  EXPECT_TRUE(body.at("ignore_eos").as_bool());
  EXPECT_TRUE(body.at("stream").as_bool());
  EXPECT_NE(seen[1].body, seen[2].body) << "a repeated prompt would measure a cache";
}

TEST(BenchCommand, WithADashTheJsonIsAloneOnStandardOutput) {
  FakeHttpServer server(CompletionAnswer);
  const Outcome outcome =
      RunBench(server, {"--output-tokens", "2", "--requests", "1", "--json", "-"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(json::parse(outcome.out).as_object().at("requests_ok").as_int64(), 1);
  EXPECT_THAT(outcome.err, HasSubstr("TTFT"));
}

TEST(BenchCommand, AFailedRequestIsCountedAndSaid) {
  FakeHttpServer server([](const SeenRequest& request) {
    if (request.line.rfind("GET", 0) == 0) return PlainAnswer(200, kModels);
    return PlainAnswer(400, R"({"error":{"message":"too long"}})");
  });
  const Outcome outcome = RunBench(server, {"--requests", "2"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, ContainsRegex("requests +0 of 2\n"));
  EXPECT_THAT(outcome.err, HasSubstr("2 of 2 requests failed; the first: HTTP 400: too long"));
}

TEST(BenchCommand, AnAnswerThatIsTooShortIsAFailure) {
  FakeHttpServer server([](const SeenRequest& request) {
    if (request.line.rfind("GET", 0) == 0) return PlainAnswer(200, kModels);
    return StreamAnswer({R"({"choices":[{"text":"x","token_ids":[5]}]})", "[DONE]"});
  });
  const Outcome outcome = RunBench(server, {"--requests", "1", "--output-tokens", "3"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("1 tokens came, not 3"));
}

// A service with a prefix cache of whole units, over the prompts and answers that it has seen.
class CachingService {
 public:
  std::string Answer(const SeenRequest& request) {
    if (request.line.rfind("GET /v1/models", 0) == 0) return PlainAnswer(200, kModels);
    const json::object body = Body(request);
    std::vector<int64_t> text;
    for (const json::value& id : body.at("prompt").as_array()) text.push_back(id.as_int64());
    const size_t prompt_tokens = text.size();
    size_t cached = 0;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::vector<int64_t>& other : texts_) {
      const size_t length = std::min(other.size(), prompt_tokens) - 1;
      const auto end = std::mismatch(text.begin(), text.begin() + length, other.begin()).first;
      cached = std::max<size_t>(cached, (end - text.begin()) / 256 * 256);
    }
    std::vector<std::string> events;
    for (int64_t i = 0; i < body.at("max_tokens").as_int64(); ++i) {
      text.push_back(i + 3);
      events.push_back(R"({"choices":[{"text":"x","token_ids":[)" + std::to_string(i + 3) +
                       R"(]}],"usage":null})");
    }
    events.push_back(R"({"choices":[],"usage":{"completion_tokens":)" +
                     std::to_string(text.size() - prompt_tokens) +
                     R"(,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(cached) +
                     "}}}");
    events.emplace_back("[DONE]");
    texts_.push_back(std::move(text));
    return StreamAnswer(events);
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<int64_t>> texts_;
};

TEST(BenchCommand, PlaysAnAgentsConversationThatGrows) {
  CachingService service;
  FakeHttpServer server([&service](const SeenRequest& request) { return service.Answer(request); });
  const Outcome outcome = RunBench(
      server, {"--scenario", "agent", "--turns", "3", "--system-tokens", "500", "--turn-tokens-min",
               "100", "--turn-tokens-max", "100", "--output-tokens", "20", "--json", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json::value report = json::parse(outcome.out);
  const json::array turns = report.at("runs").as_array().at(0).at("turns").as_array();
  ASSERT_EQ(turns.size(), 3U);
  for (size_t i = 0; i < turns.size(); ++i) {
    const auto prompt = static_cast<int64_t>(600 + 120 * i);
    const int64_t shared = i == 0 ? 0 : prompt - 101;
    EXPECT_EQ(turns[i].at("prompt_tokens").as_int64(), prompt);
    EXPECT_EQ(turns[i].at("shared_tokens").as_int64(), shared);
    EXPECT_EQ(turns[i].at("cached_tokens").as_int64(), shared / 256 * 256);
  }
  EXPECT_EQ(report.at("runs").as_array().at(0).at("reused_unit_share").as_double(), 1);
  EXPECT_EQ(report.at("runs").as_array().at(0).at("short_cached_tokens").as_int64(), 256);
  EXPECT_THAT(outcome.err, ContainsRegex("reused of whole shared units +100.00 %"));
  // Each prompt begins with the one before it and the answer to it.
  const std::vector<SeenRequest> seen = server.seen();
  const json::array first = Body(seen[1]).at("prompt").as_array();
  const json::array second = Body(seen[2]).at("prompt").as_array();
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));
  EXPECT_EQ(second[600].as_int64(), 3);
  EXPECT_EQ(second[619].as_int64(), 22);
}

TEST(BenchCommand, PlaysTheSameConversationWithTwoClusters) {
  CachingService service;
  FakeHttpServer one([&service](const SeenRequest& request) { return service.Answer(request); });
  FakeHttpServer two(CompletionAnswer);
  const Outcome outcome = RunBench(
      one, {"--scenario", "agent", "--compare-url", two.url(), "--turns", "2", "--system-tokens",
            "300", "--turn-tokens-min", "10", "--turn-tokens-max", "20", "--output-tokens", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("units +100.00 %.*units +0.00 %"));
  EXPECT_EQ(one.seen()[1].body, two.seen()[0].body);
}

TEST(BenchCommand, AConversationEndsWithTheFirstRequestThatFails) {
  FakeHttpServer server([](const SeenRequest& request) {
    if (request.line.rfind("GET", 0) == 0) return PlainAnswer(200, kModels);
    return Body(request).at("prompt").as_array().size() > 500
               ? PlainAnswer(400, R"({"error":{"message":"too long"}})")
               : CompletionAnswer(request);
  });
  const Outcome outcome =
      RunBench(server, {"--scenario", "agent", "--system-tokens", "200", "--turn-tokens-min", "100",
                        "--turn-tokens-max", "100", "--output-tokens", "1"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("after 2 of 20 turns: HTTP 400: too long"));
}

}  // namespace
}  // namespace quartet::cli
