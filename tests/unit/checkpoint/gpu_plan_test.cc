#include "shard_worker/checkpoint/gpu_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/support/checkpoint_writer.h"
#include "tests/unit/checkpoint/weight_walk.h"
#include "tests/unit/worker/model_rank.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kGib = int64_t{1} << 30;

bool IsVision(std::string_view name) {
  return name.find("visual.") != std::string_view::npos;
}

// Read off the names, apart from the walk that the plan uses.
bool StaysFloat(const TensorView& tensor) {
  return tensor.shape.size() == 1 || tensor.name.find("indexer.") != std::string::npos ||
         tensor.name.find("conv1d") != std::string::npos ||
         tensor.name.ends_with("mlp.gate.weight");
}

GpuWeightBytes Count(const std::string& dir, int tp = 1) {
  const auto resolved = testing::ResolveFolder(dir, tp, tp - 1);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return CountGpuWeights(*resolved->checkpoint, resolved->weights);
}

TEST(GpuWeightsTest, MatricesAreHalfAndSmallOrDecisiveWeightsFloat) {
  const auto resolved = testing::ResolveFolder(testing::MiniModel());
  ASSERT_TRUE(resolved.ok());
  int64_t expected = 0;
  for (const TensorView* tensor : resolved->checkpoint->tensors()) {
    if (!IsVision(tensor->name)) expected += tensor->elements() * (StaysFloat(*tensor) ? 4 : 2);
  }
  const GpuWeightBytes bytes = CountGpuWeights(*resolved->checkpoint, resolved->weights);
  EXPECT_EQ(bytes.total() - bytes.vision, expected);
}

TEST(GpuWeightsTest, QuantisedExpertsStayAsStored) {
  const auto resolved = testing::ResolveFolder(testing::DemoModel());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  GpuWeightBytes expected;
  int64_t others = 0;
  for (const TensorView* tensor : resolved->checkpoint->tensors()) {
    if (IsVision(tensor->name)) {
      expected.vision += tensor->elements() * (tensor->shape.size() == 1 ? 4 : 2);
    } else if (tensor->name.find("experts.exl3_") == std::string::npos) {
      others += tensor->elements() * (StaysFloat(*tensor) ? 4 : 2);
    } else if (tensor->name.find("layers.9.") != std::string::npos) {
      expected.mtp_experts += tensor->bytes;
    } else {
      expected.routed_experts += tensor->bytes;
    }
  }
  const GpuWeightBytes bytes = CountGpuWeights(*resolved->checkpoint, resolved->weights);
  EXPECT_EQ(bytes.routed_experts, expected.routed_experts);
  EXPECT_EQ(bytes.mtp_experts, expected.mtp_experts);
  EXPECT_EQ(bytes.vision, expected.vision);
  EXPECT_EQ(bytes.sharded + bytes.replicated, others);
  EXPECT_GT(bytes.replicated, 0);
}

TEST(GpuWeightsTest, WeightsInEightBitsBecomeHalf) {
  const auto image = testing::ReadImage(testing::MiniModel());
  ASSERT_TRUE(image.ok());
  const testing::ScratchFolder folder;
  ASSERT_TRUE(testing::WriteImage(testing::ToFp8(*image), folder.path()).ok());
  EXPECT_EQ(Count(folder.path()).total(), Count(testing::MiniModel()).total());
}

TEST(GpuWeightsTest, MapsOfHyperConnectionsAreHalfOnlyIfTheyCameSo) {
  const auto image = testing::ReadImage(testing::MiniModel());
  ASSERT_TRUE(image.ok());
  const testing::ScratchFolder folder;
  ASSERT_TRUE(testing::WriteImage(testing::Widen(*image), folder.path()).ok());
  const ModelConfig config = *ReadModelConfig(testing::MiniModel());
  const int64_t fn = config.hc_map_rows() * config.hc_mult * config.hidden;
  EXPECT_EQ(Count(folder.path()).total() - Count(testing::MiniModel()).total(),
            config.layers * 2 * 2 * fn);
}

TEST(GpuWeightsTest, RanksDivideWhatIsShardedAndRepeatTheRest) {
  const GpuWeightBytes whole = Count(testing::DemoModel());
  const GpuWeightBytes part = Count(testing::DemoModel(), 2);
  EXPECT_EQ(part.sharded * 2, whole.sharded);
  EXPECT_EQ(part.replicated, whole.replicated);
  // 6 layers of 8 experts; of an expert's vectors gate's and up's suh [128] and down's svh [128]
  // are on both ranks.
  EXPECT_EQ(part.routed_experts * 2 - whole.routed_experts, 6 * 8 * 3 * 128 * 2);
  EXPECT_EQ(part.mtp_experts * 2 - whole.mtp_experts, 8 * 3 * 128 * 2);
}

// The plan counts what the model then takes; only padding between buffers may differ.
TEST(GpuActivationsTest, AreWhatTheModelCutsForAStep) {
  ModelRankOptions options;
  options.dir = testing::MiniModel();
  for (const int tp : {1, 2}) {
    RunRanks(options, tp, [&](ModelRank& rank) {
      const Activations& a = rank.model->activations();
      const auto* begin = reinterpret_cast<const std::byte*>(a.embedding);
      const auto cut = static_cast<const std::byte*>(a.workspace.data) - begin;
      GpuPlanOptions plan;
      plan.max_num_batched_tokens = options.limits.max_rows;
      plan.max_model_len = options.limits.max_context;
      const int64_t planned =
          GpuActivationBytes(rank.config, tp, plan) - GpuWorkspaceBytes(rank.config, tp, plan);
      EXPECT_GE(planned, cut) << "tp " << tp;
      EXPECT_LE(planned, cut + cut / 50) << "tp " << tp;
    });
  }
}

// Small models on a small card: what a plan decides does not depend on the size.
GpuPlanOptions SmallOptions(int64_t card_bytes) {
  GpuPlanOptions options;
  options.card_bytes = card_bytes;
  options.max_model_len = 4096;
  options.max_num_batched_tokens = 512;
  options.kv_dtype = KvDtype::kFp16;
  return options;
}

struct SmallModel {
  SmallModel()
      : config(*ReadModelConfig(testing::MiniModel())), weights(Count(testing::MiniModel())) {}
  GpuPlan Plan(const GpuPlanOptions& options) const {
    const absl::StatusOr<GpuPlan> plan = PlanGpu(config, 1, weights, options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }
  // A card that holds exactly this many pages beside everything else.
  int64_t CardFor(int64_t pages) const {
    const GpuPlan plan = Plan(SmallOptions(kGib));
    return plan.fixed_bytes() + 4 * plan.live.total() + kMinSnapshots * plan.snapshot_bytes +
           pages * plan.page_bytes;
  }

  ModelConfig config;
  GpuWeightBytes weights;
};

TEST(GpuPlanTest, PartsAndPoolsFillTheCard) {
  const SmallModel model;
  for (const int64_t pages : {16, 64, 70}) {
    const GpuPlan plan = model.Plan(SmallOptions(model.CardFor(pages) + 100));
    EXPECT_EQ(plan.fixed_bytes() + 4 * plan.live.total() + plan.pages * plan.page_bytes +
                  plan.snapshots * plan.snapshot_bytes + plan.unused_bytes,
              plan.options.card_bytes);
    EXPECT_LT(plan.unused_bytes, plan.snapshot_bytes);
  }
}

TEST(GpuPlanTest, PagesComeBeforeMoreThanTheFewestSnapshots) {
  const SmallModel model;
  const int64_t four_contexts = 4 * 4096 / kTokensPerPage;
  GpuPlan plan = model.Plan(SmallOptions(model.CardFor(four_contexts)));
  EXPECT_EQ(plan.verdict, GpuPlan::Verdict::kFits);
  EXPECT_EQ(plan.pages, four_contexts);
  EXPECT_EQ(plan.snapshots, kMinSnapshots);

  plan = model.Plan(SmallOptions(model.CardFor(four_contexts) + 3 * plan.snapshot_bytes));
  EXPECT_EQ(plan.pages, four_contexts) << "no more than all contexts need";
  EXPECT_EQ(plan.snapshots, kMinSnapshots + 3);
}

TEST(GpuPlanTest, ContextsThatDoNotFitTogetherShareThePages) {
  const SmallModel model;
  GpuPlan plan = model.Plan(SmallOptions(model.CardFor(64) - 1));
  EXPECT_EQ(plan.verdict, GpuPlan::Verdict::kShared);
  EXPECT_EQ(plan.pages, 63);
  EXPECT_EQ(plan.missing_bytes, 1);

  plan = model.Plan(SmallOptions(model.CardFor(16)));
  EXPECT_EQ(plan.verdict, GpuPlan::Verdict::kShared) << "one context just fits";
  plan = model.Plan(SmallOptions(model.CardFor(16) - 1));
  EXPECT_EQ(plan.verdict, GpuPlan::Verdict::kDoesNotFit);
  EXPECT_EQ(plan.missing_bytes, 48 * plan.page_bytes + 1);
}

GpuPlanOptions With(GpuPlanOptions options, const GpuPlanChange& change) {
  if (change.flag == "--max-model-len") options.max_model_len = std::stoll(change.value);
  if (change.flag == "--max-num-seqs") options.max_num_seqs = std::stoll(change.value);
  if (change.flag == "--max-num-batched-tokens") {
    options.max_num_batched_tokens = std::stoll(change.value);
  }
  if (change.flag == "--kv-dtype") options.kv_dtype = *ParseKvDtype(change.value);
  if (change.flag == "--gpu-memory") {
    options.card_bytes = UsableCardBytes(std::stoll(change.value) * kGib);
  }
  return options;
}

TEST(GpuPlanTest, EveryChangeThatIsNamedMakesItFit) {
  const SmallModel model;
  for (const int64_t pages : {0, 10, 20, 60, 63}) {
    const GpuPlanOptions options = SmallOptions(model.CardFor(pages));
    const std::vector<GpuPlanChange> changes = ChangesThatFit(model.config, model.Plan(options));
    EXPECT_FALSE(changes.empty()) << pages;
    for (const GpuPlanChange& change : changes) {
      EXPECT_EQ(model.Plan(With(options, change)).verdict, GpuPlan::Verdict::kFits)
          << change.flag << " " << change.value << " with room for " << pages << " pages";
    }
  }
}

TEST(GpuPlanTest, ChangesAreTheSmallestOnes) {
  const SmallModel model;
  const GpuPlanOptions options = SmallOptions(model.CardFor(50));
  const std::vector<GpuPlanChange> changes = ChangesThatFit(model.config, model.Plan(options));
  const std::map<std::string, int64_t> units = {
      {"--max-model-len", 256}, {"--max-num-seqs", 1}, {"--max-num-batched-tokens", 64}};
  int lowered = 0;
  for (const GpuPlanChange& change : changes) {
    const auto unit = units.find(change.flag);
    if (unit == units.end()) continue;
    ++lowered;
    const GpuPlanChange next{change.flag, std::to_string(std::stoll(change.value) + unit->second)};
    EXPECT_NE(model.Plan(With(options, next)).verdict, GpuPlan::Verdict::kFits) << next.flag;
  }
  EXPECT_EQ(lowered, 3);
  EXPECT_THAT(changes, ::testing::Contains(GpuPlanChange{"--kv-dtype", "fp8_e4m3"}));
}

TEST(GpuPlanTest, APlanThatFitsNeedsNoChange) {
  const SmallModel model;
  EXPECT_TRUE(ChangesThatFit(model.config, model.Plan(SmallOptions(2 * kGib))).empty());
}

TEST(GpuPlanTest, WrongFlagsAreErrorsThatNameThem) {
  const SmallModel model;
  GpuPlanOptions options = SmallOptions(kGib);
  options.max_model_len = 4097;
  EXPECT_THAT(std::string(PlanGpu(model.config, 1, {}, options).status().message()),
              HasSubstr("--max-model-len is 4097, but the model ends at 4096 tokens"));
  options = SmallOptions(kGib);
  options.max_num_batched_tokens = 0;
  EXPECT_EQ(PlanGpu(model.config, 1, {}, options).status().message(),
            "--max-num-batched-tokens is 0, expected a positive number");
  EXPECT_FALSE(PlanGpu(model.config, 3, {}, SmallOptions(kGib)).ok());
}

// The shapes of the real checkpoint: headers over sparse files.
class FullSizeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::ScratchFolder;
    const std::string command = "python3 " QUARTET_SOURCE_DIR "/tools/full_size_headers.py " +
                                folder_->path() + " > /dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static void TearDownTestSuite() { delete folder_; }

  static GpuPlanOptions CardsOf32Gib() {
    GpuPlanOptions options;
    options.card_bytes = UsableCardBytes(32 * kGib);
    return options;
  }

  static testing::ScratchFolder* folder_;
};
testing::ScratchFolder* FullSizeTest::folder_ = nullptr;

TEST_F(FullSizeTest, FourUsersOf131072TokensFitOnFourCardsOf32Gib) {
  const auto begin = std::chrono::steady_clock::now();
  const auto resolved = testing::ResolveFolder(folder_->path(), 4, 0);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const auto plan =
      PlanGpu(resolved->config, 4, CountGpuWeights(*resolved->checkpoint, resolved->weights),
              CardsOf32Gib());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(plan->verdict, GpuPlan::Verdict::kFits);
  EXPECT_EQ(plan->options.kv_dtype, KvDtype::kFp8E4m3);
  EXPECT_EQ(plan->cached_tokens(), 4 * 131072);
  EXPECT_GE(plan->snapshots, 6);
}

TEST_F(FullSizeTest, SizesAreThoseOfTheModel) {
  const auto resolved = testing::ResolveFolder(folder_->path(), 4, 3);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_NEAR(static_cast<double>(resolved->checkpoint->data_bytes()) / 1e9, 104.05, 0.01);
  const GpuWeightBytes bytes = CountGpuWeights(*resolved->checkpoint, resolved->weights);
  // One expert's share: three matrices of 4096 x 512 and their vectors.
  const auto expert = [](int64_t bits) {
    return 3 * 4096 * 512 * bits / 8 + 2 * (3 * 4096 + 3 * 512);
  };
  EXPECT_EQ(bytes.routed_experts, 288 * (37 * expert(2) + 5 * expert(3)));
  EXPECT_EQ(bytes.mtp_experts, 288 * expert(4));

  const ModelConfig& config = resolved->config;
  // 34 layers of 16 heads of 128 x 128, with three past inputs of q, k and v.
  EXPECT_EQ(SnapshotBytes(config, 4), 4 * (34 * (16 * 128 * 128 + 3 * 3 * 2048) + 4096));
  EXPECT_EQ(PageBytes(config, KvDtype::kFp8E4m3), 12 * (256 * 512 + 64 * 128 * 2));
  // The routed experts are the hungriest op: 4096 rows of 8 experts with 4096 inputs and 512 inner
  // columns, and the router's 288 scores a row. Beside them the forked selection of 8 rows: 32
  // index heads of 128, and a score for each four of 131,072 tokens.
  const GpuPlanOptions options = CardsOf32Gib();
  EXPECT_EQ(GpuWorkspaceBytes(config, 4, options),
            4 * (4096 * (8 * (4096 + 2 * 512 + 512 / 2) + 288) + 8 * (32 * 128 + 131072 / 4)));
  EXPECT_NEAR(static_cast<double>(GpuActivationBytes(config, 4, options)) / kMib, 1620, 100);
}

TEST_F(FullSizeTest, SixteenBitLatentsAreSharedAndTheAdviceIsEightBit) {
  const auto resolved = testing::ResolveFolder(folder_->path(), 4, 0);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  GpuPlanOptions options = CardsOf32Gib();
  options.kv_dtype = KvDtype::kFp16;
  const auto plan = PlanGpu(resolved->config, 4,
                            CountGpuWeights(*resolved->checkpoint, resolved->weights), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->verdict, GpuPlan::Verdict::kShared);
  EXPECT_THAT(ChangesThatFit(resolved->config, *plan),
              ::testing::Contains(GpuPlanChange{"--kv-dtype", "fp8_e4m3"}));
}

}  // namespace
}  // namespace quartet
