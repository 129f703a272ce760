#include "tests/unit/gateway/gateway_fixture.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace quartet::gateway {

using testing::Fetch;
using testing::RawReply;

constexpr char kModelDir[] = QUARTET_SOURCE_DIR "/models/quartet-demo-exl3";

GatewayTest::GatewayTest() {
  auto tokenizer = text::Tokenizer::Load(absl::StrCat(kModelDir, "/tokenizer.json"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  tokenizer_ = *std::move(tokenizer);
  config_.model_dir = kModelDir;
  config_.served_model_name = "m";
  config_.poll_interval = absl::Milliseconds(20);
  EXPECT_EQ(pipe(status_pipe_), 0);
  status_ = std::make_unique<StatusChannel>(status_pipe_[1]);
  Answer("I think.</think>Hello there.");
}

GatewayTest::~GatewayTest() {
  gateway_.reset();
  engine_.reset();
  close(status_pipe_[0]);
  close(status_pipe_[1]);
}

void GatewayTest::StartEngine(int port) {
  engine_ = testing::ScriptedEngine::Start(
      [this](const testing::SeenSequence&) {
        std::lock_guard lock(mutex_);
        return script_;
      },
      port);
  ASSERT_NE(engine_, nullptr);
}

void GatewayTest::StartGatewayOnly() {
  if (engine_) config_.coordinator = engine_->address();
  auto gateway = StartGateway(config_, status_.get());
  ASSERT_TRUE(gateway.ok()) << gateway.status();
  gateway_ = *std::move(gateway);
  address_ = gateway_->http_address();
}

void GatewayTest::AwaitReady() {
  for (;;) {
    size_t end;
    while ((end = status_text_.find('\n')) == std::string::npos) {
      char bytes[512];
      const ssize_t got = read(status_pipe_[0], bytes, sizeof(bytes));
      ASSERT_GT(got, 0);
      status_text_.append(bytes, static_cast<size_t>(got));
    }
    const auto event = ParseStatusEvent(status_text_.substr(0, end));
    status_text_.erase(0, end + 1);
    if (event && event->kind == StatusEvent::Kind::kReady) return;
  }
}

void GatewayTest::Start() {
  StartEngine();
  StartGatewayOnly();
  ASSERT_TRUE(gateway_->LoadModel().ok());
  AwaitReady();
}

void GatewayTest::Answer(const std::string& text) {
  std::lock_guard lock(mutex_);
  script_.ids = Ids(text);
  script_.ids.push_back(end_id());
}

std::vector<int32_t> GatewayTest::Ids(const std::string& text) const {
  return *tokenizer_->Encode(text);
}

RawReply GatewayTest::Post(const std::string& path, const std::string& body) {
  return Fetch(address_, testing::PostText(path, body));
}

std::string GatewayTest::ChatBody(const std::string& fields) {
  return absl::StrCat(R"({"messages":[{"role":"user","content":"Hi"}])", fields.empty() ? "" : ",",
                      fields, "}");
}

RawReply GatewayTest::Chat(const std::string& fields) {
  return Post("/v1/chat/completions", ChatBody(fields));
}

RawReply GatewayTest::Completion(const std::string& fields) {
  return Post("/v1/completions",
              absl::StrCat(R"({"prompt":"hi")", fields.empty() ? "" : ",", fields, "}"));
}

RawReply GatewayTest::Get(const std::string& path) {
  return Fetch(address_, testing::GetText(path));
}

std::vector<std::string> GatewayTest::Events(const RawReply& reply) {
  std::vector<std::string> events;
  std::string_view rest = reply.body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    if (end == std::string_view::npos || !rest.starts_with("data: ")) {
      ADD_FAILURE() << "not an event: " << rest;
      break;
    }
    events.emplace_back(rest.substr(6, end - 6));
    rest.remove_prefix(end + 2);
  }
  return events;
}

testing::SeenSequence GatewayTest::LastSeen() const {
  const auto seen = engine_->seen();
  return seen.empty() ? testing::SeenSequence{} : seen.back();
}

}  // namespace quartet::gateway
