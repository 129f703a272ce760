#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "tests/unit/coordinator/engine_harness.h"

// What stands in the exposition is what the core's ledger says and what the clients saw (19-I14).
// Every counter and gauge is compared; one that nobody named here makes the test fail.

namespace quartet::coordinator {
namespace {

constexpr char kModel[] = R"(engine="0",model_name="hash-chain")";

std::string WithModel(const std::string& name) {
  return absl::StrCat(name, "{", kModel, "}");
}

struct Exposition {
  std::map<std::string, double> values;      // of counters and gauges, by name and labels
  std::map<std::string, double> histograms;  // NAME_count and NAME_sum, of all labels together
};

Exposition Parse(const std::string& text) {
  Exposition out;
  std::string type;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "# TYPE ")) {
      type = std::vector<std::string>(absl::StrSplit(line, ' ')).at(1);
    }
    if (line.front() == '#' || type.empty()) continue;
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(absl::ByString("} "), 1));
    const bool labelled = !parts.second.empty();
    const std::pair<std::string, std::string> bare = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const std::string series = labelled ? parts.first + "}" : bare.first;
    double value = 0;
    if (!absl::SimpleAtod(labelled ? parts.second : bare.second, &value)) continue;
    if (type != "histogram") {
      out.values[series] = value;
    } else if (const std::string name = series.substr(0, series.find('{'));
               name.ends_with("_count") || name.ends_with("_sum")) {
      out.histograms[name] += value;
    }
  }
  return out;
}

// What the clients saw.
struct Seen {
  uint64_t accepted = 0;
  uint64_t admitted = 0;
  uint64_t tokens = 0;
  uint64_t first_tokens = 0;
  uint64_t prompt_tokens = 0;  // of those whose first token came
  uint64_t max_tokens = 0;     // as asked for
  uint64_t hit_tokens = 0;
  uint64_t queried_tokens = 0;
  std::map<std::string, uint64_t> ends;  // by finished_reason
  std::map<std::string, uint64_t> refused;
};

class MetricsLedger : public ::testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options = EngineHarness::Options(1);
    options.max_num_seqs = 2;
    options.max_queued_requests = 2;
    return options;
  }

  explicit MetricsLedger(uint64_t lower_tier_bytes = 0)
      : harness_(Options()), has_tiers_(lower_tier_bytes > 0) {
    // Refused: the workers have not come.
    Refuse(EngineHarness::Ask(0, 10, 5), "not_ready");
    auto worker = harness_.WorkerOptions();
    worker.snapshot_bytes = 1 << 20;
    worker.host_cache_bytes = lower_tier_bytes;
    worker.disk_cache_bytes = lower_tier_bytes;
    worker.before_step = [this](const v1::StepPlan&) { gate_.Pass(); };
    harness_.AddWorker(worker);
    EXPECT_TRUE(harness_.AwaitReason(""));
  }

  void Refuse(const v1::Submit& submit, const std::string& reason) {
    EXPECT_FALSE(Call(harness_.stub.get(), submit).ReadToEnd().ok());
    ++seen_.refused[reason];
  }

  std::unique_ptr<Call> Submit(const v1::Submit& submit) {
    ++seen_.accepted;
    seen_.max_tokens += submit.max_tokens();
    return std::make_unique<Call>(harness_.stub.get(), submit);
  }

  // One that was admitted has ended, and `reason` is how.
  void Note(const v1::Submit& submit, const Call& call, const std::string& reason) {
    ++seen_.ends[reason];
    ++seen_.admitted;
    seen_.queried_tokens += submit.prompt_ids_size();
    seen_.tokens += call.tokens.size();
    if (!call.tokens.empty()) {
      ++seen_.first_tokens;
      seen_.prompt_tokens += submit.prompt_ids_size();
    }
    if (call.finished.has_value()) seen_.hit_tokens += call.finished->cached_tokens();
  }

  void RunToItsEnd(const v1::Submit& submit, uint32_t cached_tokens) {
    const std::unique_ptr<Call> call = Submit(submit);
    EXPECT_TRUE(call->ReadToEnd().ok());
    ASSERT_TRUE(call->finished.has_value());
    EXPECT_EQ(call->finished->cached_tokens(), cached_tokens);
    Note(submit, *call,
         call->finished->reason() == v1::Finished::REASON_LENGTH ? "length" : "stop");
  }

  // Waits until nothing is open or in flight, then compares.
  void Compare();
  // The cache's tiers below the device.
  static void AddTier(const std::string& tier, const TierLedger& ledger,
                      std::map<std::string, double>& want);

  Gate gate_;
  EngineHarness harness_;
  const bool has_tiers_;
  Seen seen_;
};

class MetricsLedgerOfTiers : public MetricsLedger {
 protected:
  MetricsLedgerOfTiers() : MetricsLedger(64 << 20) {}
};

void MetricsLedger::AddTier(const std::string& tier, const TierLedger& ledger,
                            std::map<std::string, double>& want) {
  const auto add = [&](const std::string& name, uint64_t value) {
    want[absl::StrCat(name, "{tier=\"", tier, "\"}")] = static_cast<double>(value);
  };
  add("quartet_snapshot_published_total", ledger.snapshots_published);
  add("quartet_snapshot_restored_total", ledger.snapshots_restored);
  add("quartet_snapshot_evicted_total", ledger.snapshots_evicted);
  add("quartet_snapshot_discarded_total", ledger.snapshots_discarded);
  add("quartet_snapshot_checksum_failed_total", ledger.snapshots_checksum_failed);
  add("quartet_page_restored_total", ledger.pages_restored);
  add("quartet_page_discarded_total", ledger.pages_discarded);
  add("quartet_page_checksum_failed_total", ledger.pages_checksum_failed);
  want[absl::StrCat("quartet_cache_bytes{pool=\"pages\",tier=\"", tier, "\"}")] =
      static_cast<double>(ledger.page_bytes);
  want[absl::StrCat("quartet_cache_bytes{pool=\"snapshots\",tier=\"", tier, "\"}")] =
      static_cast<double>(ledger.snapshot_bytes);
}

void MetricsLedger::Compare() {
  ASSERT_TRUE(harness_.Await([&] {
    const Ledger ledger = harness_.engine->Snapshot().ledger;
    return ledger.finished + ledger.cancelled + ledger.failed == seen_.accepted &&
           harness_.workers[0]->steps() == ledger.steps;
  }));
  // A step whose request has ended is still to be answered: the next request waits for that.
  RunToItsEnd(EngineHarness::Ask(99, 20, 2), 0);
  ASSERT_TRUE(harness_.Await([&] {
    const Ledger ledger = harness_.engine->Snapshot().ledger;
    return ledger.finished + ledger.cancelled == seen_.accepted && ledger.copies_waiting == 0;
  }));
  const Exposition got = Parse(harness_.metrics->Expose());
  const Ledger ledger = harness_.engine->Snapshot().ledger;

  const auto number = [](auto value) { return static_cast<double>(value); };
  const double pages_in_use = number(ledger.pages_used - ledger.evictable_pages);
  std::map<std::string, double> want{
      {"quartet_epoch", 4711},
      {"quartet_steps_total", number(ledger.steps)},
      {"quartet_steps_in_flight", number(ledger.steps_in_flight)},
      {"quartet_cancel_extra_steps_total", number(ledger.void_rows)},
      {"quartet_agreement_mismatch_total", 0},
      {"quartet_preemptions_total", number(ledger.preemptions)},
      {"quartet_recomputed_tokens_total", number(ledger.recomputed_tokens)},
      {"quartet_repetition_suspected_total", number(ledger.repetitions_suspected)},
      {"quartet_cached_states_condemned_total", number(ledger.states_condemned)},
      {"quartet_rows_awaiting_mask_total", number(ledger.rows_awaiting_mask)},
      {"quartet_overtakes_total", number(ledger.overtakes)},
      {"quartet_no_progress_total", number(ledger.no_progress)},
      {"quartet_requests_paused", number(ledger.paused)},
      {"quartet_cache_pages", number(ledger.cached_pages)},
      {R"(quartet_cache_bytes{pool="pages",tier="device"})", number(ledger.cached_pages) * 1024},
      {R"(quartet_cache_bytes{pool="snapshots",tier="device"})",
       number(ledger.device_tier.snapshots) * (1 << 20)},
      {R"(quartet_pool_used{pool="slots"})", number(ledger.slots_used)},
      {R"(quartet_pool_size{pool="slots"})", number(ledger.slots_size)},
      {R"(quartet_pool_used{pool="pages"})", pages_in_use},
      {R"(quartet_pool_size{pool="pages"})", number(ledger.pages_size)},
      {R"(quartet_pool_used{pool="snapshots"})", number(ledger.snapshots_used)},
      {R"(quartet_pool_size{pool="snapshots"})", number(ledger.snapshots_size)},
      {R"(quartet_snapshot_published_total{tier="device"})",
       number(ledger.device_tier.snapshots_published)},
      {R"(quartet_snapshot_restored_total{tier="device"})",
       number(ledger.device_tier.snapshots_restored)},
      {R"(quartet_snapshot_evicted_total{tier="device"})",
       number(ledger.device_tier.snapshots_evicted)},
      {"quartet_prefix_lost_to_granularity_tokens_total", number(ledger.prefix_lost_tokens)},
      {WithModel("vllm:num_requests_running"), 0},
      {WithModel("vllm:num_requests_waiting"), 0},
      {WithModel("vllm:kv_cache_usage_perc"), pages_in_use / number(ledger.pages_size)},
      {absl::StrCat(R"(vllm:cache_config_info{block_size="256",enable_prefix_caching="True",)",
                    kModel, R"(,num_gpu_blocks=")", ledger.pages_size, R"("})"),
       1},
      {WithModel("vllm:num_preemptions_total"), number(ledger.preemptions)},
      // These the clients can count as well.
      {WithModel("vllm:prompt_tokens_total"), number(seen_.prompt_tokens)},
      {WithModel("vllm:generation_tokens_total"), number(seen_.tokens)},
      {WithModel("vllm:prefix_cache_queries_total"), number(seen_.queried_tokens)},
      {WithModel("vllm:prefix_cache_hits_total"), number(seen_.hit_tokens)},
      {WithModel("vllm:spec_decode_num_drafts_total"), number(ledger.spec_drafts)},
      {WithModel("vllm:spec_decode_num_draft_tokens_total"), number(ledger.spec_draft_tokens)},
      {WithModel("vllm:spec_decode_num_accepted_tokens_total"),
       number(ledger.spec_accepted_tokens)},
  };
  for (size_t place = 0; place < ledger.spec_accepted_at.size(); ++place) {
    want[absl::StrCat("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                      R"({engine="0",model_name="hash-chain",position=")", place, R"("})")] =
        number(ledger.spec_accepted_at[place]);
  }
  for (const auto& [reason, count] : seen_.ends) {
    want[absl::StrCat(R"(vllm:request_success_total{engine="0",finished_reason=")", reason,
                      R"(",model_name="hash-chain"})")] = number(count);
  }
  for (const auto& [reason, count] : seen_.refused) {
    want[absl::StrCat("quartet_admission_refused_total{reason=\"", reason, "\"}")] = number(count);
  }
  if (has_tiers_) {
    AddTier("host", ledger.host_tier, want);
    AddTier("disk", ledger.disk_tier, want);
    want["quartet_cache_copies_given_up_total"] = number(ledger.copies_given_up);
  }
  EXPECT_EQ(got.values, want);
  EXPECT_EQ(ledger.prompt_tokens, seen_.prompt_tokens);
  EXPECT_EQ(ledger.generated_tokens, seen_.tokens);
  EXPECT_EQ(ledger.prefix_hit_tokens, seen_.hit_tokens);
  EXPECT_EQ(ledger.accepted, seen_.accepted);

  const auto histogram = [&got](const std::string& name) {
    const auto found = got.histograms.find(name);
    return found == got.histograms.end() ? -1 : found->second;
  };
  for (const char* name :
       {"vllm:e2e_request_latency_seconds_count", "vllm:request_prompt_tokens_count",
        "vllm:request_generation_tokens_count", "vllm:request_params_max_tokens_count"}) {
    EXPECT_EQ(histogram(name), number(seen_.accepted)) << name;
  }
  for (const char* name :
       {"vllm:request_queue_time_seconds_count", "vllm:request_inference_time_seconds_count",
        "quartet_prefix_hit_tokens_count"}) {
    EXPECT_EQ(histogram(name), number(seen_.admitted)) << name;
  }
  for (const char* name :
       {"vllm:time_to_first_token_seconds_count", "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count"}) {
    EXPECT_EQ(histogram(name), number(seen_.first_tokens)) << name;
  }
  EXPECT_EQ(histogram("vllm:inter_token_latency_seconds_count"),
            number(seen_.tokens - seen_.first_tokens));
  EXPECT_EQ(histogram("vllm:request_params_max_tokens_sum"), number(seen_.max_tokens));
  EXPECT_EQ(histogram("quartet_prefix_hit_tokens_sum"), number(seen_.hit_tokens));
  // Steps that only copy have no tokens.
  if (!has_tiers_) {
    EXPECT_EQ(histogram("vllm:iteration_tokens_total_count"), number(ledger.steps));
  }
  EXPECT_EQ(histogram("quartet_step_seconds_count"), number(ledger.steps));
  EXPECT_LE(histogram("quartet_step_host_seconds_count"), number(ledger.steps));
  EXPECT_GT(histogram("vllm:request_time_per_output_token_seconds_count"), 0);
}

TEST_F(MetricsLedger, AnswersThatEndByThemselves) {
  RunToItsEnd(EngineHarness::Ask(1, 600, 30), 0);
  RunToItsEnd(EngineHarness::Ask(1, 600, 30), 512);
  v1::Submit stopped = EngineHarness::Ask(2, 300, 30);
  stopped.add_stop_ids(EngineHarness::Alone(stopped, 10).back());
  RunToItsEnd(stopped, 0);
  Refuse(EngineHarness::Ask(3, 8000, 1000), "invalid");
  Compare();
}

TEST_F(MetricsLedgerOfTiers, AnswersThatGoToTheDisk) {
  RunToItsEnd(EngineHarness::Ask(1, 600, 30), 0);
  RunToItsEnd(EngineHarness::Ask(1, 600, 30), 512);
  Compare();
  const Ledger ledger = harness_.engine->Snapshot().ledger;
  EXPECT_GT(ledger.host_tier.snapshots_published, 0u);
  EXPECT_GT(ledger.disk_tier.snapshots_published, 0u);
}

TEST_F(MetricsLedger, CancelsTruncationsAndAFullQueue) {
  gate_.Close();
  std::vector<v1::Submit> asked;
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 3; ++i) {
    asked.push_back(EngineHarness::Ask(i, 300, 50));
    calls.push_back(Submit(asked.back()));
    ASSERT_TRUE(harness_.Await(
        [&] { return harness_.engine->Snapshot().ledger.accepted == seen_.accepted; }));
  }
  Refuse(EngineHarness::Ask(9, 10, 5), "queue_full");
  // The first one is in the step that does not end. The last one leaves before it is admitted.
  calls[2]->Cancel();
  EXPECT_FALSE(calls[2]->ReadToEnd().ok());
  ++seen_.ends["abort"];
  ASSERT_TRUE(harness_.AwaitMetric(WithModel("vllm:num_requests_waiting"), 1));
  // Ten steps, then two in flight, in which the first request ends.
  gate_.Permit(10);
  ASSERT_TRUE(calls[0]->ReadTokens(5));
  ASSERT_TRUE(gate_.AwaitSomebody());
  ASSERT_TRUE(harness_.Await(
      [&] { return harness_.engine->Snapshot().ledger.steps == gate_.arrived() + 1u; }));
  calls[0]->Truncate(3);
  ASSERT_TRUE(harness_.Await([&] { return harness_.engine->Snapshot().ledger.finished == 1; }));
  gate_.Open();
  EXPECT_TRUE(calls[0]->ReadToEnd().ok());
  EXPECT_EQ(calls[0]->finished->reason(), v1::Finished::REASON_TRUNCATED);
  Note(asked[0], *calls[0], "stop");
  EXPECT_TRUE(calls[1]->ReadToEnd().ok());
  Note(asked[1], *calls[1], "length");
  Compare();
  EXPECT_EQ(harness_.Metric("quartet_cancel_extra_steps_total"), 2);
}

}  // namespace
}  // namespace quartet::coordinator
