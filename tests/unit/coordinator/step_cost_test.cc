#include "services/coordinator/core/step_cost.h"

#include <gtest/gtest.h>

#include <random>

namespace quartet::coordinator {
namespace {

// A machine whose steps take what this says, in microseconds.
struct Machine {
  double base = 0;
  double decode_token = 0;
  double prefill_token = 0;
  double attended_token = 0;

  double StepUs(const StepShape& shape) const {
    return base + decode_token * shape.decode_tokens + prefill_token * shape.prefill_tokens +
           attended_token * shape.attended_tokens;
  }
};

constexpr Machine kV100 = {18000, 700, 690, 0.004};
constexpr Machine kLaptop = {400, 150, 1900, 0.05};

StepShape Decode(uint32_t rows, uint32_t position = 1000) {
  StepShape shape;
  for (uint32_t i = 0; i < rows; ++i) shape.AddDecode(1, position);
  return shape;
}

StepShape With(StepShape shape, uint32_t prefill_tokens, uint32_t position = 0) {
  shape.AddPrefill(prefill_tokens, position);
  return shape;
}

void Show(const Machine& machine, const StepShape& shape, StepCost& cost, double noise = 1) {
  cost.Observe(shape, static_cast<TimeUs>(machine.StepUs(shape) * noise));
}

// Prompts at different depths, alone and beside others.
void ShowSome(const Machine& machine, StepCost& cost) {
  for (int round = 0; round < 8; ++round) {
    for (uint32_t rows = 1; rows <= 4; ++rows) Show(machine, Decode(rows, 500 * round), cost);
    Show(machine, With({}, 2048, 2048 * round), cost);
    Show(machine, With(Decode(3), 256 + 64 * round, 1000 * round), cost);
  }
}

void ExpectNear(const Machine& machine, const StepCost& cost, const StepShape& shape,
                double relative) {
  const double true_us = machine.StepUs(shape);
  EXPECT_NEAR(cost.PredictUs(shape), true_us, relative * true_us)
      << shape.decode_rows << " decode rows, " << shape.prefill_tokens << " prompt tokens, "
      << shape.attended_tokens << " attended";
}

class StepCostOn : public ::testing::TestWithParam<Machine> {};
INSTANTIATE_TEST_SUITE_P(Machines, StepCostOn, ::testing::Values(kV100, kLaptop));

TEST_P(StepCostOn, LearnsTheTimesOfAMachine) {
  StepCost cost;
  ShowSome(GetParam(), cost);
  ExpectNear(GetParam(), cost, Decode(2), 0.02);
  ExpectNear(GetParam(), cost, Decode(8), 0.02);
  ExpectNear(GetParam(), cost, With({}, 512, 1000), 0.02);
  ExpectNear(GetParam(), cost, With(Decode(3), 384, 5000), 0.02);
  ExpectNear(GetParam(), cost, With({}, 4096, 30000), 0.02);
}

TEST_P(StepCostOn, OnePromptAndOneTokenSayMuchAlready) {
  StepCost cost;
  Show(GetParam(), With({}, 500, 0), cost);
  Show(GetParam(), Decode(1, 500), cost);
  ExpectNear(GetParam(), cost, With(Decode(1, 500), 256, 0), 0.2);
}

TEST_P(StepCostOn, ManyStepsOfOneKindDoNotDriveOutTheOther) {
  StepCost cost;
  ShowSome(GetParam(), cost);
  for (int i = 0; i < 10000; ++i) Show(GetParam(), Decode(1, i), cost);
  ExpectNear(GetParam(), cost, With(Decode(3), 384, 5000), 0.05);
}

TEST_P(StepCostOn, NoiseIsAveragedAndStepsThatWereHeldUpCountLittle) {
  StepCost cost;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  for (int i = 0; i < 100; ++i) {
    const double held_up = i % 7 == 3 ? 20 : 1;
    Show(GetParam(), Decode(1 + i % 4), cost, noise(random) * held_up);
    Show(GetParam(), With(Decode(2), 64 * (1 + i % 6), 100 * i), cost, noise(random) * held_up);
  }
  ExpectNear(GetParam(), cost, Decode(2), 0.15);
  ExpectNear(GetParam(), cost, With(Decode(2), 300, 4000), 0.15);
}

TEST_P(StepCostOn, AMachineThatSlowsDownIsNoticedWithinSomeDozenSteps) {
  StepCost cost;
  ShowSome(GetParam(), cost);
  const Machine& now = GetParam();
  const Machine slow = {2 * now.base, 2 * now.decode_token, 2 * now.prefill_token,
                        2 * now.attended_token};
  for (int i = 0; i < 32; ++i) {
    Show(slow, Decode(1 + i % 4), cost);
    Show(slow, With(Decode(2), 64 * (1 + i % 6), 100 * i), cost);
  }
  ExpectNear(slow, cost, With(Decode(2), 300, 2000), 0.1);
}

TEST(StepCost, BeforeAnythingWasSeenTheStartValuesCount) {
  StepCost cost;
  EXPECT_FALSE(cost.has_seen_prefill());
  EXPECT_NEAR(cost.PredictUs(Decode(1, 0)), 20000, 1000);
  EXPECT_NEAR(cost.PrefillUs(400, 0), 400 * 714, 30000);
  cost.Observe(Decode(1), 5000);
  EXPECT_FALSE(cost.has_seen_prefill());
  cost.Observe(With({}, 100), 5000);
  EXPECT_TRUE(cost.has_seen_prefill());
}

TEST(StepCost, AClockThatWasSetBackIsNoStep) {
  StepCost cost;
  ShowSome(kV100, cost);
  const double before = cost.PredictUs(Decode(2));
  for (int i = 0; i < 100; ++i) cost.Observe(Decode(2), i % 2 == 0 ? 0 : -5000000);
  EXPECT_EQ(cost.PredictUs(Decode(2)), before);
}

TEST(StepCost, TokensInATimeTakeThatTime) {
  StepCost cost;
  ShowSome(kLaptop, cost);
  for (const uint32_t position : {0u, 1000u, 100000u}) {
    for (const double time_us : {20000.0, 300000.0, 5000000.0}) {
      const double tokens = cost.PrefillTokensIn(time_us, position);
      EXPECT_NEAR(cost.PrefillUs(static_cast<uint32_t>(tokens), position), time_us,
                  cost.PrefillUs(1, position + static_cast<uint32_t>(tokens)));
    }
  }
  EXPECT_EQ(cost.PrefillTokensIn(-5, 0), 0);
}

}  // namespace
}  // namespace quartet::coordinator
