// How long the coordinator's core takes for a step: PlanStep and OnStepResult, with many running
// sequences and a full prefix cache. Workers are a function that answers at once, which is not
// timed. The invariants that the core asserts in every step are part of it, as they are in
// production.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/coordinator/core/core.h"

namespace quartet::coordinator {
namespace {

constexpr uint32_t kVocabulary = 1000;

// Of this thread: what else the machine does meanwhile does not count.
double CpuMicros() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

struct Flags {
  uint32_t sequences = 64;
  uint32_t cached_units = 100000;
  uint32_t context = 131072;
  uint32_t steps = 20000;
  uint32_t steps_in_flight = 2;
};

// Microseconds of each step of one kind.
struct Samples {
  std::vector<double> plan_us;
  std::vector<double> result_us;
  std::vector<double> sum_us;
};

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

void PrintRow(const std::string& name, const Samples& samples) {
  std::printf("%-44s %7zu", name.c_str(), samples.sum_us.size());
  for (const auto* values : {&samples.plan_us, &samples.result_us, &samples.sum_us}) {
    std::printf("  %8.1f %8.1f", Percentile(*values, 0.5), Percentile(*values, 0.99));
  }
  std::printf("\n");
}

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "quartet-planner-bench: %s\n", message.c_str());
  std::exit(1);
}

CoreConfig MakeConfig(const Flags& flags) {
  CoreConfig config;
  config.vocab_size = kVocabulary;
  config.max_model_len = flags.context;
  config.slots = flags.sequences;
  // The cache, what the running sequences may grow to while it is timed, and a prompt beside them.
  config.pages =
      flags.cached_units + flags.sequences * (flags.steps / 256 + 8) + 2 * (flags.context / 256);
  config.max_num_batched_tokens = 4096;
  config.steps_in_flight = flags.steps_in_flight;
  config.snapshots = 32 * flags.sequences;
  config.page_bytes = 1674240;
  config.snapshot_bytes = 36909875;
  config.max_queued_requests = 2 * flags.sequences;
  config.max_queued_tokens = uint64_t{1} << 40;
  return config;
}

// A prompt that has nothing in common with those of other numbers, and the names of its units.
Request MakeRequest(uint64_t number, uint32_t prompt_tokens, uint32_t max_tokens) {
  Request request;
  request.max_tokens = max_tokens;
  request.cache_root = {1, 1};
  request.prompt_ids.reserve(prompt_tokens);
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    request.prompt_ids.push_back(
        static_cast<int32_t>((number * 7919 + uint64_t{i} * 31 + i / 256) % kVocabulary));
  }
  for (uint32_t unit = 0; unit < prompt_tokens / 256; ++unit) {
    request.unit_keys.push_back({number + 2, unit});
  }
  return request;
}

class Planner {
 public:
  explicit Planner(const CoreConfig& config) : core_(config) {}

  uint64_t Submit(Request request) {
    const SubmitOutcome outcome = core_.OnSubmit(std::move(request), now_);
    if (outcome.kind != SubmitOutcome::Kind::kAccepted) Die(outcome.message);
    return outcome.id;
  }

  // False if there was nothing to do. `samples`: where the times go; null = nowhere.
  bool Step(Samples* samples) {
    now_ += 10000;
    const double begin = CpuMicros();
    const std::optional<StepPlan> plan = core_.PlanStep(now_);
    const double planned = CpuMicros();
    if (!plan.has_value() && answers_.empty()) return false;
    if (plan.has_value() && plan->is_step()) answers_.push_back(Execute(*plan));
    if (!answers_.empty() && (!plan.has_value() || !core_.can_plan())) {
      const double answered = CpuMicros();
      core_.OnStepResult(answers_.front(), now_);
      const double applied = CpuMicros();
      answers_.pop_front();
      if (samples != nullptr) {
        samples->plan_us.push_back(planned - begin);
        samples->result_us.push_back(applied - answered);
        samples->sum_us.push_back(samples->plan_us.back() + samples->result_us.back());
      }
    }
    core_.TakeOutputs();
    return true;
  }

  // Computes a prompt, so that it lies in the cache.
  void Cache(Request request) {
    Submit(std::move(request));
    while (Step(nullptr)) {
    }
  }

  Core& core() { return core_; }

 private:
  static StepOutcome Execute(const StepPlan& plan) {
    StepOutcome outcome;
    outcome.epoch = plan.epoch;
    outcome.step_id = plan.step_id;
    for (const PlanRow& row : plan.rows) {
      RowOutcome& answer = outcome.rows.emplace_back();
      answer.seq_uid = row.seq_uid;
      if (row.sample) answer.tokens.push_back(static_cast<int32_t>(row.position % kVocabulary));
    }
    return outcome;
  }

  Core core_;
  std::deque<StepOutcome> answers_;  // of the steps in flight
  TimeUs now_ = 1000000;
};

int Run(const Flags& flags) {
  const CoreConfig config = MakeConfig(flags);
  if (const std::string error = ConfigError(config); !error.empty()) Die(error);
  Planner planner(config);
  uint64_t number = 0;
  const uint32_t prompt = flags.context - 1;
  while (planner.core().GetLedger().cached_pages < flags.cached_units) {
    planner.Cache(MakeRequest(number++, prompt, 1));
  }

  // Every sequence begins behind a cached prefix of its own.
  std::vector<uint64_t> running;
  for (uint32_t i = 0; i < flags.sequences; ++i) {
    running.push_back(planner.Submit(MakeRequest(number - 1 - i % number, 1000 + i, 0)));
  }
  while (planner.core().GetLedger().waiting > 0 || planner.core().GetLedger().prompt_tokens == 0) {
    planner.Step(nullptr);
  }
  for (int i = 0; i < 8; ++i) planner.Step(nullptr);

  std::printf("%u sequences, %u cached units of 256 tokens, %u snapshots\n", flags.sequences,
              planner.core().GetLedger().cached_pages, planner.core().GetLedger().snapshots_used);
  std::printf("%-44s %7s  %17s  %17s  %17s\n", "CPU time in microseconds, median and p99", "steps",
              "PlanStep", "OnStepResult", "both");
  Samples decode;
  for (uint32_t i = 0; i < flags.steps; ++i) planner.Step(&decode);
  PrintRow(std::to_string(flags.sequences) + " rows that decode", decode);

  // The same with a prompt beside them, which is new: its chunks are computed and published.
  planner.core().OnCancel(running.back());
  planner.Step(nullptr);
  planner.Submit(MakeRequest(number++, prompt, 1));
  planner.Step(nullptr);
  Samples mixed;
  while (planner.core().GetLedger().running == flags.sequences) planner.Step(&mixed);
  PrintRow("the same with chunks of a new prompt", mixed);

  // Admission: the step looks for the whole prompt in the cache and finds it.
  Samples admission;
  for (int i = 0; i < 400; ++i) {
    const uint64_t id = planner.Submit(MakeRequest(static_cast<uint64_t>(i) % 4, prompt, 1));
    planner.Step(&admission);
    planner.core().OnCancel(id);
    planner.Step(nullptr);
  }
  PrintRow("a step that admits " + std::to_string(prompt) + " cached tokens", admission);

  if (const std::string error = planner.core().CheckInvariants(); !error.empty()) Die(error);
  if (const std::string error = planner.core().CheckIndex(); !error.empty()) Die(error);
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("What planning a step costs");
  app.add_option("--sequences", flags.sequences, "that run at once")->capture_default_str();
  app.add_option("--cached-units", flags.cached_units, "of 256 tokens, in the prefix cache")
      ->capture_default_str();
  app.add_option("--context", flags.context, "tokens")
      ->check(CLI::Range(4096u, 1u << 20))
      ->capture_default_str();
  app.add_option("--steps", flags.steps, "to time")->capture_default_str();
  app.add_option("--steps-in-flight", flags.steps_in_flight, "plans that the workers hold")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return Run(flags);
}

}  // namespace
}  // namespace quartet::coordinator

int main(int argc, char** argv) {
  return quartet::coordinator::Main(argc, argv);
}
