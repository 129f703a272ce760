#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/cli/commands.h"
#include "services/cli/plan.h"
#include "shard_worker/checkpoint/weights.h"

namespace quartet::cli {
namespace {

constexpr int kMaxGpus = 8;

struct PlanFlags {
  std::string model;
  int gpus = 0;            // 0 = those of this machine; with --gpu-memory 4
  std::string gpu_memory;  // empty = what the cards of this machine have
  std::string kv_dtype = "fp8_e4m3";
  int64_t max_model_len = 0;  // 0 = 131072, or where the model ends if that is less
  int64_t reserve_mib = 250;
  GpuPlanOptions options;
  bool json = false;
};

struct Cards {
  int count = 0;
  int64_t bytes = 0;  // usable, of the smallest
};

// Asks the driver, if there is one; makes no context and takes no memory. No cards is not an error.
Cards FindCards() {
  Cards cards;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return cards;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto total = reinterpret_cast<int (*)(size_t*, int)>(dlsym(driver, "cuDeviceTotalMem_v2"));
  int found = 0;
  if (init == nullptr || count == nullptr || get == nullptr || total == nullptr || init(0) != 0 ||
      count(&found) != 0) {
    return cards;
  }
  for (int i = 0; i < found; ++i) {
    int device = 0;
    size_t bytes = 0;
    if (get(&device, i) != 0 || total(&bytes, device) != 0) continue;
    const auto size = static_cast<int64_t>(bytes);
    cards.bytes = cards.count == 0 ? size : std::min(cards.bytes, size);
    ++cards.count;
  }
  return cards;
}

absl::StatusOr<Cards> ChooseCards(const PlanFlags& flags) {
  Cards cards;
  if (!flags.gpu_memory.empty()) {
    const absl::StatusOr<int64_t> nominal = ParseMemorySize(flags.gpu_memory);
    if (!nominal.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--gpu-memory: ", nominal.status().message()));
    }
    cards.bytes = UsableCardBytes(*nominal);
    cards.count = flags.gpus > 0 ? flags.gpus : 4;
    return cards;
  }
  cards = FindCards();
  if (cards.count == 0) {
    return absl::NotFoundError(
        "this machine shows no GPU; say what to plan for, such as --gpu-memory 32GiB --gpus 4");
  }
  if (flags.gpus > cards.count) {
    return absl::NotFoundError(absl::StrCat("--gpus is ", flags.gpus, ", but this machine has ",
                                            cards.count,
                                            "; to plan for others say --gpu-memory 32GiB"));
  }
  if (flags.gpus > 0) cards.count = flags.gpus;
  return cards;
}

absl::StatusOr<GpuPlan> PlanFor(const Checkpoint& checkpoint, const ModelConfig& config, int gpus,
                                const GpuPlanOptions& options) {
  const absl::StatusOr<ModelWeights> weights = ResolveWeights(checkpoint, config, gpus, 0);
  if (!weights.ok()) return weights.status();
  return PlanGpu(config, gpus, CountGpuWeights(checkpoint, *weights), options);
}

absl::Status Plan(const PlanFlags& flags, bool* serves) {
  const absl::StatusOr<Cards> cards = ChooseCards(flags);
  if (!cards.ok()) return cards.status();
  const absl::StatusOr<KvDtype> kv_dtype = ParseKvDtype(flags.kv_dtype);
  if (!kv_dtype.ok()) return kv_dtype.status();
  GpuPlanOptions options = flags.options;
  options.card_bytes = cards->bytes;
  options.kv_dtype = *kv_dtype;
  options.reserve_bytes = flags.reserve_mib << 20;

  const absl::StatusOr<ModelConfig> config = ReadModelConfig(flags.model);
  if (!config.ok()) return config.status();
  options.max_model_len = flags.max_model_len != 0
                              ? flags.max_model_len
                              : std::min(options.max_model_len, config->max_position_embeddings);
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(flags.model);
  if (!checkpoint.ok()) return checkpoint.status();
  const absl::StatusOr<GpuPlan> plan = PlanFor(**checkpoint, *config, cards->count, options);
  if (!plan.ok()) return plan.status();

  std::vector<GpuPlanChange> changes = ChangesThatFit(*config, *plan);
  if (plan->verdict != GpuPlan::Verdict::kFits) {
    for (int gpus = 2 * cards->count; gpus <= kMaxGpus; gpus *= 2) {
      const absl::StatusOr<GpuPlan> larger = PlanFor(**checkpoint, *config, gpus, options);
      if (!larger.ok() || larger->verdict != GpuPlan::Verdict::kFits) continue;
      changes.push_back({"--gpus", absl::StrCat(gpus)});
      break;
    }
  }
  std::cout << (flags.json ? GpuPlanJson(flags.model, *plan, changes)
                           : FormatGpuPlan(flags.model, *plan, changes));
  *serves = plan->verdict != GpuPlan::Verdict::kDoesNotFit;
  return absl::OkStatus();
}

int RunPlan(const PlanFlags& flags) {
  bool serves = false;
  const absl::Status status = Plan(flags, &serves);
  if (!status.ok()) std::cerr << "quartet: " << status.message() << "\n";
  return status.ok() && serves ? 0 : 1;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = app.add_subcommand(
      "plan",
      "Say where the memory of each GPU would go, from headers alone; exit code 1 if it does not "
      "fit");
  const auto add = [plan](const char* name, auto& value, const char* help) {
    std::string env = "QUARTET_";
    for (const char* c = name + 2; *c != '\0'; ++c) {
      env.push_back(*c == '-' ? '_' : static_cast<char>(std::toupper(*c)));
    }
    return plan->add_option(name, value, help)->envname(env);
  };
  add("--model", flags->model, "The checkpoint's folder")->required();
  add("--gpus", flags->gpus, "Number of GPUs: 1, 2, 4 or 8; default those of this machine")
      ->check(CLI::IsMember({1, 2, 4, 8}));
  add("--gpu-memory", flags->gpu_memory,
      "Nominal memory of one GPU, such as 32GiB, for cards that are not in this machine");
  add("--max-model-len", flags->max_model_len,
      "Longest context, in tokens; default 131072, or where the model ends");
  add("--max-num-seqs", flags->options.max_num_seqs, "Sequences that run at once")
      ->capture_default_str();
  add("--max-num-batched-tokens", flags->options.max_num_batched_tokens, "Tokens in one step")
      ->capture_default_str();
  add("--num-speculative-tokens", flags->options.draft_tokens, "Drafts that one step verifies")
      ->capture_default_str();
  add("--kv-dtype", flags->kv_dtype, "Type of the stored latents: fp32, fp16 or fp8_e4m3")
      ->capture_default_str();
  add("--gpu-memory-reserve-mib", flags->reserve_mib, "What stays free on each GPU, in MiB")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  plan->add_flag("--json", flags->json, "One JSON object, all sizes in bytes");
  plan->callback([flags, chosen] { *chosen = [flags] { return RunPlan(*flags); }; });
}

}  // namespace quartet::cli
