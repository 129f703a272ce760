#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/cli/program.h"

namespace quartet::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(DoctorCommand, FailsWhereTheServicesAreMissingAndSaysWhatWouldHelp) {
  const TempFolder folder;
  std::filesystem::copy_file(QUARTET_BINARY_DIR "/quartet", folder / "quartet");
  const Outcome outcome = Program({folder / "quartet", "doctor"}, {}).Finish();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, ContainsRegex("FAIL  programs +quartet-gateway, quartet-coordinator, "
                                         "quartet-shard-worker missing"));
  EXPECT_THAT(outcome.out, HasSubstr("scripts/quickstart.sh"));
}

TEST(DoctorCommand, EveryLineHasAVerdict) {
  const Outcome outcome =
      Program({QUARTET_BINARY_DIR "/quartet", "doctor", "--models", QUARTET_SOURCE_DIR "/models"},
              {})
          .Finish();
  for (const char* subject : {"processor", "cores", "memory", "/dev/shm", "open files", "port 8000",
                              "port 9000", "GPUs", "programs", "models"}) {
    EXPECT_THAT(outcome.out, ContainsRegex("(ok  |warn|FAIL)  " + std::string(subject)));
  }
  EXPECT_THAT(outcome.out, ContainsRegex("ok +models +quartet-demo-exl3 \\(glm5_next\\)"));
}

}  // namespace
}  // namespace quartet::cli
