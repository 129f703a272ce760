#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_DISK_TIMING_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_DISK_TIMING_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/read_runs.h"
#include "shard_worker/checkpoint/safetensors.h"

// What the benchmarks of loading measure: bytes that really come from the disk, and what a plain
// sequential reader gets from it.

namespace quartet {

struct DiskTurn {
  int64_t bytes = 0;  // that came from the disk
  double seconds = 0;
  double rate() const { return static_cast<double>(bytes) / 1e6 / seconds; }  // MB/s
};
void PrintTurn(const char* how, const DiskTurn& turn);

// Bytes that this process has caused to be read from disks.
int64_t DiskBytes();

// Empties the page cache, which only root may: false. Mapped pages would stay, so the runs leave
// their mappings first.
bool DropCaches(const std::vector<std::vector<ReadPart>>& ranks);

std::set<std::string> FilesOf(const Checkpoint& checkpoint);

// Past the page cache, as dd iflag=direct bs=16M does.
absl::StatusOr<DiskTurn> ReadDirect(const std::set<std::string>& files);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_DISK_TIMING_H_
