#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/cli/program.h"

namespace quartet::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

Outcome Sim(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {QUARTET_BINARY_DIR "/quartet", "sim"});
  return Program(flags, {}).Finish();
}

TEST(SimCommand, PrintsATableOfWhatHappened) {
  const Outcome outcome = Sim({"--seed", "5", "--steps", "100"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, ContainsRegex("^seed 5: . ranks, . slots, "));
  for (const char* line : {"runs +1 ", "steps +1[01]", "requests +[0-9]+ ", "finished +[0-9]+ ",
                           "faults +[0-9]+ ", "digest +[0-9a-f]+"}) {
    EXPECT_THAT(outcome.out, ContainsRegex(line));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("step 100:"))) << "a trace that nobody asked for";
}

TEST(SimCommand, TracesEveryStepAndTheSameSeedGivesTheSameTrace) {
  const Outcome first = Sim({"--seed", "5", "--steps", "100", "--trace"});
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_THAT(first.out, ContainsRegex(" ms  step 100: . rows, [0-9]+ tokens, hash "));
  EXPECT_THAT(first.out, ContainsRegex(" ms  request [0-9]+ is admitted"));
  EXPECT_EQ(Sim({"--seed", "5", "--steps", "100", "--trace"}).out, first.out);
  EXPECT_NE(Sim({"--seed", "6", "--steps", "100", "--trace"}).out, first.out);
}

TEST(SimCommand, RunsManySeeds) {
  const Outcome outcome = Sim({"--seed", "5", "--runs", "20", "--steps", "50"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, ContainsRegex("^runs +20 "));
}

TEST(SimCommand, RefusesAReplayOfWhatIsNoRecording) {
  const Outcome missing = Sim({"--replay", "/nowhere/flight.bin"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("cannot read --replay /nowhere/flight.bin"));
  const TempFolder folder;
  std::ofstream(folder / "flight.bin") << "something else";
  const Outcome foreign = Sim({"--replay", folder / "flight.bin"});
  EXPECT_EQ(foreign.exit_code, 1);
  EXPECT_THAT(foreign.err, HasSubstr("flight.bin: not a flight recording"));
}

}  // namespace
}  // namespace quartet::cli
