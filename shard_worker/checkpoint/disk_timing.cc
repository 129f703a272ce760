#include "shard_worker/checkpoint/disk_timing.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "shard_worker/checkpoint/message.h"
#include "shard_worker/checkpoint/read_ahead.h"

namespace quartet {
namespace {

constexpr int64_t kDirectBytes = int64_t{16} << 20;
constexpr size_t kDirectAlignment = 4096;

}  // namespace

void PrintTurn(const char* how, const DiskTurn& turn) {
  std::printf("%-12s %10.1f MiB %9.2f s %10.1f MB/s\n", how,
              static_cast<double>(turn.bytes) / (1 << 20), turn.seconds, turn.rate());
}

int64_t DiskBytes() {
  std::ifstream file("/proc/self/io");
  std::string key;
  int64_t value = 0;
  while (file >> key >> value) {
    if (key == "read_bytes:") return value;
  }
  return 0;
}

bool DropCaches(const std::vector<std::vector<ReadPart>>& ranks) {
  const std::unique_ptr<ReadSource> source = MakeFileSource();
  for (const std::vector<ReadPart>& parts : ranks) {
    for (const ReadPart& part : parts) {
      for (const ReadRun& run : part) source->Drop(run);
    }
  }
  sync();
  std::ofstream file("/proc/sys/vm/drop_caches");
  file << "3" << std::flush;
  return file.good();
}

std::set<std::string> FilesOf(const Checkpoint& checkpoint) {
  std::set<std::string> files;
  for (const TensorView* tensor : checkpoint.tensors()) files.emplace(tensor->file);
  return files;
}

absl::StatusOr<DiskTurn> ReadDirect(const std::set<std::string>& files) {
  const std::unique_ptr<void, decltype(&std::free)> buffer(
      std::aligned_alloc(kDirectAlignment, kDirectBytes), &std::free);
  DiskTurn turn;
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& path : files) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) return absl::UnavailableError(Cat(path, ": cannot be opened with O_DIRECT"));
    ssize_t got = 0;
    while ((got = read(fd, buffer.get(), kDirectBytes)) > 0) turn.bytes += got;
    close(fd);
    if (got < 0) return absl::UnavailableError(Cat(path, ": reading with O_DIRECT failed"));
  }
  turn.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return turn;
}

}  // namespace quartet
