#include "shard_worker/executor/sequence_table.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/model_config.h"

namespace quartet {
namespace {

// Sequences that may be open beyond the slots, all of them refused ones.
constexpr size_t kMaxRefused = 256;

}  // namespace

SequenceTable::SequenceTable(const Limits& limits)
    : limits_(limits), slot_owner_(limits.slots), pages_(limits.pages) {
  sequences_.reserve(limits.slots + kMaxRefused);
}

absl::Status SequenceTable::Open(const v1::SequenceOpen& open, const absl::Status& given) {
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
  sequence.failure = OpenIn(open, given, sequence);
  const absl::Status status = sequence.failure;
  sequences_.emplace(open.seq_uid(), std::move(sequence));
  return status;
}

absl::Status SequenceTable::OpenIn(const v1::SequenceOpen& open, const absl::Status& given,
                                   Sequence& sequence) {
  const auto refuse = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("sequence ", open.seq_uid(), ": ", status.message()));
  };
  if (!given.ok()) return refuse(given);
  auto sampling = SequenceSampling::Make(open, limits_.vocab_size);
  if (!sampling.ok()) return refuse(sampling.status());
  if (open.slot() >= slot_owner_.size()) {
    return refuse(absl::OutOfRangeError(absl::StrCat(
        "slot ", open.slot(), " does not exist; the worker has ", slot_owner_.size(), " slots")));
  }
  SlotOwner& owner = slot_owner_[open.slot()];
  if (owner.taken) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("slot ", open.slot(), " belongs to sequence ", owner.uid)));
  }
  if (open.has_resume()) {
    absl::Status s = CheckResume(open.resume(), sampling->needs_text());
    if (!s.ok()) return refuse(s);
  }
  if (!v1::Acceptance_IsValid(open.acceptance())) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("acceptance is ", static_cast<int>(open.acceptance()),
                     ", expected ACCEPTANCE_REJECTION or ACCEPTANCE_COUPLED")));
  }
  owner = {.taken = true, .uid = open.seq_uid()};
  ++slots_used_;
  sequence.owns_slot = true;
  sequence.sampling = *std::move(sampling);
  sequence.reasoning = sequence.sampling.reasoning_at_start();
  sequence.pages.reserve(limits_.pages_per_sequence);
  for (const uint32_t page : open.resume().pages()) {
    PageUse& use = pages_[page];
    pages_used_ += use.users++ == 0;
    if (!use.filling) use.uid = open.seq_uid();
    sequence.pages.push_back(static_cast<int32_t>(page));
  }
  sequence.shared_pages = sequence.pages.size();
  sequence.absorbed = open.resume().n_tokens();
  sequence.at_prefix_end = open.has_resume();
  if (open.acceptance() != v1::ACCEPTANCE_UNSPECIFIED) sequence.acceptance = open.acceptance();
  return absl::OkStatus();
}

absl::Status SequenceTable::CheckResume(const v1::Resume& resume, bool needs_text) const {
  if (resume.n_tokens() == 0 || resume.n_tokens() % kTokensPerPage != 0 ||
      resume.n_tokens() >= limits_.max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("resume at ", resume.n_tokens(), " tokens, expected a multiple of ",
                     kTokensPerPage, " below max_model_len ", limits_.max_model_len));
  }
  if (resume.pages_size() * kTokensPerPage != resume.n_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("resume at ", resume.n_tokens(), " tokens with ",
                                                   resume.pages_size(), " pages, expected ",
                                                   resume.n_tokens() / kTokensPerPage));
  }
  if (needs_text && resume.tokens_size() != static_cast<int>(resume.n_tokens())) {
    return absl::InvalidArgumentError(absl::StrCat("resume at ", resume.n_tokens(),
                                                   " tokens with the ids of ", resume.tokens_size(),
                                                   "; its sampling looks at all of them"));
  }
  for (const int32_t token : resume.tokens()) {
    if (token >= 0 && token < limits_.vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("resume with token ", token, ", the vocabulary ends at ", limits_.vocab_size));
  }
  absl::flat_hash_set<uint32_t> seen;
  for (const uint32_t page : resume.pages()) {
    if (page >= pages_.size()) {
      return absl::OutOfRangeError(
          absl::StrCat("page ", page, " does not exist; the worker has ", pages_.size(), " pages"));
    }
    if (!seen.insert(page).second) {
      return absl::InvalidArgumentError(absl::StrCat("page ", page, " is given twice"));
    }
    const PageUse& use = pages_[page];
    if (use.filling && sequences_.at(use.uid).absorbed < use.end) {
      return absl::FailedPreconditionError(
          absl::StrCat("page ", page, " is still filled by sequence ", use.uid));
    }
  }
  return absl::OkStatus();
}

absl::Status SequenceTable::Close(uint64_t uid) {
  const auto it = sequences_.find(uid);
  if (it == sequences_.end()) {
    return absl::NotFoundError(absl::StrCat("sequence ", uid, " is not open"));
  }
  const Sequence& sequence = it->second;
  for (size_t i = 0; i < sequence.pages.size(); ++i) {
    PageUse& use = pages_[sequence.pages[i]];
    if (i >= sequence.shared_pages) use.filling = false;
    pages_used_ -= --use.users == 0;
  }
  if (sequence.owns_slot) {
    slot_owner_[sequence.slot] = {};
    --slots_used_;
  }
  sequences_.erase(it);
  return absl::OkStatus();
}

Sequence* SequenceTable::Find(uint64_t uid) {
  const auto it = sequences_.find(uid);
  return it == sequences_.end() ? nullptr : &it->second;
}

bool SequenceTable::PageUser(uint32_t page, uint64_t* uid) const {
  const PageUse& use = pages_[page];
  *uid = use.users == 0 ? 0 : use.uid;
  return use.users != 0;
}

void SequenceTable::AppendPages(Sequence& sequence, std::span<const uint32_t> pages) {
  for (const uint32_t page : pages) {
    sequence.pages.push_back(static_cast<int32_t>(page));
    pages_[page] = {.users = 1,
                    .filling = true,
                    .uid = sequence.uid,
                    .end = static_cast<int64_t>(sequence.pages.size()) * kTokensPerPage};
  }
  pages_used_ += static_cast<int>(pages.size());
}

}  // namespace quartet
