#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/simulation/scripted.h"

// Bugs as in planted_bugs_test.cc, around drafts and the prefix cache.

namespace quartet::simulation {
namespace {

using coordinator::Ledger;
using coordinator::Output;
using coordinator::PlanRow;
using coordinator::StepCollector;
using coordinator::StepPlan;
using ::testing::ContainsRegex;

using MaybePlan = std::optional<StepPlan>;

struct Bug {
  const char* name;
  void (*plant)(Scenario&);
  const char* found;  // a regular expression
};

std::string NameOf(const ::testing::TestParamInfo<Bug>& info) {
  return info.param.name;
}

class PlantedCacheBug : public ::testing::TestWithParam<Bug> {};

TEST(PlantedCacheBugs, TheRunIsHealthyWithoutThem) {
  for (const uint32_t steps_in_flight : {1u, 2u}) {
    SCOPED_TRACE(steps_in_flight);
    Scenario scenario = CachedConversations();
    scenario.config.steps_in_flight = steps_in_flight;
    const ScriptedRun run = RunScript(std::move(scenario));
    EXPECT_EQ(run.result.violation, "");
    const Tally& t = run.result.tally;
    EXPECT_EQ(t.steps_behind_others > t.steps / 2, steps_in_flight == 2);
    EXPECT_GT(t.resumed, 20u);
    EXPECT_GT(t.resumed_in_answers, 10u);
    EXPECT_GT(t.answer_exports, 10u);
    // A turn whose last row has a successor in flight needs no commit of its own.
    EXPECT_EQ(t.last_exports > 0, steps_in_flight == 1);
    EXPECT_GT(t.cut_windows, 0u);
    for (const uint64_t windows : t.windows) EXPECT_GT(windows, 10u);
  }
}

TEST_P(PlantedCacheBug, IsFound) {
  for (const uint32_t steps_in_flight : {1u, 2u}) {
    Scenario scenario = CachedConversations();
    scenario.config.steps_in_flight = steps_in_flight;
    GetParam().plant(scenario);
    EXPECT_THAT(RunScript(std::move(scenario)).result.violation, ContainsRegex(GetParam().found))
        << steps_in_flight << " in flight";
  }
}

// Changes each open that begins behind a prefix.
template <typename Change>
void ForEachResume(Scenario& s, Change change) {
  s.bugs.plan = [change](MaybePlan& plan) {
    if (!plan.has_value()) return;
    for (coordinator::SequenceOpen& open : plan->opens) {
      if (open.resume.has_value()) change(*open.resume);
    }
  };
}

// Changes each row of this kind.
template <typename Change>
void ForEachRow(Scenario& s, PlanRow::Kind kind, Change change) {
  s.bugs.plan = [kind, change](MaybePlan& plan) {
    if (!plan.has_value()) return;
    for (PlanRow& row : plan->rows) {
      if (row.kind == kind) change(row);
    }
  };
}

const Bug kCacheBugs[] = {
    {"BeginsWithAnotherSnapshot",
     [](Scenario& s) { ForEachResume(s, [](auto& resume) { resume.snapshot ^= 1; }); },
     "I2: seq .* from snapshot ., which holds no such text"},
    {"BeginsAUnitTooEarly",
     [](Scenario& s) {
       ForEachResume(s, [](auto& resume) {
         if (resume.n_tokens <= 64) return;
         resume.n_tokens -= 64;
         resume.pages.pop_back();
       });
     },
     "I2: seq .* from snapshot ., which holds no such text"},
    {"BeginsWithPagesOfAnotherText",
     [](Scenario& s) {
       ForEachResume(s, [](auto& resume) { resume.pages.front() = resume.pages.back() ^ 1; });
     },
     "I3: seq .* with page .*, which holds another text"},
    {"BeginsWithPagesInDisorder",
     [](Scenario& s) {
       ForEachResume(s, [](auto& resume) { std::ranges::reverse(resume.pages); });
     },
     "I3: seq .* with page .*, which holds another text"},
    {"ForgetsAPageOfThePrefix",
     [](Scenario& s) { ForEachResume(s, [](auto& resume) { resume.pages.pop_back(); }); },
     "I2: seq .* begins at"},
    {"ForgetsToExport",
     [](Scenario& s) {
       ForEachRow(s, PlanRow::Kind::kPrefill, [](PlanRow& row) { row.exports.clear(); });
     },
     "I2: seq .* from snapshot ., which holds no such text"},
    {"ForgetsACommitThatExports",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->rows.empty()) plan->commits.clear();
       };
     },
     "I2: seq .* from snapshot .*, which holds no such text"},
    {"ExportsWhereTheWindowDoesNotComeBy",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value()) return;
         for (coordinator::Commit& commit : plan->commits) commit.export_at += 64;
       };
     },
     "I2: commit of seq .* does not come by"},
    {"CommitsTwice",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->commits.empty()) {
           plan->commits.push_back({.seq_uid = plan->commits.front().seq_uid});
         }
       };
     },
     "I10: two times a commit of seq"},
    {"CommitsWhoIsNotOpen",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (plan.has_value() && !plan->commits.empty()) plan->commits.front().seq_uid = 4711;
       };
     },
     "I3: commit of seq 4711, which is not open"},
    {"WritesASnapshotThatSomebodyBeginsWith",
     [](Scenario& s) {
       s.bugs.plan = [](MaybePlan& plan) {
         if (!plan.has_value() || plan->opens.empty() || !plan->opens[0].resume.has_value()) return;
         for (PlanRow& row : plan->rows) {
           for (auto& exported : row.exports) exported.snapshot = plan->opens[0].resume->snapshot;
         }
       };
     },
     "I3: snapshot .* is written while another sequence begins with it"},
    {"WorkersExportToAnotherPlace",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t, StepPlan& plan) {
         for (PlanRow& row : plan.rows) {
           for (auto& exported : row.exports) exported.snapshot ^= 1;
         }
       };
     },
     "(I3: rank 0: sequence .* from snapshot|I1: rank 0 holds)"},
    {"GivesACachedPageThatIsRead",
     // The pages of whoever reads a prefix are given to the next that needs one.
     [](Scenario& s) {
       auto read = std::make_shared<std::optional<uint32_t>>();
       s.bugs.plan = [read](MaybePlan& plan) {
         if (!plan.has_value()) return;
         for (const auto& open : plan->opens) {
           if (open.resume.has_value()) *read = open.resume->pages[0];
         }
         if (!read->has_value()) return;
         for (PlanRow& row : plan->rows) {
           if (!row.new_pages.empty()) row.new_pages[0] = **read;
         }
       };
     },
     "I3: page .* is given to seq"},
    {"VerifiesMoreThanWasDrafted",
     [](Scenario& s) {
       ForEachRow(s, PlanRow::Kind::kVerify, [](PlanRow& row) {
         ++row.n_tokens;
         ++row.draft_tokens;
       });
     },
     "I(10|7): .*drafts"},
    {"DraftsOutsideOfAWindow",
     [](Scenario& s) {
       ForEachRow(s, PlanRow::Kind::kPrefill, [](PlanRow& row) { row.draft_tokens = !row.sample; });
     },
     "I10: drafts in no window"},
    {"HidesTokensFromTheDrafter",
     [](Scenario& s) {
       ForEachRow(s, PlanRow::Kind::kVerify, [](PlanRow& row) { row.draft = false; });
     },
     "I12: the drafter does not see all tokens"},
    {"TellsTheDrafterAnotherToken",
     [](Scenario& s) {
       ForEachRow(s, PlanRow::Kind::kPrefill, [](PlanRow& row) { row.mtp_next ^= 1; });
     },
     "I1: the drafter is told another token"},
    {"DraftsWhereNothingIsDrawn",
     [](Scenario& s) {
       ForEachRow(s, PlanRow::Kind::kPrefill, [](PlanRow& row) { row.draft_chain = 3; });
     },
     "I10: a chain of more drafts than may be"},
    {"LosesTheLastTokenOfAWindow",
     [](Scenario& s) {
       s.bugs.answer = [](StepCollector::Answer& answer) {
         for (auto& row : answer.rows) {
           if (row.tokens.size() > 2) row.tokens.pop_back();
         }
       };
     },
     "I4: request . gets 2 tokens|I4: request . gets 3 tokens"},
    {"TakesARejectedDraftForSaid",
     [](Scenario& s) {
       s.bugs.outputs = [](std::vector<Output>& outputs) {
         for (Output& output : outputs) {
           if (output.tokens.size() == 2) output.tokens[1] ^= 1;
         }
       };
     },
     "I12: request . gets .* alone it says"},
    {"CachesWhatMayStillBeCut",
     [](Scenario& s) { s.bugs.ledger = [](Ledger& l) { l.cached_pages += 1000; }; },
     "I7: .* pages are cached, .* hold a text that nobody can cut"},
    {"TellsWhatIsBehindTheEnd",
     [](Scenario& s) {
       s.bugs.outputs = [](std::vector<Output>& outputs) {
         for (size_t i = 0; i + 1 < outputs.size(); ++i) {
           if (!outputs[i + 1].terminal() || outputs[i].tokens.empty()) continue;
           outputs[i].tokens.push_back(5);
         }
       };
     },
     "I4: request . gets . tokens"},
};
INSTANTIATE_TEST_SUITE_P(Cache, PlantedCacheBug, ::testing::ValuesIn(kCacheBugs), NameOf);

// Serving.md 8.2: a collision of names costs a miss, never a wrong answer.
TEST(PlantedCacheBugs, WhenAllAnswersHaveOneNameNobodyGetsAnothersText) {
  Scenario scenario = CachedConversations();
  scenario.bugs.names = [](std::vector<UnitKey>& keys) {
    for (UnitKey& key : keys) key = {.high = 5, .low = 5};
  };
  const ScriptedRun run = RunScript(std::move(scenario));
  EXPECT_EQ(run.result.violation, "");
  EXPECT_GT(run.result.tally.resumed, 10u);
}

}  // namespace
}  // namespace quartet::simulation
