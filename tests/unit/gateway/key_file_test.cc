// A file of API keys that changes while the server runs.
#include "services/gateway/access/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace quartet::gateway {
namespace {

using ::testing::HasSubstr;

const std::string kAnn = "key-of-ann-0123456789";
const std::string kBob = "key-of-bob-0123456789";

class KeyFileTest : public ::testing::Test {
 protected:
  KeyFileTest()
      : path_(absl::StrCat(::testing::TempDir(), "/key-file-",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~KeyFileTest() override { std::remove(path_.c_str()); }

  void Write(const std::string& text) { std::ofstream(path_) << text; }
  static std::string Line(const std::string& name, const std::string& key) {
    return absl::StrCat(*MakeApiKeyLine(name, key), "\n");
  }
  void Open() {
    auto opened = KeyFile::Open(path_, {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    file_ = *std::move(opened);
  }
  bool Passes(const std::string& key) {
    return std::holds_alternative<std::shared_ptr<KeyLease>>(
        file_->gate()->Admit("Bearer " + key, true));
  }

  const std::string path_;
  std::unique_ptr<KeyFile> file_;
};

TEST_F(KeyFileTest, KeysComeAndGoWithTheFile) {
  Write(Line("ann", kAnn));
  Open();
  EXPECT_TRUE(Passes(kAnn));
  EXPECT_FALSE(Passes(kBob));
  EXPECT_EQ(file_->Check().value(), false) << "nothing has changed";
  Write(Line("bob", kBob));
  EXPECT_EQ(file_->Check().value(), true);
  EXPECT_FALSE(Passes(kAnn));
  EXPECT_TRUE(Passes(kBob));
}

TEST_F(KeyFileTest, ABrokenFileKeepsTheOldKeysAndIsToldOnce) {
  Write(Line("ann", kAnn));
  Open();
  Write(kBob);
  const absl::StatusOr<bool> broken = file_->Check();
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr(path_ + " line 1: "));
  EXPECT_EQ(file_->Check().value(), false) << "told already";
  EXPECT_TRUE(Passes(kAnn));
  std::remove(path_.c_str());
  EXPECT_THAT(std::string(file_->Check().status().message()), HasSubstr(path_));
  EXPECT_TRUE(Passes(kAnn));
  Write(Line("ann", kAnn) + Line("bob", kBob));
  EXPECT_EQ(file_->Check().value(), true);
  EXPECT_TRUE(Passes(kBob));
}

TEST_F(KeyFileTest, AWatchedFileIsReadByItself) {
  Write(Line("ann", kAnn));
  Open();
  std::promise<std::pair<absl::Status, size_t>> told;
  bool first = true;  // the end of the test takes the file away, which is news too
  file_->Watch(absl::Milliseconds(1), [&](const absl::Status& status, size_t keys) {
    if (std::exchange(first, false)) told.set_value({status, keys});
  });
  // In one step, as an editor does it: half a file would be another change.
  const std::string next = path_ + ".next";
  std::ofstream(next) << Line("ann", kAnn) << Line("bob", kBob);
  ASSERT_EQ(std::rename(next.c_str(), path_.c_str()), 0);
  const auto [status, keys] = told.get_future().get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(keys, 2u);
  EXPECT_TRUE(Passes(kBob));
  file_.reset();
}

TEST_F(KeyFileTest, WithoutAFileThereIsNoGate) {
  const auto opened = KeyFile::Open("/nowhere/keys.txt", {});
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("/nowhere/keys.txt"));
}

}  // namespace
}  // namespace quartet::gateway
