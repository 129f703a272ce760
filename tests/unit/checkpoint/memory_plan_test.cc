#include "shard_worker/checkpoint/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/checkpoint/weight_walk.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

ModelConfig MiniConfig() {
  return *ReadModelConfig(testing::MiniModel());
}

MemoryPlanOptions Options() {
  MemoryPlanOptions options;
  options.budget_bytes = int64_t{1} << 30;
  options.max_model_len = 1000;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 128;
  return options;
}

TEST(MemoryPlanTest, WeightsAreCountedAsFloats) {
  const auto resolved = testing::ResolveFolder(testing::MiniModel());
  ASSERT_TRUE(resolved.ok());
  int64_t elements = 0;
  for (const TensorView* tensor : resolved->checkpoint->tensors()) {
    if (tensor->name.find("visual") == std::string::npos) elements += tensor->elements();
  }
  EXPECT_EQ(WidenedWeightBytes(resolved->weights), 4 * elements);
}

TEST(MemoryPlanTest, QuantisedExpertsAreCountedDecoded) {
  const auto resolved = testing::ResolveFolder(testing::DemoModel());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  int64_t elements = 0;
  for (const TensorView* tensor : resolved->checkpoint->tensors()) {
    if (tensor->name.find("visual") != std::string::npos) continue;
    const bool trellis = tensor->name.ends_with("_trellis");
    elements += trellis ? 8 * 128 * 512 : tensor->elements();
  }
  EXPECT_EQ(WidenedWeightBytes(resolved->weights), 4 * elements);
}

TEST(MemoryPlanTest, RanksHoldLessThanTheWholeAndMoreThanTheirShare) {
  const auto whole = testing::ResolveFolder(testing::MiniModel());
  const auto half = testing::ResolveFolder(testing::MiniModel(), 2, 1);
  const int64_t all = WidenedWeightBytes(whole->weights);
  const int64_t part = WidenedWeightBytes(half->weights);
  EXPECT_LT(part, all);
  EXPECT_GT(2 * part, all) << "some tensors are on every rank";
}

TEST(MemoryPlanTest, AStateHoldsMatricesConvolutionsOpenPoolsAndWindows) {
  // 7 layers x (4 heads x 32 x 32 + 3 x 3 x 128), a hidden row, and 3 indexers x 8 rows x (128 +
  // 128), in floats.
  EXPECT_EQ(StateSlotBytes(MiniConfig(), 1, 3) - VerifyRingBytes(MiniConfig(), 1, 3),
            4 * (7 * (4096 + 1152) + 128 + 3 * 8 * 256));
  EXPECT_EQ(StateSlotBytes(MiniConfig(), 4, 3) - VerifyRingBytes(MiniConfig(), 4, 3),
            4 * (7 * (1024 + 288) + 128 + 3 * 8 * 256));
  // 7 layers x 8 rows x (6 x 128 + 4) floats; at four ranks beta's 8 floats are padded to 16.
  EXPECT_EQ(VerifyRingBytes(MiniConfig(), 1, 3), 4 * 7 * 8 * (6 * 128 + 4));
  EXPECT_EQ(VerifyRingBytes(MiniConfig(), 4, 3), 4 * 7 * (8 * 6 * 32 + 16));
  EXPECT_EQ(VerifyRingBytes(MiniConfig(), 1, 1), 4 * 7 * 4 * (6 * 128 + 4));
  EXPECT_EQ(VerifyRingBytes(MiniConfig(), 1, 0), 0);
  EXPECT_EQ(OpenPoolRows(MiniConfig(), 0), 4);
  EXPECT_EQ(OpenPoolRows(MiniConfig(), 4), 8);
  EXPECT_EQ(OpenPoolRows(MiniConfig(), 5), 16);
}

TEST(MemoryPlanTest, APageHoldsLatentsAndPooledKeys) {
  // 3 caches x (256 latents x 128 values + 64 pools x 128 values).
  EXPECT_EQ(PageBytes(MiniConfig(), KvDtype::kFp32), 3 * (256 * 128 * 4 + 64 * 128 * 4));
  EXPECT_EQ(PageBytes(MiniConfig(), KvDtype::kFp16), 3 * (256 * 128 * 2 + 64 * 128 * 2));
  EXPECT_EQ(PageBytes(MiniConfig(), KvDtype::kFp8E4m3), 3 * (256 * 128 * 1 + 64 * 128 * 2));
}

TEST(MemoryPlanTest, PagesTakeTheRestUpToAllContexts) {
  MemoryPlanOptions options = Options();
  auto plan = PlanMemory(MiniConfig(), 1, 1 << 20, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pages_per_context, 4) << "1000 tokens, rounded up to pages";
  EXPECT_EQ(plan->pages, 16) << "four full contexts and no more";
  EXPECT_EQ(plan->cached_tokens(), 16 * 256);
  EXPECT_EQ(plan->total_bytes, plan->weight_bytes + plan->activation_bytes +
                                   4 * plan->state_slot_bytes + 16 * plan->page_bytes);

  // Room for five and a half pages: one context and a bit.
  options.budget_bytes = plan->total_bytes - 16 * plan->page_bytes + 11 * plan->page_bytes / 2;
  plan = PlanMemory(MiniConfig(), 1, 1 << 20, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pages, 5);
  EXPECT_LE(plan->total_bytes, options.budget_bytes);
}

TEST(MemoryPlanTest, TheContextThatIsNamedAsFittingFits) {
  MemoryPlanOptions options = Options();
  const auto roomy = PlanMemory(MiniConfig(), 1, 1 << 20, options);
  options.max_model_len = 4000;
  options.budget_bytes = roomy->total_bytes - 10 * roomy->page_bytes;
  const auto refused = PlanMemory(MiniConfig(), 1, 1 << 20, options);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.status().message());
  const std::string lead = "the largest --max-model-len that fits is ";
  const size_t at = message.find(lead);
  ASSERT_NE(at, std::string::npos) << message;
  options.max_model_len = std::stoll(message.substr(at + lead.size()));
  EXPECT_TRUE(PlanMemory(MiniConfig(), 1, 1 << 20, options).ok());
  options.max_model_len += 256;
  EXPECT_FALSE(PlanMemory(MiniConfig(), 1, 1 << 20, options).ok());
}

TEST(MemoryPlanTest, ABudgetBelowTheWeightsIsNamed) {
  MemoryPlanOptions options = Options();
  options.budget_bytes = 1 << 20;
  const auto plan = PlanMemory(MiniConfig(), 1, 2 << 20, options);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("of the budget of 1.0 MiB only 0.0 MiB remain "
                        "after weights 2.0 MiB"));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("not even 256 tokens fit"));
}

TEST(MemoryPlanTest, ContextsBeyondTheModelAreRefused) {
  MemoryPlanOptions options = Options();
  options.max_model_len = 4097;
  EXPECT_THAT(std::string(PlanMemory(MiniConfig(), 1, 0, options).status().message()),
              HasSubstr("--max-model-len is 4097, but the model ends at 4096 tokens "
                        "(max_position_embeddings in "));
}

TEST(MemoryPlanTest, FlagsMustBePositive) {
  MemoryPlanOptions options = Options();
  options.max_num_seqs = 0;
  EXPECT_EQ(PlanMemory(MiniConfig(), 1, 0, options).status().message(),
            "--max-num-seqs is 0, expected a positive number");
}

TEST(MemoryPlanTest, KvDtypesAreReadFromTheirFlag) {
  EXPECT_EQ(*ParseKvDtype("fp32"), KvDtype::kFp32);
  EXPECT_EQ(*ParseKvDtype("fp16"), KvDtype::kFp16);
  EXPECT_EQ(*ParseKvDtype("fp8_e4m3"), KvDtype::kFp8E4m3);
  EXPECT_EQ(ParseKvDtype("int4").status().message(),
            "--kv-dtype is \"int4\", expected fp32, fp16 or fp8_e4m3");
}

TEST(MemoryPlanTest, TheTableIsAligned) {
  const auto plan = PlanMemory(MiniConfig(), 1, 5 << 20, Options());
  const std::string table = FormatMemoryPlan(*plan);
  EXPECT_THAT(table, HasSubstr("weights "));
  EXPECT_THAT(table, HasSubstr("16 x 0.47 MiB, 4096 tokens in fp32"));
  std::vector<size_t> widths;
  for (size_t at = 0; at < table.size();) {
    const size_t end = table.find('\n', at);
    widths.push_back(end - at);
    at = end + 1;
  }
  EXPECT_EQ(widths.size(), 7u);
  EXPECT_THAT(widths, ::testing::Each(widths.front()));
}

}  // namespace
}  // namespace quartet
