#include <gmock/gmock.h>

#include "absl/cleanup/cleanup.h"
#include "services/grammar/builder.h"
#include "services/grammar/vocabulary.h"
#include "tests/unit/coordinator/engine_harness.h"

// Answers that are held to a grammar, behind a socket: the scripted worker draws what its model
// says, or the next id that the row's mask allows.

namespace quartet::coordinator {
namespace {

using grammar::TokenText;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

constexpr int32_t kEnd = 999;
constexpr int32_t kOpen = 10;
constexpr int32_t kClose = 11;

// Ids 0 to 9 are digits, then [ and ]; the others have texts that no grammar here uses.
std::string TestVocabulary(size_t size = 1000) {
  std::vector<TokenText> tokens(size);
  for (size_t id = 0; id < size; ++id) {
    tokens[id] = {TokenText::Kind::kText, absl::StrCat("word", id)};
  }
  for (size_t digit = 0; digit < 10; ++digit) tokens[digit].bytes = absl::StrCat(digit);
  tokens[kOpen].bytes = "[";
  tokens[kClose].bytes = "]";
  tokens[kEnd] = {TokenText::Kind::kSpecial, "<end>"};
  return grammar::Vocabulary::Create(std::move(tokens), {kEnd})->Serialize();
}

// From `min` to `max` digits in brackets.
std::string Digits(uint32_t min, uint32_t max) {
  grammar::GrammarBuilder builder;
  std::vector<std::string> digits;
  for (char digit = '0'; digit <= '9'; ++digit) digits.emplace_back(1, digit);
  return builder
      .Build(builder.Seq({builder.Literal("["), builder.Repeat(builder.Choice(digits), min, max),
                          builder.Literal("]")}))
      ->Serialize();
}

grpc::Status Put(EngineHarness& harness, const std::string& bytes, std::string* digest = nullptr) {
  grpc::ClientContext context;
  v1::PutVocabularyRequest request;
  request.set_vocabulary(bytes);
  v1::PutVocabularyResponse response;
  const grpc::Status status = harness.stub->PutVocabulary(&context, request, &response);
  if (digest != nullptr) *digest = response.digest();
  return status;
}

v1::Submit AskFor(const std::string& grammar, int salt, uint32_t prompt = 300,
                  uint32_t max_tokens = 60) {
  v1::Submit submit = EngineHarness::Ask(salt, prompt, max_tokens);
  submit.set_grammar(grammar);
  submit.add_end_ids(kEnd);
  return submit;
}

void ExpectDigits(const Call& call, size_t min, size_t max) {
  ASSERT_TRUE(call.finished.has_value());
  EXPECT_EQ(call.finished->reason(), v1::Finished::REASON_END_TOKEN);
  ASSERT_THAT(call.tokens, SizeIs(AllOf(Ge(min + 3), Le(max + 3))));
  EXPECT_EQ(call.tokens.front(), kOpen);
  EXPECT_EQ(call.tokens[call.tokens.size() - 2], kClose);
  EXPECT_EQ(call.tokens.back(), kEnd);
  const std::vector<int32_t> digits(call.tokens.begin() + 1, call.tokens.end() - 2);
  EXPECT_THAT(digits, Each(AllOf(Ge(0), Le(9))));
}

TEST(Constraints, AnAnswerKeepsToItsGrammarWithAndWithoutDrafts) {
  std::vector<std::vector<int32_t>> texts;
  for (const uint32_t mtp_layers : {0u, 1u}) {
    EngineHarness harness(EngineHarness::Options(1));
    auto worker = harness.WorkerOptions();
    worker.num_mtp_layers = mtp_layers;
    harness.AddWorker(worker);
    ASSERT_TRUE(harness.AwaitReason(""));
    ASSERT_TRUE(Put(harness, TestVocabulary()).ok());
    Call call(harness.stub.get(), AskFor(Digits(20, 30), 1));
    EXPECT_TRUE(call.ReadToEnd().ok());
    ExpectDigits(call, 20, 30);
    EXPECT_EQ(harness.workers[0]->violation(), "");
    EXPECT_GT(harness.Metric("quartet_mask_seconds_count").value_or(0), 0);
    EXPECT_GT(harness.Metric("quartet_rows_awaiting_mask_total").value_or(0), 0);
    texts.push_back(call.tokens);
  }
  EXPECT_EQ(texts[0], texts[1]) << "drafts do not change the text";
}

TEST(Constraints, DraftsThatTheGrammarAllowsAreAcceptedUpToTheEnd) {
  EngineHarness harness(EngineHarness::Options(1));
  auto worker = harness.WorkerOptions();
  worker.num_mtp_layers = 1;
  worker.rule = [](uint64_t, uint32_t position, const v1::SamplingParams&) {
    const auto at = static_cast<int32_t>(position) - 300;
    return at == 0 ? kOpen : at < 26 ? at % 10 : at == 26 ? kClose : kEnd;
  };
  harness.AddWorker(worker);
  ASSERT_TRUE(harness.AwaitReason(""));
  ASSERT_TRUE(Put(harness, TestVocabulary()).ok());
  Call call(harness.stub.get(), AskFor(Digits(20, 30), 1, 300));
  EXPECT_TRUE(call.ReadToEnd().ok());
  ExpectDigits(call, 25, 25);
  EXPECT_EQ(harness.workers[0]->violation(), "");
  const std::string accepted = absl::StrCat("vllm:spec_decode_num_accepted_tokens_total",
                                            R"({engine="0",model_name="hash-chain"})");
  EXPECT_GT(harness.Metric(accepted).value_or(0), 5);
}

TEST(Constraints, RequestsWithAndWithoutGrammarsRunSideBySide) {
  EngineOptions options = EngineHarness::Options(1);
  options.max_num_seqs = 4;
  EngineHarness harness(options);
  auto worker = harness.WorkerOptions();
  worker.num_mtp_layers = 1;
  harness.AddWorker(worker);
  ASSERT_TRUE(harness.AwaitReason(""));
  ASSERT_TRUE(Put(harness, TestVocabulary()).ok());
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 6; ++i) {
    const v1::Submit submit =
        i % 2 == 0 ? AskFor(Digits(10 + i, 20), i, 700) : EngineHarness::Ask(i, 50, 40);
    calls.push_back(std::make_unique<Call>(harness.stub.get(), submit));
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(calls[i]->ReadToEnd().ok());
    if (i % 2 == 0) {
      ExpectDigits(*calls[i], 10 + i, 20);
    } else {
      EXPECT_EQ(calls[i]->tokens, EngineHarness::Alone(EngineHarness::Ask(i, 50, 40), 40));
    }
  }
  EXPECT_EQ(harness.workers[0]->violation(), "");
}

TEST(Constraints, WhoLosesItsPlaceGoesOnWithItsAnswer) {
  EngineOptions options = EngineHarness::Options(1);
  options.max_num_seqs = 1;
  EngineHarness harness(options);
  Gate gate;
  const absl::Cleanup let_all_through = [&gate] { gate.Open(); };
  auto worker = harness.WorkerOptions();
  worker.num_mtp_layers = 1;
  worker.before_step = [&gate](const v1::StepPlan&) { gate.Pass(); };
  harness.AddWorker(worker);
  ASSERT_TRUE(harness.AwaitReason(""));
  ASSERT_TRUE(Put(harness, TestVocabulary()).ok());
  gate.Close();
  v1::Submit patient = AskFor(Digits(40, 50), 1, 300, 100);
  patient.set_request_class(v1::Submit::REQUEST_CLASS_BATCH);
  Call call(harness.stub.get(), patient);
  gate.Permit(10);
  ASSERT_TRUE(call.ReadTokens(5));
  ASSERT_TRUE(gate.AwaitSomebody());
  Call hurried(harness.stub.get(), AskFor(Digits(3, 4), 2));
  ASSERT_TRUE(harness.Await([&] { return harness.engine->Snapshot().ledger.waiting == 1; }));
  gate.Open();
  EXPECT_TRUE(hurried.ReadToEnd().ok());
  ExpectDigits(hurried, 3, 4);
  EXPECT_TRUE(call.ReadToEnd().ok());
  ExpectDigits(call, 40, 50);
  EXPECT_EQ(harness.Metric("quartet_preemptions_total"), 1);
  EXPECT_EQ(harness.workers[0]->violation(), "");
}

TEST(Constraints, ALimitOfTokensEndsAnAnswerInTheMiddle) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  ASSERT_TRUE(Put(harness, TestVocabulary()).ok());
  Call call(harness.stub.get(), AskFor(Digits(20, 30), 1, 10, 5));
  EXPECT_TRUE(call.ReadToEnd().ok());
  ASSERT_TRUE(call.finished.has_value());
  EXPECT_EQ(call.finished->reason(), v1::Finished::REASON_LENGTH);
  EXPECT_THAT(call.tokens, SizeIs(5));
}

TEST(Constraints, AGrammarNeedsAVocabulary) {
  EngineHarness harness(EngineHarness::Options(1));
  EXPECT_EQ(Put(harness, TestVocabulary()).error_code(), grpc::StatusCode::UNAVAILABLE);
  harness.AddRanks(1);
  EXPECT_EQ(harness.Info().vocabulary_digest(), "");
  const grpc::Status status = Call(harness.stub.get(), AskFor(Digits(1, 2), 1)).ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("grammar: the engine has no vocabulary yet"));
  std::string digest;
  ASSERT_TRUE(Put(harness, TestVocabulary(), &digest).ok());
  EXPECT_EQ(harness.Info().vocabulary_digest(), digest);
  EXPECT_TRUE(Call(harness.stub.get(), AskFor(Digits(1, 2), 1)).ReadToEnd().ok());
}

TEST(Constraints, AVocabularyIsPutOnceAndChecked) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  grpc::Status status = Put(harness, "no vocabulary");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  status = Put(harness, TestVocabulary(1001));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("1001 tokens, the model has 1000"));
  ASSERT_TRUE(Put(harness, TestVocabulary()).ok());
  EXPECT_TRUE(Put(harness, TestVocabulary()).ok()) << "another gateway, the same tokenizer";
  std::vector<TokenText> others(1000, {TokenText::Kind::kText, "x"});
  status = Put(harness, grammar::Vocabulary::Create(std::move(others), {kEnd})->Serialize());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("the same tokenizer"));
}

TEST(Constraints, GrammarsThatCannotBeKeptAreRefused) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  ASSERT_TRUE(Put(harness, TestVocabulary()).ok());
  const auto refusal = [&](const v1::Submit& submit) {
    const grpc::Status status = Call(harness.stub.get(), submit).ReadToEnd();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refusal(AskFor("no grammar", 1)), HasSubstr("grammar: "));
  v1::Submit endless = AskFor(Digits(1, 2), 1);
  endless.set_ignore_eos(true);
  EXPECT_THAT(refusal(endless), HasSubstr("ignore_eos"));
  v1::Submit other_end = AskFor(Digits(1, 2), 1);
  other_end.clear_end_ids();
  EXPECT_THAT(refusal(other_end), HasSubstr("end_ids"));
}

}  // namespace
}  // namespace quartet::coordinator
