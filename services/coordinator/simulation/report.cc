#include "services/coordinator/simulation/report.h"

#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quartet::simulation {

void Totals::Add(const Result& result) {
  ++runs;
  time_us += result.time_us;
  tally.Add(result.tally);
  for (int i = 0; i < kFaultKinds; ++i) faults[i] += result.faults[i];
  for (int i = 0; i < kTierFaultKinds; ++i) tier_faults[i] += result.tier_faults[i];
}

std::string Summary(const Totals& totals) {
  const Tally& t = totals.tally;
  std::string text;
  const auto line = [&text](const char* name, uint64_t value, const std::string& parts) {
    absl::StrAppendFormat(&text, "%-10s %12d  %s\n", name, value, parts);
  };
  line("runs", totals.runs,
       absl::StrFormat("%.1f s of virtual time", static_cast<double>(totals.time_us) / 1e6));
  line("steps", t.steps,
       absl::StrCat(t.rows, " rows of ", t.row_tokens, " tokens; ", t.void_rows,
                    " rows void because their request had ended; ", t.steps_behind_others,
                    " steps planned while another ran"));
  line(
      "requests", t.accepted,
      absl::StrCat("and ", t.refused, " refused, ", t.refused_late, " of them for their deadline"));
  line("finished", std::accumulate(std::begin(t.finished), std::end(t.finished), uint64_t{0}),
       absl::StrCat("end token ", t.finished[0], ", stop id ", t.finished[1], ", length ",
                    t.finished[2], ", truncated ", t.finished[3]));
  line("cancelled", t.cancelled_queued + t.cancelled_prefill + t.cancelled_decode,
       absl::StrCat("queued ", t.cancelled_queued, ", prefill ", t.cancelled_prefill, ", decode ",
                    t.cancelled_decode));
  line("failed", t.failed_rows + t.failed_engine,
       absl::StrCat("no finite logit ", t.failed_rows, ", engine lost ", t.failed_engine));
  line("expired", t.expired, "at a deadline");
  line("tokens", t.tokens, absl::StrCat("told; ", t.pauses, " pauses of clients that read slowly"));
  line("preempted", t.preemptions,
       absl::StrCat("and ", t.recomputed_tokens, " of their tokens computed again"));
  uint64_t windows = 0;
  for (const uint64_t n : t.windows) windows += n;
  line("windows", windows,
       absl::StrCat("drafts accepted: none ", t.windows[0], ", one ", t.windows[1], ", two ",
                    t.windows[2], ", three ", t.windows[3], "; ", t.cut_windows,
                    " with an end inside"));
  line("resumed", t.resumed,
       absl::StrCat("behind ", t.resumed_tokens, " cached tokens, ", t.resumed_in_answers,
                    " of them behind somebody's answer"));
  line(
      "snapshots", t.exports + t.answer_exports + t.last_exports,
      absl::StrCat("of prompts ", t.exports, " (", t.inner_exports, " inside of rows), of answers ",
                   t.answer_exports, ", after their end ", t.last_exports));
  using coordinator::CacheTier;
  const auto copies_to = [&t](CacheTier tier) { return t.copies_to[static_cast<int>(tier)]; };
  line("copies", std::accumulate(std::begin(t.copies_to), std::end(t.copies_to), uint64_t{0}),
       absl::StrCat("to the device ", copies_to(CacheTier::kDevice), ", host ",
                    copies_to(CacheTier::kHost), ", disk ", copies_to(CacheTier::kDisk),
                    "; missing ", t.copies_missing, ", damaged ", t.copies_checksum));
  line("restored", t.resumed_restored,
       absl::StrCat("of the resumed, ", t.resumed_adopted, " from before a restart; ", t.adopted,
                    " objects found on disk"));
  const auto fault_line = [&line](const char* name, const auto& counts, auto kind_name) {
    std::string parts;
    uint64_t sum = 0;
    for (size_t i = 1; i < std::size(counts); ++i) {
      sum += counts[i];
      absl::StrAppend(&parts, i == 1 ? "" : ", ", kind_name(i), " ", counts[i]);
    }
    line(name, sum, parts);
  };
  fault_line("faults", totals.faults, [](size_t i) { return Name(static_cast<Fault>(i)); });
  fault_line("of tiers", totals.tier_faults,
             [](size_t i) { return Name(static_cast<TierFault>(i)); });
  line("engines", t.engines, "");
  return text;
}

std::string DescribeFailure(uint64_t seed, const Result& result) {
  std::string text;
  for (const std::string& line : result.trace_tail) absl::StrAppend(&text, line, "\n");
  return absl::StrCat(text, "seed ", seed, ", step ", result.violation_step, ": ", result.violation,
                      "\n");
}

}  // namespace quartet::simulation
