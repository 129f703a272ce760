#ifndef QUARTET_TESTS_UNIT_COORDINATOR_CORE_HARNESS_H_
#define QUARTET_TESTS_UNIT_COORDINATOR_CORE_HARNESS_H_

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/coordinator/core/core.h"
#include "services/coordinator/rpc/convert.h"
#include "tests/support/hash_chain.h"

namespace quartet::coordinator {

// Of `usual` random runs, and of what must happen in them, what there is time for: instrumented
// programs are many times slower.
constexpr uint64_t Share(uint64_t usual) {
#ifdef QUARTET_SANITIZED
  return usual / 5;
#else
  return usual;
#endif
}

// A core with the hash-chain model behind it and a clock that moves by step_us per step. Checks the
// invariants and the workers' contract after everything that happens, and names the units of texts
// as the coordinator's engine does.
class CoreHarness {
 public:
  struct Told {  // what one request was told
    int admitted = 0;
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    std::vector<float> prompt_logprobs;
    TopLogprobs top;
    TopLogprobs prompt_top;
    std::optional<Output> first_token;
    std::vector<Output> terminals;
  };

  explicit CoreHarness(const CoreConfig& config,
                       std::optional<quartet::testing::TokenRule> rule = std::nullopt,
                       quartet::testing::DraftRule drafts = quartet::testing::HashChainDrafts(70))
      : core(config),
        rule(rule.has_value()
                 ? *rule
                 : quartet::testing::HashChainRule(static_cast<int32_t>(config.vocab_size))),
        workers(
            {config.epoch, config.slots, config.pages, config.page_tokens,
             config.max_num_batched_tokens, config.max_model_len, config.snapshots,
             config.host_pages, config.host_snapshots, config.disk_pages, config.disk_snapshots},
            this->rule, std::move(drafts)) {}

  static CoreConfig Config() {
    CoreConfig config;
    config.epoch = 7;
    config.vocab_size = 1000;
    config.max_model_len = 2048;
    config.slots = 4;
    config.pages = 32;
    config.max_num_batched_tokens = 512;
    config.max_queued_requests = 8;
    return config;
  }

  static std::vector<int32_t> Prompt(size_t n, int32_t salt = 0) {
    std::vector<int32_t> prompt;
    for (size_t i = 0; i < n; ++i) {
      prompt.push_back(static_cast<int32_t>((i * 7 + salt * 131 + i * i % 13) % 1000));
    }
    return prompt;
  }

  static Request Ask(size_t prompt_tokens, uint32_t max_tokens, int32_t salt = 0) {
    Request request;
    request.request_id = "r" + std::to_string(salt);
    request.prompt_ids = Prompt(prompt_tokens, salt);
    request.max_tokens = max_tokens;
    request.sampling.seed = static_cast<uint64_t>(salt);
    return request;
  }

  // A chain of hashes names the units of 256 tokens of a text.
  struct Names {
    static constexpr size_t kUnit = 256;
    uint64_t state = 7;
    uint64_t n_tokens = 0;

    std::vector<UnitKey> Append(const std::vector<int32_t>& tokens) {
      std::vector<UnitKey> keys;
      for (const int32_t token : tokens) {
        state = quartet::testing::HashChainAbsorb(state, token);
        if (++n_tokens % kUnit == 0) keys.push_back({.high = state, .low = n_tokens});
      }
      return keys;
    }
  };
  // Makes it a request that uses the prefix cache.
  static void NameUnits(Request& request) {
    request.cache_root = {.high = 9, .low = 9};
    request.unit_keys = Names().Append(request.prompt_ids);
  }

  SubmitOutcome Submit(Request request) {
    std::optional<Names> name;
    if (request.has_keys()) name.emplace().Append(request.prompt_ids);
    SubmitOutcome outcome = core.OnSubmit(std::move(request), now);
    if (name.has_value()) names[outcome.id] = *name;
    Drain();
    return outcome;
  }
  uint64_t MustSubmit(Request request) {
    SubmitOutcome outcome = Submit(std::move(request));
    EXPECT_EQ(outcome.kind, SubmitOutcome::Kind::kAccepted) << outcome.message;
    return outcome.id;
  }
  void Cancel(uint64_t id) {
    core.OnCancel(id);
    Drain();
  }
  Core::TruncateOutcome Truncate(uint64_t id, uint32_t n) {
    auto outcome = core.OnTruncate(id, n);
    Drain();
    return outcome;
  }

  // Plans a step and hands it to the workers, whose answer waits in `pending`. The workers run it
  // at once, so with two steps in flight they are ahead of what the core knows.
  std::optional<StepPlan> Plan() {
    std::optional<StepPlan> plan = core.PlanStep(now);
    Drain();
    if (!plan.has_value()) return plan;
    for (uint64_t uid : plan->closes) {
      v1::SequenceClose close;
      close.set_seq_uid(uid);
      workers.Close(close);
    }
    for (const SequenceOpen& open : plan->opens) workers.Open(ToProto(open));
    if (plan->is_step()) {
      StepCollector collector(1);
      collector.Begin(plan->epoch, plan->step_id);
      pending.push_back(
          {collector.Add(ToAnswer(workers.Run(ToProto(*plan), 0), 0)).outcome, step_us(*plan)});
    }
    EXPECT_EQ(workers.violation(), "");
    return plan;
  }
  void Answer() {
    ASSERT_FALSE(pending.empty());
    const Pending answer = std::move(pending.front());
    pending.pop_front();
    now += answer.step_us;
    EXPECT_TRUE(core.OnStepResult(answer.outcome, now));
    Drain();
  }
  // Plans once, and answers the oldest step if the workers hold as many as they may, or all.
  std::optional<StepPlan> Step() {
    std::optional<StepPlan> plan = Plan();
    if (!pending.empty() && (!plan.has_value() || !core.can_plan())) Answer();
    return plan;
  }
  // Until there is nothing to do.
  int RunAll(int max_steps = 100000) {
    int steps = 0;
    for (; steps < max_steps; ++steps) {
      const bool in_flight = !pending.empty();
      if (!Step().has_value() && !in_flight) break;
    }
    return steps;
  }

  void Drain() {
    for (Output& output : core.TakeOutputs()) {
      Told& to = told[output.id];
      EXPECT_TRUE(to.terminals.empty()) << "output after the terminal one";
      switch (output.kind) {
        case Output::Kind::kAdmitted:
          ++to.admitted;
          break;
        case Output::Kind::kTokens:
          EXPECT_EQ(to.admitted, 1);
          if (!output.tokens.empty() && !to.first_token.has_value()) to.first_token = output;
          to.tokens.insert(to.tokens.end(), output.tokens.begin(), output.tokens.end());
          if (auto name = names.find(output.id); name != names.end()) {
            core.OnUnitKeys(output.id, name->second.Append(output.tokens));
          }
          to.logprobs.insert(to.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
          to.prompt_logprobs.insert(to.prompt_logprobs.end(), output.prompt_logprobs.begin(),
                                    output.prompt_logprobs.end());
          Append(output.top, to.top);
          Append(output.prompt_top, to.prompt_top);
          break;
        default:
          to.terminals.push_back(output);
      }
    }
    EXPECT_EQ(core.CheckInvariants(), "");
    EXPECT_EQ(core.CheckIndex(), "");
  }

  static void Append(const TopLogprobs& from, TopLogprobs& to) {
    to.ids.insert(to.ids.end(), from.ids.begin(), from.ids.end());
    to.logprobs.insert(to.logprobs.end(), from.logprobs.begin(), from.logprobs.end());
  }

  // What this request says when it is alone.
  std::vector<int32_t> Alone(const Request& request, size_t n) const {
    v1::SamplingParams sampling;
    sampling.set_seed(request.sampling.seed);
    sampling.set_choice(request.sampling.choice);
    return quartet::testing::HashChainText(rule, request.prompt_ids, sampling, n);
  }

  Core core;
  quartet::testing::TokenRule rule;
  quartet::testing::HashChainExecutor workers;
  std::map<uint64_t, Told> told;
  std::map<uint64_t, Names> names;
  struct Pending {
    StepOutcome outcome;
    TimeUs step_us = 0;
  };
  std::deque<Pending> pending;  // oldest first
  std::function<TimeUs(const StepPlan&)> step_us = [](const StepPlan&) { return 1000; };
  TimeUs now = 1000000;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_TESTS_UNIT_COORDINATOR_CORE_HARNESS_H_
