#include "services/coordinator/simulation/simulation.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <utility>

#include "services/coordinator/simulation/abort_note.h"
#include "services/coordinator/simulation/report.h"
#include "tests/simulation/scripted.h"

namespace quartet::simulation {
namespace {

using coordinator::Output;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Kind = TraceEvent::Kind;

Result RunSeed(uint64_t seed) {
  return Simulation(RandomScenario(seed)).Run(400);
}

TEST(Simulation, ASeedIsARun) {
  std::set<uint64_t> digests;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const Result first = RunSeed(seed);
    const Result second = RunSeed(seed);
    EXPECT_EQ(first.digest, second.digest) << "seed " << seed;
    EXPECT_EQ(first.time_us, second.time_us);
    digests.insert(first.digest);
  }
  EXPECT_THAT(digests, SizeIs(50)) << "different seeds are different runs";
}

TEST(Simulation, WhoListensChangesNothing) {
  uint64_t events = 0;
  const Result heard = Simulation(RandomScenario(7), [&](const TraceEvent&) { ++events; }).Run(400);
  EXPECT_EQ(heard.digest, RunSeed(7).digest);
  EXPECT_GT(events, 400u);
}

TEST(SimulationDeathTest, AFailedAssertionNamesItsRun) {
  EXPECT_DEATH(
      {
        const AbortNote note(17, 400);
        std::abort();
      },
      "seed 17; see: quartet sim --seed 17 --steps 400 --trace");
}

TEST(Simulation, EndsByItselfAndNamesEveryStep) {
  uint64_t last_step = 0;
  const Result result = Simulation(RandomScenario(3), [&](const TraceEvent& event) {
                          if (event.kind == Kind::kPlan && event.step != 0) ++last_step;
                        }).Run(100);
  ASSERT_TRUE(result.ok()) << DescribeFailure(3, result);
  EXPECT_EQ(result.tally.steps, last_step);
  EXPECT_GE(last_step, 100u);
}

// I12: text is a function of prompt and seed, whatever the engine looks like.
TEST(Simulation, ARequestSaysTheSameInEveryEngine) {
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    clients.push_back(Patient(seed, static_cast<uint32_t>(seed * 83 % 700 + 1), 200, 20000));
  }
  uint64_t preemptions = 0;
  for (const uint32_t slots : {1u, 3u, 6u}) {
    for (const uint32_t page_tokens : {64u, 256u}) {
      for (const uint32_t budget : {70u, 200u, 2000u}) {
        Scenario scenario = SmallEngine();
        scenario.ranks = slots;
        scenario.config.slots = slots;
        scenario.config.page_tokens = page_tokens;
        scenario.config.max_model_len = 1024;
        scenario.config.pages = 1024 / page_tokens;
        scenario.config.max_num_batched_tokens = budget;
        scenario.config.prefill_chunk = budget == 200 ? 64 : 0;
        scenario.next_client = Clients(clients);
        const HashModel model = scenario.model;
        const ScriptedRun run = RunScript(std::move(scenario));
        ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
        preemptions += run.result.tally.preemptions;
        for (size_t i = 0; i < clients.size(); ++i) {
          EXPECT_THAT(run.clients[i]->tokens, ElementsAreArray(AloneText(model, clients[i], 200)));
        }
      }
    }
  }
  EXPECT_GT(preemptions, 10u) << "some of it must have been computed twice";
}

// Three old answers grow over three pages each while a long prompt goes in beside them, in chunks
// of one page; it loses its place, and goes in alone later, in chunks of two.
TEST(Simulation, APromptThatIsPreemptedInItsMiddleIsToldNothingTwice) {
  Scenario scenario = SmallEngine();
  scenario.config.max_model_len = 8192;
  scenario.config.page_tokens = 64;
  scenario.config.pages = 128;
  scenario.config.max_num_batched_tokens = 130;
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 3; ++seed) clients.push_back(Patient(seed, 40, 300));
  clients.push_back(Patient(4, 7800, 3));
  clients.back().request.prompt_logprobs = true;
  scenario.next_client = Clients(clients);
  const HashModel model = scenario.model;
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(run.result.tally.preemptions, 1u);
  EXPECT_THAT(run.clients[3]->tokens, ElementsAreArray(AloneText(model, clients[3], 3)));
}

// ---- faults -------------------------------------------------------------------------------------

// Three clients, and one fault of rank 1 at step 20 of the first engine.
ScriptedRun RunWithFault(Fault fault) {
  Scenario scenario = SmallEngine();
  scenario.fault = [fault](uint64_t epoch, uint64_t step, uint32_t rank) {
    return epoch == 1 && step == 20 && rank == 1 ? fault : Fault::kNone;
  };
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    clients.push_back(Patient(seed, 40, 60));
    clients.back().retries = 1;
  }
  scenario.next_client = Clients(std::move(clients));
  return RunScript(std::move(scenario));
}

class HarmlessFault : public ::testing::TestWithParam<Fault> {};

TEST_P(HarmlessFault, CostsTimeAtMost) {
  const ScriptedRun quiet = RunWithFault(Fault::kNone);
  const ScriptedRun run = RunWithFault(GetParam());
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(run.result.faults[static_cast<int>(GetParam())], 1u);
  EXPECT_EQ(run.result.tally.steps, quiet.result.tally.steps);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(run.clients[i]->tokens, quiet.clients[i]->tokens);
    EXPECT_EQ(run.clients[i]->end->kind, Output::Kind::kFinished);
  }
}

INSTANTIATE_TEST_SUITE_P(Simulation, HarmlessFault,
                         ::testing::Values(Fault::kLate, Fault::kLostThenRepeated,
                                           Fault::kDoubled));

struct Ending {
  Fault fault;
  const char* message;
};

class EndingFault : public ::testing::TestWithParam<Ending> {};

TEST_P(EndingFault, IsToldToEverybodyAndTheNextEngineSaysTheSame) {
  const ScriptedRun quiet = RunWithFault(Fault::kNone);
  const ScriptedRun run = RunWithFault(GetParam().fault);
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(run.result.tally.engines, 2u);
  ASSERT_THAT(run.clients, SizeIs(6));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(run.clients[i]->end->kind, Output::Kind::kFailed);
    EXPECT_THAT(run.clients[i]->end->message, HasSubstr(GetParam().message));
    EXPECT_LT(run.clients[i]->tokens.size(), 60u);
    EXPECT_EQ(run.clients[i + 3]->tokens, quiet.clients[i]->tokens);
  }
  EXPECT_THAT(run.Of(Kind::kReady), SizeIs(2));
  EXPECT_EQ(run.Of(Kind::kReady)[1].a, 2u) << "the epoch rises";
}

INSTANTIATE_TEST_SUITE_P(
    Simulation, EndingFault,
    ::testing::Values(Ending{Fault::kStepError, "rank 1 failed in step 20: the device is gone"},
                      Ending{Fault::kWrongHash, "rank 1 does not agree with rank 0"},
                      Ending{Fault::kFrozen, "no answer of ranks 1 within the deadline"},
                      Ending{Fault::kKilled, "rank 1 left"}));

TEST(Simulation, AFrozenRankThatThawsInTheNextEpochIsIgnored) {
  const ScriptedRun run = RunWithFault(Fault::kFrozen);
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  uint64_t epoch = 0;
  bool ignored = false;
  for (const TraceEvent& event : run.events) {
    if (event.kind == Kind::kReady) epoch = event.a;
    if (event.kind == Kind::kAnswer && epoch == 2 && event.note == "ignored") ignored = true;
  }
  EXPECT_TRUE(ignored) << "no answer of the first epoch came in the second";
}

// ---- clients ------------------------------------------------------------------------------------

TEST(Simulation, AClientThatDoesNotReadIsCancelled) {
  Scenario scenario = SmallEngine();
  scenario.slow_client_tokens = 10;
  scenario.slow_client_us = 200000;
  ClientScript slow = Patient(1, 20, 1000);
  slow.read_us = 10000000;
  scenario.next_client = Clients({slow});
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(run.clients[0]->end->kind, Output::Kind::kCancelled);
  EXPECT_GT(run.clients[0]->tokens.size(), 10u);
  EXPECT_LT(run.clients[0]->tokens.size(), 1000u);
}

TEST(Simulation, ATruncatedAnswerIsBilledAsItsClientSawIt) {
  Scenario scenario = SmallEngine();
  ClientScript client = Patient(1, 20, 1000);
  client.truncate_token = 12;
  client.truncate_to = 9;
  client.truncate_after_us = 10000;
  scenario.next_client = Clients({client});
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(run.clients[0]->end->reason, coordinator::FinishReason::kTruncated);
  EXPECT_EQ(run.clients[0]->end->completion_tokens, 9u);
}

}  // namespace
}  // namespace quartet::simulation
