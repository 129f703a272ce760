#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/simulation/scripted.h"

// What the simulator is worth: each of these plants one bug between the parts of a healthy run, and
// the run must fail with the invariant that the bug breaks.

namespace quartet::simulation {
namespace {

using coordinator::Ledger;
using coordinator::Output;
using coordinator::PlanRow;
using coordinator::StepCollector;
using coordinator::StepPlan;
using ::testing::ContainsRegex;

using MaybePlan = std::optional<StepPlan>;

// Prompts of several chunks and pages, answers that overlap, one request that waits, one client
// that leaves.
Scenario Busy() {
  Scenario scenario = SmallEngine();
  scenario.config.page_tokens = 64;
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    clients.push_back(
        Patient(seed, static_cast<uint32_t>(40 + 90 * (seed % 4)), 60, seed % 3 * 30000));
    clients.back().request.logprobs = true;
    clients.back().request.prompt_logprobs = seed % 2 == 0;
    clients.back().request.stop_ids = {7, 77, 777};
  }
  clients[1].leaves = ClientScript::Leaves::kAfterToken;
  clients[1].leave_token = 5;
  clients[1].leave_after_us = 1000;
  scenario.next_client = Clients(std::move(clients));
  return scenario;
}

struct Bug {
  const char* name;
  void (*plant)(Scenario&);
  const char* found;  // a regular expression
};

std::string NameOf(const ::testing::TestParamInfo<Bug>& info) {
  return info.param.name;
}

class PlantedBug : public ::testing::TestWithParam<Bug> {};

TEST(PlantedBugs, TheRunIsHealthyWithoutThem) {
  const ScriptedRun run = RunScript(Busy());
  EXPECT_EQ(run.result.violation, "");
  EXPECT_EQ(run.result.tally.accepted, 8u);
  EXPECT_GT(run.result.tally.finished[static_cast<int>(coordinator::FinishReason::kStopId)], 0u);
}

TEST_P(PlantedBug, IsFound) {
  Scenario scenario = Busy();
  GetParam().plant(scenario);
  const ScriptedRun run = RunScript(std::move(scenario));
  EXPECT_THAT(run.result.violation, ContainsRegex(GetParam().found));
  EXPECT_FALSE(run.result.trace_tail.empty());
}

// A decode row of a plan that has several rows, else null.
PlanRow* SomeDecodeRow(StepPlan& plan) {
  for (PlanRow& row : plan.rows) {
    if (plan.rows.size() > 1 && row.from_device) return &row;
  }
  return nullptr;
}

// The first chunk of a prompt that has more of them, else null.
PlanRow* SomeInnerChunk(StepPlan& plan) {
  for (PlanRow& row : plan.rows) {
    if (!row.from_device && !row.sample) return &row;
  }
  return nullptr;
}

void DropLastRow(StepPlan& plan) {
  if (plan.rows.size() > 1) plan.rows.pop_back();
}

void Erase(std::vector<Output>& outputs, bool (*which)(const Output&)) {
  std::erase_if(outputs, which);
}

// The outputs of this kind, twice.
void Double(std::vector<Output>& outputs, bool (*which)(const Output&)) {
  std::vector<Output> both;
  for (const Output& output : outputs) {
    both.push_back(output);
    if (which(output)) both.push_back(output);
  }
  outputs = std::move(both);
}

bool IsTokens(const Output& output) {
  return output.kind == Output::Kind::kTokens;
}
bool IsTerminal(const Output& output) {
  return output.terminal();
}
bool IsAdmitted(const Output& output) {
  return output.kind == Output::Kind::kAdmitted;
}

// Changes the outputs of which there is something to change.
template <typename Change>
std::function<void(std::vector<Output>&)> ForEach(Change change) {
  return [change](std::vector<Output>& outputs) {
    for (Output& output : outputs) change(output);
  };
}

const Bug kWorkerBugs[] = {
    {"OneRankDropsARow",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t rank, StepPlan& plan) {
         if (rank == 1) DropLastRow(plan);
       };
     },
     "nothing happened to it: rank 1 (does not agree|failed)"},
    {"AllRanksDropARow",
     [](Scenario& s) { s.bugs.sent = [](uint32_t, StepPlan& plan) { DropLastRow(plan); }; },
     "I8: request . fails without a reason: the workers' result has no row"},
    {"AllRanksAbsorbAnotherToken",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t, StepPlan& plan) {
         if (PlanRow* row = SomeInnerChunk(plan)) row->tokens[3] ^= 1;
       };
     },
     "I1: rank 0 holds"},
    {"OneRankAbsorbsAnotherTokenAndDrawsNothingYet",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t rank, StepPlan& plan) {
         PlanRow* row = SomeInnerChunk(plan);
         if (rank == 1 && row != nullptr) row->tokens[3] ^= 1;
       };
     },
     "I1: rank 1 holds"},
    {"TwoTokensChangePlaces",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t, StepPlan& plan) {
         if (PlanRow* row = SomeInnerChunk(plan)) std::swap(row->tokens[0], row->tokens[1]);
       };
     },
     "I1"},
    {"APageIsNotTheSequencesOwn",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t, StepPlan& plan) {
         for (PlanRow& row : plan.rows) {
           if (row.position > 0 && !row.new_pages.empty()) row.new_pages[0] = 0;
         }
       };
     },
     "nothing happened to it: rank 0 failed in step .*page 0 belongs to sequence"},
    {"ACloseGetsLost",
     [](Scenario& s) { s.bugs.sent = [](uint32_t, StepPlan& plan) { plan.closes.clear(); }; },
     "(I3: rank 0: slot . is opened for sequence .|page . belongs to sequence)"},
    {"TheLastCloseGetsLost",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t, StepPlan& plan) {
         if (plan.rows.empty()) plan.closes.clear();
       };
     },
     "I5: nothing is open, and a rank holds"},
    {"ACloseComesTwice",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t, StepPlan& plan) {
         if (!plan.closes.empty()) plan.closes.push_back(plan.closes.front());
       };
     },
     "I3: rank 0: sequence . is closed, but it is not open"},
    {"RanksAreToldDifferentRows",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t rank, StepPlan& plan) { plan.plan_hash += rank; };
     },
     "nothing happened to it: rank 1 does not agree"},
};
INSTANTIATE_TEST_SUITE_P(Workers, PlantedBug, ::testing::ValuesIn(kWorkerBugs), NameOf);

const Bug kCollectorBugs[] = {
    {"TakesTheRowsOfTheWrongRank",
     // Rank 0 alone sends them.
     [](Scenario& s) {
       s.bugs.answer = [](StepCollector::Answer& answer) {
         if (answer.step_id > 5) answer.rows.clear();
       };
     },
     "fails without a reason: the workers' result has no row"},
    {"MixesRowsUp",
     [](Scenario& s) {
       s.bugs.answer = [](StepCollector::Answer& answer) {
         if (answer.rows.size() < 2 || answer.rows[0].tokens.empty() ||
             answer.rows[1].tokens.empty() || !answer.rows[0].target_logprobs.empty() ||
             !answer.rows[1].target_logprobs.empty()) {
           return;
         }
         std::swap(answer.rows[0].seq_uid, answer.rows[1].seq_uid);
       };
     },
     "I12: request . gets .* alone it says"},
    {"TakesTheRowsOfTheStepBefore",
     [](Scenario& s) {
       auto last = std::make_shared<std::vector<coordinator::RowOutcome>>();
       s.bugs.answer = [last](StepCollector::Answer& answer) {
         if (answer.rank == 0) std::swap(*last, answer.rows);
       };
     },
     "(I12|fails without a reason)"},
    {"DoesNotCompareHashes",
     [](Scenario& s) {
       s.fault = [](uint64_t, uint64_t step, uint32_t rank) {
         return step == 9 && rank == 1 ? Fault::kWrongHash : Fault::kNone;
       };
       s.bugs.answer = [](StepCollector::Answer& answer) {
         if (answer.step_id == 9 && answer.rank == 1) answer.agreement_hash ^= 1;
       };
     },
     "I4: step 9 counts"},
    {"TakesAnAnswerForAnotherStep",
     // Copies of answers come while later steps run.
     [](Scenario& s) {
       s.fault = [](uint64_t, uint64_t step, uint32_t) {
         return step > 9 ? Fault::kDoubled : Fault::kNone;
       };
       auto in_flight = std::make_shared<uint64_t>();
       s.bugs.plan = [in_flight](MaybePlan& plan) {
         if (plan.has_value() && plan->step_id != 0) *in_flight = plan->step_id;
       };
       s.bugs.answer = [in_flight](StepCollector::Answer& answer) { answer.step_id = *in_flight; };
     },
     "(I4|I12|nothing happened to it: rank . does not agree)"},
};
INSTANTIATE_TEST_SUITE_P(Collector, PlantedBug, ::testing::ValuesIn(kCollectorBugs), NameOf);

const Bug kPlannerBugs[] = {
    {"FreesAPageOneStepEarly",
     // Who needs a page gets one that its owner still writes to.
     [](Scenario& s) {
       auto taken = std::make_shared<std::map<uint64_t, uint32_t>>();  // seq_uid -> a page of it
       s.bugs.plan = [taken](MaybePlan& plan) {
         if (!plan.has_value()) return;
         for (PlanRow& row : plan->rows) {
           if (row.new_pages.empty()) continue;
           for (const PlanRow& other : plan->rows) {
             if (other.seq_uid != row.seq_uid && taken->contains(other.seq_uid)) {
               row.new_pages[0] = taken->at(other.seq_uid);
             }
           }
           (*taken)[row.seq_uid] = row.new_pages[0];
         }
       };
     },
     "I3: page . is given to seq"},
    {"GivesAPageTwiceInOnePlan",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value()) return;
         for (PlanRow& row : plan->rows) {
           if (!row.new_pages.empty()) row.new_pages.push_back(row.new_pages[0]);
         }
       };
     },
     "I3: page . is given to seq"},
    {"ForgetsAPage",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->rows.empty()) plan->rows.back().new_pages.clear();
       };
     },
     "I10: seq . is to reach"},
    {"StarvesADecodingSequence",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value() || SomeDecodeRow(*plan) == nullptr) return;
         plan->rows.erase(plan->rows.begin() + (SomeDecodeRow(*plan) - plan->rows.data()));
       };
     },
     "I9: request . decodes and has no row"},
    {"LeavesPromptsOutForDecoders",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value() || plan->rows.empty() || !plan->rows[0].from_device) return;
         std::erase_if(plan->rows, [](const PlanRow& row) { return !row.from_device; });
       };
     },
     "I9: an admitted prompt waits, and 1 steps had no row"},
    {"IsDeafToPause",
     [](Scenario& s) {
       ClientScript slow = Patient(1, 20, 100);
       slow.read_us = 100000;
       s.slow_client_tokens = 5;
       s.next_client = Clients({slow});
       s.bugs.deaf_to_pause = true;
     },
     "I9: its client does not read"},
    {"StopsPlanning",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && plan->step_id == 9) plan.reset();
       };
     },
     "I9: . requests are open and nothing is planned"},
    {"PreemptsTheOldest",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && plan->step_id == 5) plan->closes.push_back(1);
       };
     },
     "I9: request 1 is the oldest and was preempted"},
    {"PlansTokensThatDoNotExist",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value()) return;
         if (PlanRow* row = SomeInnerChunk(*plan)) row->tokens.resize(row->n_tokens += 640);
       };
     },
     "I10: .* tokens are known"},
    {"CutsAChunkInTheMiddleOfABlock",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value()) return;
         if (PlanRow* row = SomeInnerChunk(*plan)) {
           row->tokens.resize(--row->n_tokens);
         }
       };
     },
     "I10: an inner chunk is no multiple of 64"},
    {"PlansAnEmptyRow",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->rows.empty()) plan->rows[0].n_tokens = 0;
       };
     },
     "I9: the row is empty"},
    {"PlansTwoRowsForOne",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->rows.empty()) plan->rows.push_back(plan->rows[0]);
       };
     },
     "I10: it has two rows|a decode row stands behind"},
    {"LeavesATokenOut",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->rows.empty()) ++plan->rows[0].position;
       };
     },
     "I1: 0 tokens are absorbed"},
    {"MistakesTheSlot",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->rows.empty()) ++plan->rows[0].slot;
       };
     },
     "I3: it has another slot"},
    {"ForgetsToDraw",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value()) return;
         if (PlanRow* row = SomeDecodeRow(*plan)) row->sample = false;
       };
     },
     "I12: the last known token"},
    {"GoesOnWithWhoHasEnded",
     // A close comes too late, and a row of that sequence with it.
     [](Scenario& s) {
       auto rows = std::make_shared<std::map<uint64_t, PlanRow>>();
       s.bugs.plan = [rows](MaybePlan& plan) {
         if (!plan.has_value() || plan->rows.empty()) return;
         for (const uint64_t uid : plan->closes)
           plan->rows.insert(plan->rows.begin(), (*rows)[uid]);
         plan->closes.clear();
         for (const PlanRow& row : plan->rows) (*rows)[row.seq_uid] = row;
       };
     },
     "I13: its request has ended"},
    {"UsesARowAfterItsClose",
     [](Scenario& s) {
       auto rows = std::make_shared<std::map<uint64_t, PlanRow>>();
       s.bugs.plan = [rows](MaybePlan& plan) {
         if (!plan.has_value() || plan->rows.empty()) return;
         for (const uint64_t uid : plan->closes)
           plan->rows.insert(plan->rows.begin(), (*rows)[uid]);
         for (const PlanRow& row : plan->rows) (*rows)[row.seq_uid] = row;
       };
     },
     "I3: it is not open"},
    {"ClosesTwice",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->closes.empty()) plan->closes.push_back(plan->closes[0]);
       };
     },
     "I3: seq . is closed, but it is not open"},
    {"OpensTwice",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->opens.empty()) plan->opens.push_back(plan->opens[0]);
       };
     },
     "I11: seq . is opened; uids are used once"},
    {"OpensATakenSlot",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && plan->step_id > 1) {
           for (auto& open : plan->opens) open.slot = 0;
         }
       };
     },
     "I3: seq . is opened in slot 0, which is in use"},
    {"SkipsAStepId",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && plan->step_id > 4) ++plan->step_id;
       };
     },
     "I11: step . is planned, expected"},
    {"FallsBackAnEpoch",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value()) --plan->epoch;
       };
     },
     "I11: a plan of epoch 0 in 1"},
    {"PlansAStepOfNothing",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value()) plan->rows.clear();
       };
     },
     "I1[01]: "},
};
INSTANTIATE_TEST_SUITE_P(Planner, PlantedBug, ::testing::ValuesIn(kPlannerBugs), NameOf);

const Bug kOutputBugs[] = {
    {"LosesAToken", [](Scenario& s) { s.bugs.outputs = [](auto& o) { Erase(o, IsTokens); }; },
     "I10: .* tokens are known"},
    {"TellsATokenTwice", [](Scenario& s) { s.bugs.outputs = [](auto& o) { Double(o, IsTokens); }; },
     "I4: request . gets 1 tokens"},
    {"LosesAnEnd", [](Scenario& s) { s.bugs.outputs = [](auto& o) { Erase(o, IsTerminal); }; },
     "I8: request . "},
    {"EndsTwice", [](Scenario& s) { s.bugs.outputs = [](auto& o) { Double(o, IsTerminal); }; },
     "I8: request . is told something after its end"},
    {"AdmitsTwice", [](Scenario& s) { s.bugs.outputs = [](auto& o) { Double(o, IsAdmitted); }; },
     "request . is admitted twice"},
    {"NeverAdmits", [](Scenario& s) { s.bugs.outputs = [](auto& o) { Erase(o, IsAdmitted); }; },
     "request . gets tokens before it is admitted"},
    {"BillsOneTooMany",
     [](Scenario& s) {
       s.bugs.outputs =
           ForEach([](Output& o) { o.completion_tokens += o.kind == Output::Kind::kFinished; });
     },
     "I7: request . is billed"},
    {"BillsACancelledOneTooMuch",
     [](Scenario& s) {
       s.bugs.outputs =
           ForEach([](Output& o) { o.completion_tokens += o.kind == Output::Kind::kCancelled; });
     },
     "I7: request 2 ends with 6 tokens, told 5"},
    {"CountsOneTooMany",
     [](Scenario& s) {
       s.bugs.outputs = ForEach([](Output& o) { o.completion_tokens += IsTokens(o); });
     },
     "I7: request . was told"},
    {"GivesAnotherReason",
     [](Scenario& s) {
       s.bugs.outputs = ForEach([](Output& o) { o.reason = coordinator::FinishReason::kEndToken; });
     },
     "I8: request . ends with reason 0"},
    {"NamesAnotherStopId",
     [](Scenario& s) { s.bugs.outputs = ForEach([](Output& o) { ++o.stop_id; }); },
     "I7: request . ends at stop id"},
    {"CancelsWithoutACancel",
     [](Scenario& s) {
       s.bugs.outputs = ForEach([](Output& o) {
         if (o.kind == Output::Kind::kFinished) o.kind = Output::Kind::kCancelled;
       });
     },
     "I8: request . ends as cancelled, and nobody did it"},
    {"FailsWithoutAReason",
     [](Scenario& s) {
       s.bugs.outputs = ForEach([](Output& o) {
         if (o.kind == Output::Kind::kFinished) o.kind = Output::Kind::kFailed;
       });
     },
     "I8: request . fails without a reason"},
    {"ChangesAToken",
     [](Scenario& s) {
       s.bugs.outputs = ForEach([](Output& o) {
         if (!o.tokens.empty()) o.tokens[0] ^= 1;
       });
     },
     "I12: request . gets .* alone it says"},
    {"ChangesALogprob",
     [](Scenario& s) {
       s.bugs.outputs = ForEach([](Output& o) {
         if (!o.logprobs.empty()) o.logprobs[0] -= 1;
       });
     },
     "I12: request . gets another log-probability"},
    {"ChangesAPromptLogprob",
     [](Scenario& s) {
       s.bugs.outputs = ForEach([](Output& o) {
         if (!o.prompt_logprobs.empty()) o.prompt_logprobs[0] -= 1;
       });
     },
     "I12: request . gets a wrong log-probability of token . of its prompt"},
    {"StampsWrongTimes",
     [](Scenario& s) { s.bugs.outputs = ForEach([](Output& o) { o.times.admitted += 1000000; }); },
     "request . has times out of order"},
    {"MistakesThePrompt",
     [](Scenario& s) { s.bugs.outputs = ForEach([](Output& o) { ++o.prompt_tokens; }); },
     "request . has .* prompt tokens, told were"},
    {"IsDeafToCancel", [](Scenario& s) { s.bugs.deaf_to_cancel = true; },
     "I8: request 2 is open after its cancel"},
};
INSTANTIATE_TEST_SUITE_P(Outputs, PlantedBug, ::testing::ValuesIn(kOutputBugs), NameOf);

// ---- I14: no counter of the ledger can be wrong -------------------------------------------------

class PlantedCounter : public ::testing::TestWithParam<std::function<void(Ledger&)>> {};

TEST_P(PlantedCounter, IsFound) {
  Scenario scenario = CachedConversations();
  scenario.bugs.ledger = GetParam();
  EXPECT_THAT(RunScript(std::move(scenario)).result.violation, ContainsRegex("I14: the ledger"));
}

INSTANTIATE_TEST_SUITE_P(
    Ledger, PlantedCounter,
    ::testing::Values(
        [](Ledger& l) { ++l.running; }, [](Ledger& l) { ++l.waiting; },
        [](Ledger& l) { ++l.waiting_tokens; }, [](Ledger& l) { ++l.slots_used; },
        [](Ledger& l) { ++l.slots_size; }, [](Ledger& l) { ++l.pages_used; },
        [](Ledger& l) { ++l.pages_size; }, [](Ledger& l) { ++l.accepted; },
        [](Ledger& l) { ++l.finished; }, [](Ledger& l) { ++l.cancelled; },
        [](Ledger& l) { ++l.failed; }, [](Ledger& l) { ++l.preemptions; },
        [](Ledger& l) { ++l.recomputed_tokens; }, [](Ledger& l) { ++l.repetitions_suspected; },
        [](Ledger& l) { ++l.rows_awaiting_mask; }, [](Ledger& l) { ++l.states_condemned; },
        [](Ledger& l) { ++l.steps; }, [](Ledger& l) { ++l.prompt_tokens; },
        [](Ledger& l) { ++l.generated_tokens; }, [](Ledger& l) { ++l.snapshots_size; },
        [](Ledger& l) { ++l.prefix_query_tokens; }, [](Ledger& l) { ++l.prefix_hit_tokens; },
        [](Ledger& l) { ++l.spec_drafts; }, [](Ledger& l) { ++l.spec_draft_tokens; },
        [](Ledger& l) { ++l.spec_accepted_tokens; }, [](Ledger& l) { ++l.spec_accepted_at[2]; }));

}  // namespace
}  // namespace quartet::simulation
