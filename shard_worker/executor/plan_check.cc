#include "shard_worker/executor/plan_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/ops/sampling.h"
#include "shard_worker/checkpoint/model_config.h"

namespace quartet {
namespace {

// Of a row or a commit.
template <typename T, typename... Args>
absl::Status Bad(const T& of, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("sequence ", of.seq_uid(), ": ", args...));
}

absl::Status CheckIds(const v1::Row& row, const char* field,
                      const google::protobuf::RepeatedField<int32_t>& ids, int64_t vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Bad(row, field, "[", i, "] is ", ids[i], ", the vocabulary ends at ", vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const v1::Row& row, const PlanLimits& limits) {
  if (limits.max_draft_tokens == 0) {
    return Bad(row, "kind KIND_VERIFY, but the model has no draft layer");
  }
  if (row.draft_tokens() > static_cast<uint32_t>(limits.max_draft_tokens)) {
    return Bad(row, "draft_tokens is ", row.draft_tokens(), ", expected at most ",
               limits.max_draft_tokens);
  }
  if (row.n_tokens() != 1 + row.draft_tokens()) {
    return Bad(row, "n_tokens of a window is ", row.n_tokens(), ", expected 1 + draft_tokens, ",
               1 + row.draft_tokens());
  }
  if (!row.from_device() || row.tokens_size() != 0 || !row.sample()) {
    return Bad(row, "a window comes with from_device and sample and without tokens");
  }
  if (row.exports_size() != 0 || row.logprob_targets_size() != 0) {
    return Bad(row, "a window has no exports and no logprob_targets, given were ",
               row.exports_size(), " and ", row.logprob_targets_size());
  }
  return absl::OkStatus();
}

// What is drawn, and what is told of it.
absl::Status CheckDraws(const v1::Row& row, const PlanLimits& limits) {
  const auto most =
      static_cast<uint32_t>(std::min<int64_t>(ops::kMaxTopLogProbs, limits.vocab_size));
  if (row.top_logprobs() > most) {
    return Bad(row, "top_logprobs is ", row.top_logprobs(), ", expected at most ", most);
  }
  if (row.target_top_logprobs() > most) {
    return Bad(row, "target_top_logprobs is ", row.target_top_logprobs(), ", expected at most ",
               most);
  }
  const int draws = !row.sample()                        ? 0
                    : row.kind() == v1::Row::KIND_VERIFY ? static_cast<int>(row.n_tokens())
                                                         : 1;
  if (row.allow_masks_size() != 0 && row.allow_masks_size() != draws) {
    return Bad(row, "there are ", row.allow_masks_size(), " allow_masks for ", draws,
               " draws, expected none or one for each");
  }
  const size_t bytes = static_cast<size_t>((limits.vocab_size + 31) / 32) * sizeof(uint32_t);
  for (const std::string& mask : row.allow_masks()) {
    if (mask.empty() || mask.size() == bytes) continue;
    return Bad(row, "an allow_mask has ", mask.size(), " bytes, expected none or ", bytes,
               " for a vocabulary of ", limits.vocab_size);
  }
  return absl::OkStatus();
}

// What stands in the row itself.
absl::Status CheckShape(const v1::Row& row, const PlanLimits& limits) {
  if (row.kind() == v1::Row::KIND_UNSPECIFIED || !v1::Row::Kind_IsValid(row.kind())) {
    return Bad(row, "kind is ", static_cast<int>(row.kind()),
               ", expected KIND_PREFILL, KIND_DECODE or KIND_VERIFY");
  }
  if (row.n_tokens() == 0) return Bad(row, "n_tokens is 0, expected at least 1");
  if (row.kind() == v1::Row::KIND_VERIFY) {
    if (absl::Status s = CheckWindow(row, limits); !s.ok()) return s;
  } else if (row.draft_tokens() != 0) {
    return Bad(row, "draft_tokens is ", row.draft_tokens(), ", but the row is not KIND_VERIFY");
  } else if (row.from_device()) {
    if (row.n_tokens() != 1 || row.tokens_size() != 0) {
      return Bad(row,
                 "from_device stands for one token and comes without tokens, given were "
                 "n_tokens ",
                 row.n_tokens(), " and ", row.tokens_size(), " tokens");
    }
  } else if (static_cast<uint32_t>(row.tokens_size()) != row.n_tokens()) {
    return Bad(row, "n_tokens is ", row.n_tokens(), ", but there are ", row.tokens_size(),
               " tokens");
  }
  if (row.logprob_targets_size() != 0 &&
      static_cast<uint32_t>(row.logprob_targets_size()) != row.n_tokens()) {
    return Bad(row, "there are ", row.logprob_targets_size(), " logprob_targets for ",
               row.n_tokens(), " tokens, expected none or one for each token");
  }
  if (absl::Status s = CheckIds(row, "tokens", row.tokens(), limits.vocab_size); !s.ok()) return s;
  if (absl::Status s = CheckIds(row, "logprob_targets", row.logprob_targets(), limits.vocab_size);
      !s.ok()) {
    return s;
  }
  if (absl::Status s = CheckDraws(row, limits); !s.ok()) return s;
  if (row.draft_chain() != 0 && !row.draft()) {
    return Bad(row, "draft_chain is ", row.draft_chain(), " without draft");
  }
  if (row.draft()) {
    if (limits.max_draft_tokens == 0) return Bad(row, "draft, but the model has no draft layer");
    if (row.draft_chain() > static_cast<uint32_t>(limits.max_draft_tokens)) {
      return Bad(row, "draft_chain is ", row.draft_chain(), ", expected at most ",
                 limits.max_draft_tokens);
    }
    if (!row.sample() && (row.mtp_next() < 0 || row.mtp_next() >= limits.vocab_size)) {
      return Bad(row, "mtp_next is ", row.mtp_next(), ", the vocabulary ends at ",
                 limits.vocab_size);
    }
  }
  return absl::OkStatus();
}

// The row against its sequence.
absl::Status CheckPlace(const v1::Row& row, const Sequence& sequence, const PlanLimits& limits) {
  if (row.slot() != sequence.slot) {
    return Bad(row, "the row says slot ", row.slot(), ", the sequence was opened in slot ",
               sequence.slot);
  }
  // A failed sequence only keeps its books.
  if (!sequence.failure.ok()) return absl::OkStatus();
  if (row.from_device() ? row.position() < sequence.absorbed
                        : row.position() != sequence.absorbed) {
    return Bad(row, "position is ", row.position(), ", but ", sequence.absorbed,
               " tokens have been absorbed");
  }
  const int64_t end = int64_t{row.position()} + row.n_tokens();
  if (end > limits.max_model_len) {
    return Bad(row, "tokens ", row.position(), "..", end - 1, " do not fit into max_model_len ",
               limits.max_model_len);
  }
  if (row.from_device() && sequence.last_token < 0) {
    return Bad(row, "from_device, but no token has been drawn for the sequence");
  }
  // The first draft needs no row of its own, each further one does.
  const int64_t rows_end = end + (row.draft_chain() > 1 ? row.draft_chain() - 1 : 0);
  const int64_t pages = static_cast<int64_t>(sequence.pages.size()) + row.new_pages_size();
  if (pages * kTokensPerPage < rows_end) {
    return Bad(row, "positions up to ", rows_end - 1, " need ",
               (rows_end + kTokensPerPage - 1) / kTokensPerPage, " pages, the sequence has ", pages,
               " with the new ones");
  }
  return absl::OkStatus();
}

// A snapshot that a row or a commit writes; a plan writes each at most once.
template <typename T>
absl::Status CheckExport(const T& by, uint64_t tokens, uint32_t snapshot, const PlanLimits& limits,
                         absl::flat_hash_set<uint32_t>& written) {
  if (tokens % kTokensPerPage != 0) {
    return Bad(by, "export at ", tokens, " tokens, expected a multiple of ", kTokensPerPage);
  }
  if (snapshot >= static_cast<uint32_t>(limits.snapshots)) {
    return Bad(by, "snapshot ", snapshot, " does not exist; the worker has ", limits.snapshots,
               " snapshots");
  }
  if (!written.insert(snapshot).second) {
    return Bad(by, "snapshot ", snapshot, " is written twice");
  }
  return absl::OkStatus();
}

absl::Status CheckExports(const v1::Row& row, const Sequence& sequence, const PlanLimits& limits,
                          absl::flat_hash_set<uint32_t>& written, int& inner_exports) {
  // A failed sequence only keeps its books.
  const auto position = static_cast<uint64_t>(
      row.from_device() && sequence.failure.ok() ? sequence.absorbed : row.position());
  uint32_t last = 0;
  for (const v1::Export& e : row.exports()) {
    if (e.offset() <= last || e.offset() > row.n_tokens()) {
      return Bad(row, "export after ", e.offset(), " of ", row.n_tokens(),
                 " tokens; exports come in rising order, from 1 to the end of the row");
    }
    last = e.offset();
    const bool inner = last < row.n_tokens();
    if (inner && row.kind() != v1::Row::KIND_PREFILL) {
      return Bad(row, "export after ", last, " of ", row.n_tokens(),
                 " tokens; only a prompt's row exports before its end");
    }
    if (inner && ++inner_exports > kMaxInnerExports) {
      return Bad(row, "more than ", kMaxInnerExports,
                 " exports of the plan are inside of their rows");
    }
    if (absl::Status s = CheckExport(row, position + e.offset(), e.snapshot(), limits, written);
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckedCommit>> CheckCommits(const v1::StepPlan& plan,
                                                        SequenceTable& table,
                                                        const PlanLimits& limits,
                                                        absl::flat_hash_set<uint32_t>& written) {
  std::vector<CheckedCommit> commits;
  commits.reserve(plan.commits_size());
  absl::flat_hash_set<uint64_t> uids;
  for (const v1::Commit& commit : plan.commits()) {
    Sequence* sequence = table.Find(commit.seq_uid());
    if (sequence == nullptr) return Bad(commit, "to be committed, but not open");
    if (!uids.insert(commit.seq_uid()).second) return Bad(commit, "two commits in one plan");
    if (commit.export_at() != 0) {
      absl::Status s = CheckExport(commit, commit.export_at(), commit.snapshot(), limits, written);
      if (!s.ok()) return s;
    }
    commits.push_back({&commit, sequence});
  }
  return commits;
}

}  // namespace

absl::StatusOr<CheckedPlan> CheckPlan(const v1::StepPlan& plan, SequenceTable& table,
                                      const PlanLimits& limits) {
  absl::flat_hash_set<uint32_t> written;
  absl::StatusOr<std::vector<CheckedCommit>> commits = CheckCommits(plan, table, limits, written);
  if (!commits.ok()) return commits.status();
  CheckedPlan checked = {.commits = *std::move(commits)};
  checked.rows.reserve(plan.rows_size());
  absl::flat_hash_set<uint64_t> uids;
  absl::flat_hash_set<uint32_t> new_pages;
  uint64_t tokens = 0;
  int inner_exports = 0;
  const int64_t max_pages =
      (limits.max_model_len + limits.max_draft_tokens + kTokensPerPage - 1) / kTokensPerPage;
  for (const v1::Row& row : plan.rows()) {
    Sequence* sequence = table.Find(row.seq_uid());
    if (sequence == nullptr) return Bad(row, "not open");
    if (!uids.insert(row.seq_uid()).second) return Bad(row, "two rows in one plan");
    if (absl::Status s = CheckShape(row, limits); !s.ok()) return s;
    if (absl::Status s = CheckPlace(row, *sequence, limits); !s.ok()) return s;
    if (absl::Status s = CheckExports(row, *sequence, limits, written, inner_exports); !s.ok())
      return s;
    for (const uint32_t page : row.new_pages()) {
      if (page >= static_cast<uint32_t>(limits.pages)) {
        return Bad(row, "page ", page, " does not exist; the worker has ", limits.pages, " pages");
      }
      uint64_t user = 0;
      if (table.PageUser(page, &user)) {
        return Bad(row, "page ", page, " is used by sequence ", user);
      }
      if (!new_pages.insert(page).second) return Bad(row, "page ", page, " is given twice");
    }
    const int64_t pages = static_cast<int64_t>(sequence->pages.size()) + row.new_pages_size();
    if (pages > max_pages) {
      return Bad(row, pages, " pages, expected at most ", max_pages, " for max_model_len ",
                 limits.max_model_len);
    }
    tokens += row.n_tokens();
    if (tokens > static_cast<uint64_t>(limits.max_rows)) {
      return absl::InvalidArgumentError(absl::StrCat("the plan has more than ", limits.max_rows,
                                                     " tokens (max_num_batched_tokens)"));
    }
    checked.rows.push_back({&row, sequence});
  }
  return checked;
}

}  // namespace quartet
