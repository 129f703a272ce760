#include "shard_worker/executor/plan_check.h"

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/model_config.h"

namespace quartet {
namespace {

template <typename... Args>
absl::Status Bad(const v1::Row& row, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("sequence ", row.seq_uid(), ": ", args...));
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

// What stands in the row itself.
absl::Status CheckShape(const v1::Row& row, const PlanLimits& limits) {
  if (row.kind() != v1::Row::KIND_PREFILL && row.kind() != v1::Row::KIND_DECODE) {
    return Bad(row, "kind ", v1::Row::Kind_Name(row.kind()), "(", static_cast<int>(row.kind()),
               ") is not supported by this worker, expected KIND_PREFILL or KIND_DECODE");
  }
  if (row.draft_tokens() != 0) {
    return Bad(row, "draft_tokens is ", row.draft_tokens(),
               ", but verification of drafts is not supported by this worker");
  }
  if (row.n_tokens() == 0) return Bad(row, "n_tokens is 0, expected at least 1");
  if (row.from_device()) {
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
  if (row.position() != sequence.absorbed) {
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

// What the row leaves in snapshots, each of which a plan writes at most once.
absl::Status CheckExports(const v1::Row& row, const PlanLimits& limits,
                          absl::flat_hash_set<uint32_t>& written) {
  for (const v1::Export& e : row.exports()) {
    if (e.offset() != row.n_tokens()) {
      return Bad(row, "export after ", e.offset(), " of ", row.n_tokens(),
                 " tokens; this worker exports at the end of a row");
    }
    const uint64_t tokens = uint64_t{row.position()} + e.offset();
    if (tokens % kTokensPerPage != 0) {
      return Bad(row, "export at ", tokens, " tokens, expected a multiple of ", kTokensPerPage);
    }
    if (e.snapshot() >= static_cast<uint32_t>(limits.snapshots)) {
      return Bad(row, "snapshot ", e.snapshot(), " does not exist; the worker has ",
                 limits.snapshots, " snapshots");
    }
    if (!written.insert(e.snapshot()).second) {
      return Bad(row, "snapshot ", e.snapshot(), " is written twice");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<CheckedRow>> CheckPlan(const v1::StepPlan& plan, SequenceTable& table,
                                                  const PlanLimits& limits) {
  if (plan.commits_size() != 0 || plan.copies_size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has ", plan.commits_size(),
                                                   " commits and ", plan.copies_size(),
                                                   " copies, which this worker does not support"));
  }
  std::vector<CheckedRow> rows;
  rows.reserve(plan.rows_size());
  absl::flat_hash_set<uint64_t> uids;
  absl::flat_hash_set<uint32_t> new_pages;
  absl::flat_hash_set<uint32_t> written;
  uint64_t tokens = 0;
  const int64_t max_pages =
      (limits.max_model_len + limits.max_draft_tokens + kTokensPerPage - 1) / kTokensPerPage;
  for (const v1::Row& row : plan.rows()) {
    Sequence* sequence = table.Find(row.seq_uid());
    if (sequence == nullptr) return Bad(row, "not open");
    if (!uids.insert(row.seq_uid()).second) return Bad(row, "two rows in one plan");
    if (absl::Status s = CheckShape(row, limits); !s.ok()) return s;
    if (absl::Status s = CheckPlace(row, *sequence, limits); !s.ok()) return s;
    if (absl::Status s = CheckExports(row, limits, written); !s.ok()) return s;
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
    rows.push_back({&row, sequence});
  }
  return rows;
}

}  // namespace quartet
