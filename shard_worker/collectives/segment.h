#ifndef QUARTET_SHARD_WORKER_COLLECTIVES_SEGMENT_H_
#define QUARTET_SHARD_WORKER_COLLECTIVES_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/collectives/collectives.h"

namespace quartet {

// The layout of the shared file: header, one slot per rank, then two data areas per rank.

inline constexpr uint64_t kSegmentMagic = 0x315452415551ULL;  // "QUART1"
inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr int kMaxRanks = 64;

// Why the group is unusable. kWriting: somebody is about to say why.
enum class GroupState : uint32_t { kGood, kWriting, kAborted, kDeadline, kMismatch };

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t size;
  uint64_t epoch;
  uint64_t chunk_bytes;
  alignas(64) std::atomic<uint32_t> arrived;  // ranks that have joined
  std::atomic<uint32_t> state;                // GroupState
  char reason[256];                           // valid once state is past kWriting
};

// Written by its rank, read by all. One cache line of its own for what others wait on.
struct RankSlot {
  alignas(64) std::atomic<uint32_t> round;  // last round whose data this rank has published
  std::atomic<uint32_t> waiters;            // ranks that may sleep on `round`
  std::atomic<uint32_t> joined;
  std::atomic<uint32_t> left;
  alignas(64) uint64_t tag[2];  // what the rank does in the round, by parity of the round
};

// The mapped file. Unmaps when destroyed.
class Segment {
 public:
  // Creates the file or opens the one that another rank created, and checks that it is of this
  // group.
  static absl::StatusOr<Segment> CreateOrOpen(const SharedMemoryOptions& options);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(map_); }
  RankSlot& slot(int rank) const;
  // Data area of a rank for rounds of that parity, chunk_bytes long, aligned to a page.
  std::byte* area(int rank, uint32_t parity) const;
  // Removes the file's name if it still leads to this file.
  void Unlink() const;

 private:
  Segment() = default;

  std::string path_;
  std::byte* map_ = nullptr;
  size_t bytes_ = 0;
  size_t area_bytes_ = 0;
  uint64_t inode_ = 0;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_COLLECTIVES_SEGMENT_H_
