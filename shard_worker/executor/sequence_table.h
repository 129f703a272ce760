#ifndef QUARTET_SHARD_WORKER_EXECUTOR_SEQUENCE_TABLE_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_SEQUENCE_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "proto/quartet/v1/worker.pb.h"
#include "shard_worker/executor/sampling_params.h"

namespace quartet {

struct Sequence {
  uint64_t uid = 0;
  uint32_t slot = 0;
  bool owns_slot = false;
  SequenceSampling sampling;
  Reasoning reasoning;         // of what was absorbed
  std::vector<int32_t> pages;  // page i holds positions i * kTokensPerPage ..
  size_t shared_pages = 0;     // the first ones, which it only reads
  int64_t absorbed = 0;        // tokens that it consists of: all are in the pages
  int pending = 0;          // the last of them, accepted from a window, not yet in the live state
  int32_t last_token = -1;  // drawn last; -1 = none yet
  std::vector<int32_t> drafts;  // of what follows last_token, for the next row
  v1::Acceptance acceptance = v1::ACCEPTANCE_REJECTION;
  bool at_prefix_end = false;  // begins behind a cached prefix, and no row has run yet
  // Not OK: the sequence cannot be run (refused when it was opened, or a row failed). Its rows fail
  // with this reason, the others of the plan run.
  absl::Status failure;
};

// The sequences of one epoch, who owns which slot, and who uses which page: one sequence that fills
// it, then perhaps others that read what is full. Pages of a cache that nobody reads at the moment
// are not known here. One thread.
class SequenceTable {
 public:
  struct Limits {
    int slots = 0;
    int pages = 0;
    int pages_per_sequence = 0;
    int64_t max_model_len = 0;  // tokens
    int64_t vocab_size = 0;
  };
  explicit SequenceTable(const Limits& limits);

  // An error is the reason why the sequence cannot run, `given` if that is one; it is remembered
  // under its uid until Close, so that its rows fail by themselves. RESOURCE_EXHAUSTED: too many
  // refused sequences are remembered already, and this one is not.
  absl::Status Open(const v1::SequenceOpen& open, const absl::Status& given = absl::OkStatus());
  // Frees the slot, and the pages that nobody else uses.
  absl::Status Close(uint64_t uid);

  Sequence* Find(uint64_t uid);
  // The uid of a sequence that uses a page, or 0 and false.
  bool PageUser(uint32_t page, uint64_t* uid) const;
  // Appends pages that were checked before: in range, used by nobody.
  void AppendPages(Sequence& sequence, std::span<const uint32_t> pages);

  int slots_used() const { return slots_used_; }
  int pages_used() const { return pages_used_; }
  size_t size() const { return sequences_.size(); }

 private:
  absl::Status OpenIn(const v1::SequenceOpen& open, const absl::Status& given, Sequence& sequence);
  absl::Status CheckResume(const v1::Resume& resume, bool needs_text) const;

  const Limits limits_;
  absl::flat_hash_map<uint64_t, Sequence> sequences_;
  struct SlotOwner {
    bool taken = false;
    uint64_t uid = 0;
  };
  struct PageUse {
    int users = 0;
    bool filling = false;  // by a sequence that is still open
    uint64_t uid = 0;      // the sequence that fills it, else the one that came last
    int64_t end = 0;       // the position behind its last one
  };
  std::vector<SlotOwner> slot_owner_;
  std::vector<PageUse> pages_;
  int slots_used_ = 0;
  int pages_used_ = 0;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_SEQUENCE_TABLE_H_
