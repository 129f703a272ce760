#include "services/coordinator/rpc/segment_files.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace quartet::coordinator {
namespace {

namespace fs = std::filesystem;

class SegmentFiles : public ::testing::Test {
 protected:
  SegmentFiles() {
    std::string name = (fs::temp_directory_path() / "quartet-segments-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~SegmentFiles() override { fs::remove_all(root_); }
  void Touch(const std::string& name) { std::ofstream(root_ / name) << "x"; }

  fs::path root_;
};

TEST_F(SegmentFiles, PrefixIsAFileNameWhateverTheAddressIs) {
  EXPECT_EQ(SegmentPrefix("host-127.0.0.1:7000"), "quartet-host_127.0.0.1_7000-");
  EXPECT_EQ(SegmentPrefix("h-unix:/a/b"), "quartet-h_unix__a_b-");
  EXPECT_LT(SegmentPrefix(std::string(1000, 'x')).size(), 200u);
}

TEST_F(SegmentFiles, AMissingFolderIsMade) {
  const fs::path folder = root_ / "a" / "b";
  EXPECT_TRUE(PrepareSegmentFolder(folder.string(), "quartet-e-").ok());
  EXPECT_TRUE(fs::is_directory(folder));
}

TEST_F(SegmentFiles, OnlyEarlierEpochsOfTheSameEngineAreRemoved) {
  Touch("quartet-e-123");
  Touch("quartet-e-");
  Touch("quartet-e-12a");
  Touch("quartet-other-123");
  Touch("somebody-elses");
  ASSERT_TRUE(PrepareSegmentFolder(root_.string(), "quartet-e-").ok());
  EXPECT_FALSE(fs::exists(root_ / "quartet-e-123"));
  EXPECT_TRUE(fs::exists(root_ / "quartet-e-"));
  EXPECT_TRUE(fs::exists(root_ / "quartet-e-12a"));
  EXPECT_TRUE(fs::exists(root_ / "quartet-other-123"));
  EXPECT_TRUE(fs::exists(root_ / "somebody-elses"));
}

TEST_F(SegmentFiles, AFileInPlaceOfTheFolderIsAnErrorThatNamesTheFlag) {
  Touch("file");
  absl::Status status = PrepareSegmentFolder((root_ / "file").string(), "quartet-e-");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--segment-folder"));
}

}  // namespace
}  // namespace quartet::coordinator
