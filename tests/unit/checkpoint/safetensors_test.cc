#include "shard_worker/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/checkpoint/weight_walk.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using testing::ScratchFolder;

// A file image: header length, header, `data_bytes` bytes of data.
std::string FileWith(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\x5A');
}

absl::StatusOr<std::vector<HeaderEntry>> Parse(const std::string& file) {
  return ParseSafetensorsHeader(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(file.data()), file.size()),
      file.size(), "x.safetensors");
}

std::string ErrorOf(const std::string& header, size_t data_bytes) {
  const auto entries = Parse(FileWith(header, data_bytes));
  return entries.ok() ? "" : std::string(entries.status().message());
}

TEST(SafetensorsHeaderTest, TensorsComeInTheOrderOfTheirData) {
  const auto entries = Parse(FileWith(
      R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
      R"("s":{"dtype":"I32","shape":[],"data_offsets":[12,16]}})",
      16));
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].dtype, Dtype::kBf16);
  EXPECT_EQ((*entries)[0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].begin, 4u);
  EXPECT_EQ((*entries)[2].shape, std::vector<int64_t>{});
}

TEST(SafetensorsHeaderTest, AnEmptyTensorBetweenOthersIsFine) {
  EXPECT_EQ(ErrorOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                    R"("e":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},)"
                    R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                    8),
            "");
}

TEST(SafetensorsHeaderTest, EveryDefectIsNamed) {
  struct Case {
    std::string header;
    size_t data_bytes;
    std::string message;
  };
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const Case cases[] = {
      {"{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7,
       "tensor \"b\" begins at data byte 3, inside \"a\", which ends at 4"},
      {"{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9,
       "bytes 4 to 5 in front of tensor \"b\" belong to no tensor"},
      {"{" + a + "}", 3, "tensor \"a\" ends at data byte 4, but the file holds only 3 bytes"},
      {"{" + a + "}", 5, "1 bytes after the last tensor belong to none"},
      {"{" + a + "," + a + "}", 4, "header: \"a\" appears twice"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4,
       "header: \"dtype\" appears twice"},
      {R"({"a":{"dtype":"F7","shape":[4],"data_offsets":[0,4]}})", 4,
       "tensor \"a\": dtype \"F7\" is unknown; expected one of BOOL, U8"},
      {R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,4]}})", 4,
       "tensor \"a\": data_offsets [0,4] hold 4 bytes, expected 8 for F16 [4]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, "two ascending byte offsets"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4, "shape holds -4"},
      {R"({"a":{"dtype":"U8","shape":[1099511627776,1099511627776],"data_offsets":[0,4]}})", 4,
       "is larger than any file"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]}})", 4,
       "not a list of at most 8 sizes"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1]}})", 4,
       "unknown field \"strides\""},
      {R"({"a":[]})", 4, "expected an object with dtype, shape and data_offsets"},
      {"[]", 0, "header is not a JSON object"},
      {"{\"a\":", 0, "header: not valid JSON"},
      {R"({"a":{"dtype":"U8","shape":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[4]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}})",
       4, "not valid JSON"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ErrorOf(c.header, c.data_bytes), HasSubstr(c.message)) << c.header;
  }
}

TEST(SafetensorsHeaderTest, FilesTooShortForTheirHeaderAreNamed) {
  EXPECT_THAT(std::string(Parse("abc").status().message()),
              HasSubstr("file of 3 bytes, expected a safetensors file"));
  std::string file = FileWith("{}", 0);
  file[0] = 3;
  EXPECT_EQ(Parse(file).status().message(),
            "x.safetensors: header of 3 bytes is longer than the file, which has 2 bytes after the "
            "header length");
  std::memset(file.data(), 0xFF, 8);
  EXPECT_THAT(std::string(Parse(file).status().message()),
              HasSubstr("header of 18446744073709551615 bytes is longer than the file"));
}

TEST(SafetensorsHeaderTest, ALostSymbolicLinkIsRecognised) {
  EXPECT_THAT(std::string(Parse("../other/model-00001-of-00002.safetensors").status().message()),
              HasSubstr("the file is the text \"../other/model-00001-of-00002.safetensors\", a "
                        "symbolic link that was lost in copying"));
}

TEST(SafetensorsHeaderTest, RandomDamageNeverPassesForMoreThanTheFileHolds) {
  const std::string good = FileWith(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"k":"v"}})",
      16);
  ASSERT_TRUE(Parse(good).ok());
  std::mt19937 random(20240611);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string file = good;
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % file.size();
      switch (random() % 4) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file.erase(at, 1 + random() % 8);
          break;
        case 2:
          file.insert(at, 1, "{}[],:\"0123456789-.eE"[random() % 20]);
          break;
        default:
          file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
      }
      if (file.empty()) file = "x";
    }
    const auto entries = Parse(file);
    if (!entries.ok()) {
      ++refused;
      EXPECT_THAT(std::string(entries.status().message()), HasSubstr("x.safetensors"));
      continue;
    }
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    uint64_t bytes = 0;
    for (const HeaderEntry& entry : *entries) bytes += entry.end - entry.begin;
    EXPECT_EQ(8 + length + bytes, file.size());
  }
  EXPECT_GT(refused, 10000);
}

TEST(CheckpointTest, FindsTensorsOfASingleFileAndOfShards) {
  const auto image = testing::ReadImage(testing::MiniModel());
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->tensors.size(), 401u);
  for (int shards : {1, 3}) {
    const ScratchFolder folder;
    ASSERT_TRUE(testing::WriteImage(*image, folder.path(), shards).ok());
    const auto checkpoint = Checkpoint::Open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->tensors().size(), 401u);
    const TensorView* norm = (*checkpoint)->Find("model.language_model.norm.weight");
    ASSERT_NE(norm, nullptr);
    EXPECT_EQ(norm->dtype, Dtype::kBf16);
    EXPECT_EQ(norm->shape, std::vector<int64_t>{128});
    EXPECT_EQ((*checkpoint)->Find("model.language_model.norm"), nullptr);
    EXPECT_THAT(std::string(norm->file),
                HasSubstr(shards == 1 ? "/model.safetensors" : "-of-00003"));
  }
}

TEST(CheckpointTest, ShardsOutsideTheFolderAreRefused) {
  const ScratchFolder folder;
  std::ofstream(folder.path() + "/model.safetensors.index.json")
      << R"({"weight_map":{"a":"../secret.safetensors"}})";
  EXPECT_THAT(std::string(Checkpoint::Open(folder.path()).status().message()),
              HasSubstr("weight_map[\"a\"] is \"../secret.safetensors\", expected a file name"));
}

TEST(CheckpointTest, AFolderWithoutWeightsIsNamed) {
  const ScratchFolder folder;
  EXPECT_EQ(Checkpoint::Open(folder.path()).status().message(),
            absl::StrCat(folder.path(),
                         ": no weights; expected model.safetensors or "
                         "model.safetensors.index.json"));
}

TEST(CheckpointTest, DigestFollowsConfigHeadersAndSizesOnly) {
  auto image = testing::ReadImage(testing::MiniModel());
  ASSERT_TRUE(image.ok());
  const auto digest = [&] {
    const ScratchFolder folder;
    EXPECT_TRUE(testing::WriteImage(*image, folder.path(), 2).ok());
    return *(*Checkpoint::Open(folder.path()))->Digest();
  };
  const std::string first = digest();
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(digest(), first);
  image->tensors[0].bytes[0] = static_cast<char>(image->tensors[0].bytes[0] ^ 1);
  EXPECT_EQ(digest(), first) << "data is not read";
  image->tensors[0].name += "x";
  const std::string renamed = digest();
  EXPECT_NE(renamed, first);
  image->config["note"] = 1;
  EXPECT_NE(digest(), renamed);
}

}  // namespace
}  // namespace quartet
