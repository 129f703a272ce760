// The gateway's client and the coordinator's server, over a socket: whoever starts an engine again
// need not tell anybody about it for answers to keep to their grammars.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "services/gateway/routing/engine_client.h"
#include "services/grammar/builder.h"
#include "services/grammar/vocabulary.h"
#include "tests/unit/coordinator/engine_harness.h"

namespace quartet::coordinator {
namespace {

using gateway::EngineClient;
using gateway::EngineState;
using gateway::SequenceEnd;
using gateway::SequenceTokens;

constexpr int32_t kEnd = 999;

std::string TestVocabulary() {
  std::vector<grammar::TokenText> tokens(1000);
  for (size_t id = 0; id < tokens.size(); ++id) {
    tokens[id] = {grammar::TokenText::Kind::kText, absl::StrCat("word", id)};
  }
  tokens[kEnd] = {grammar::TokenText::Kind::kSpecial, "<end>"};
  return grammar::Vocabulary::Create(std::move(tokens), {kEnd})->Serialize();
}

class Answer final : public gateway::SequenceObserver {
 public:
  void OnAdmitted(uint32_t) override {}
  void OnTokens(SequenceTokens tokens) override {
    ids_.insert(ids_.end(), tokens.ids.begin(), tokens.ids.end());
  }
  void OnEnd(const SequenceEnd& end) override {
    std::lock_guard<std::mutex> lock(mutex_);
    end_ = end;
    changed_.notify_all();
  }

  absl::Status AwaitEnd() {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool ended = changed_.wait_for(lock, absl::ToChronoMilliseconds(kPatience),
                                         [this] { return end_.has_value(); });
    return ended ? end_->status : absl::DeadlineExceededError("no end");
  }
  // After the end.
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::mutex mutex_;  // guards the next two
  std::condition_variable changed_;
  std::optional<SequenceEnd> end_;
  std::vector<int32_t> ids_;  // by one thread at a time, before the end
};

class VocabularyTest : public ::testing::Test {
 protected:
  void StartEngine(const std::string& listen) {
    harness_ = std::make_unique<EngineHarness>(EngineHarness::Options(1),
                                               std::vector<std::string>{listen});
    harness_->AddRanks(1);
  }
  void Connect() {
    client_ = gateway::ConnectEngine({.address = harness_->server->addresses().front(),
                                      .poll_interval = absl::Milliseconds(5),
                                      .gives_vocabulary = true,
                                      .on_change = [this](const EngineState& state) {
                                        std::lock_guard<std::mutex> lock(mutex_);
                                        ready_ = state.ready;
                                        changed_.notify_all();
                                      }});
    client_->SetVocabulary(TestVocabulary());
  }
  bool AwaitReady(bool ready) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(kPatience),
                             [&] { return ready_ == ready; });
  }
  // What a request says that is held to "word7word8" by its grammar.
  std::vector<int32_t> SayTwoWords() {
    grammar::GrammarBuilder builder;
    gateway::SequenceRequest request;
    request.prompt_ids = {1, 2, 3};
    request.max_tokens = 20;
    request.end_ids = {kEnd};
    request.grammar = builder.Build(builder.Literal("word7word8"))->Serialize();
    auto answer = std::make_shared<Answer>();
    client_->Submit(request, answer);
    const absl::Status status = answer->AwaitEnd();
    EXPECT_TRUE(status.ok()) << status;
    return answer->ids();
  }

  std::mutex mutex_;  // guards the next two
  std::condition_variable changed_;
  bool ready_ = false;
  std::unique_ptr<EngineHarness> harness_;
  std::unique_ptr<EngineClient> client_;
};

TEST_F(VocabularyTest, IsGivenAgainToAnEngineThatWasStartedAgain) {
  const std::vector<int32_t> said = {7, 8, kEnd};
  StartEngine("127.0.0.1:0");
  const std::string address = harness_->server->addresses().front();
  Connect();
  ASSERT_TRUE(AwaitReady(true));
  EXPECT_EQ(SayTwoWords(), said);
  const std::string digest = harness_->Info().vocabulary_digest();
  EXPECT_NE(digest, "");
  for (int restart = 0; restart < 2; ++restart) {
    harness_.reset();
    ASSERT_TRUE(AwaitReady(false));
    StartEngine(address);
    ASSERT_TRUE(AwaitReady(true));
    EXPECT_EQ(SayTwoWords(), said) << "the first request that finds the engine ready is answered";
    EXPECT_EQ(harness_->Info().vocabulary_digest(), digest);
  }
}

}  // namespace
}  // namespace quartet::coordinator
