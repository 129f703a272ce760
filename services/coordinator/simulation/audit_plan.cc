#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/coordinator/simulation/auditor.h"

// The books of plans: who has which slot and pages, what each row may be, what a step did.

namespace quartet::simulation {

using coordinator::kChunkMultiple;
using coordinator::PlanRow;
using coordinator::SequenceOpen;
using coordinator::StepCollector;
using coordinator::StepPlan;

namespace {

// An admitted sequence goes without a row for at most so many steps.
constexpr uint64_t kMaxIdleSteps = 8;

}  // namespace

Auditor::Place* Auditor::FindPlace(uint64_t uid) {
  auto place = std::find_if(places_.begin(), places_.end(),
                            [uid](const Place& p) { return p.uid == uid && uid != 0; });
  return place == places_.end() ? nullptr : &*place;
}

void Auditor::OnPlan(const StepPlan& plan) {
  if (in_flight_ != 0) return Violate("I11: a step is planned while another is in flight");
  if (plan.epoch != config_.epoch) {
    return Violate(absl::StrCat("I11: a plan of epoch ", plan.epoch, " in ", config_.epoch));
  }
  const uint64_t step = plan.rows.empty() ? 0 : books_.steps + 1;
  if (plan.step_id != step) {
    return Violate(absl::StrCat("I11: step ", plan.step_id, " is planned, expected ", step));
  }
  if (plan.rows.empty() && (plan.closes.empty() || !plan.opens.empty())) {
    return Violate("I10: a plan without rows says more than closes");
  }

  uint64_t oldest = std::numeric_limits<uint64_t>::max();
  for (const Place& place : places_) {
    if (place.life != nullptr) oldest = std::min(oldest, place.life->id);
  }
  for (const uint64_t uid : plan.closes) OnClose(uid, oldest);
  for (const SequenceOpen& open : plan.opens) OnOpen(open);
  if (plan.rows.empty()) return;

  ++books_.steps;
  ++tally_.steps;
  in_flight_ = plan.step_id;
  answered_hash_.assign(ranks_, std::nullopt);
  uint64_t tokens = 0;
  bool prefill_seen = false;
  for (const PlanRow& row : plan.rows) {
    tokens += row.n_tokens;
    const bool prefill = row.kind == PlanRow::Kind::kPrefill;
    if (prefill_seen && !prefill) Violate("a decode row stands behind a prompt's");
    prefill_seen = prefill_seen || prefill;
    OnRow(row);
  }
  if (tokens > config_.max_num_batched_tokens) {
    Violate(absl::StrCat("I10: a step of ", tokens, " tokens, the budget is ",
                         config_.max_num_batched_tokens));
  }
  tally_.rows += plan.rows.size();
  tally_.row_tokens += tokens;
  CheckProgress(plan);
}

void Auditor::OnClose(uint64_t uid, uint64_t oldest) {
  Place* place = FindPlace(uid);
  if (place == nullptr) {
    return Violate(absl::StrCat("I3: seq ", uid, " is closed, but it is not open"));
  }
  if (Life* life = place->life; life != nullptr) {  // it has not ended: a preemption
    if (life->id == oldest) {
      Violate(absl::StrCat("I9: request ", oldest, " is the oldest and was preempted"));
    }
    life->slot = -1;
    ++books_.preemptions;
    ++tally_.preemptions;
  }
  for (const uint32_t page : place->pages) page_owner_[page] = 0;
  *place = {};
}

void Auditor::OnOpen(const SequenceOpen& open) {
  const std::string name = absl::StrCat("seq ", open.seq_uid);
  if (open.seq_uid <= last_uid_) return Violate("I11: " + name + " is opened; uids are used once");
  last_uid_ = open.seq_uid;
  if (open.slot >= places_.size() || places_[open.slot].uid != 0) {
    return Violate(absl::StrCat("I3: ", name, " is opened in slot ", open.slot,
                                ", which is in use or does not exist"));
  }
  const auto life = std::find_if(lives_.begin(), lives_.end(), [&](const auto& entry) {
    return entry.second->request.sampling.seed == open.sampling.seed;
  });
  if (life == lives_.end() || life->second->slot >= 0) {
    return Violate("I13: " + name + " is opened for a request that has ended or has a slot");
  }
  Place& place = places_[open.slot];
  place.uid = open.seq_uid;
  place.life = life->second.get();
  place.last_row_step = books_.steps;
  place.life->slot = static_cast<int>(open.slot);
}

void Auditor::OnRow(const PlanRow& row) {
  Place* place = FindPlace(row.seq_uid);
  std::string error;
  if (place == nullptr) {
    error = "I3: it is not open";
  } else if (place->life == nullptr) {
    error = "I13: its request has ended";
  } else {
    error = RowError(row, *place);
    if (error.empty()) error = RowTokensError(row, *place);
  }
  if (!error.empty()) {
    return Violate(absl::StrCat(error, " (row of seq ", row.seq_uid, " at ", row.position, ", ",
                                row.n_tokens, " tokens)"));
  }
  TakePages(row, *place);
  place->row_tokens = row.n_tokens;
  place->row_samples = row.sample;
  place->last_row_step = books_.steps;
}

std::string Auditor::RowError(const PlanRow& row, Place& place) {
  if (row.slot >= places_.size() || &places_[row.slot] != &place) return "I3: it has another slot";
  if (place.row_tokens != 0) return "I10: it has two rows";
  if (row.n_tokens == 0) return "I9: the row is empty";
  if (row.position != place.absorbed) {
    return absl::StrCat("I1: ", place.absorbed, " tokens are absorbed");
  }
  const uint32_t known = place.life->known();
  const uint32_t end = row.position + row.n_tokens;
  if (end > known) return absl::StrCat("I10: ", known, " tokens are known");
  if (row.sample != (end == known)) return "I12: the last known token, and it alone, is drawn from";
  if (row.n_tokens > 1 || !row.from_device) {
    if (end != known && row.n_tokens % kChunkMultiple != 0) {
      return absl::StrCat("I10: an inner chunk is no multiple of ", kChunkMultiple);
    }
    if (config_.prefill_chunk != 0 && row.n_tokens > config_.prefill_chunk) {
      return absl::StrCat("I10: chunks have at most ", config_.prefill_chunk, " tokens");
    }
  }
  return "";
}

std::string Auditor::RowTokensError(const PlanRow& row, Place& place) {
  Life& life = *place.life;
  if (row.from_device) {
    const bool decodes = row.kind == PlanRow::Kind::kDecode && row.n_tokens == 1;
    return decodes && row.sample && row.position > 0 ? ""
                                                     : "I10: only a decode row takes the "
                                                       "device's token";
  }
  if (row.kind != PlanRow::Kind::kPrefill || row.tokens.size() != row.n_tokens) {
    return "I10: it has another number of tokens, or is no prompt's";
  }
  for (uint32_t i = 0; i < row.n_tokens; ++i) {
    if (row.tokens[i] != life.alone.Token(row.position + i)) {
      return absl::StrCat("I1: token ", row.position + i, " is ", row.tokens[i], ", committed is ",
                          life.alone.Token(row.position + i));
    }
  }
  return "";
}

void Auditor::TakePages(const PlanRow& row, Place& place) {
  for (const uint32_t page : row.new_pages) {
    if (page >= page_owner_.size() || page_owner_[page] != 0) {
      return Violate(absl::StrCat("I3: page ", page, " is given to seq ", row.seq_uid,
                                  " and belongs to another, or does not exist"));
    }
    page_owner_[page] = row.seq_uid;
    place.pages.push_back(page);
  }
  const uint64_t room = uint64_t{config_.page_tokens} * place.pages.size();
  const uint64_t end = uint64_t{row.position} + row.n_tokens;
  if (end > room || end > config_.max_model_len) {
    Violate(absl::StrCat("I10: seq ", row.seq_uid, " is to reach ", end, " tokens, its pages hold ",
                         room, ", the context ", config_.max_model_len));
  }
}

void Auditor::CheckProgress(const StepPlan& plan) {
  for (const Place& place : places_) {
    if (place.life == nullptr) continue;
    const bool decodes = place.absorbed + 1 == place.life->known() && place.life->told > 0;
    const uint64_t idle = plan.step_id - place.last_row_step;
    if (idle > (decodes ? 0 : kMaxIdleSteps)) {
      return Violate(absl::StrCat("I9: request ", place.life->id, decodes ? " decodes and" : "",
                                  " has no row for ", idle, " steps"));
    }
  }
}

void Auditor::OnAnswer(const StepCollector::Answer& answer) {
  if (answer.epoch != config_.epoch || answer.step_id != in_flight_ || !answer.error.empty() ||
      answer.rank >= ranks_) {
    return;
  }
  auto& hash = answered_hash_[answer.rank];
  if (!hash.has_value()) hash = answer.agreement_hash;
}

void Auditor::OnApplied(uint64_t epoch, uint64_t step_id, bool taken) {
  if (epoch != config_.epoch || step_id != in_flight_ || in_flight_ == 0 || !taken) {
    return Violate(absl::StrCat("I11: a result of epoch ", epoch, ", step ", step_id, " is ",
                                taken ? "taken" : "refused", ", in flight is step ", in_flight_,
                                " of epoch ", config_.epoch));
  }
  for (const std::optional<uint64_t>& hash : answered_hash_) {
    if (hash.has_value() && hash == answered_hash_.front()) continue;
    return Violate(absl::StrCat("I4: step ", step_id,
                                " counts, and not all ranks have answered "
                                "with the same hash"));
  }
  in_flight_ = 0;
  for (Place& place : places_) {
    const uint32_t row_tokens = std::exchange(place.row_tokens, 0);
    if (row_tokens == 0 || place.life == nullptr) continue;
    Life& life = *place.life;
    if (place.row_samples) {
      life.failing = life.alone.Token(life.known()) == HashModel::kNan;
      if (life.failing) continue;  // the row did not count
      ++life.due;
    }
    place.absorbed += row_tokens;
    if (!life.prompt_counted && place.absorbed >= life.alone.prompt_tokens()) {
      life.prompt_counted = true;
      books_.prompt_tokens += life.alone.prompt_tokens();
    }
  }
}

}  // namespace quartet::simulation
