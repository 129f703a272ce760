#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "shard_worker/collectives/collectives.h"
#include "shard_worker/collectives/futex.h"
#include "shard_worker/collectives/segment.h"

namespace quartet {
namespace {

// A sleeper looks at the state of the group this often, whether or not somebody wakes it.
constexpr int kReasonWaits = 1000;  // of 100 us each
constexpr absl::Duration kNap = absl::Milliseconds(50);
// Looks at a counter before going to sleep. With a core for every rank the peers are usually a few
// microseconds away; with fewer cores, spinning only keeps a peer from running.
constexpr int kSpinsWithCores = 4000;
constexpr int kSpinsWithoutCores = 20;

constexpr size_t kMaxChunkBytes = size_t{1} << 30;

enum class Operation : uint64_t { kBarrier = 1, kAllReduce = 2, kAllGather = 3 };

uint64_t Tag(Operation operation, size_t bytes) {
  return static_cast<uint64_t>(operation) << 56 | (bytes & ((uint64_t{1} << 56) - 1));
}

std::string DescribeTag(uint64_t tag) {
  const uint64_t bytes = tag & ((uint64_t{1} << 56) - 1);
  switch (static_cast<Operation>(tag >> 56)) {
    case Operation::kBarrier:
      return "Barrier";
    case Operation::kAllReduce:
      return absl::StrCat("AllReduceSum of ", bytes, " bytes");
    case Operation::kAllGather:
      return absl::StrCat("AllGather of ", bytes, " bytes");
  }
  return absl::StrCat("operation ", tag);
}

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// True if `counter` has reached `round`; counters wrap around.
bool Reached(uint32_t counter, uint32_t round) {
  return static_cast<int32_t>(counter - round) >= 0;
}

// Every exchange is a round: a rank writes its part into its area of the round's parity, publishes
// the round's number, waits until all have published it, and reads. Whoever publishes round r + 1
// has finished reading round r; so when a rank writes round r + 2, for which it waited until all
// had published r + 1, nobody reads the area of round r any more, and two areas suffice.
class SharedMemoryGroup final : public Collectives {
 public:
  SharedMemoryGroup(Segment segment, const SharedMemoryOptions& options)
      : segment_(std::move(segment)),
        rank_(options.rank),
        size_(options.size),
        chunk_bytes_(options.chunk_bytes),
        wait_timeout_(options.wait_timeout),
        spins_(std::thread::hardware_concurrency() >= static_cast<unsigned>(options.size)
                   ? kSpinsWithCores
                   : kSpinsWithoutCores) {}

  ~SharedMemoryGroup() override {
    if (!joined_) return;
    segment_.slot(rank_).left.store(1, std::memory_order_seq_cst);
    FutexWakeAll(segment_.slot(rank_).round);
  }

  // Announces this rank and waits for the others.
  absl::Status Join(absl::Duration timeout) {
    SegmentHeader& header = segment_.header();
    uint32_t absent = 0;
    if (!segment_.slot(rank_).joined.compare_exchange_strong(absent, 1)) {
      return absl::AlreadyExistsError(
          absl::StrCat("rank ", rank_, " of epoch ", header.epoch,
                       " has joined already; expected every rank once"));
    }
    joined_ = true;
    header.arrived.fetch_add(1);
    FutexWakeAll(header.arrived);
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      const uint32_t arrived = header.arrived.load();
      if (arrived >= static_cast<uint32_t>(size_)) break;
      absl::Status status = GroupStatus();
      if (status.ok() && absl::Now() >= deadline) {
        std::string missing;
        for (int r = 0; r < size_; ++r) {
          if (segment_.slot(r).joined.load() == 0) absl::StrAppend(&missing, " ", r);
        }
        status = Fail(GroupState::kDeadline,
                      absl::StrCat("within ", absl::FormatDuration(timeout), " only ", arrived,
                                   " of ", size_, " ranks came; missing:", missing));
      }
      if (!status.ok()) {
        segment_.Unlink();
        return status;
      }
      FutexWait(header.arrived, arrived, std::min(kNap, deadline - absl::Now()));
    }
    // Everybody holds the file open now. It lives on until the last one lets go.
    if (rank_ == 0) segment_.Unlink();
    return absl::OkStatus();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status AllReduceSum(float* data, size_t count) override {
    const size_t per_round = chunk_bytes_ / sizeof(float);
    for (size_t done = 0; done < count;) {
      const size_t n = std::min(per_round, count - done);
      float* part = data + done;
      absl::Status status =
          Exchange(part, n * sizeof(float), Tag(Operation::kAllReduce, count * 4));
      if (!status.ok()) return status;
      std::memcpy(part, Area(0), n * sizeof(float));
      for (int r = 1; r < size_; ++r) {
        const float* other = reinterpret_cast<const float*>(Area(r));
        for (size_t i = 0; i < n; ++i) part[i] += other[i];
      }
      done += n;
    }
    return count == 0 ? GroupStatus() : absl::OkStatus();
  }

  absl::Status AllGather(const void* local, size_t bytes, void* all) override {
    const std::byte* from = static_cast<const std::byte*>(local);
    std::byte* to = static_cast<std::byte*>(all);
    for (size_t done = 0; done < bytes;) {
      const size_t n = std::min(chunk_bytes_, bytes - done);
      absl::Status status = Exchange(from + done, n, Tag(Operation::kAllGather, bytes));
      if (!status.ok()) return status;
      for (int r = 0; r < size_; ++r) std::memcpy(to + r * bytes + done, Area(r), n);
      done += n;
    }
    return bytes == 0 ? GroupStatus() : absl::OkStatus();
  }

  absl::Status Barrier() override { return Exchange(nullptr, 0, Tag(Operation::kBarrier, 0)); }

  absl::Status Check() override { return GroupStatus(); }

  void Abort(const std::string& reason) override {
    Fail(GroupState::kAborted, reason).IgnoreError();
  }

 private:
  const std::byte* Area(int rank) const { return segment_.area(rank, round_ & 1); }

  // One round: publishes `bytes` bytes and waits for everybody.
  absl::Status Exchange(const void* data, size_t bytes, uint64_t tag) {
    if (absl::Status status = GroupStatus(); !status.ok()) return status;
    ++round_;
    RankSlot& own = segment_.slot(rank_);
    if (bytes > 0) std::memcpy(segment_.area(rank_, round_ & 1), data, bytes);
    own.tag[round_ & 1] = tag;
    // Sequentially consistent with the waiter's sequence of "count me, look again": one of the two
    // sees the other.
    own.round.store(round_, std::memory_order_seq_cst);
    if (own.waiters.load(std::memory_order_seq_cst) > 0) FutexWakeAll(own.round);

    absl::Time deadline = absl::InfinitePast();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      if (absl::Status status = WaitFor(r, deadline); !status.ok()) return status;
      const uint64_t other = segment_.slot(r).tag[round_ & 1];
      if (other != tag) {
        return Fail(GroupState::kMismatch,
                    absl::StrCat("in round ", round_, " rank ", rank_, " calls ", DescribeTag(tag),
                                 " and rank ", r, " calls ", DescribeTag(other),
                                 "; expected the same on all ranks"));
      }
    }
    return absl::OkStatus();
  }

  // Returns when rank `r` has published the current round. `deadline` is set at the first sleep and
  // then holds for the whole round.
  absl::Status WaitFor(int r, absl::Time& deadline) {
    RankSlot& slot = segment_.slot(r);
    for (int spin = 0; spin < spins_; ++spin) {
      if (Reached(slot.round.load(std::memory_order_acquire), round_)) return absl::OkStatus();
      Pause();
    }
    if (deadline == absl::InfinitePast()) deadline = absl::Now() + wait_timeout_;
    slot.waiters.fetch_add(1, std::memory_order_seq_cst);
    absl::Status status;
    while (true) {
      const bool left = slot.left.load(std::memory_order_seq_cst) != 0;
      const uint32_t seen = slot.round.load(std::memory_order_seq_cst);
      if (Reached(seen, round_)) break;
      status = GroupStatus();
      if (!status.ok()) break;
      if (left) {
        status = Fail(GroupState::kAborted, absl::StrCat("rank ", r, " has left the group"));
        break;
      }
      const absl::Duration remaining = deadline - absl::Now();
      if (remaining <= absl::ZeroDuration()) {
        status = Fail(GroupState::kDeadline,
                      absl::StrCat("rank ", r, " did not reach round ", round_, " within ",
                                   absl::FormatDuration(wait_timeout_), " of rank ", rank_));
        break;
      }
      FutexWait(slot.round, seen, std::min(kNap, remaining));
    }
    slot.waiters.fetch_sub(1, std::memory_order_seq_cst);
    return status;
  }

  // Makes the group unusable, unless it is already, and wakes everybody. Returns what the group's
  // status is then.
  absl::Status Fail(GroupState why, const std::string& reason) {
    SegmentHeader& header = segment_.header();
    uint32_t good = static_cast<uint32_t>(GroupState::kGood);
    if (header.state.compare_exchange_strong(good, static_cast<uint32_t>(GroupState::kWriting))) {
      const size_t length = std::min(reason.size(), sizeof(header.reason) - 1);
      std::memcpy(header.reason, reason.data(), length);
      header.reason[length] = '\0';
      header.state.store(static_cast<uint32_t>(why), std::memory_order_release);
      FutexWakeAll(header.arrived);
      for (int r = 0; r < size_; ++r) FutexWakeAll(segment_.slot(r).round);
    }
    return GroupStatus();
  }

  absl::Status GroupStatus() const {
    const SegmentHeader& header = segment_.header();
    const auto load = [&] {
      return static_cast<GroupState>(header.state.load(std::memory_order_acquire));
    };
    GroupState state = load();
    // The reason is a few bytes away; bounded, since its writer may be killed while it writes.
    for (int i = 0; state == GroupState::kWriting && i < kReasonWaits; ++i) {
      absl::SleepFor(absl::Microseconds(100));
      state = load();
    }
    switch (state) {
      case GroupState::kGood:
        return absl::OkStatus();
      case GroupState::kWriting:
        return absl::AbortedError("the group was aborted");
      case GroupState::kAborted:
        return absl::AbortedError(header.reason);
      case GroupState::kDeadline:
        return absl::DeadlineExceededError(header.reason);
      case GroupState::kMismatch:
        return absl::InternalError(header.reason);
    }
    return absl::InternalError("the segment's state word is damaged");
  }

  const Segment segment_;
  const int rank_;
  const int size_;
  const size_t chunk_bytes_;
  const absl::Duration wait_timeout_;
  const int spins_;
  uint32_t round_ = 0;
  bool joined_ = false;
};

absl::Status CheckOptions(const SharedMemoryOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("group of ", options.size, " ranks, expected 1 to ", kMaxRanks));
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, ", expected 0 to ", options.size - 1));
  }
  if (options.name.empty() || options.name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment name \"", options.name, "\", expected a file name without a folder"));
  }
  if (options.chunk_bytes < sizeof(float) || options.chunk_bytes > kMaxChunkBytes ||
      options.chunk_bytes % sizeof(float) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_bytes ", options.chunk_bytes,
                                                   ", expected a multiple of 4 from 4 to ",
                                                   kMaxChunkBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> OpenSharedMemory(const SharedMemoryOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  absl::StatusOr<Segment> segment = Segment::CreateOrOpen(options);
  if (!segment.ok()) return segment.status();
  auto group = std::make_unique<SharedMemoryGroup>(*std::move(segment), options);
  if (absl::Status status = group->Join(options.open_timeout); !status.ok()) return status;
  return group;
}

}  // namespace quartet
