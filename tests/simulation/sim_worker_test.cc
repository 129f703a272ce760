#include "services/coordinator/simulation/sim_worker.h"

#include <gmock/gmock.h>

#include <set>
#include <utility>

#include "services/coordinator/simulation/event_queue.h"
#include "services/coordinator/simulation/random.h"

namespace quartet::simulation {
namespace {

using coordinator::CoreConfig;
using coordinator::PlanRow;
using coordinator::SequenceOpen;
using coordinator::StepCollector;
using coordinator::StepPlan;
using ::testing::HasSubstr;
using ::testing::SizeIs;

CoreConfig Config() {
  CoreConfig config;
  config.epoch = 3;
  config.vocab_size = 1000;
  config.max_model_len = 1024;
  config.slots = 2;
  config.pages = 8;
  config.max_num_batched_tokens = 128;
  return config;
}

SequenceOpen Open(uint64_t uid, uint32_t slot) {
  SequenceOpen open;
  open.seq_uid = uid;
  open.slot = slot;
  open.sampling.seed = 5;
  return open;
}

PlanRow Prompt(uint64_t uid, uint32_t slot, uint32_t position, std::vector<int32_t> tokens,
               std::vector<uint32_t> new_pages, bool sample = false) {
  PlanRow row;
  row.seq_uid = uid;
  row.slot = slot;
  row.position = position;
  row.n_tokens = static_cast<uint32_t>(tokens.size());
  row.tokens = std::move(tokens);
  row.new_pages = std::move(new_pages);
  row.sample = sample;
  return row;
}

StepPlan Step(uint64_t step, std::vector<PlanRow> rows) {
  StepPlan plan;
  plan.epoch = 3;
  plan.step_id = step;
  plan.rows = std::move(rows);
  return plan;
}

class SimWorkerTest : public ::testing::Test {
 protected:
  SimWorkerTest() : worker_({.vocab_size = 1000}, Config(), 0) { worker_.Open(Open(1, 0)); }
  std::string Error(const StepPlan& plan) { return worker_.Execute(plan).error; }
  SimWorker worker_;
};

TEST_F(SimWorkerTest, ChunksGiveTheSameTokenAsTheWhole) {
  worker_.Execute(Step(1, {Prompt(1, 0, 0, {1, 2}, {4})}));
  const StepCollector::Answer pieces =
      worker_.Execute(Step(2, {Prompt(1, 0, 2, {3, 4}, {}, true)}));
  SimWorker other({.vocab_size = 1000}, Config(), 0);
  other.Open(Open(9, 1));
  const StepCollector::Answer whole =
      other.Execute(Step(1, {Prompt(9, 1, 0, {1, 2, 3, 4}, {0}, true)}));
  ASSERT_THAT(pieces.rows, SizeIs(1));
  EXPECT_EQ(pieces.rows[0].tokens, whole.rows[0].tokens);
}

TEST_F(SimWorkerTest, ARepeatedStepIsAnsweredFromMemoryAndAbsorbedOnce) {
  const StepPlan plan = Step(1, {Prompt(1, 0, 0, {1, 2}, {4}, true)});
  const StepCollector::Answer first = worker_.Execute(plan);
  const StepCollector::Answer again = worker_.Execute(plan);
  EXPECT_EQ(again.agreement_hash, first.agreement_hash);
  EXPECT_EQ(again.rows[0].tokens, first.rows[0].tokens);
  EXPECT_EQ(worker_.slot(0).absorbed, 2u);
}

TEST_F(SimWorkerTest, ARefusedPlanChangesNothing) {
  EXPECT_THAT(Error(Step(1, {Prompt(1, 0, 0, {1, 2}, {4}), Prompt(2, 1, 0, {1}, {5})})),
              HasSubstr("sequence 2: it is not open in slot 1"));
  EXPECT_EQ(worker_.slot(0).absorbed, 0u);
  EXPECT_EQ(worker_.pages_used(), 0u);
  EXPECT_EQ(Error(Step(1, {Prompt(1, 0, 0, {1, 2}, {4})})), "");
}

TEST_F(SimWorkerTest, RefusesWhatAWorkerCouldNotDo) {
  worker_.Open(Open(2, 1));
  EXPECT_EQ(Error(Step(1, {Prompt(1, 0, 0, {1, 2}, {4})})), "");
  const auto refused = [&](PlanRow row) { return Error(Step(2, {std::move(row)})); };
  EXPECT_THAT(refused(Prompt(1, 0, 1, {3}, {})), HasSubstr("starts at 1, 2 tokens are absorbed"));
  EXPECT_THAT(refused(Prompt(2, 1, 0, {3}, {4})), HasSubstr("page 4 belongs to sequence 1"));
  EXPECT_THAT(refused(Prompt(2, 1, 0, {3}, {5, 5})), HasSubstr("page 5 is given twice"));
  EXPECT_THAT(refused(Prompt(2, 1, 0, {3}, {8})), HasSubstr("page 8 does not exist"));
  EXPECT_THAT(refused(Prompt(2, 1, 0, {3}, {})), HasSubstr("its pages hold 0 tokens"));
  EXPECT_THAT(refused(Prompt(2, 0, 0, {3}, {5})), HasSubstr("not open in slot 0"));
  EXPECT_THAT(refused(Prompt(1, 0, 2, std::vector<int32_t>(129, 1), {})),
              HasSubstr("129 tokens, the budget is 128"));
  PlanRow drawn = Prompt(1, 0, 2, {}, {});
  drawn.n_tokens = 1;
  drawn.from_device = true;
  EXPECT_THAT(refused(drawn), HasSubstr("no token was drawn"));
  EXPECT_THAT(Error(Step(2, {Prompt(1, 0, 2, {3}, {}), Prompt(1, 0, 3, {3}, {})})),
              HasSubstr("two rows in one plan"));
  EXPECT_THAT(Error(Step(3, {Prompt(1, 0, 2, {3}, {})})), HasSubstr("step 3 comes after 1"));
  StepPlan old = Step(2, {Prompt(1, 0, 2, {3}, {})});
  old.epoch = 2;
  EXPECT_THAT(Error(old), HasSubstr("of epoch 2, this worker in 3"));
}

TEST_F(SimWorkerTest, OpensAndClosesThatDoNotFitAreBreaches) {
  for (const auto& [open, breach] :
       {std::pair{Open(2, 0), "belongs to sequence 1"}, std::pair{Open(2, 7), "does not exist"},
        std::pair{Open(1, 1), "uids are used once"}}) {
    SimWorker worker({.vocab_size = 1000}, Config(), 0);
    worker.Open(Open(1, 0));
    EXPECT_EQ(worker.breach(), "");
    worker.Open(open);
    EXPECT_THAT(worker.breach(), HasSubstr(breach));
  }
  worker_.Close(1);
  EXPECT_EQ(worker_.breach(), "");
  EXPECT_EQ(worker_.slots_used(), 0u);
  worker_.Close(1);
  EXPECT_THAT(worker_.breach(), HasSubstr("it is not open"));
}

TEST_F(SimWorkerTest, WhatAPageHeldBeforeIsNotSeen) {
  worker_.Execute(Step(1, {Prompt(1, 0, 0, {1, 2, 3}, {4})}));
  worker_.Close(1);
  worker_.Open(Open(2, 0));
  worker_.Execute(Step(2, {Prompt(2, 0, 0, {7}, {4})}));
  EXPECT_EQ(worker_.Entries(worker_.slot(0)), HashModel::Entry(0, 7));
}

TEST(HashModel, EveryPartOfWhatIsRememberedDecidesTheToken) {
  const HashModel model{.vocab_size = 1u << 30};
  Sampling sampling;
  std::set<int32_t> tokens = {model.Draw(1, 2, 3, sampling, 0), model.Draw(9, 2, 3, sampling, 0),
                              model.Draw(1, 9, 3, sampling, 0), model.Draw(1, 2, 9, sampling, 0)};
  sampling.seed = 1;
  tokens.insert(model.Draw(1, 2, 3, sampling, 0));
  sampling.choice = 1;
  tokens.insert(model.Draw(1, 2, 3, sampling, 0));
  EXPECT_THAT(tokens, SizeIs(6));
}

TEST(HashModel, NeverDrawsPadding) {
  const HashModel model{.vocab_size = 1000};
  for (uint32_t position = 0; position < 1000; ++position) {
    EXPECT_LT(model.Draw(1, 2, position, {}, 10), 10);
  }
}

TEST(EventQueue, IsInOrderOfTimeAndThenOfArrival) {
  EventQueue<int> queue;
  for (const int i : {5, 1, 3, 1, 5, 3}) queue.Push(i, i * 10 + static_cast<int>(queue.empty()));
  queue.Push(1, 12);
  std::vector<int> order;
  while (!queue.empty()) order.push_back(queue.Pop());
  EXPECT_THAT(order, ::testing::ElementsAre(10, 10, 12, 30, 30, 51, 50));
}

TEST(Random, GapsHaveTheirMean) {
  Random random(1, 1);
  uint64_t sum = 0;
  for (int i = 0; i < 100000; ++i) sum += random.Gap(1000);
  EXPECT_NEAR(static_cast<double>(sum) / 100000, 1000, 10);
}

// Behind a prefix whose draws look at the text, its ids come with the open.
TEST(SimWorkerResume, ThePrefixesIdsMustBeThoseOfItsState) {
  CoreConfig config = Config();
  config.page_tokens = 64;
  config.snapshots = 1;
  config.page_bytes = config.snapshot_bytes = 1;
  std::vector<int32_t> prefix(64);
  for (int32_t i = 0; i < 64; ++i) prefix[i] = i * 3 % 50;
  const auto breach = [&](bool penalises, std::vector<int32_t> tokens) {
    SimWorker worker({.vocab_size = 1000}, config, 0);
    worker.Open(Open(1, 0));
    PlanRow row = Prompt(1, 0, 0, prefix, {4});
    row.exports = {{.offset = 64, .snapshot = 0}};
    EXPECT_EQ(worker.Execute(Step(1, {row})).error, "");
    SequenceOpen open = Open(2, 1);
    if (penalises) open.sampling.presence_penalty = 1;
    open.resume = coordinator::Resume{
        .snapshot = 0, .n_tokens = 64, .pages = {4}, .tokens = std::move(tokens)};
    worker.Open(open);
    return worker.breach();
  };
  EXPECT_EQ(breach(false, {}), "");
  EXPECT_EQ(breach(true, prefix), "");
  EXPECT_THAT(breach(true, {}), HasSubstr("with the ids of other tokens, 0 of them"));
  std::vector<int32_t> other = prefix;
  ++other[20];
  EXPECT_THAT(breach(true, other), HasSubstr("other tokens"));
  other = prefix;
  other.pop_back();
  EXPECT_THAT(breach(true, other), HasSubstr("63 of them"));
}

}  // namespace
}  // namespace quartet::simulation
