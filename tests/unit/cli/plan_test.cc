#include "services/cli/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <vector>

#include "tests/unit/cli/program.h"

namespace quartet::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMib = int64_t{1} << 20;

TEST(PlanTest, SizesOfMemoryAreReadWithTheirUnit) {
  EXPECT_EQ(*ParseMemorySize("32GiB"), int64_t{32} << 30);
  EXPECT_EQ(*ParseMemorySize("1.5GiB"), 1536 * kMib);
  EXPECT_EQ(*ParseMemorySize("32510MiB"), 32510 * kMib);
  EXPECT_EQ(*ParseMemorySize("34359738368"), int64_t{32} << 30);
  for (const char* bad : {"", "32GB", "GiB", "-1GiB", "0MiB", "32 GiB", "nanGiB", "1e30GiB"}) {
    EXPECT_FALSE(ParseMemorySize(bad).ok()) << bad;
  }
  EXPECT_EQ(ParseMemorySize("32GB").status().message(),
            "\"32GB\" is no size of memory, expected a number with GiB or MiB");
}

GpuPlan Example() {
  GpuPlan plan;
  plan.tp = 4;
  plan.options.card_bytes = 32512 * kMib;
  plan.verdict = GpuPlan::Verdict::kFits;
  plan.context_bytes = 450 * kMib;
  plan.communicator_bytes = 150 * kMib;
  plan.weights.routed_experts = 20000 * kMib;
  plan.weights.mtp_experts = 1000 * kMib;
  plan.weights.sharded = 4000 * kMib;
  plan.weights.replicated = 900 * kMib;
  plan.weights.vision = 270 * kMib;
  plan.activation_bytes = 1200 * kMib;
  plan.graph_bytes = 200 * kMib;
  plan.live.state = 36 * kMib;
  plan.live.verify_ring = 6 * kMib;
  plan.live.sampling = kMib;
  plan.page_bytes = 2 * kMib;
  plan.pages = plan.pages_wanted = 1900;
  plan.snapshot_bytes = 30 * kMib;
  plan.snapshots = 4;
  plan.unused_bytes = 0;
  plan.pinned_host_bytes = 64 * kMib;
  return plan;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

TEST(PlanTest, TheTableIsAlignedAndComplete) {
  const std::vector<std::string> lines = Lines(FormatGpuPlan("a-model", Example(), {}));
  EXPECT_EQ(lines.front(), "a-model on 4 GPUs, per GPU");
  const std::vector<std::string> table(lines.begin() + 2, lines.end() - 2);
  EXPECT_EQ(table.size(), 19u);
  std::vector<size_t> widths;
  for (const std::string& line : table) widths.push_back(line.size());
  EXPECT_THAT(widths, Each(widths.front()));
  const std::string text = FormatGpuPlan("a-model", Example(), {});
  for (const char* line :
       {"card +usable +32512.0", "  weights +26170.0", "    vision tower +270.0",
        "left for pools +4092.0",
        "  live states +4 x 43.0 MiB \\(state 36.0, verify ring 6.0, sampling 1.0\\) +172.0",
        "  paged data +1900 x 2.00 MiB, 486400 tokens in fp8_e4m3 +3800.0",
        "  snapshots +4 x 30.0 MiB +120.0", "pinned host memory +beside the card +64.0"}) {
    EXPECT_THAT(text, ContainsRegex(std::string("\n") + line + "\n"));
  }
  EXPECT_EQ(lines.back(), "fits: 4 sequences of 131072 tokens at the same time, and 4 snapshots");
}

TEST(PlanTest, WhatDoesNotFitNamesWhatWouldMakeItFit) {
  GpuPlan plan = Example();
  plan.verdict = GpuPlan::Verdict::kShared;
  plan.missing_bytes = 100 * kMib;
  EXPECT_THAT(
      FormatGpuPlan("m", plan, {{"--max-num-seqs", "3"}, {"--gpus", "8"}}),
      EndsWith(
          "\nfits shared: the pages hold 486400 tokens for all sequences together; 4 sequences "
          "of 131072 tokens at the same time would need 100.0 MiB more on each GPU\n"
          "each of these alone makes it fit:\n  --max-num-seqs 3\n  --gpus 8\n"));
  plan.verdict = GpuPlan::Verdict::kDoesNotFit;
  plan.options.max_num_seqs = 1;
  EXPECT_THAT(FormatGpuPlan("m", plan, {}),
              EndsWith("\ndoes not fit: for 1 sequence of 131072 tokens and 4 snapshots 100.0 MiB "
                       "are missing on each GPU, and not even one such sequence fits\n"
                       "no single flag makes it fit; more and smaller changes together may\n"));
}

TEST(PlanTest, JsonHoldsTheSamePlanInBytes) {
  const boost::json::value json =
      boost::json::parse(GpuPlanJson("m", Example(), {{"--gpus", "8"}}));
  EXPECT_EQ(json.at("verdict"), "fits");
  EXPECT_EQ(json.at("kv_dtype"), "fp8_e4m3");
  EXPECT_EQ(json.at("fixed_bytes").at("weights").at("total"), 26170 * kMib);
  EXPECT_EQ(json.at("pools").at("left_bytes"), 4092 * kMib);
  EXPECT_EQ(json.at("pools").at("pages"), 1900);
  EXPECT_EQ(json.at("changes").at(0).at("flag"), "--gpus");
}

Outcome RunPlan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {QUARTET_BINARY_DIR "/quartet", "plan"});
  return Program(arguments, {}).Finish();
}

TEST(PlanCommand, PlansCardsThatAreNotHere) {
  const Outcome outcome = RunPlan({"--model", QUARTET_SOURCE_DIR "/models/quartet-demo-exl3",
                                   "--gpu-memory", "32GiB", "--gpus", "4"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith(QUARTET_SOURCE_DIR "/models/quartet-demo-exl3 on 4 GPUs"));
  EXPECT_THAT(outcome.out, HasSubstr("fits: 4 sequences of 32768 tokens at the same time"));
}

TEST(PlanCommand, TheFullModelFitsOnFourCardsAndNotOnTwo) {
  const TempFolder folder;
  const Outcome made = Program({"/usr/bin/env", "python3",
                                QUARTET_SOURCE_DIR "/tools/full_size_headers.py", folder / "model"},
                               {})
                           .Finish();
  ASSERT_EQ(made.exit_code, 0) << made.err;
  Outcome outcome =
      RunPlan({"--model", folder / "model", "--gpus", "4", "--gpu-memory", "32GiB",
               "--max-model-len", "131072", "--max-num-seqs", "4", "--kv-dtype", "fp8_e4m3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("fits: 4 sequences of 131072 tokens at the same time"));
  EXPECT_THAT(outcome.out, HasSubstr("2048 x 1.69 MiB, 524288 tokens in fp8_e4m3"));

  outcome =
      RunPlan({"--model", folder / "model", "--gpus", "2", "--gpu-memory", "32GiB", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const boost::json::value json = boost::json::parse(outcome.out);
  EXPECT_EQ(json.at("verdict"), "does_not_fit");
  const boost::json::array& changes = json.at("changes").as_array();
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(changes.back().at("flag"), "--gpus");
  EXPECT_EQ(changes.back().at("value"), "4");
}

TEST(PlanCommand, ErrorsNameTheFlagOrTheFile) {
  const std::string demo = QUARTET_SOURCE_DIR "/models/quartet-demo-exl3";
  Outcome outcome = RunPlan({"--model", demo, "--gpu-memory", "32GB"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("quartet: --gpu-memory: \"32GB\" is no size of memory"));
  outcome = RunPlan({"--model", "/nowhere", "--gpu-memory", "32GiB"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/nowhere/config.json"));
  outcome = RunPlan({"--model", demo, "--gpu-memory", "32GiB", "--kv-dtype", "int4"});
  EXPECT_THAT(outcome.err, HasSubstr("--kv-dtype is \"int4\""));
  EXPECT_EQ(RunPlan({"--model", demo, "--gpus", "3"}).exit_code, 2);
}

}  // namespace
}  // namespace quartet::cli
