#ifndef QUARTET_SHARD_WORKER_EXECUTOR_WORKER_METRICS_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_WORKER_METRICS_H_

#include <cstdint>
#include <string>

#include "proto/quartet/v1/worker.pb.h"
#include "services/common/metrics.h"
#include "shard_worker/executor/executor.h"

namespace quartet {

// What a worker counts. Updated by the compute thread; read by the admin server through Metrics.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(Metrics& metrics)
      : metrics_(metrics),
        steps_(metrics.GetCounter("quartet_worker_steps_total", "Steps executed by this rank")),
        refused_(metrics.GetCounter("quartet_worker_refused_plans_total",
                                    "Plans that this rank refused as a whole")),
        failed_rows_(metrics.GetCounter("quartet_worker_failed_rows_total",
                                        "Rows that failed by themselves")),
        prefill_(Tokens("prefill")),
        decode_(Tokens("decode")),
        draft_(Tokens("draft")),
        accepted_(Tokens("accepted_draft")),
        step_seconds_(metrics.GetHistogram("quartet_worker_step_seconds",
                                           "Seconds from a plan to its result", LatencyBuckets())),
        saturated_f16_(Saturated("f16")),
        saturated_e4m3_(Saturated("e4m3")),
        copied_down_(Copied("down")),
        copied_up_(Copied("up")),
        copies_damaged_(CopiesFailed("checksum")),
        copies_missing_(CopiesFailed("missing")),
        disk_writes_failed_(CopiesFailed("disk_write")),
        slots_used_(Pool("used", "slots")),
        pages_used_(Pool("used", "pages")) {}

  void SetPoolSizes(int slots, int pages) {
    Pool("size", "slots").Set(slots);
    Pool("size", "pages").Set(pages);
  }

  void Step(const v1::StepPlan& plan, const v1::StepResult& result) {
    if (result.error().empty()) {
      step_seconds_.Observe(static_cast<double>(result.device_time_us()) * 1e-6);
    }
  }

  // The saturation counts are totals of values that did not fit their stored form.
  void Update(const Executor& executor, uint64_t saturated_f16, uint64_t saturated_e4m3) {
    const ExecutorStats& now = executor.stats();
    steps_.Add(static_cast<double>(now.steps - seen_.steps));
    refused_.Add(static_cast<double>(now.refused_plans - seen_.refused_plans));
    failed_rows_.Add(static_cast<double>(now.failed_rows - seen_.failed_rows));
    prefill_.Add(static_cast<double>(now.prefill_tokens - seen_.prefill_tokens));
    decode_.Add(static_cast<double>(now.decode_tokens - seen_.decode_tokens));
    draft_.Add(static_cast<double>(now.draft_tokens - seen_.draft_tokens));
    accepted_.Add(static_cast<double>(now.accepted_tokens - seen_.accepted_tokens));
    saturated_f16_.Add(static_cast<double>(saturated_f16 - seen_saturated_f16_));
    saturated_e4m3_.Add(static_cast<double>(saturated_e4m3 - seen_saturated_e4m3_));
    const CopyStats copies = executor.copy_stats();
    copied_down_.Add(static_cast<double>(copies.down_bytes - seen_copies_.down_bytes));
    copied_up_.Add(static_cast<double>(copies.up_bytes - seen_copies_.up_bytes));
    copies_damaged_.Add(
        static_cast<double>(copies.checksum_failures - seen_copies_.checksum_failures));
    copies_missing_.Add(static_cast<double>(copies.missing - seen_copies_.missing));
    disk_writes_failed_.Add(
        static_cast<double>(copies.disk_writes_failed - seen_copies_.disk_writes_failed));
    seen_copies_ = copies;
    seen_saturated_f16_ = saturated_f16;
    seen_saturated_e4m3_ = saturated_e4m3;
    seen_ = now;
    slots_used_.Set(executor.slots_used());
    pages_used_.Set(executor.pages_used());
  }

 private:
  Counter& Tokens(const std::string& kind) {
    return metrics_.GetCounter("quartet_worker_tokens_total", "Tokens by kind of row",
                               {{"kind", kind}});
  }
  Counter& Saturated(const std::string& dtype) {
    return metrics_.GetCounter("quartet_worker_saturations_total",
                               "Values too large for the type they are stored in",
                               {{"dtype", dtype}});
  }
  Counter& Copied(const std::string& direction) {
    return metrics_.GetCounter("quartet_worker_cache_copied_bytes_total",
                               "Bytes of cached prefixes moved away from the device and back",
                               {{"direction", direction}});
  }
  Counter& CopiesFailed(const std::string& reason) {
    return metrics_.GetCounter("quartet_worker_cache_copies_failed_total",
                               "Copies of cached prefixes that were not made",
                               {{"reason", reason}});
  }
  Gauge& Pool(const std::string& what, const std::string& pool) {
    return metrics_.GetGauge("quartet_worker_pool_" + what,
                             what == "used" ? "Places in use" : "Places that there are",
                             {{"pool", pool}});
  }

  Metrics& metrics_;
  Counter& steps_;
  Counter& refused_;
  Counter& failed_rows_;
  Counter& prefill_;
  Counter& decode_;
  Counter& draft_;
  Counter& accepted_;
  Histogram& step_seconds_;
  Counter& saturated_f16_;
  Counter& saturated_e4m3_;
  Counter& copied_down_;
  Counter& copied_up_;
  Counter& copies_damaged_;
  Counter& copies_missing_;
  Counter& disk_writes_failed_;
  Gauge& slots_used_;
  Gauge& pages_used_;
  ExecutorStats seen_;
  CopyStats seen_copies_;
  uint64_t seen_saturated_f16_ = 0;
  uint64_t seen_saturated_e4m3_ = 0;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_WORKER_METRICS_H_
