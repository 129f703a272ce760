#include "shard_worker/executor/sequence_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "shard_worker/executor/sampling_params.h"

namespace quartet {
namespace {

// Sequences that may be open beyond the slots, all of them refused ones.
constexpr size_t kMaxRefused = 256;

}  // namespace

SequenceTable::SequenceTable(const Limits& limits)
    : limits_(limits), slot_owner_(limits.slots), page_owner_(limits.pages) {
  sequences_.reserve(limits.slots + kMaxRefused);
}

absl::Status SequenceTable::Open(const v1::SequenceOpen& open) {
  if (sequences_.contains(open.seq_uid())) {
    return absl::AlreadyExistsError(
        absl::StrCat("sequence ", open.seq_uid(), " is open already; uids are used once"));
  }
  if (sequences_.size() >= limits_.slots + kMaxRefused) {
    return absl::ResourceExhaustedError(absl::StrCat("sequence ", open.seq_uid(),
                                                     " comes on top of ", sequences_.size(),
                                                     " open ones; close sequences first"));
  }
  Sequence sequence;
  sequence.uid = open.seq_uid();
  sequence.slot = open.slot();
  sequence.failure = OpenIn(open, sequence);
  const absl::Status status = sequence.failure;
  sequences_.emplace(open.seq_uid(), std::move(sequence));
  return status;
}

absl::Status SequenceTable::OpenIn(const v1::SequenceOpen& open, Sequence& sequence) {
  const auto refuse = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("sequence ", open.seq_uid(), ": ", status.message()));
  };
  auto sampling = ToSampleParams(open, limits_.vocab_size);
  if (!sampling.ok()) return refuse(sampling.status());
  if (open.slot() >= slot_owner_.size()) {
    return refuse(absl::OutOfRangeError(absl::StrCat(
        "slot ", open.slot(), " does not exist; the worker has ", slot_owner_.size(), " slots")));
  }
  Owner& owner = slot_owner_[open.slot()];
  if (owner.taken) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("slot ", open.slot(), " belongs to sequence ", owner.uid)));
  }
  owner = {.taken = true, .uid = open.seq_uid()};
  ++slots_used_;
  sequence.owns_slot = true;
  sequence.sampling = *sampling;
  sequence.pages.reserve(limits_.pages_per_sequence);
  return absl::OkStatus();
}

absl::Status SequenceTable::Close(uint64_t uid) {
  const auto it = sequences_.find(uid);
  if (it == sequences_.end()) {
    return absl::NotFoundError(absl::StrCat("sequence ", uid, " is not open"));
  }
  for (const int32_t page : it->second.pages) page_owner_[page] = {};
  pages_used_ -= static_cast<int>(it->second.pages.size());
  if (it->second.owns_slot) {
    slot_owner_[it->second.slot] = {};
    --slots_used_;
  }
  sequences_.erase(it);
  return absl::OkStatus();
}

Sequence* SequenceTable::Find(uint64_t uid) {
  const auto it = sequences_.find(uid);
  return it == sequences_.end() ? nullptr : &it->second;
}

bool SequenceTable::PageOwner(uint32_t page, uint64_t* uid) const {
  *uid = page_owner_[page].uid;
  return page_owner_[page].taken;
}

void SequenceTable::AppendPages(Sequence& sequence, std::span<const uint32_t> pages) {
  for (const uint32_t page : pages) {
    page_owner_[page] = {.taken = true, .uid = sequence.uid};
    sequence.pages.push_back(static_cast<int32_t>(page));
  }
  pages_used_ += static_cast<int>(pages.size());
}

}  // namespace quartet
