#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/simulation/scripted.h"

// Bugs as in planted_bugs_test.cc, around the tiers of the prefix cache.

namespace quartet::simulation {
namespace {

using coordinator::CacheEntry;
using coordinator::CacheTier;
using coordinator::CopyOutcome;
using coordinator::Ledger;
using coordinator::PlanRow;
using coordinator::StepCollector;
using coordinator::StepPlan;
using ::testing::ContainsRegex;

using MaybePlan = std::optional<StepPlan>;
constexpr auto kPage = TierCopy::Kind::kPage;
constexpr auto kSnapshot = TierCopy::Kind::kSnapshot;
constexpr auto kDevice = CacheTier::kDevice;
constexpr auto kHost = CacheTier::kHost;
constexpr auto kDisk = CacheTier::kDisk;

struct Bug {
  const char* name;
  void (*plant)(Scenario&);
  const char* found;  // a regular expression
};

class PlantedTierBug : public ::testing::TestWithParam<Bug> {};

TEST_P(PlantedTierBug, IsFound) {
  Scenario scenario = TieredConversations();
  GetParam().plant(scenario);
  EXPECT_THAT(RunScript(std::move(scenario)).result.violation, ContainsRegex(GetParam().found));
}

// Changes plans that have copies.
template <typename Change>
void InPlans(Scenario& s, Change change) {
  s.bugs.plan = [change](MaybePlan& plan) {
    if (plan.has_value() && !plan->copies.empty()) change(*plan);
  };
}

// Changes each copy of this kind that goes there.
template <typename Change>
void ForEachCopy(Scenario& s, TierCopy::Kind kind, CacheTier to, Change change) {
  InPlans(s, [=](StepPlan& plan) {
    for (TierCopy& copy : plan.copies) {
      if (copy.kind == kind && copy.to == to) change(copy);
    }
  });
}

void Fail(Scenario& s, TierFault fault, uint32_t one_in) {
  s.tier_fault = [=, seen = 0u](uint32_t rank, const TierCopy&) mutable {
    return rank == 1 && ++seen % one_in == 0 ? fault : TierFault::kNone;
  };
}

// So that there is something to adopt.
void KillOnce(Scenario& s) {
  s.fault = [](uint64_t epoch, uint64_t step, uint32_t rank) {
    return epoch == 1 && step == 120 && rank == 0 ? Fault::kKilled : Fault::kNone;
  };
  s.next_client = [next = std::move(s.next_client)] {
    std::optional<ClientScript> client = next();
    if (client.has_value()) client->retries = 2;
    return client;
  };
}

const Bug kTierBugs[] = {
    {"BringsBackAnotherPage",
     [](Scenario& s) {
       ForEachCopy(s, kPage, kDevice, [](TierCopy& copy) { copy.from_place ^= 1; });
     },
     "I2: it has the name of other .* \\(copy of page .* of the host to"},
    {"BringsBackAnotherSnapshot",
     [](Scenario& s) {
       ForEachCopy(s, kSnapshot, kDevice, [](TierCopy& copy) { copy.from_place ^= 1; });
     },
     "I2: it has the name of other .* \\(copy of snapshot .* of the host to"},
    {"StoresAPageUnderTheNameOfTheOneBefore",
     [](Scenario& s) {
       InPlans(s, [](StepPlan& plan) {
         for (size_t i = 1; i < plan.copies.size(); ++i) {
           if (plan.copies[i].to == kHost) plan.copies[i].key = plan.copies[i - 1].key;
         }
       });
     },
     "I2: it has the name of other"},
    {"StoresASnapshotUnderAnotherLength",
     [](Scenario& s) {
       ForEachCopy(s, kSnapshot, kHost, [](TierCopy& copy) { copy.n_tokens += 64; });
     },
     "I2: it has the name of other .* tokens than lie there"},
    {"StoresWhatWasNeverPublished",
     // Another page of the device: free, somebody's own, or of another text.
     [](Scenario& s) {
       ForEachCopy(s, kPage, kHost, [](TierCopy& copy) {
         if (copy.from == kDevice) copy.from_place = 47 - copy.from_place;
       });
     },
     "I2: it has the name of other"},
    {"WritesAPageThatSomebodyHas",
     [](Scenario& s) {
       auto taken = std::make_shared<std::optional<uint32_t>>();
       s.bugs.plan = [taken](MaybePlan& plan) {
         if (!plan.has_value()) return;
         for (TierCopy& copy : plan->copies) {
           if (copy.kind == kPage && copy.to == kDevice && taken->has_value()) {
             copy.to_place = **taken;
           }
         }
         for (const PlanRow& row : plan->rows) {
           if (!row.new_pages.empty()) *taken = row.new_pages[0];
         }
       };
     },
     "I3: a sequence has the page"},
    {"WritesAPlaceTwice",
     [](Scenario& s) {
       InPlans(s, [](StepPlan& plan) { plan.copies.push_back(plan.copies.back()); });
     },
     "I3: it is written twice"},
    {"ReadsAPlaceWhileACopyWritesIt",
     [](Scenario& s) {
       InPlans(s, [](StepPlan& plan) {
         TierCopy next = plan.copies.back();
         if (next.to != kHost) return;
         next.from = kHost;
         next.from_place = next.to_place;
         next.to = kDisk;
         next.to_place = 0;
         plan.copies.push_back(next);
       });
     },
     "I3: it is read while a copy writes it"},
    {"WritesAPlaceWhileACopyReadsIt",
     [](Scenario& s) {
       InPlans(s, [](StepPlan& plan) {
         TierCopy next = plan.copies.back();
         if (next.from != kHost || next.to != kDevice) return;
         next.from = kDisk;
         next.to = kHost;
         next.to_place = next.from_place;
         plan.copies.push_back(next);
       });
     },
     "I3: it is written while a copy reads it"},
    {"GivesAPageThatIsBeingCopied",
     [](Scenario& s) {
       InPlans(s, [](StepPlan& plan) {
         for (PlanRow& row : plan.rows) {
           for (const TierCopy& copy : plan.copies) {
             if (copy.to == kDevice && copy.kind == kPage && !row.new_pages.empty()) {
               row.new_pages[0] = copy.to_place;
             }
           }
         }
       });
     },
     "I3: page .* is given to seq .* while it is copied"},
    {"ExportsToASnapshotThatIsBeingCopied",
     [](Scenario& s) {
       InPlans(s, [](StepPlan& plan) {
         for (const TierCopy& copy : plan.copies) {
           if (copy.from != kDevice || copy.kind != kSnapshot) continue;
           for (PlanRow& row : plan.rows) {
             for (auto& exported : row.exports) exported.snapshot = copy.from_place;
           }
         }
       });
     },
     "I3: snapshot .* is written while it is copied"},
    {"LeavesOutATier",
     [](Scenario& s) {
       ForEachCopy(s, kPage, kHost, [](TierCopy& copy) {
         if (copy.from == kDevice) copy.to = kDisk;
       });
     },
     "I10: the tiers are no neighbours"},
    {"CopiesToAPlaceThatDoesNotExist",
     [](Scenario& s) {
       ForEachCopy(s, kPage, kHost, [](TierCopy& copy) { copy.to_place += 400; });
     },
     "I3: a place does not exist"},
    {"TellsTheDiskOtherTokens",
     [](Scenario& s) {
       ForEachCopy(s, kPage, kDisk, [](TierCopy& copy) { copy.origin.tokens[9] ^= 1; });
     },
     "I15: its origin is another text's"},
    {"TellsTheDiskAnotherParent",
     [](Scenario& s) {
       ForEachCopy(s, kPage, kDisk, [](TierCopy& copy) { copy.origin.parent = copy.key; });
     },
     "I15: its origin has another parent"},
    {"WorkersStoreTheWrongPage",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t, StepPlan& plan) {
         for (TierCopy& copy : plan.copies) {
           if (copy.kind == kPage && copy.to == kHost) copy.from_place ^= 1;
         }
       };
     },
     "I15: rank 0 (has a page in host memory that is not what its name says|holds something else "
     "in page)"},
    {"OneWorkerStoresTheWrongState",
     [](Scenario& s) {
       s.bugs.sent = [](uint32_t rank, StepPlan& plan) {
         for (PlanRow& row : plan.rows) {
           if (rank != 1 || row.exports.empty() || row.from_device) continue;
           row.exports[0].snapshot = (row.exports[0].snapshot + 1) % 12;
         }
       };
     },
     "I3: rank 1: sequence .* begins at .* from snapshot"},
    {"WorkersBelieveDamagedSnapshots",
     [](Scenario& s) {
       Fail(s, TierFault::kDamaged, 5);
       s.bugs.blind_workers = true;
     },
     "I15: rank 1 holds something else in snapshot"},
    {"TakesAFailedCopyForAGoodOne",
     [](Scenario& s) {
       Fail(s, TierFault::kRefused, 5);
       s.bugs.answer = [](StepCollector::Answer& answer) {
         std::ranges::fill(answer.copies, CopyOutcome::kDone);
       };
     },
     "I2: it has the name of other .* tokens than lie there"},
    {"ForgetsWhatOneRankSaysOfACopy",
     [](Scenario& s) {
       Fail(s, TierFault::kRefused, 5);
       s.bugs.answer = [](StepCollector::Answer& answer) {
         if (answer.rank == 1) std::ranges::fill(answer.copies, CopyOutcome::kDone);
       };
     },
     "I2: it has the name of other .* tokens than lie there"},
    {"MixesUpThePlacesOfTheDisk",
     [](Scenario& s) {
       KillOnce(s);
       s.bugs.adopted = [](std::vector<CacheEntry>& entries) {
         for (size_t i = 0; i + 1 < entries.size(); i += 2) {
           if (entries[i].kind == entries[i + 1].kind) {
             std::swap(entries[i].place, entries[i + 1].place);
           }
         }
       };
     },
     "I2: it has the name of other .* \\(copy of .* of the disk to"},
    {"ForgetsDamage",
     [](Scenario& s) {
       Fail(s, TierFault::kDamaged, 5);
       s.bugs.ledger = [](Ledger& ledger) { ledger.host_tier.pages_checksum_failed = 0; };
     },
     "I14: the ledger says 0 host damaged pages, the books 1"},
    {"CountsAPageTwice",
     [](Scenario& s) {
       s.bugs.ledger = [](Ledger& ledger) { ledger.host_tier.pages_restored *= 2; };
     },
     "I14: the ledger says .* host pages restored, the books"},
    {"HasMoreOnTheDiskThanWasWritten",
     [](Scenario& s) { s.bugs.ledger = [](Ledger& ledger) { ledger.disk_tier.pages += 1; }; },
     "I14: the ledger says .* disk pages, the books 0"},
};
INSTANTIATE_TEST_SUITE_P(Tiers, PlantedTierBug, ::testing::ValuesIn(kTierBugs),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quartet::simulation
