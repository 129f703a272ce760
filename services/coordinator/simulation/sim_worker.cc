#include "services/coordinator/simulation/sim_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::simulation {

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

SimWorker::SimWorker(const HashModel& model, const coordinator::CoreConfig& config, uint32_t rank)
    : model_(model), config_(config), rank_(rank), slots_(config.slots), pages_(config.pages) {}

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
}

void SimWorker::Close(uint64_t seq_uid) {
  for (Sequence& sequence : slots_) {
    if (sequence.uid != seq_uid) continue;
    for (uint32_t page : sequence.pages) pages_[page].owner = 0;
    sequence = {};
    return;
  }
  Breach(absl::StrCat("sequence ", seq_uid, " is closed, but it is not open"));
}

StepCollector::Answer SimWorker::Execute(const StepPlan& plan) {
  if (plan.epoch == config_.epoch && plan.step_id == last_.step_id && plan.step_id != 0) {
    return last_;
  }
  StepCollector::Answer answer;
  answer.epoch = config_.epoch;
  answer.step_id = plan.step_id;
  answer.rank = rank_;
  answer.error = CheckPlan(plan);
  if (!answer.error.empty()) return answer;
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
  if (plan.rows.empty()) return "the plan has no row";
  row_uids_.clear();
  new_pages_.clear();
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
    if (row.n_tokens != 1 || !row.tokens.empty()) return "from_device stands for one token";
    if (sequence.last_token < 0 && !sequence.failed) return "no token was drawn on the device";
  } else if (row.tokens.size() != row.n_tokens) {
    return absl::StrCat("n_tokens is ", row.n_tokens, ", there are ", row.tokens.size());
  }
  if (!row.logprob_targets.empty() && row.logprob_targets.size() != row.n_tokens) {
    return absl::StrCat(row.logprob_targets.size(), " targets for ", row.n_tokens, " tokens");
  }
  if (row.position != sequence.absorbed && !sequence.failed) {
    return absl::StrCat("its row starts at ", row.position, ", ", sequence.absorbed,
                        " tokens are absorbed");
  }
  if (row.position + row.n_tokens > config_.max_model_len) {
    return absl::StrCat("position ", row.position + row.n_tokens - 1, " in a context of ",
                        config_.max_model_len);
  }
  return CheckPages(row, sequence);
}

std::string SimWorker::CheckPages(const PlanRow& row, const Sequence& sequence) {
  for (const uint32_t page : row.new_pages) {
    if (page >= pages_.size()) {
      return absl::StrCat("page ", page, " does not exist; there are ", pages_.size());
    }
    if (pages_[page].owner != 0) {
      return absl::StrCat("page ", page, " belongs to sequence ", pages_[page].owner);
    }
    if (std::find(new_pages_.begin(), new_pages_.end(), page) != new_pages_.end()) {
      return absl::StrCat("page ", page, " is given twice");
    }
    new_pages_.push_back(page);
  }
  const uint64_t room = (sequence.pages.size() + row.new_pages.size()) * config_.page_tokens;
  if (row.position + row.n_tokens > room) {
    return absl::StrCat("its pages hold ", room, " tokens, the row ends at ",
                        row.position + row.n_tokens);
  }
  return "";
}

RowOutcome SimWorker::Run(const PlanRow& row) {
  Sequence& sequence = slots_[row.slot];
  RowOutcome outcome;
  outcome.seq_uid = row.seq_uid;
  for (uint32_t page : row.new_pages) {
    pages_[page].owner = row.seq_uid;
    sequence.pages.push_back(page);
  }
  if (!sequence.failed) Absorb(row, sequence, outcome);
  if (row.sample && !sequence.failed) {
    const int32_t token = model_.Draw(sequence.state, Entries(sequence), sequence.absorbed,
                                      sequence.sampling, sequence.first_padding_id);
    sequence.failed = token == HashModel::kNan;
    sequence.last_token = token;
    if (!sequence.failed) {
      outcome.tokens.push_back(token);
      if (row.want_logprob) outcome.logprobs.push_back(HashModel::Logprob(sequence.state, token));
    }
  }
  if (sequence.failed) {
    outcome.target_logprobs.clear();
    outcome.error = absl::StrCat("no finite logit behind position ", sequence.absorbed - 1);
  }
  return outcome;
}

void SimWorker::Absorb(const PlanRow& row, Sequence& sequence, RowOutcome& outcome) {
  const int32_t* tokens = row.from_device ? &sequence.last_token : row.tokens.data();
  uint64_t state = sequence.state;
  for (uint32_t i = 0; i < row.n_tokens; ++i) {
    const uint32_t position = sequence.absorbed + i;
    uint64_t& entries = pages_[sequence.pages[position / config_.page_tokens]].entries;
    // What a page held before is not visible: its positions are written again, from the first on.
    if (position % config_.page_tokens == 0) entries = 0;
    entries += HashModel::Entry(position, tokens[i]);
    state = HashModel::Absorb(state, tokens[i]);
    if (!row.logprob_targets.empty()) {
      outcome.target_logprobs.push_back(HashModel::Logprob(state, row.logprob_targets[i]));
    }
  }
  sequence.state = state;
  sequence.absorbed += row.n_tokens;
}

uint64_t SimWorker::Entries(const Sequence& sequence) const {
  uint64_t sum = 0;
  const uint32_t written = (sequence.absorbed + config_.page_tokens - 1) / config_.page_tokens;
  for (uint32_t i = 0; i < written; ++i) sum += pages_[sequence.pages[i]].entries;
  return sum;
}

uint32_t SimWorker::slots_used() const {
  return static_cast<uint32_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Sequence& s) { return s.uid != 0; }));
}

uint32_t SimWorker::pages_used() const {
  return static_cast<uint32_t>(
      std::count_if(pages_.begin(), pages_.end(), [](const Page& p) { return p.owner != 0; }));
}

}  // namespace quartet::simulation
