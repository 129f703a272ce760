#include "services/coordinator/core/prefill_pacer.h"

#include <gtest/gtest.h>

namespace quartet::coordinator {
namespace {

constexpr double kDecodeUs = 20000;  // of a step, whatever its decode rows
constexpr double kPromptTokenUs = 500;

StepShape Decode(uint32_t rows) {
  StepShape shape;
  for (uint32_t i = 0; i < rows; ++i) shape.AddDecode(1, 0);
  return shape;
}

TimeUs StepUs(const StepShape& shape) {
  return static_cast<TimeUs>(kDecodeUs + kPromptTokenUs * shape.prefill_tokens);
}

// One that knows this machine.
PrefillPacer Pacer(uint32_t quantum_ms, double share) {
  PrefillPacer pacer(quantum_ms, share);
  for (uint32_t i = 1; i <= 8; ++i) {
    StepShape prompt;
    prompt.AddPrefill(64 * i, 0);
    pacer.OnStep(prompt, StepUs(prompt));
    pacer.OnStep(Decode(i), StepUs(Decode(i)));
  }
  return pacer;
}

TEST(PrefillPacer, BesideDecodersAStepTakesWhatFitsTheQuantum) {
  PrefillPacer pacer = Pacer(300, 0);
  ASSERT_TRUE(pacer.BeginStep(Decode(3)));
  EXPECT_NEAR(pacer.TokensThatFit(0), (300000 - kDecodeUs) / kPromptTokenUs, 10);
  pacer.AddRow(448, 0);
  EXPECT_NEAR(pacer.TokensThatFit(0), (300000 - kDecodeUs) / kPromptTokenUs - 448, 10);
  pacer.AddRow(128, 0);
  EXPECT_EQ(pacer.TokensThatFit(0), 0u);
}

TEST(PrefillPacer, TheFirstRowMayHaveOneChunkMultipleWhateverItTakes) {
  PrefillPacer pacer = Pacer(1, 0);
  ASSERT_TRUE(pacer.BeginStep(Decode(3)));
  EXPECT_EQ(pacer.TokensThatFit(0), kChunkMultiple);
  pacer.AddRow(5, 0);
  EXPECT_EQ(pacer.TokensThatFit(0), 0u);
}

TEST(PrefillPacer, WithoutDecodersOrWithoutAQuantumThereIsNoLimit) {
  PrefillPacer pacer = Pacer(300, 0.5);
  ASSERT_TRUE(pacer.BeginStep({}));
  EXPECT_GT(pacer.TokensThatFit(100000), 1000000u);
  PrefillPacer any = Pacer(0, 0);
  ASSERT_TRUE(any.BeginStep(Decode(3)));
  EXPECT_GT(any.TokensThatFit(100000), 1000000u);
}

TEST(PrefillPacer, AfterAStepWithPromptsDecodersHaveTheirShareOfTheTime) {
  for (const double share : {0.25, 0.5, 0.75}) {
    PrefillPacer pacer = Pacer(300, share);
    double alone_us = 0;
    double both_us = 0;
    for (int step = 0; step < 1000; ++step) {
      StepShape shape = Decode(2);
      if (pacer.BeginStep(Decode(2))) shape.AddPrefill(512, 0);
      (shape.prefill_tokens > 0 ? both_us : alone_us) += static_cast<double>(StepUs(shape));
      pacer.OnStep(shape, StepUs(shape));
    }
    EXPECT_NEAR(alone_us / (alone_us + both_us), share, 0.05) << share;
  }
}

TEST(PrefillPacer, TheDebtEndsWithTheLastDecoder) {
  PrefillPacer pacer = Pacer(300, 0.5);
  StepShape both = Decode(1);
  both.AddPrefill(512, 0);
  pacer.OnStep(both, StepUs(both));
  EXPECT_FALSE(pacer.BeginStep(Decode(1)));
  EXPECT_TRUE(pacer.BeginStep({}));
  EXPECT_TRUE(pacer.BeginStep(Decode(1)));
}

TEST(PrefillPacer, AStepThatWasHeldUpIsNotMadeUpForInFull) {
  PrefillPacer pacer = Pacer(300, 0.5);
  StepShape both = Decode(1);
  both.AddPrefill(512, 0);
  pacer.OnStep(both, 60000000);
  int alone = 0;
  while (!pacer.BeginStep(Decode(1))) {
    pacer.OnStep(Decode(1), StepUs(Decode(1)));
    ++alone;
  }
  EXPECT_LE(alone, 30) << "600 ms in steps of 20 ms";
}

TEST(PrefillPacer, PredictsTheTimeOfPromptsWithTheDecodersShare) {
  PrefillPacer pacer = Pacer(300, 0.5);
  // 2,048 tokens a step: 20 + 1,024 ms.
  EXPECT_NEAR(pacer.PrefillUs({}, 20480, 0, 2048), 10 * 1044000, 200000);
  // 512 tokens in 276 ms, and as long for decoders alone.
  EXPECT_NEAR(pacer.PrefillUs(Decode(2), 5120, 0, 2048), 10 * 2 * 276000, 200000);
  EXPECT_EQ(pacer.PrefillUs(Decode(2), 0, 0, 2048), 0);
  // Of ten tokens and one with the prompt: 276 ms, then 14 of 20 ms.
  EXPECT_NEAR(pacer.TokenUsBesidePrompts(Decode(2)), 600000.0 / 16, 4000);
}

}  // namespace
}  // namespace quartet::coordinator
