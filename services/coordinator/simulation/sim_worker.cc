#include "services/coordinator/simulation/sim_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::simulation {

using coordinator::CacheTier;
using coordinator::CopyOutcome;
using coordinator::PlanRow;
using coordinator::RowOutcome;
using coordinator::StepCollector;
using coordinator::StepPlan;

namespace {

uint64_t Agreement(const StepPlan& plan, const std::vector<RowOutcome>& rows,
                   const std::vector<SimWorker::Sequence>& slots) {
  uint64_t hash = Mix(plan.plan_hash) ^ Mix(plan.epoch) ^ plan.step_id;
  for (size_t i = 0; i < rows.size(); ++i) {
    hash = Mix(hash ^ rows[i].seq_uid);
    hash = Mix(hash ^ slots[plan.rows[i].slot].absorbed);
    for (int32_t token : rows[i].tokens) hash = Mix(hash ^ static_cast<uint32_t>(token));
    hash += rows[i].error.empty() ? 0 : 1;
  }
  return hash;
}

}  // namespace

SimWorker::SimWorker(const HashModel& model, const coordinator::CoreConfig& config, uint32_t rank,
                     SimDisk disk)
    : model_(model),
      config_(config),
      rank_(rank),
      slots_(config.slots),
      pages_(config.pages),
      snapshots_(config.snapshots),
      host_(config.host_pages, config.host_snapshots),
      disk_(std::move(disk)) {}

void SimWorker::Breach(std::string what) {
  if (breach_.empty()) breach_ = absl::StrCat("rank ", rank_, ": ", what);
}

void SimWorker::Open(const coordinator::SequenceOpen& open) {
  if (open.seq_uid == 0 || !used_uids_.insert(open.seq_uid).second) {
    return Breach(absl::StrCat("sequence ", open.seq_uid, " is opened; uids are used once"));
  }
  if (open.slot >= slots_.size()) {
    return Breach(absl::StrCat("slot ", open.slot, " does not exist; there are ", slots_.size()));
  }
  Sequence& sequence = slots_[open.slot];
  if (sequence.uid != 0) {
    return Breach(absl::StrCat("slot ", open.slot, " is opened for sequence ", open.seq_uid,
                               " and belongs to sequence ", sequence.uid));
  }
  sequence = {};
  sequence.uid = open.seq_uid;
  sequence.sampling = open.sampling;
  sequence.first_padding_id = open.first_padding_id;
  if (!open.resume.has_value()) return;
  Resume(*open.resume, sequence);
  const std::vector<int32_t>& tokens = open.resume->tokens;
  if (tokens.empty() && !open.sampling.penalises() && !open.thinking.has_value()) return;
  uint64_t state = HashModel::kEmptyState;
  for (const int32_t token : tokens) state = HashModel::Absorb(state, token);
  if (tokens.size() != open.resume->n_tokens || state != sequence.state) {
    Breach(absl::StrCat("sequence ", sequence.uid, " begins at ", open.resume->n_tokens,
                        " with the ids of other tokens, ", tokens.size(), " of them"));
  }
}

void SimWorker::Resume(const coordinator::Resume& resume, Sequence& sequence) {
  const std::string name = absl::StrCat("sequence ", sequence.uid, " begins at ", resume.n_tokens);
  if (resume.snapshot >= snapshots_.size()) {
    return Breach(absl::StrCat(name, " from snapshot ", resume.snapshot, ", which does not exist"));
  }
  const Snapshot& snapshot = snapshots_[resume.snapshot];
  if (snapshot.tokens != resume.n_tokens || resume.n_tokens == 0) {
    return Breach(absl::StrCat(name, " from snapshot ", resume.snapshot, ", which is of ",
                               snapshot.tokens, " tokens"));
  }
  if (resume.pages.size() * config_.page_tokens != resume.n_tokens) {
    return Breach(absl::StrCat(name, " with ", resume.pages.size(), " pages"));
  }
  for (const uint32_t page : resume.pages) {
    if (page >= pages_.size() || pages_[page].up_to.empty()) {
      return Breach(absl::StrCat(name, " with page ", page, ", which was never written"));
    }
  }
  for (const uint32_t page : resume.pages) ++pages_[page].users;
  sequence.pages = resume.pages;
  sequence.absorbed = sequence.furthest = resume.n_tokens;
  sequence.state = snapshot.state;
}

SimWorker::Sequence* SimWorker::Find(uint64_t seq_uid) {
  const auto found = std::ranges::find(slots_, seq_uid, &Sequence::uid);
  return found == slots_.end() || seq_uid == 0 ? nullptr : &*found;
}

void SimWorker::Close(uint64_t seq_uid) {
  Sequence* sequence = Find(seq_uid);
  if (sequence == nullptr) {
    return Breach(absl::StrCat("sequence ", seq_uid, " is closed, but it is not open"));
  }
  for (const uint32_t page : sequence->pages) --pages_[page].users;
  *sequence = {};
}

StepCollector::Answer SimWorker::Execute(const StepPlan& plan, TimeUs now,
                                         std::span<const TierFault> faults) {
  if (plan.epoch == config_.epoch && plan.step_id == last_.step_id && plan.step_id != 0) {
    return last_;
  }
  StepCollector::Answer answer;
  answer.epoch = config_.epoch;
  answer.step_id = plan.step_id;
  answer.rank = rank_;
  answer.error = CheckPlan(plan);
  if (!answer.error.empty()) return answer;
  copies_ready_ = now;
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    const TierFault fault = i < faults.size() ? faults[i] : TierFault::kNone;
    answer.copies.push_back(Copy(plan.copies[i], fault, now));
  }
  for (const coordinator::Commit& commit : plan.commits) {
    Commit(*Find(commit.seq_uid), commit.export_at, commit.snapshot);
  }
  for (const PlanRow& row : plan.rows) answer.rows.push_back(Run(row));
  answer.agreement_hash = Agreement(plan, answer.rows, slots_);
  if (rank_ != 0) answer.rows.clear();
  last_ = answer;
  return answer;
}

std::string SimWorker::CheckPlan(const StepPlan& plan) {
  if (plan.epoch != config_.epoch) {
    return absl::StrCat("the plan is of epoch ", plan.epoch, ", this worker in ", config_.epoch);
  }
  if (plan.step_id != last_.step_id + 1) {
    return absl::StrCat("step ", plan.step_id, " comes after ", last_.step_id);
  }
  if (!plan.is_step()) return "the plan has neither row nor commit nor copy";
  row_uids_.clear();
  new_pages_.clear();
  exports_.clear();
  copied_to_.clear();
  if (std::string error = CheckCopies(plan.copies); !error.empty()) return error;
  for (const coordinator::Commit& commit : plan.commits) {
    if (std::string error = CheckCommit(commit); !error.empty()) {
      return absl::StrCat("commit of sequence ", commit.seq_uid, ": ", error);
    }
  }
  uint64_t tokens = 0;
  for (const PlanRow& row : plan.rows) {
    if (std::string error = CheckRow(row); !error.empty()) {
      return absl::StrCat("sequence ", row.seq_uid, ": ", error);
    }
    row_uids_.push_back(row.seq_uid);
    tokens += row.n_tokens;
  }
  if (tokens > config_.max_num_batched_tokens) {
    return absl::StrCat(tokens, " tokens, the budget is ", config_.max_num_batched_tokens);
  }
  return "";
}

std::string SimWorker::CheckCommit(const coordinator::Commit& commit) {
  const Sequence* sequence = Find(commit.seq_uid);
  if (sequence == nullptr) return "it is not open";
  if (commit.export_at == 0 || sequence->failed) return "";
  const auto window = static_cast<uint32_t>(sequence->window.size());
  if (commit.export_at > sequence->furthest || commit.export_at + window <= sequence->absorbed) {
    return absl::StrCat("it does not come by ", commit.export_at, ", its window of ", window,
                        " ends at ", sequence->absorbed, " and could at ", sequence->furthest);
  }
  return CheckExport(commit.snapshot, commit.export_at);
}

std::string SimWorker::CheckExport(uint32_t snapshot, uint32_t tokens) {
  if (snapshot >= snapshots_.size()) return absl::StrCat("snapshot ", snapshot, " does not exist");
  if (tokens % config_.page_tokens != 0) {
    return absl::StrCat("an export at ", tokens, ", inside a page");
  }
  if (std::ranges::find(exports_, snapshot) != exports_.end()) {
    return absl::StrCat("snapshot ", snapshot, " is written twice");
  }
  if (copied_to_.contains({CacheTier::kDevice, TierCopy::Kind::kSnapshot, snapshot})) {
    return absl::StrCat("snapshot ", snapshot, " is written by a copy as well");
  }
  exports_.push_back(snapshot);
  return "";
}

std::string SimWorker::CheckWindow(const PlanRow& row, const Sequence& sequence) {
  if (row.kind != PlanRow::Kind::kVerify) {
    return row.draft_tokens == 0 ? "" : "drafts outside of a window";
  }
  if (!row.from_device || !row.sample || row.n_tokens != 1 + row.draft_tokens) {
    return absl::StrCat("a window of ", row.n_tokens, " tokens with ", row.draft_tokens, " drafts");
  }
  if (!row.exports.empty()) return "a window exports nothing";
  if (row.draft_tokens > sequence.drafts.size() && !sequence.failed) {
    return absl::StrCat(row.draft_tokens, " drafts, ", sequence.drafts.size(), " were made");
  }
  return "";
}

std::string SimWorker::CheckRow(const PlanRow& row) {
  if (row.slot >= slots_.size() || slots_[row.slot].uid != row.seq_uid || row.seq_uid == 0) {
    return absl::StrCat("it is not open in slot ", row.slot);
  }
  if (std::find(row_uids_.begin(), row_uids_.end(), row.seq_uid) != row_uids_.end()) {
    return "two rows in one plan";
  }
  const Sequence& sequence = slots_[row.slot];
  if (row.n_tokens == 0) return "a row without tokens";
  if (row.from_device) {
    if (row.n_tokens != 1 + row.draft_tokens || !row.tokens.empty()) {
      return "from_device stands for one token and its drafts";
    }
    if (sequence.last_token < 0 && !sequence.failed) return "no token was drawn on the device";
  } else if (row.tokens.size() != row.n_tokens) {
    return absl::StrCat("n_tokens is ", row.n_tokens, ", there are ", row.tokens.size());
  }
  if (!row.logprob_targets.empty() && row.logprob_targets.size() != row.n_tokens) {
    return absl::StrCat(row.logprob_targets.size(), " targets for ", row.n_tokens, " tokens");
  }
  // Whoever plans may not know yet how far a window came.
  const uint32_t furthest = row.from_device ? sequence.furthest : sequence.absorbed;
  if ((row.position < sequence.absorbed || row.position > furthest) && !sequence.failed) {
    return absl::StrCat("its row starts at ", row.position, ", ", sequence.absorbed,
                        " tokens are absorbed");
  }
  if (row.position + row.n_tokens > config_.max_model_len) {
    return absl::StrCat("position ", row.position + row.n_tokens - 1, " in a context of ",
                        config_.max_model_len);
  }
  if (std::string error = CheckWindow(row, sequence); !error.empty()) return error;
  if (row.draft_chain > 0 && (!row.draft || !row.sample)) return "drafts behind nothing";
  for (const coordinator::SnapshotExport& exported : row.exports) {
    if (exported.offset > row.n_tokens || exported.offset == 0) return "an export beside the row";
    if (exported.offset < row.n_tokens && row.kind != PlanRow::Kind::kPrefill) {
      return "an export inside of a row that is no prompt's";
    }
    std::string error = CheckExport(exported.snapshot, row.position + exported.offset);
    if (!error.empty()) return error;
  }
  return CheckPages(row, sequence);
}

std::string SimWorker::CheckPages(const PlanRow& row, const Sequence& sequence) {
  for (const uint32_t page : row.new_pages) {
    if (page >= pages_.size()) {
      return absl::StrCat("page ", page, " does not exist; there are ", pages_.size());
    }
    if (pages_[page].users != 0) {
      const auto owner = std::ranges::find_if(slots_, [page](const Sequence& other) {
        return std::ranges::find(other.pages, page) != other.pages.end();
      });
      return absl::StrCat("page ", page, " belongs to sequence ", owner->uid);
    }
    if (std::find(new_pages_.begin(), new_pages_.end(), page) != new_pages_.end()) {
      return absl::StrCat("page ", page, " is given twice");
    }
    if (copied_to_.contains({CacheTier::kDevice, TierCopy::Kind::kPage, page})) {
      return absl::StrCat("page ", page, " is written by a copy as well");
    }
    new_pages_.push_back(page);
  }
  const uint64_t room = (sequence.pages.size() + row.new_pages.size()) * config_.page_tokens;
  // The first draft of a chain needs no place of its own.
  const uint32_t end = row.position + row.n_tokens + std::max(row.draft_chain, 1u) - 1;
  if (end > room) {
    return absl::StrCat("its pages hold ", room, " tokens, the row and its drafts end at ", end);
  }
  return "";
}

void SimWorker::Commit(Sequence& sequence, uint32_t export_at, uint32_t snapshot) {
  uint32_t at = sequence.absorbed - static_cast<uint32_t>(sequence.window.size());
  for (const int32_t token : sequence.window) {
    sequence.state = HashModel::Absorb(sequence.state, token);
    if (++at == export_at) snapshots_[snapshot] = {sequence.state, at};
  }
  sequence.window.clear();
}

RowOutcome SimWorker::Run(const PlanRow& row) {
  Sequence& sequence = slots_[row.slot];
  RowOutcome outcome;
  outcome.seq_uid = row.seq_uid;
  for (uint32_t page : row.new_pages) {
    ++pages_[page].users;
    pages_[page].up_to.resize(config_.page_tokens);
    sequence.pages.push_back(page);
  }
  if (!sequence.failed) {
    Commit(sequence, 0, 0);
    if (row.kind == PlanRow::Kind::kVerify) {
      Verify(row, sequence, outcome);
    } else {
      Absorb(row, sequence, outcome);
    }
  }
  if (sequence.failed) {
    outcome.tokens.clear();
    outcome.logprobs.clear();
    outcome.target_logprobs.clear();
    outcome.drafts.clear();
    outcome.top = {};
    outcome.target_top = {};
    outcome.error = absl::StrCat("no finite logit behind position ", sequence.absorbed - 1);
  }
  return outcome;
}

void SimWorker::Absorb(const PlanRow& row, Sequence& sequence, RowOutcome& outcome) {
  const int32_t* tokens = row.from_device ? &sequence.last_token : row.tokens.data();
  for (uint32_t i = 0; i < row.n_tokens; ++i) {
    Write(sequence, sequence.absorbed + i, tokens[i]);
    sequence.state = HashModel::Absorb(sequence.state, tokens[i]);
    for (const coordinator::SnapshotExport& exported : row.exports) {
      if (exported.offset != i + 1) continue;
      snapshots_[exported.snapshot] = {sequence.state, sequence.absorbed + i + 1};
    }
    if (!row.logprob_targets.empty()) {
      outcome.target_logprobs.push_back(HashModel::Logprob(sequence.state, row.logprob_targets[i]));
      HashModel::AddTop(sequence.state, row.target_top_logprobs, outcome.target_top);
    }
  }
  sequence.absorbed += row.n_tokens;
  sequence.furthest = sequence.absorbed;
  sequence.drafts.clear();
  if (!row.sample) return;
  Draw(row, sequence.state, sequence.absorbed, sequence, outcome);
  MakeDrafts(row.draft_chain, sequence.state, sequence, outcome);
}

// Walks the window from the live state and leaves that as it was. All of it is written to the
// pages; what is not accepted is not seen there and written again.
void SimWorker::Verify(const PlanRow& row, Sequence& sequence, RowOutcome& outcome) {
  std::vector<int32_t> window = {sequence.last_token};
  window.insert(window.end(), sequence.drafts.begin(), sequence.drafts.begin() + row.draft_tokens);
  for (uint32_t i = 0; i < row.n_tokens; ++i) Write(sequence, sequence.absorbed + i, window[i]);
  sequence.drafts.clear();
  uint64_t state = sequence.state;
  uint32_t used = 0;
  do {
    state = HashModel::Absorb(state, window[used++]);
    Draw(row, state, sequence.absorbed + used, sequence, outcome);
    if (sequence.failed) return;
  } while (used < row.n_tokens && window[used] == sequence.last_token);
  sequence.window.assign(window.begin(), window.begin() + used);
  sequence.furthest = sequence.absorbed + row.n_tokens;
  sequence.absorbed += used;
  MakeDrafts(row.draft_chain, state, sequence, outcome);
}

// The token at `position`.
void SimWorker::Draw(const PlanRow& row, uint64_t state, uint32_t position, Sequence& sequence,
                     RowOutcome& outcome) {
  const int32_t token = model_.Draw(state, EntriesUpTo(sequence, position), position,
                                    sequence.sampling, sequence.first_padding_id);
  sequence.failed = token == HashModel::kNan;
  sequence.last_token = token;
  if (sequence.failed) return;
  outcome.tokens.push_back(token);
  if (!row.want_logprob) return;
  outcome.logprobs.push_back(HashModel::Logprob(state, token));
  HashModel::AddTop(state, row.top_logprobs, outcome.top);
}

// `state`: before the token that was drawn last.
void SimWorker::MakeDrafts(uint32_t chain, uint64_t state, Sequence& sequence,
                           RowOutcome& outcome) {
  if (sequence.failed) return;
  uint64_t entries = Entries(sequence);
  int32_t last = sequence.last_token;
  for (uint32_t i = 0; i < chain; ++i) {
    const uint32_t position = sequence.absorbed + 1 + i;
    entries += HashModel::Entry(position - 1, last);
    state = HashModel::Absorb(state, last);
    const int32_t token =
        model_.Draw(state, entries, position, sequence.sampling, sequence.first_padding_id);
    last = model_.Draft(token, position, sequence.sampling);
    sequence.drafts.push_back(last);
    outcome.drafts.push_back(last);
  }
}

void SimWorker::Write(const Sequence& sequence, uint32_t position, int32_t token) {
  std::vector<uint64_t>& up_to = pages_[sequence.pages[position / config_.page_tokens]].up_to;
  const uint32_t at = position % config_.page_tokens;
  up_to[at] = (at == 0 ? 0 : up_to[at - 1]) + HashModel::Entry(position, token);
}

uint64_t SimWorker::EntriesUpTo(const Sequence& sequence, uint32_t tokens) const {
  uint64_t sum = 0;
  const uint32_t full = tokens / config_.page_tokens;
  for (uint32_t i = 0; i < full; ++i) sum += pages_[sequence.pages[i]].up_to.back();
  const uint32_t rest = tokens % config_.page_tokens;
  if (rest > 0) sum += pages_[sequence.pages[full]].up_to[rest - 1];
  return sum;
}

uint32_t SimWorker::slots_used() const {
  return static_cast<uint32_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Sequence& s) { return s.uid != 0; }));
}

uint32_t SimWorker::pages_used() const {
  return static_cast<uint32_t>(
      std::count_if(pages_.begin(), pages_.end(), [](const Page& p) { return p.users != 0; }));
}

}  // namespace quartet::simulation
