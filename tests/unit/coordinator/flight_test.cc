#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/coordinator/rpc/flight_log.h"
#include "services/coordinator/rpc/recorded_core.h"
#include "services/coordinator/simulation/replay.h"

// What goes into the core is recorded, and a core that is given it again plans the same.

namespace quartet::coordinator {
namespace {

using simulation::Replay;
using simulation::ReplayResult;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kPlenty = 64 << 20;

CoreConfig Config() {
  CoreConfig config;
  config.epoch = 7;
  config.vocab_size = 1000;
  config.max_model_len = 2048;
  config.slots = 4;
  config.max_num_batched_tokens = 256;
  config.max_queued_requests = 8;
  config.snapshots = 6;
  config.page_bytes = 1;
  config.snapshot_bytes = 4;
  config.pages = 20;
  return config;
}

// Prompts of a few families that begin alike.
Request Ask(std::mt19937& random) {
  Request request;
  const uint32_t family = random() % 3;
  const uint32_t tokens = 1 + random() % 1200;
  for (uint32_t i = 0; i < tokens; ++i) {
    request.prompt_ids.push_back(static_cast<int32_t>((family * 331 + i * 17) % 1000));
  }
  request.cache_root = {1, 2};
  for (uint32_t unit = 0; unit < tokens / 256; ++unit) {
    request.unit_keys.push_back({family, unit + 1});
  }
  request.request_id = "r";
  request.max_tokens = 1 + random() % 40;
  return request;
}

// The same with a host and a disk tier, in which copies get lost.
CoreConfig TierConfig() {
  CoreConfig config = Config();
  config.pages = 12;
  config.host_pages = 30;
  config.host_snapshots = 12;
  config.disk_pages = 40;
  config.disk_snapshots = 20;
  config.copy_bytes_per_step = 6;
  return config;
}

StepOutcome Execute(const StepPlan& plan) {
  StepOutcome outcome{.epoch = plan.epoch, .step_id = plan.step_id};
  for (const TierCopy& copy : plan.copies) {
    const bool lost = (copy.key.low + copy.to_place + plan.step_id) % 13 == 0;
    outcome.copies.push_back(lost ? CopyOutcome::kChecksum : CopyOutcome::kDone);
  }
  for (const PlanRow& row : plan.rows) {
    RowOutcome& answer = outcome.rows.emplace_back();
    answer.seq_uid = row.seq_uid;
    if (row.sample) answer.tokens.push_back(static_cast<int32_t>(row.position % 1000));
  }
  return outcome;
}

// A busy engine: requests that come and go while steps run, a small cache and few pages.
void Drive(RecordedCore& core, uint32_t seed, int turns) {
  std::mt19937 random(seed);
  std::vector<uint64_t> open;
  std::optional<StepPlan> in_flight;
  for (TimeUs now = 1000; now < 1000 * (turns + 1); now += 1000) {
    if (random() % 4 == 0) {
      const SubmitOutcome outcome = core.OnSubmit(Ask(random), now);
      if (outcome.kind == SubmitOutcome::Kind::kAccepted) open.push_back(outcome.id);
    }
    if (!open.empty() && random() % 12 == 0) core.OnCancel(open[random() % open.size()]);
    if (!open.empty() && random() % 12 == 0) core.OnTruncate(open[random() % open.size()], 0);
    if (in_flight.has_value() && random() % 2 == 0) {
      core.OnStepResult(Execute(*in_flight), now);
      in_flight.reset();
    }
    std::optional<StepPlan> plan = core.PlanStep(now);
    if (plan.has_value() && plan->is_step()) in_flight = std::move(plan);
    core.TakeOutputs();
  }
}

FlightLog MustDecode(const std::string& bytes) {
  absl::StatusOr<FlightLog> log = DecodeFlightLog(bytes);
  EXPECT_TRUE(log.ok()) << log.status();
  return log.ok() ? *std::move(log) : FlightLog();
}

TEST(FlightLog, EveryFieldOfAnEventIsReadAsItWasWritten) {
  Request request;
  request.request_id = "id \n\xff";
  request.prompt_ids = {0, 1, 127, 128, 2047, INT32_MAX, -1};
  request.sampling = {.temperature = 0.7f,
                      .top_p = 0.9f,
                      .top_k = -3,
                      .min_p = 0.1f,
                      .seed = UINT64_MAX,
                      .choice = 3,
                      .presence_penalty = -1,
                      .frequency_penalty = 2,
                      .repetition_penalty = 1.5f,
                      .logit_bias = {{5, -2.5f}, {INT32_MIN, 0}},
                      .min_tokens = 9,
                      .banned_ids = {3, 1}};
  request.max_tokens = 12;
  request.end_ids = {1};
  request.stop_ids = {2, 3};
  request.first_padding_id = 4;
  request.prompt_logprobs = true;
  request.logprobs = true;
  request.ignore_eos = true;
  request.constrained = true;
  request.cache_root = {UINT64_MAX, 1};
  request.unit_keys = {{3, 4}, {5, 6}};
  StepOutcome outcome{.epoch = 1, .step_id = 2};
  outcome.rows.push_back({.seq_uid = 8,
                          .tokens = {9},
                          .logprobs = {-0.5f},
                          .target_logprobs = {-1, -2},
                          .drafts = {1, 2, 3},
                          .error = "not finite"});
  outcome.copies = {CopyOutcome::kDone, CopyOutcome::kChecksum, CopyOutcome::kMissing};
  const CacheEntry entry = {.kind = TierCopy::Kind::kSnapshot,
                            .place = 3,
                            .key = {4, 5},
                            .n_tokens = 512,
                            .origin = {.root = {6, 7}, .parent = {8, UINT64_MAX}, .tokens = {9}}};
  const std::vector<FlightEvent> events = {
      SubmitInput{-5, request},
      CancelInput{6},
      TruncateInput{7, 8},
      PlanInput{9, true, 10, UINT64_MAX},
      ResultInput{INT64_MAX, outcome},
      FailAllInput{"why"},
      AdoptInput{{entry}},
  };
  std::string bytes = EncodeFlightHeader(
      {.config = Config(), .reason = "test", .first_event = 3, .events = events.size()});
  for (const FlightEvent& event : events) bytes += EncodeFlightEvent(event);

  const FlightLog log = MustDecode(bytes);
  EXPECT_EQ(log.header.reason, "test");
  EXPECT_EQ(log.header.first_event, 3u);
  EXPECT_EQ(log.header.config.pages, 20u);
  ASSERT_EQ(log.events.size(), events.size());
  // Fields are compared by writing them again; these by eye, so that both directions cannot be
  // wrong in the same way.
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(EncodeFlightEvent(log.events[i]), EncodeFlightEvent(events[i])) << i;
  }
  const auto& submit = std::get<SubmitInput>(log.events[0]);
  EXPECT_EQ(submit.now, -5);
  EXPECT_EQ(submit.request.prompt_ids, request.prompt_ids);
  EXPECT_EQ(submit.request.request_id, request.request_id);
  EXPECT_EQ(submit.request.sampling.logit_bias, request.sampling.logit_bias);
  EXPECT_EQ(submit.request.sampling.seed, UINT64_MAX);
  EXPECT_EQ(submit.request.unit_keys, request.unit_keys);
  EXPECT_TRUE(submit.request.ignore_eos);
  EXPECT_EQ(std::get<ResultInput>(log.events[4]).outcome.rows[0].target_logprobs,
            (std::vector<float>{-1, -2}));
  EXPECT_EQ(std::get<ResultInput>(log.events[4]).outcome.copies, outcome.copies);
  const CacheEntry& adopted = std::get<AdoptInput>(log.events[6]).entries.at(0);
  EXPECT_EQ(adopted.kind, TierCopy::Kind::kSnapshot);
  EXPECT_EQ(adopted.origin.tokens, (std::vector<int32_t>{9}));
}

TEST(FlightLog, ADecodeStepTakesFewBytes) {
  RecordedCore core(Config(), kPlenty);
  Request request;
  request.prompt_ids = {1, 2, 3};
  request.max_tokens = 1000;
  core.OnSubmit(request, 0);
  const auto step = [&core] { core.OnStepResult(Execute(*core.PlanStep(0)), 0); };
  for (int i = 0; i < 10; ++i) step();
  const size_t before = core.Recording("").size();
  for (int i = 0; i < 100; ++i) step();
  EXPECT_LT(core.Recording("").size() - before, 100 * 40u);
}

TEST(FlightLog, CutOrForeignFilesAreRefused) {
  RecordedCore core(Config(), kPlenty);
  Drive(core, 1, 30);
  const std::string bytes = core.Recording("test");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeFlightLog(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_THAT(std::string(DecodeFlightLog("{}").status().message()),
              HasSubstr("does not begin with 'quartet flight 5'"));
  EXPECT_THAT(std::string(DecodeFlightLog(bytes + "\x7f").status().message()),
              HasSubstr("is broken at byte"));
  EXPECT_THAT(
      std::string(DecodeFlightLog(bytes + EncodeFlightEvent(CancelInput{1})).status().message()),
      HasSubstr("the file was cut"));
}

TEST(FlightLog, ASizeThatTheFileDoesNotHaveTakesNoMemory) {
  std::string bytes = EncodeFlightHeader({.config = Config(), .events = 1});
  bytes += std::string("\x05\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10);  // FailAll, a long message
  EXPECT_FALSE(DecodeFlightLog(bytes).ok());
}

TEST(FlightReplay, PlansTheSameAgain) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    RecordedCore core(Config(), kPlenty);
    Drive(core, seed, 600);
    const FlightLog log = MustDecode(core.Recording("test"));
    const absl::StatusOr<ReplayResult> result = Replay(log);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->difference, IsEmpty()) << "seed " << seed;
    EXPECT_GT(result->plans, 150u);
    const Ledger there = core.GetLedger();
    EXPECT_EQ(result->ledger.steps, there.steps);
    EXPECT_EQ(result->ledger.finished, there.finished);
    EXPECT_EQ(result->ledger.cancelled, there.cancelled);
    EXPECT_EQ(result->ledger.preemptions, there.preemptions);
    EXPECT_EQ(result->ledger.prefix_hit_tokens, there.prefix_hit_tokens);
    EXPECT_GT(there.prefix_hit_tokens, 0u);
    EXPECT_GT(there.cancelled, 0u);
  }
}

TEST(FlightReplay, PlansTheSameCopiesBetweenTiersAgain) {
  Ledger sum;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    RecordedCore core(TierConfig(), kPlenty);
    CacheEntry page{.place = 3, .key = {0, 1}, .n_tokens = 256, .origin = {{1, 2}, {1, 2}, {}}};
    for (int32_t i = 0; i < 256; ++i) page.origin.tokens.push_back(i * 17 % 1000);
    EXPECT_EQ(core.AdoptCached({page}), 1u);
    Drive(core, seed, 600);
    const absl::StatusOr<ReplayResult> result = Replay(MustDecode(core.Recording("test")));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->difference, IsEmpty()) << "seed " << seed;
    const Ledger there = core.GetLedger();
    EXPECT_EQ(result->ledger.host_tier.pages_restored, there.host_tier.pages_restored);
    EXPECT_EQ(result->ledger.disk_tier.snapshots_published, there.disk_tier.snapshots_published);
    sum.host_tier.pages_restored += there.host_tier.pages_restored;
    sum.host_tier.pages_discarded += there.host_tier.pages_discarded;
    sum.disk_tier.snapshots_published += there.disk_tier.snapshots_published;
  }
  EXPECT_GT(sum.host_tier.pages_restored, 0u);
  EXPECT_GT(sum.host_tier.pages_discarded, 0u);
  EXPECT_GT(sum.disk_tier.snapshots_published, 0u);
}

TEST(FlightReplay, WhatTheDiskHoldsComesFirst) {
  FlightLog log;
  log.header.config = TierConfig();
  log.events = {CancelInput{1}, AdoptInput{}};
  EXPECT_THAT(Replay(log)->difference, HasSubstr("event 1: what the disk tier holds comes after"));
}

TEST(FlightReplay, FindsWhereAPlanIsNotTheRecordedOne) {
  RecordedCore core(Config(), kPlenty);
  Drive(core, 3, 600);
  const FlightLog log = MustDecode(core.Recording("test"));
  size_t plans = 0;
  for (size_t i = 0; i < log.events.size(); ++i) {
    FlightLog other = log;
    auto* plan = std::get_if<PlanInput>(&other.events[i]);
    if (plan == nullptr || ++plans % 50 != 0) continue;
    plan->fingerprint ^= 1;
    EXPECT_THAT(Replay(other)->difference, HasSubstr(absl::StrCat("event ", i, ": ")));
  }
  EXPECT_GT(plans, 150u);
  // An input that is missing shows as well.
  for (size_t i = 0; i < log.events.size(); ++i) {
    if (!std::holds_alternative<SubmitInput>(log.events[i])) continue;
    FlightLog other = log;
    other.events.erase(other.events.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(Replay(other)->difference.empty()) << i;
    break;
  }
}

TEST(FlightReplay, DamagedRecordingsAreRefusedOrReplayed) {
  RecordedCore core(TierConfig(), kPlenty);
  Drive(core, 4, 200);
  const std::string bytes = core.Recording("test");
  std::mt19937 random(5);
  int readable = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = bytes;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<FlightLog> log = DecodeFlightLog(damaged);
    if (!log.ok()) continue;
    // Whatever it says now, the core takes it.
    if (Replay(*log).ok()) ++readable;
  }
  EXPECT_GT(readable, 300);
}

TEST(FlightReplay, AConfigurationThatNoMachineHasIsRefused) {
  FlightLog log;
  log.header.config = Config();
  log.header.config.pages = UINT32_MAX;
  EXPECT_THAT(std::string(Replay(log).status().message()), HasSubstr("4294967295 pages"));
  log.header.config = Config();
  log.header.config.slots = 0;
  EXPECT_THAT(std::string(Replay(log).status().message()), HasSubstr("no slot"));
}

TEST(RecordedCore, KeepsNoMoreThanItsLimitAndSaysWhatIsMissing) {
  constexpr size_t kLimit = 100000;
  RecordedCore core(Config(), kLimit);
  Drive(core, 6, 3000);
  const std::string bytes = core.Recording("test");
  EXPECT_LT(bytes.size(), kLimit);
  const FlightLog log = MustDecode(bytes);
  EXPECT_GT(log.events.size(), 100u);
  EXPECT_GT(log.header.first_event, 1000u);
  EXPECT_THAT(std::string(Replay(log).status().message()),
              HasSubstr(absl::StrCat("begins with event ", log.header.first_event)));
}

TEST(RecordedCore, WithoutALimitKeepsNothing) {
  RecordedCore core(Config(), 0);
  Drive(core, 6, 300);
  EXPECT_THAT(MustDecode(core.Recording("test")).events, IsEmpty());
}

TEST(RecordedCore, RecordingsAreFilesOfTheirOwn) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/flight-", getpid(), "/deep");
  const absl::StatusOr<std::string> first = WriteRecording(folder, 7, 1, "one");
  const absl::StatusOr<std::string> second = WriteRecording(folder, 7, 2, "two");
  ASSERT_TRUE(first.ok() && second.ok());
  std::ifstream file(*first);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "one");
  EXPECT_EQ(std::filesystem::status(*second).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_THAT(std::string(WriteRecording("/proc/none", 7, 1, "x").status().message()),
              HasSubstr("cannot write /proc/none/flight-7-1.bin (--flight-dir): "));
}

}  // namespace
}  // namespace quartet::coordinator
