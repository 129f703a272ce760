// Speed and memory of a whole model with random weights on one GPU: decode steps at several context
// lengths, verify windows without and with drafts behind them, and a prefill chunk, beside the
// bytes that each must read. What each part takes of the GPU's memory stands beside the plan; more
// than 2 % off is a failure.
//   quartet-full-size-bench --model models/glm-5.3-flash
//   quartet-full-size-bench --model models/glm-5.3-flash --memory-only --ranks 4 --prefill 4096
//   --seqs 4

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moe.h"
#include "shard_worker/bench/memory_table.h"
#include "shard_worker/checkpoint/gpu_plan.h"
#include "shard_worker/checkpoint/synthetic.h"
#include "shard_worker/model/model.h"

namespace quartet {
namespace {

using bench::CheckOk;

constexpr int kContexts[] = {1024, 8192, 131072};
constexpr int kDraftTokens = 3;
constexpr int kWindows[] = {1, 1 + kDraftTokens};
constexpr int kSteps = 20;
constexpr double kMemoryShare = 0.02;

struct Options {
  std::string model;
  int ranks = 1;
  int max_context = 131072 + 512;
  int seqs = 2;
  int prefill = 8192;
  std::string kv_dtype = "fp8_e4m3";
  bool memory_only = false;
};

// Rank 0 of a group whose other ranks are not there: it measures what one of several ranks holds,
// with sums that are its own part only.
class AbsentPeers final : public Collectives {
 public:
  explicit AbsentPeers(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  absl::Status AllReduceSum(float*, size_t) override { return absl::OkStatus(); }
  absl::Status AllGather(const void*, size_t, void*) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Check() override { return absl::OkStatus(); }
  void Abort(const std::string&) override {}

 private:
  const int size_;
};

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

double Elements(const LinearView& linear) {
  return static_cast<double>(InDim(linear)) * static_cast<double>(OutDim(linear));
}

double Exl3Bytes(const LinearView& linear) {
  const auto* view = std::get_if<Exl3View>(&linear);
  return view == nullptr ? 2 * Elements(linear)
                         : Elements(linear) * view->bits / 8 + 2.0 * (view->in + view->out);
}

// Bytes as they lie on the GPU.
template <typename... Linears>
double DenseBytes(const Linears&... linears) {
  return 2 * (Elements(linears) + ...);
}
double MlpBytes(const MlpWeights& m) {
  return DenseBytes(m.gate, m.up, m.down);
}
double DsaBytes(const ModelConfig& config, const DsaWeights& dsa) {
  return DenseBytes(dsa.q_a, dsa.q_b, dsa.kv_a, dsa.kv_b, dsa.o_proj, dsa.indexer.wq_b,
                    dsa.indexer.wk, dsa.indexer.weights_proj) +
         2.0 * config.index_head_dim * config.hidden;
}
// What every row reads of a mixture of experts, and what it reads of one expert.
double SharedBytes(const ModelConfig& config, const MoeWeights& moe) {
  return MlpBytes(moe.shared) + 2.0 * config.experts * config.hidden;
}
double ExpertBytes(const MoeWeights& moe) {
  const MlpWeights& expert = moe.experts.front();
  return Exl3Bytes(expert.gate) + Exl3Bytes(expert.up) + Exl3Bytes(expert.down);
}

// Bytes of the weights that one step reads.
struct StepBytes {
  double dense = 0;
  double experts = 0;  // one of each layer
  double draft_dense = 0;
  double draft_expert = 0;
  double head = 0;
};

StepBytes CountBytes(const ModelConfig& config, const ModelWeights& weights) {
  StepBytes bytes;
  for (const LayerWeights& layer : weights.layers) {
    bytes.dense += 2.0 * 2 * config.hc_map_rows() * config.hc_mult * config.hidden;
    if (const auto* kda = std::get_if<KdaWeights>(&layer.attention)) {
      bytes.dense += DenseBytes(kda->q_proj, kda->k_proj, kda->v_proj, kda->f_a, kda->f_b, kda->g_a,
                                kda->g_b, kda->b_proj, kda->o_proj);
    } else {
      bytes.dense += DsaBytes(config, std::get<DsaWeights>(layer.attention));
    }
    if (const auto* dense = std::get_if<MlpWeights>(&layer.mlp)) {
      bytes.dense += MlpBytes(*dense);
    } else {
      const auto& moe = std::get<MoeWeights>(layer.mlp);
      bytes.dense += SharedBytes(config, moe);
      bytes.experts += ExpertBytes(moe);
    }
  }
  bytes.head = DenseBytes(weights.head);
  if (weights.mtp) {
    bytes.draft_dense = DenseBytes(weights.mtp->eh_proj) +
                        DsaBytes(config, weights.mtp->attention) +
                        SharedBytes(config, weights.mtp->moe);
    bytes.draft_expert = ExpertBytes(weights.mtp->moe);
  }
  return bytes;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        device_(bench::OpenBenchDevice()),
        config_(CheckOk(ReadModelConfig(options.model))),
        collectives_(options.ranks) {
    memory_.Measure(kContext);
  }

  void Load() {
    const auto begin = std::chrono::steady_clock::now();
    const auto checkpoint = CheckOk(MakeSyntheticCheckpoint(config_, options_.model));
    std::printf("random weights made in %.1f s\n", Seconds(begin));
    const ModelWeights weights = CheckOk(ResolveWeights(*checkpoint, config_, options_.ranks, 0));
    bytes_ = CountBytes(config_, weights);
    Plan(CountGpuWeights(*checkpoint, weights));
    const int pages = CeilPages(options_.max_context);
    backend_ = CheckOk(cuda::MakeCudaBackend(
        *device_, {.max_rows = options_.prefill, .max_segments = 8, .max_pages = 8 * pages},
        {.hook = &hook_}));
    DrawExperts();
    memory_.Measure(kContext);
    const auto load = std::chrono::steady_clock::now();
    int64_t stored = 0;
    ModelOps ops = CheckOk(LoadModelOps(config_, weights, *backend_, [&](const LoadStep& step) {
      stored = step.total_bytes;
      ShowLoading(step);
      return absl::OkStatus();
    }));
    const double seconds = Seconds(load);
    std::printf("loaded %.1f GB in %.1f s (%.2f GB/s)\n", stored / 1e9, seconds,
                stored / 1e9 / seconds);
    memory_.Measure(kWeights);
    pools_ = CheckOk(Pools::Create(config_, options_.ranks,
                                   {.slots = options_.seqs,
                                    .pages = options_.seqs * pages,
                                    .draft_tokens = kDraftTokens,
                                    .kv_dtype = CheckOk(ParseKvDtype(options_.kv_dtype))},
                                   *backend_));
    memory_.Measure(kPools);
    model_ =
        CheckOk(Model::Create(config_, std::move(ops), *backend_, *pools_, collectives_,
                              {.max_rows = options_.prefill, .max_context = options_.max_context}));
    memory_.Measure(kActivations);
    pages_.resize(pages);
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  // In one line on a terminal, elsewhere a line for each tenth.
  void ShowLoading(const LoadStep& step) {
    const bool terminal = isatty(STDERR_FILENO) == 1;
    const int64_t tenth = 10 * step.done_bytes / std::max<int64_t>(1, step.total_bytes);
    const bool done = step.done_bytes == step.total_bytes;
    if (!terminal && tenth == tenths_loaded_) return;
    tenths_loaded_ = tenth;
    std::fprintf(stderr, "%sloading %5.1f of %.1f GB%s", terminal ? "\r" : "",
                 step.done_bytes / 1e9, step.total_bytes / 1e9, terminal && !done ? "" : "\n");
  }

  // Records what a worker records, and runs one chunk: only then does the driver have all that it
  // wants. Whether the memory is as planned.
  bool CheckMemory() {
    for (const int window : kWindows) {
      const int lengths[] = {window};
      CheckOk(model_->RecordTrunk(lengths));
    }
    for (int rows = 2; rows <= options_.seqs; ++rows) {
      CheckOk(model_->RecordTrunk(std::vector<int>(rows, 1)));
    }
    CheckOk(device_->Synchronize());
    memory_.Measure(kGraphs);
    RunChunk(0);
    CheckOk(device_->Synchronize());
    memory_.Measure(kContext);
    return memory_.Print(kMemoryShare);
  }

  void Run() {
    const bench::Ceilings ceilings = bench::MeasureCeilings(*device_);
    bench::PrintHeading(*device_, ceilings);
    for (const int window : kWindows) {
      for (const int context : kContexts) Decode(window, context, 0, ceilings);
    }
    if (model_->has_mtp()) {
      for (const int context : kContexts) Decode(1 + kDraftTokens, context, kDraftTokens, ceilings);
    }
    for (const int offset : {0, 120 * 1024}) Prefill(offset);
  }

 private:
  static constexpr char kContext[] = "context and kernels";
  static constexpr char kWeights[] = "weights";
  static constexpr char kPools[] = "live states and pages";
  static constexpr char kActivations[] = "step buffers";
  static constexpr char kGraphs[] = "graphs";

  static int CeilPages(int tokens) {
    return (tokens + static_cast<int>(kTokensPerPage) - 1) / static_cast<int>(kTokensPerPage);
  }

  // What `quartet plan` says for this setting, without what it keeps free and what comes later:
  // snapshots, the vision tower.
  void Plan(const GpuWeightBytes& weights) {
    const GpuPlan plan =
        CheckOk(PlanGpu(config_, options_.ranks, weights,
                        {.card_bytes = static_cast<int64_t>(device_->info().memory_bytes),
                         .max_model_len = options_.max_context,
                         .max_num_seqs = options_.seqs,
                         .max_num_batched_tokens = options_.prefill,
                         .draft_tokens = kDraftTokens,
                         .kv_dtype = CheckOk(ParseKvDtype(options_.kv_dtype))}));
    memory_.Plan(kContext, plan.context_bytes);
    memory_.Plan(kWeights, weights.total() - weights.vision);
    memory_.Plan(kPools, options_.seqs * plan.live.total() + plan.pages_wanted * plan.page_bytes);
    memory_.Plan(kActivations, plan.activation_bytes);
    memory_.Plan(kGraphs, plan.graph_bytes);
  }

  // Layers with random weights tend to choose the same experts, so every row's are drawn uniformly.
  void DrawExperts() {
    std::mt19937 bits(1);
    for (int row = 0; row < options_.prefill; ++row) {
      std::set<int32_t> chosen;
      while (chosen.size() < static_cast<size_t>(config_.experts_per_token)) {
        chosen.insert(static_cast<int32_t>(bits() % config_.experts));
      }
      experts_.insert(experts_.end(), chosen.begin(), chosen.end());
    }
    forced_ = CheckOk(device_->Allocate(experts_.size() * sizeof(int32_t), "forced experts"));
    CheckOk(device_->CopyIn(forced_.data(), experts_.data(), experts_.size() * sizeof(int32_t)));
    hook_.forced_experts = forced_.as<int32_t>();
  }

  int DistinctExperts(int rows) const {
    return static_cast<int>(
        std::set<int32_t>(experts_.begin(), experts_.begin() + rows * config_.experts_per_token)
            .size());
  }

  void PrintHidden(int rows) {
    std::vector<float> h(rows * config_.hidden);
    CheckOk(backend_->CopyOut(h.data(), model_->activations().h, h.size() * sizeof(float)));
    double squares = 0;
    int64_t nans = 0;
    for (const float v : h) {
      squares += static_cast<double>(v) * v;
      nans += std::isnan(v);
    }
    std::printf("  %d different experts a layer; hidden rows: root mean square %.3f, %lld NaN\n",
                DistinctExperts(rows), std::sqrt(squares / static_cast<double>(h.size())),
                static_cast<long long>(nans));
  }

  ops::Segment Segment(int rows, int position) const {
    return {.row_begin = 0, .rows = rows, .slot = 0, .position = position, .pages = pages_};
  }

  // Makes `drafts` drafts behind a window whose rows are all accepted, as the executor does: one
  // pass of the draft layer over the window, then one for each draft but the last, and the head for
  // every draft. Each has to be known before the next pass begins.
  void Draft(int window, int context, int drafts) {
    Activations& a = model_->activations();
    const size_t row_bytes = config_.hidden * sizeof(float);
    std::vector<int32_t> next(window);
    for (int r = 0; r < window; ++r) next[r] = (r * 104729) % 150000;
    ops::Segment segment = Segment(window, context);
    backend_->Copy(a.mtp_h, a.h, window * row_bytes);
    for (int i = 0;; ++i) {
      CheckOk(model_->Draft(next, {&segment, 1}));
      const int last = segment.rows - 1;
      const ops::SampleParams greedy;
      ops::SampleResult drawn;
      CheckOk(model_->Draw(a.mtp_o, {&last, 1}, {&greedy, 1}, {&drawn, 1}));
      if (i + 1 == drafts) return;
      backend_->Copy(a.mtp_h, a.mtp_o + last * config_.hidden, row_bytes);
      next.assign(1, std::max(drawn.token, 0));
      segment = Segment(1, segment.position + segment.rows);
    }
  }

  // Steps of `window` rows that follow `context` tokens, each with so many drafts behind it. Their
  // caches hold whatever the pools hold, zeros at first, so that all scores of the indexer are
  // equal.
  void Decode(int window, int context, int drafts, const bench::Ceilings& ceilings) {
    std::vector<int32_t> ids(window);
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        for (int r = 0; r < window; ++r) ids[r] = (i * 7919 + r * 104729) % 150000;
        const ops::Segment segments[] = {Segment(window, context)};
        CheckOk(model_->Trunk(ids, segments));
        if (drafts > 0) Draft(window, context, drafts);
      }
    };
    steps(3);
    CheckOk(device_->Synchronize());
    const double ms = CheckOk(device_->Milliseconds([&] { steps(kSteps); })) / kSteps;
    const double state =
        2.0 * pools_->recurrent_floats() * sizeof(float) * config_.CountLayers(AttentionKind::kKda);
    const double keys =
        static_cast<double>(context) / config_.index_kpool * config_.index_head_dim * 2;
    double total = bytes_.dense + DistinctExperts(window) * bytes_.experts + state +
                   keys * config_.CountLayers(AttentionKind::kDsa);
    for (int i = 0; i < drafts; ++i) {
      total += bytes_.draft_dense + DistinctExperts(i == 0 ? window : 1) * bytes_.draft_expert +
               keys + bytes_.head;
    }
    const std::string what = absl::StrFormat(
        "decode, %d row%s at %d tokens%s (%.2f GB)", window, window == 1 ? "" : "s", context,
        drafts > 0 ? absl::StrFormat(", %d drafts", drafts) : "", total / 1e9);
    bench::PrintLine(what, ms * 1000, total, ceilings, total / ceilings.read_gbs / 1e3);
    PrintHidden(window);
  }

  void RunChunk(int offset) {
    std::vector<int32_t> ids(options_.prefill);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % 150000);
    const ops::Segment segments[] = {Segment(options_.prefill, offset)};
    CheckOk(model_->Trunk(ids, segments));
  }

  void Prefill(int offset) {
    double best = 0;
    for (int i = 0; i < 2; ++i) {
      const double ms = CheckOk(device_->Milliseconds([&] { RunChunk(offset); }));
      best = i == 0 ? ms : std::min(best, ms);
    }
    std::printf("prefill of %d tokens at offset %d: %.1f ms, %.0f tokens/s\n", options_.prefill,
                offset, best, options_.prefill / best * 1000);
    PrintHidden(options_.prefill);
  }

  const Options options_;
  bench::MemoryTable memory_;  // begins before there is a context
  std::unique_ptr<cuda::Device> device_;
  const ModelConfig config_;
  StepBytes bytes_;
  cuda::MoeTestHook hook_;
  std::vector<int32_t> experts_;  // [prefill, top_k]
  cuda::Buffer forced_;           // the same on the device
  std::unique_ptr<cuda::CudaBackend> backend_;
  AbsentPeers collectives_;
  std::unique_ptr<Pools> pools_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> pages_;
  int64_t tenths_loaded_ = -1;  // shown
};

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  CLI::App app("Speed of a whole model with random weights on one GPU", "quartet-full-size-bench");
  quartet::Options options;
  app.add_option("--model", options.model, "folder with config.json")->required();
  app.add_option("--ranks", options.ranks, "measures rank 0 of so many; only with --memory-only")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--max-context", options.max_context, "tokens")->capture_default_str();
  app.add_option("--seqs", options.seqs, "live sequences of that length")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--prefill", options.prefill, "tokens of a prefill chunk")->capture_default_str();
  app.add_option("--kv-dtype", options.kv_dtype, "fp32, fp16 or fp8_e4m3")->capture_default_str();
  app.add_flag("--memory-only", options.memory_only, "only compares memory with the plan");
  CLI11_PARSE(app, argc, argv);
  if (options.ranks > 1 && !options.memory_only) {
    std::fprintf(stderr, "--ranks goes with --memory-only\n");
    return 1;
  }
  quartet::Bench bench(options);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bench.Load();
  const bool as_planned = bench.CheckMemory();
  if (!as_planned) std::printf("memory differs by more than 2 %% from the plan\n");
  if (!options.memory_only) bench.Run();
  return as_planned ? 0 : 1;
}
