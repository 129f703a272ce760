#include "services/cli/plan.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quartet::cli {
namespace {

namespace json = boost::json;

double Mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// One line of the table; parts of a part stand further in.
struct Row {
  int depth = 0;
  std::string part;
  std::string detail;
  int64_t bytes = 0;
};

std::vector<Row> Rows(const GpuPlan& plan) {
  const GpuPlanOptions& options = plan.options;
  const GpuWeightBytes& weights = plan.weights;
  return {
      {0, "card", "usable", options.card_bytes},
      {1, "context, modules, driver", "", plan.context_bytes},
      {1, "communicator, peer buffers", "", plan.communicator_bytes},
      {1, "weights", "", weights.total()},
      {2, "routed experts", "", weights.routed_experts},
      {2, "MTP experts", "", weights.mtp_experts},
      {2, "others, divided", absl::StrCat("1/", plan.tp, " of each"), weights.sharded},
      {2, "others, replicated", "whole on each GPU", weights.replicated},
      {2, "vision tower", "", weights.vision},
      {1, "activations", absl::StrCat(options.max_num_batched_tokens, " tokens a step"),
       plan.activation_bytes},
      {1, "graphs", "", plan.graph_bytes},
      {1, "reserve", "", options.reserve_bytes},
      {0, "left for pools", "", plan.left_bytes()},
      {1, "live states",
       absl::StrFormat("%d x %.1f MiB (state %.1f, verify ring %.1f, sampling %.1f)",
                       options.max_num_seqs, Mib(plan.live.total()), Mib(plan.live.state),
                       Mib(plan.live.verify_ring), Mib(plan.live.sampling)),
       options.max_num_seqs * plan.live.total()},
      {1, "paged data",
       absl::StrFormat("%d x %.2f MiB, %d tokens in %s", plan.pages, Mib(plan.page_bytes),
                       plan.cached_tokens(), std::string(ToString(options.kv_dtype))),
       plan.pages * plan.page_bytes},
      {1, "snapshots", absl::StrFormat("%d x %.1f MiB", plan.snapshots, Mib(plan.snapshot_bytes)),
       plan.snapshots * plan.snapshot_bytes},
      {1, "unused", "", plan.unused_bytes},
      {0, "pinned host memory", "beside the card", plan.pinned_host_bytes},
  };
}

std::string Contexts(const GpuPlanOptions& options) {
  return absl::StrFormat("%d %s of %d tokens", options.max_num_seqs,
                         options.max_num_seqs == 1 ? "sequence" : "sequences",
                         options.max_model_len);
}

std::string VerdictText(const GpuPlan& plan, const std::vector<GpuPlanChange>& changes) {
  std::string text;
  switch (plan.verdict) {
    case GpuPlan::Verdict::kFits:
      return absl::StrFormat("fits: %s at the same time, and %d snapshots\n",
                             Contexts(plan.options), plan.snapshots);
    case GpuPlan::Verdict::kShared:
      text = absl::StrFormat(
          "fits shared: the pages hold %d tokens for all sequences together; %s at the same time "
          "would need %.1f MiB more on each GPU\n",
          plan.cached_tokens(), Contexts(plan.options), Mib(plan.missing_bytes));
      break;
    case GpuPlan::Verdict::kDoesNotFit:
      text = absl::StrFormat(
          "does not fit: for %s and %d snapshots %.1f MiB are missing on each GPU, and not even "
          "one such sequence fits\n",
          Contexts(plan.options), kMinSnapshots, Mib(plan.missing_bytes));
      break;
  }
  if (changes.empty()) {
    return text + "no single flag makes it fit; more and smaller changes together may\n";
  }
  text += "each of these alone makes it fit:\n";
  for (const GpuPlanChange& change : changes) {
    text += absl::StrCat("  ", change.flag, " ", change.value, "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<int64_t> ParseMemorySize(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  double scale = 0;
  if (unit == "GiB") scale = 1 << 30;
  if (unit == "MiB") scale = 1 << 20;
  if (unit.empty()) scale = 1;
  const double bytes = value * scale;
  if (error != std::errc() || !(bytes >= 1) || bytes > 1e15) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", std::string(text), "\" is no size of memory, expected a number with GiB or MiB"));
  }
  return static_cast<int64_t>(bytes);
}

std::string FormatGpuPlan(std::string_view model, const GpuPlan& plan,
                          const std::vector<GpuPlanChange>& changes) {
  std::string text = absl::StrFormat("%s on %d GPU%s, per GPU\n\n", std::string(model), plan.tp,
                                     plan.tp == 1 ? "" : "s");
  std::vector<Row> rows = Rows(plan);
  size_t part_width = 0;
  size_t detail_width = 0;
  for (Row& row : rows) {
    row.part.insert(0, static_cast<size_t>(2 * row.depth), ' ');
    part_width = std::max(part_width, row.part.size());
    detail_width = std::max(detail_width, row.detail.size());
  }
  const auto line = [&](const std::string& part, const std::string& detail,
                        const std::string& size) {
    text += absl::StrFormat("%-*s  %-*s  %9s\n", static_cast<int>(part_width), part,
                            static_cast<int>(detail_width), detail, size);
  };
  line("", "", "MiB");
  for (const Row& row : rows) line(row.part, row.detail, absl::StrFormat("%.1f", Mib(row.bytes)));
  return text + "\n" + VerdictText(plan, changes);
}

std::string GpuPlanJson(std::string_view model, const GpuPlan& plan,
                        const std::vector<GpuPlanChange>& changes) {
  const auto text = [](std::string_view view) { return json::string(view.data(), view.size()); };
  const GpuPlanOptions& options = plan.options;
  json::object weights;
  weights["routed_experts"] = plan.weights.routed_experts;
  weights["mtp_experts"] = plan.weights.mtp_experts;
  weights["divided"] = plan.weights.sharded;
  weights["replicated"] = plan.weights.replicated;
  weights["vision"] = plan.weights.vision;
  weights["total"] = plan.weights.total();

  json::object fixed;
  fixed["context"] = plan.context_bytes;
  fixed["communicator"] = plan.communicator_bytes;
  fixed["weights"] = std::move(weights);
  fixed["activations"] = plan.activation_bytes;
  fixed["graphs"] = plan.graph_bytes;
  fixed["reserve"] = options.reserve_bytes;
  fixed["total"] = plan.fixed_bytes();

  json::object pools;
  pools["left_bytes"] = plan.left_bytes();
  pools["live_states"] = options.max_num_seqs;
  pools["live_state_bytes"] = plan.live.total();
  pools["pages"] = plan.pages;
  pools["pages_wanted"] = plan.pages_wanted;
  pools["page_bytes"] = plan.page_bytes;
  pools["page_tokens"] = kTokensPerPage;
  pools["snapshots"] = plan.snapshots;
  pools["snapshot_bytes"] = plan.snapshot_bytes;
  pools["unused_bytes"] = plan.unused_bytes;
  pools["missing_bytes"] = plan.missing_bytes;

  json::array flags;
  for (const GpuPlanChange& change : changes) {
    json::object entry;
    entry["flag"] = change.flag;
    entry["value"] = change.value;
    flags.push_back(std::move(entry));
  }

  json::object root;
  root["model"] = text(model);
  root["gpus"] = plan.tp;
  root["max_model_len"] = options.max_model_len;
  root["max_num_seqs"] = options.max_num_seqs;
  root["max_num_batched_tokens"] = options.max_num_batched_tokens;
  root["num_speculative_tokens"] = options.draft_tokens;
  root["kv_dtype"] = text(ToString(options.kv_dtype));
  root["verdict"] = text(ToString(plan.verdict));
  root["card_bytes"] = options.card_bytes;
  root["fixed_bytes"] = std::move(fixed);
  root["pools"] = std::move(pools);
  root["pinned_host_bytes"] = plan.pinned_host_bytes;
  root["changes"] = std::move(flags);
  return json::serialize(root) + "\n";
}

}  // namespace quartet::cli
