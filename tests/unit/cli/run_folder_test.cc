#include "services/cli/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace quartet::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = (fs::temp_directory_path() / "quartet-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    temp_ = root_ + "/tmp";
    shm_ = root_ + "/shm";
    fs::create_directory(temp_);
    fs::create_directory(shm_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string root_;
  std::string temp_;
  std::string shm_;
};

TEST_F(RunFolderTest, IsPrivateAndGoneAtTheEnd) {
  std::string path;
  std::string segments;
  {
    const auto folder = RunFolder::Create(temp_, shm_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = (*folder)->path();
    segments = (*folder)->segments();
    for (const std::string& each : {path, segments}) {
      struct stat info {};
      ASSERT_EQ(stat(each.c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777U, 0700U);
    }
    std::ofstream(segments + "/left by a worker") << "x";
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(segments));
}

TEST_F(RunFolderTest, FoldersOfARunThatWasKilledAreRemovedAndThoseInUseAreNot) {
  const auto living = RunFolder::Create(temp_, shm_);
  ASSERT_TRUE(living.ok());
  fs::create_directory(temp_ + "/quartet-run-dead");
  std::ofstream(temp_ + "/quartet-run-dead/lock") << "";
  fs::create_directory(shm_ + "/quartet-run-dead-segments");
  fs::create_directory(temp_ + "/somebody-elses");
  EXPECT_EQ(RemoveStaleRunFolders(temp_, shm_), 1);
  EXPECT_FALSE(fs::exists(temp_ + "/quartet-run-dead"));
  EXPECT_FALSE(fs::exists(shm_ + "/quartet-run-dead-segments"));
  EXPECT_TRUE(fs::exists(temp_ + "/somebody-elses"));
  EXPECT_TRUE(fs::exists((*living)->path()));
  EXPECT_TRUE(fs::exists((*living)->segments()));
}

TEST_F(RunFolderTest, ATooLongNameForASocketIsRefused) {
  const auto folder = RunFolder::Create("/" + std::string(100, 'x'), shm_);
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("TMPDIR"));
}

TEST_F(RunFolderTest, AMissingPlaceIsNamed) {
  const auto folder = RunFolder::Create(temp_, root_ + "/nothing");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr(root_ + "/nothing"));
  EXPECT_TRUE(fs::is_empty(temp_));
}

}  // namespace
}  // namespace quartet::cli
