#include "shard_worker/checkpoint/read_ahead.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "kernels/cpu/cpu_backend.h"
#include "shard_worker/model/model.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/checkpoint/weight_walk.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MATCHER_P3(IsRun, file, offset, bytes, "") {
  return arg.file == file && arg.offset == offset && arg.bytes == bytes;
}

TEST(ReadRunsTest, RunsThatTouchOverlapOrLieNearAreJoined) {
  EXPECT_THAT(
      JoinRuns(
          {{"b", 0, 10}, {"a", 100, 10}, {"a", 0, 50}, {"a", 40, 20}, {"a", 65, 5}, {"a", 10, 5}},
          5),
      ElementsAre(IsRun("a", 0, 70), IsRun("a", 100, 10), IsRun("b", 0, 10)));
}

// Marks every byte that a list of parts reads, by file.
std::map<std::string, std::vector<bool>> Covered(const std::vector<ReadPart>& parts) {
  std::map<std::string, std::vector<bool>> covered;
  for (const ReadPart& part : parts) {
    for (const ReadRun& run : part) {
      const std::string file(run.file);
      std::vector<bool>& bytes = covered[file];
      bytes.resize(std::filesystem::file_size(file));
      EXPECT_LE(run.end(), static_cast<int64_t>(bytes.size())) << file;
      for (int64_t i = run.offset; i < run.end(); ++i) bytes[static_cast<size_t>(i)] = true;
    }
  }
  return covered;
}

int64_t Total(const std::vector<ReadPart>& parts) {
  int64_t bytes = 0;
  for (const ReadPart& part : parts) {
    for (const ReadRun& run : part) bytes += run.bytes;
  }
  return bytes;
}

TEST(ReadRunsTest, OneRankReadsEveryByteOfTheTextModelOnce) {
  // In 8 bits the scales beside the weights are read too.
  const testing::ScratchFolder fp8;
  const auto image = testing::ReadImage(testing::MiniModel());
  ASSERT_TRUE(image.ok());
  ASSERT_TRUE(testing::WriteImage(testing::ToFp8(*image), fp8.path(), 2).ok());
  for (const std::string& dir : {testing::MiniModel(), testing::DemoModel(), fp8.path()}) {
    const auto resolved = testing::ResolveFolder(dir);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const std::vector<ReadPart> parts = ListReadRuns(resolved->weights, 0);
    auto covered = Covered(parts);
    int64_t expected = 0;
    for (const TensorView* tensor : resolved->checkpoint->tensors()) {
      if (tensor->name.find("visual.") != std::string::npos) continue;
      expected += tensor->bytes;
      const std::vector<bool>& bytes = covered[std::string(tensor->file)];
      EXPECT_EQ(std::count(bytes.begin() + tensor->file_offset,
                           bytes.begin() + tensor->file_offset + tensor->bytes, true),
                tensor->bytes)
          << tensor->name;
    }
    EXPECT_EQ(Total(parts), expected);
  }
}

TEST(ReadRunsTest, RanksTogetherReadEveryByteAndEachLessThanAll) {
  std::map<std::string, std::vector<bool>> together;
  int64_t whole = 0;
  for (const int rank : {0, 1}) {
    const auto resolved = testing::ResolveFolder(testing::DemoModel(), 2, rank);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const std::vector<ReadPart> parts = ListReadRuns(resolved->weights, 0);
    for (const auto& [file, bytes] : Covered(parts)) {
      std::vector<bool>& sum = together[file];
      sum.resize(bytes.size());
      for (size_t i = 0; i < bytes.size(); ++i) sum[i] = sum[i] || bytes[i];
    }
    const auto alone = testing::ResolveFolder(testing::DemoModel());
    whole = Total(ListReadRuns(alone->weights, 0));
    EXPECT_LT(Total(parts), whole * 3 / 4);
  }
  int64_t read = 0;
  for (const auto& [file, bytes] : together) read += std::count(bytes.begin(), bytes.end(), true);
  EXPECT_EQ(read, whole);
}

TEST(ReadRunsTest, StridesBecomeWholeRunsWhenTheirGapsAreSmall) {
  const auto resolved = testing::ResolveFolder(testing::MiniModel(), 2, 1);
  ASSERT_TRUE(resolved.ok());
  const auto runs = [&](int64_t gap) {
    size_t count = 0;
    for (const ReadPart& part : ListReadRuns(resolved->weights, gap)) count += part.size();
    return count;
  };
  // An output projection of [128, 128] in two columns of 64: 128 stretches of 128 bytes.
  EXPECT_GT(runs(0), 128u);
  EXPECT_LE(runs(kMaxReadGapBytes), 2 * (resolved->weights.layers.size() + 2))
      << "a part's tensors lie together, but for some";
}

TEST(ReadRunsTest, TensorsThatLieInMemoryOnlyAreNotRead) {
  TensorView tensor;
  tensor.dtype = Dtype::kF16;
  tensor.file = "f";
  ModelWeights weights;
  weights.embedding = {.tensor = &tensor, .rows = 2, .cols = 4, .row_stride = 4};
  weights.head = weights.embedding;
  weights.final_norm = {.tensor = &tensor, .count = 4};
  EXPECT_THAT(ListReadRuns(weights), ElementsAre(IsEmpty()));
  tensor.file_offset = 100;
  EXPECT_THAT(ListReadRuns(weights), ElementsAre(ElementsAre(IsRun("f", 100, 16))));
}

TEST(ReadRunsTest, PartsAreThoseOfTheLoadingProgress) {
  const auto resolved = testing::ResolveFolder(testing::MiniModel());
  ASSERT_TRUE(resolved.ok());
  const auto backend = cpu::MakeCpuBackend({.threads = 1});
  size_t reports = 0;
  const auto ops = LoadModelOps(resolved->config, resolved->weights, *backend,
                                [&](const LoadStep&) -> absl::Status {
                                  ++reports;
                                  return absl::OkStatus();
                                });
  ASSERT_TRUE(ops.ok()) << ops.status();
  EXPECT_EQ(reports, ListReadRuns(resolved->weights).size() + 1) << "one more before the first";
}

// Pretends to read, and checks that nothing is read outside the window.
class FakeSource : public ReadSource {
 public:
  struct Log {
    std::mutex mutex;
    int64_t allowed = 0;  // no request may end beyond this byte of file "f"
    int64_t bytes = 0;
    int64_t end = 0;
    std::set<int64_t> offsets;
    std::vector<int64_t> sizes;
    std::vector<int64_t> dropped;  // offsets
    absl::Status result;
    int64_t fails_at = -1;  // offset
  };
  explicit FakeSource(Log& log) : log_(log) {}

  absl::Status Read(std::string_view /*file*/, int64_t offset, int64_t size) override {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::lock_guard lock(log_.mutex);
    EXPECT_LE(offset + size, log_.allowed) << "read ahead of the window";
    EXPECT_TRUE(log_.offsets.insert(offset).second) << "read twice";
    log_.bytes += size;
    log_.end = std::max(log_.end, offset + size);
    log_.sizes.push_back(size);
    return offset == log_.fails_at ? absl::DataLossError("f: is bad") : absl::OkStatus();
  }
  void Drop(const ReadRun& run) override {
    std::lock_guard lock(log_.mutex);
    log_.dropped.push_back(run.offset);
  }

 private:
  Log& log_;
};

constexpr int64_t kPart = 64 * 4096;

// Parts that follow each other in one file.
std::vector<ReadPart> Parts(int count) {
  std::vector<ReadPart> parts;
  for (int i = 0; i < count; ++i) parts.push_back({{"f", i * kPart, kPart}});
  return parts;
}

ReadAheadOptions SmallRequests(int64_t window) {
  ReadAheadOptions options;
  options.threads = 3;
  options.request_bytes = 4 * 4096;
  options.window_bytes = window;
  return options;
}

void Allow(FakeSource::Log& log, int64_t bytes) {
  std::lock_guard lock(log.mutex);
  log.allowed = bytes;
}

// Waits for what must happen without the consumer's help.
void AwaitBytes(FakeSource::Log& log, int64_t bytes) {
  for (int i = 0; i < 5000; ++i) {
    {
      std::lock_guard lock(log.mutex);
      if (log.bytes >= bytes) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::lock_guard lock(log.mutex);
  EXPECT_EQ(log.bytes, bytes);
}

TEST(ReadAheadTest, ReadsAsFarAsTheWindowAndNoFurther) {
  FakeSource::Log log;
  Allow(log, 2 * kPart);
  ReadAhead reader(Parts(5), SmallRequests(2 * kPart), std::make_unique<FakeSource>(log));
  AwaitBytes(log, 2 * kPart);
  for (size_t done = 0; done <= 5; ++done) {
    const auto finished = static_cast<int64_t>(done);
    Allow(log, std::min<int64_t>(5, finished + 2) * kPart);
    ASSERT_TRUE(reader.Finished(done).ok());
    AwaitBytes(log, std::min<int64_t>(5, finished + 2) * kPart);
  }
  EXPECT_EQ(reader.stats().bytes, 5 * kPart);
  EXPECT_GT(reader.stats().seconds, 0);
}

TEST(ReadAheadTest, FinishedReturnsWhenTheNextPartIsThere) {
  FakeSource::Log log;
  Allow(log, 5 * kPart);
  ReadAhead reader(Parts(5), SmallRequests(5 * kPart), std::make_unique<FakeSource>(log));
  for (size_t done = 0; done < 5; ++done) {
    ASSERT_TRUE(reader.Finished(done).ok());
    std::lock_guard lock(log.mutex);
    for (int64_t at = 0; at < static_cast<int64_t>(done + 1) * kPart; at += 4 * 4096) {
      EXPECT_EQ(log.offsets.count(at), 1u) << "part " << done << " lacks " << at;
    }
  }
}

TEST(ReadAheadTest, APartLargerThanTheWindowIsReadWhenItIsAwaited) {
  FakeSource::Log log;
  Allow(log, 4096);
  ReadAhead reader(Parts(3), SmallRequests(4096), std::make_unique<FakeSource>(log));
  for (size_t done = 0; done <= 3; ++done) {
    Allow(log, std::min<int64_t>(3, static_cast<int64_t>(done) + 1) * kPart + 4096);
    ASSERT_TRUE(reader.Finished(done).ok());
  }
  EXPECT_EQ(log.bytes, 3 * kPart);
}

TEST(ReadAheadTest, RequestsAreLargeAndBeginOnPages) {
  FakeSource::Log log;
  Allow(log, 1 << 20);
  ReadAheadOptions options = SmallRequests(1 << 20);
  options.request_bytes = 64 * 1024;
  {
    ReadAhead reader({{{"f", 5000, 300000}}}, options, std::make_unique<FakeSource>(log));
    ASSERT_TRUE(reader.Finished(0).ok());
  }
  EXPECT_THAT(log.offsets, ElementsAre(4096, 69632, 135168, 200704, 266240));
  EXPECT_EQ(log.end, 305000);
  std::sort(log.sizes.begin(), log.sizes.end());
  EXPECT_EQ(log.sizes[1], 65536) << "all but the last are whole";
}

TEST(ReadAheadTest, TheFirstErrorReachesTheConsumer) {
  FakeSource::Log log;
  Allow(log, 5 * kPart);
  log.fails_at = kPart + 4 * 4096;
  absl::Status status;
  {
    ReadAhead reader(Parts(5), SmallRequests(kPart), std::make_unique<FakeSource>(log));
    for (size_t done = 0; done <= 5 && status.ok(); ++done) status = reader.Finished(done);
  }
  EXPECT_EQ(status, absl::DataLossError("f: is bad"));
  EXPECT_LT(log.bytes, 5 * kPart) << "nothing is read after it";
}

TEST(ReadAheadTest, FinishedPartsAreDroppedOneWindowBehind) {
  FakeSource::Log log;
  Allow(log, 5 * kPart);
  ReadAheadOptions options = SmallRequests(2 * kPart);
  options.drop_behind = true;
  ReadAhead reader(Parts(5), options, std::make_unique<FakeSource>(log));
  for (size_t done = 0; done <= 2; ++done) ASSERT_TRUE(reader.Finished(done).ok());
  EXPECT_THAT(log.dropped, IsEmpty()) << "another rank may still be at the first part";
  ASSERT_TRUE(reader.Finished(3).ok());
  EXPECT_THAT(log.dropped, ElementsAre(0));
  ASSERT_TRUE(reader.Finished(4).ok());
  ASSERT_TRUE(reader.Finished(5).ok());
  EXPECT_THAT(log.dropped, ElementsAre(0, kPart, 2 * kPart));
}

TEST(ReadAheadTest, NothingIsDroppedUnlessAskedFor) {
  FakeSource::Log log;
  Allow(log, 5 * kPart);
  ReadAhead reader(Parts(5), SmallRequests(0), std::make_unique<FakeSource>(log));
  for (size_t done = 0; done <= 5; ++done) ASSERT_TRUE(reader.Finished(done).ok());
  EXPECT_THAT(log.dropped, IsEmpty());
}

TEST(ReadAheadTest, AReaderThatIsLeftEarlyEnds) {
  FakeSource::Log log;
  Allow(log, 1000 * kPart);
  { ReadAhead reader(Parts(1000), SmallRequests(0), std::make_unique<FakeSource>(log)); }
  EXPECT_LT(log.bytes, 1000 * kPart);
}

TEST(FileSourceTest, AFileCutShortIsAnErrorThatNamesIt) {
  const testing::ScratchFolder folder;
  const auto image = testing::ReadImage(testing::MiniModel());
  ASSERT_TRUE(image.ok());
  ASSERT_TRUE(testing::WriteImage(*image, folder.path()).ok());
  const auto resolved = testing::ResolveFolder(folder.path());
  ASSERT_TRUE(resolved.ok());
  const std::string path = folder.path() + "/model.safetensors";
  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size / 2);

  const std::vector<ReadPart> parts = ListReadRuns(resolved->weights);
  ReadAhead reader(parts, {}, MakeFileSource());
  absl::Status status;
  for (size_t done = 0; done <= parts.size() && status.ok(); ++done) status = reader.Finished(done);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": ends at byte "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cut short"));
}

TEST(FileSourceTest, AMissingFileIsAnErrorThatNamesIt) {
  ReadAhead reader({{{"/nowhere/model.safetensors", 8, 100}}}, {}, MakeFileSource());
  EXPECT_EQ(reader.Finished(0),
            absl::UnavailableError("/nowhere/model.safetensors: No such file or directory"));
}

TEST(FileSourceTest, ReadingBringsPagesIntoTheCacheAndDroppingTakesThemOut) {
  const testing::ScratchFolder folder;
  const std::string path = folder.path() + "/data";
  const int64_t bytes = int64_t{4} << 20;
  {
    std::ofstream file(path, std::ios::binary);
    const std::string text(static_cast<size_t>(bytes), 'x');
    file.write(text.data(), bytes);
  }
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  struct statfs info = {};
  ASSERT_EQ(fstatfs(fd, &info), 0);
  if (info.f_type == TMPFS_MAGIC) GTEST_SKIP() << "a file in memory has no cache beside it";
  ASSERT_EQ(fsync(fd), 0);
  auto* map = static_cast<std::byte*>(
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, fd, 0));
  ASSERT_NE(map, MAP_FAILED);
  const auto resident = [&] {
    std::vector<unsigned char> pages(static_cast<size_t>(bytes / 4096));
    EXPECT_EQ(mincore(map, static_cast<size_t>(bytes), pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
  };
  const auto source = MakeFileSource();
  const ReadRun run{path, 0, bytes, map};
  source->Drop(run);
  EXPECT_LT(resident(), 64);
  ASSERT_TRUE(source->Read(path, 0, bytes).ok());
  EXPECT_EQ(resident(), bytes / 4096);
  for (int64_t at = 0; at < bytes; at += 4096) EXPECT_EQ(map[at], std::byte{'x'});
  source->Drop(run);
  EXPECT_LT(resident(), 64) << "although they were mapped";
  munmap(map, static_cast<size_t>(bytes));
  close(fd);
}

}  // namespace
}  // namespace quartet
