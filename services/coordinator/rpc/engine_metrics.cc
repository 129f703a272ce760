#include "services/coordinator/rpc/engine_metrics.h"

#include <cmath>

namespace quartet::coordinator {
namespace {

double Seconds(TimeUs from, TimeUs to) {
  return static_cast<double>(to - from) * 1e-6;
}

std::string FinishedReason(const Output& output) {
  if (output.kind == Output::Kind::kExpired) return "deadline";
  if (output.kind != Output::Kind::kFinished) return "abort";
  return output.reason == FinishReason::kLength ? "length" : "stop";
}

std::vector<double> TokenBuckets() {
  return {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
}

}  // namespace

EngineMetrics::EngineMetrics(Metrics* metrics, uint64_t epoch) : metrics_(metrics) {
  metrics_->GetGauge("quartet_epoch", "Epoch of the set of ranks").Set(static_cast<double>(epoch));
  metrics_->GetCounter("quartet_steps_total", "Steps sent to the workers");
  metrics_->GetCounter("quartet_agreement_mismatch_total",
                       "Steps whose ranks did not agree on what they did");
  metrics_->GetCounter("quartet_preemptions_total",
                       "Sequences that gave up their place to others and went on later");
}

void EngineMetrics::SetModel(const std::string& model_name, const CoreConfig& config) {
  model_labels_ = {{"model_name", model_name}, {"engine", "0"}};
  MetricLabels info = model_labels_;
  info["block_size"] = std::to_string(config.page_tokens);
  info["num_gpu_blocks"] = std::to_string(config.pages);
  info["enable_prefix_caching"] = config.snapshots > 0 ? "True" : "False";
  metrics_->GetGauge("vllm:cache_config_info", "The cache as it was configured", info).Set(1);
}

void EngineMetrics::SetCounter(const char* name, const char* help, const MetricLabels& labels,
                               uint64_t* seen, uint64_t value) {
  metrics_->GetCounter(name, help, labels).Add(static_cast<double>(value - *seen));
  *seen = value;
}

void EngineMetrics::SetModelCounter(const char* name, const char* help, uint64_t* seen,
                                    uint64_t value) {
  SetCounter(name, help, model_labels_, seen, value);
}

void EngineMetrics::OnLedger(const Ledger& ledger) {
  const auto pool = [&](const char* name, uint32_t used, uint32_t size) {
    metrics_->GetGauge("quartet_pool_used", "Places of a pool that are taken", {{"pool", name}})
        .Set(used);
    metrics_->GetGauge("quartet_pool_size", "Places of a pool", {{"pool", name}}).Set(size);
  };
  pool("slots", ledger.slots_used, ledger.slots_size);
  // What only the cache holds is free for whoever needs it.
  const uint32_t pages_in_use = ledger.pages_used - ledger.evictable_pages;
  pool("pages", pages_in_use, ledger.pages_size);
  pool("snapshots", ledger.snapshots_used, ledger.snapshots_size);
  metrics_->GetGauge("quartet_cache_pages", "Pages that hold cached prefixes")
      .Set(ledger.cached_pages);
  OnTier("device", ledger.device_tier, &seen_.device_tier);
  if (ledger.host_tier.pages_size > 0) {
    OnLowerTier("host", ledger.host_tier, &seen_.host_tier);
    SetCounter("quartet_cache_copies_given_up_total",
               "Cached prefixes that were not written to the tier below", {},
               &seen_.copies_given_up, ledger.copies_given_up);
  }
  if (ledger.disk_tier.pages_size > 0) OnLowerTier("disk", ledger.disk_tier, &seen_.disk_tier);
  SetModelCounter("vllm:prefix_cache_queries_total",
                  "Prompt tokens that were looked for in the prefix cache",
                  &seen_.prefix_query_tokens, ledger.prefix_query_tokens);
  SetModelCounter("vllm:prefix_cache_hits_total", "Prompt tokens that were found there",
                  &seen_.prefix_hit_tokens, ledger.prefix_hit_tokens);
  SetCounter("quartet_prefix_lost_to_granularity_tokens_total",
             "Prompt tokens shared with a cached text, but behind its last snapshot", {},
             &seen_.prefix_lost_tokens, ledger.prefix_lost_tokens);
  SetCounter("quartet_steps_total", "Steps sent to the workers", {}, &seen_.steps, ledger.steps);
  metrics_->GetGauge("quartet_steps_in_flight", "Plans that the workers hold")
      .Set(ledger.steps_in_flight);
  SetCounter("quartet_cancel_extra_steps_total",
             "Rows that were computed although their request had ended", {}, &seen_.void_rows,
             ledger.void_rows);
  SetCounter("quartet_rows_awaiting_mask_total",
             "Rows of constrained requests that waited for the tokens before them", {},
             &seen_.rows_awaiting_mask, ledger.rows_awaiting_mask);
  SetCounter("quartet_overtakes_total", "Prompts that were passed by a later one of the same key",
             {}, &seen_.overtakes, ledger.overtakes);
  SetCounter("quartet_no_progress_total",
             "Admitted prompts that went without a row for too many plans", {}, &seen_.no_progress,
             ledger.no_progress);
  metrics_->GetGauge("quartet_requests_paused", "Running requests whose client reads too slowly")
      .Set(ledger.paused);
  metrics_
      ->GetCounter("quartet_preemptions_total",
                   "Sequences that gave up their place to others and went on later")
      .Add(static_cast<double>(ledger.preemptions - seen_.preemptions));
  SetCounter("quartet_repetition_suspected_total", "Answers that ended in a loop", {},
             &seen_.repetitions_suspected, ledger.repetitions_suspected);
  SetCounter("quartet_cached_states_condemned_total",
             "Cached states that differed when they were computed again", {},
             &seen_.states_condemned, ledger.states_condemned);
  SetCounter("quartet_recomputed_tokens_total",
             "Tokens computed again because their sequence gave up its place", {},
             &seen_.recomputed_tokens, ledger.recomputed_tokens);
  SetModelCounter("vllm:num_preemptions_total", "Preemptions", &seen_.preemptions,
                  ledger.preemptions);
  SetModelCounter("vllm:prompt_tokens_total", "Prompt tokens absorbed", &seen_.prompt_tokens,
                  ledger.prompt_tokens);
  SetModelCounter("vllm:generation_tokens_total", "Tokens generated", &seen_.generated_tokens,
                  ledger.generated_tokens);
  OnSpeculation(ledger);
  metrics_->GetGauge("vllm:num_requests_running", "Requests that hold a place", model_labels_)
      .Set(ledger.running);
  metrics_->GetGauge("vllm:num_requests_waiting", "Requests in the queue", model_labels_)
      .Set(ledger.waiting);
  metrics_
      ->GetGauge("vllm:kv_cache_usage_perc", "Share of pages that are taken, 0 to 1", model_labels_)
      .Set(ledger.pages_size == 0 ? 0 : static_cast<double>(pages_in_use) / ledger.pages_size);
}

void EngineMetrics::OnSpeculation(const Ledger& ledger) {
  SetModelCounter("vllm:spec_decode_num_drafts_total", "Windows of drafts that were verified",
                  &seen_.spec_drafts, ledger.spec_drafts);
  SetModelCounter("vllm:spec_decode_num_draft_tokens_total", "Drafts that were verified",
                  &seen_.spec_draft_tokens, ledger.spec_draft_tokens);
  SetModelCounter("vllm:spec_decode_num_accepted_tokens_total", "Drafts that were accepted",
                  &seen_.spec_accepted_tokens, ledger.spec_accepted_tokens);
  for (size_t place = 0; place < ledger.spec_accepted_at.size(); ++place) {
    MetricLabels labels = model_labels_;
    labels["position"] = std::to_string(place);
    SetCounter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
               "Drafts that were accepted, by place in the window", labels,
               &seen_.spec_accepted_at[place], ledger.spec_accepted_at[place]);
  }
}

void EngineMetrics::OnTier(const std::string& tier, const TierLedger& now, TierLedger* seen) {
  const auto bytes = [&](const char* pool, uint64_t value) {
    metrics_
        ->GetGauge("quartet_cache_bytes", "What cached prefixes take, on one rank",
                   {{"pool", pool}, {"tier", tier}})
        .Set(static_cast<double>(value));
  };
  bytes("pages", now.page_bytes);
  bytes("snapshots", now.snapshot_bytes);
  const MetricLabels labels{{"tier", tier}};
  SetCounter("quartet_snapshot_published_total", "Snapshots that came into the tier", labels,
             &seen->snapshots_published, now.snapshots_published);
  SetCounter("quartet_snapshot_restored_total",
             "Snapshots that a sequence, or the tier above, went on from", labels,
             &seen->snapshots_restored, now.snapshots_restored);
  SetCounter("quartet_snapshot_evicted_total", "Snapshots that made room for others", labels,
             &seen->snapshots_evicted, now.snapshots_evicted);
}

// What is copied to a tier may come back damaged, or not at all.
void EngineMetrics::OnLowerTier(const std::string& tier, const TierLedger& now, TierLedger* seen) {
  OnTier(tier, now, seen);
  const MetricLabels labels{{"tier", tier}};
  SetCounter("quartet_snapshot_discarded_total",
             "Snapshots given up because they, or pages before them, could not be read", labels,
             &seen->snapshots_discarded, now.snapshots_discarded);
  SetCounter("quartet_snapshot_checksum_failed_total",
             "Snapshots whose bytes were not those that were stored", labels,
             &seen->snapshots_checksum_failed, now.snapshots_checksum_failed);
  SetCounter("quartet_page_restored_total", "Pages that went back to the tier above", labels,
             &seen->pages_restored, now.pages_restored);
  SetCounter("quartet_page_discarded_total",
             "Pages given up because they, or pages before them, could not be read", labels,
             &seen->pages_discarded, now.pages_discarded);
  SetCounter("quartet_page_checksum_failed_total",
             "Pages whose bytes were not those that were stored", labels,
             &seen->pages_checksum_failed, now.pages_checksum_failed);
}

void EngineMetrics::OnAccepted(uint32_t max_tokens) {
  metrics_
      ->GetHistogram("vllm:request_params_max_tokens", "max_tokens of a request", TokenBuckets(),
                     model_labels_)
      .Observe(max_tokens);
}

Histogram& EngineMetrics::RequestHistogram(const std::string& name, const std::string& help) {
  return metrics_->GetHistogram(name, help, LatencyBuckets(), model_labels_);
}

void EngineMetrics::OnOutput(const Output& output, TimeUs now) {
  const RequestTimes& times = output.times;
  if (output.kind == Output::Kind::kAdmitted) {
    RequestHistogram("vllm:request_queue_time_seconds", "From submit to admission")
        .Observe(Seconds(times.submitted, times.admitted));
    metrics_
        ->GetHistogram("quartet_prefix_hit_tokens", "Prompt tokens of a request that were cached",
                       TokenBuckets())
        .Observe(output.cached_tokens);
    return;
  }
  if (output.kind == Output::Kind::kTokens) {
    if (output.tokens.empty()) return;
    if (output.previous_token == 0) {
      if (output.expected_first_token != 0) {
        metrics_
            ->GetHistogram("quartet_ttft_prediction_error_seconds",
                           "Between the first token and when it was expected at the submit",
                           LatencyBuckets())
            .Observe(std::abs(Seconds(output.expected_first_token, times.first_token)));
      }
      RequestHistogram("vllm:time_to_first_token_seconds", "From submit to the first token")
          .Observe(Seconds(times.submitted, times.first_token));
      RequestHistogram("vllm:request_prefill_time_seconds", "From admission to the first token")
          .Observe(Seconds(times.admitted, times.first_token));
    } else {
      RequestHistogram("vllm:inter_token_latency_seconds", "Between two tokens of a request")
          .Observe(Seconds(output.previous_token, times.last_token));
    }
    return;
  }
  MetricLabels labels = model_labels_;
  labels["finished_reason"] = FinishedReason(output);
  metrics_->GetCounter("vllm:request_success_total", "Requests that ended", labels).Add();
  RequestHistogram("vllm:e2e_request_latency_seconds", "From submit to the end")
      .Observe(Seconds(times.submitted, now));
  if (times.admitted != 0) {
    RequestHistogram("vllm:request_inference_time_seconds", "From admission to the end")
        .Observe(Seconds(times.admitted, now));
  }
  if (times.first_token != 0) {
    const double decode_seconds = Seconds(times.first_token, times.last_token);
    RequestHistogram("vllm:request_decode_time_seconds", "From the first token to the last")
        .Observe(decode_seconds);
    if (output.completion_tokens > 1) {
      RequestHistogram("vllm:request_time_per_output_token_seconds",
                       "Mean time between two tokens of a request")
          .Observe(decode_seconds / (output.completion_tokens - 1));
    }
  }
  metrics_
      ->GetHistogram("vllm:request_prompt_tokens", "Prompt tokens of a request", TokenBuckets(),
                     model_labels_)
      .Observe(output.prompt_tokens);
  metrics_
      ->GetHistogram("vllm:request_generation_tokens", "Generated tokens of a request",
                     TokenBuckets(), model_labels_)
      .Observe(output.completion_tokens);
}

void EngineMetrics::OnPlan(const StepPlan& plan) {
  if (plan.rows.empty()) return;
  uint64_t tokens = 0;
  for (const PlanRow& row : plan.rows) tokens += row.n_tokens;
  metrics_
      ->GetHistogram("vllm:iteration_tokens_total", "Tokens of a step", TokenBuckets(),
                     model_labels_)
      .Observe(static_cast<double>(tokens));
}

void EngineMetrics::OnStep(const std::string& kind, size_t rows, double seconds) {
  metrics_
      ->GetHistogram("quartet_step_seconds",
                     "From sending a plan, or from the answer before it, to the last rank's answer",
                     LatencyBuckets(), {{"kind", kind}, {"rows", std::to_string(rows)}})
      .Observe(seconds);
}

void EngineMetrics::OnHostTime(double seconds) {
  metrics_
      ->GetHistogram("quartet_step_host_seconds",
                     "From the answer that leaves the workers idle to the next plan",
                     {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1})
      .Observe(seconds);
}

void EngineMetrics::OnMaskTime(double seconds) {
  metrics_
      ->GetHistogram("quartet_mask_seconds", "The masks of a step's constrained rows",
                     {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 1e-1})
      .Observe(seconds);
}

void EngineMetrics::OnRefused(const std::string& reason) {
  metrics_
      ->GetCounter("quartet_admission_refused_total", "Requests that were not accepted",
                   {{"reason", reason}})
      .Add();
}

void EngineMetrics::OnMismatch() {
  metrics_
      ->GetCounter("quartet_agreement_mismatch_total",
                   "Steps whose ranks did not agree on what they did")
      .Add();
}

}  // namespace quartet::coordinator
