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

// Steps for decoders alone while a prompt waits for its next row, where they have a share of the
// time.
constexpr uint32_t kDecodeOnlyStepsMax = 4000;

}  // namespace

Auditor::Place* Auditor::FindPlace(uint64_t uid) {
  auto place = std::find_if(places_.begin(), places_.end(),
                            [uid](const Place& p) { return p.uid == uid && uid != 0; });
  return place == places_.end() ? nullptr : &*place;
}

void Auditor::OnPlan(const StepPlan& plan) {
  if (in_flight_.size() >= config_.steps_in_flight) {
    return Violate(
        absl::StrCat("I11: a step is planned while the workers hold ", in_flight_.size()));
  }
  if (plan.epoch != config_.epoch) {
    return Violate(absl::StrCat("I11: a plan of epoch ", plan.epoch, " in ", config_.epoch));
  }
  const uint64_t step = plan.is_step() ? books_.steps + 1 : 0;
  if (plan.step_id != step) {
    return Violate(absl::StrCat("I11: step ", plan.step_id, " is planned, expected ", step));
  }
  if (plan.rows.empty() && (!plan.opens.empty() || !(plan.is_step() || !plan.closes.empty()))) {
    return Violate("I10: a plan without rows opens sequences, or says nothing");
  }

  const uint64_t first = FirstOfAll();
  const uint64_t preemptions = books_.preemptions;
  for (const uint64_t uid : plan.closes) OnClose(uid, first);
  resumed_from_.clear();
  for (const SequenceOpen& open : plan.opens) OnOpen(open);
  if (!plan.is_step()) return;

  ++books_.steps;
  ++tally_.steps;
  plan_ = plan.step_id;
  in_flight_.push_back(
      {.id = plan.step_id, .hashes = std::vector<std::optional<uint64_t>>(ranks_)});
  tally_.steps_behind_others += in_flight_.size() > 1;
  for (Place& place : places_) place.commits = false;
  OnCopies(plan);
  // In the plan in which somebody loses its place, and as long as there was always a copy on its
  // way since, its pages may not be there yet for those who need them.
  const bool down =
      std::ranges::any_of(plan.copies, [](const TierCopy& copy) { return copy.from < copy.to; });
  saving_ = books_.preemptions > preemptions || (saving_ && (down || CopiesRun()));
  for (const coordinator::Commit& commit : plan.commits) OnCommit(commit);
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
  CheckProgress(prefill_seen);
}

// The oldest of the highest class, if it runs: it is the last to lose its place. 0 = it does not.
uint64_t Auditor::FirstOfAll() const {
  const Life* first = nullptr;
  for (const auto& [id, life] : lives_) {
    const auto rank = [](const Life& one) {
      return std::pair(one.request.request_class, one.slot < 0);
    };
    if (first == nullptr || std::pair(rank(*life), id) < std::pair(rank(*first), first->id)) {
      first = life.get();
    }
  }
  return first == nullptr || first->slot < 0 ? 0 : first->id;
}

void Auditor::OnClose(uint64_t uid, uint64_t first) {
  Place* place = FindPlace(uid);
  if (place == nullptr) {
    return Violate(absl::StrCat("I3: seq ", uid, " is closed, but it is not open"));
  }
  if (Life* life = place->life; life != nullptr) {  // it has not ended: a preemption
    if (life->id == first) {
      Violate(absl::StrCat("I9: request ", first, " is the oldest and was preempted"));
    }
    life->slot = -1;
    life->absorbed_before = place->absorbed;
    ++books_.preemptions;
    ++tally_.preemptions;
    // What it was told may wait for it in the cache.
    Settle(life->id, life->known());
  }
  for (const uint32_t page : place->pages) --page_users_[page];
  *place = {};
}

Auditor::Content Auditor::ContentOf(Life& life, uint32_t tokens) const {
  if (!life.caches()) return {};
  life.alone.Token(tokens - 1);  // its state is known behind it
  const bool of_answer = tokens > life.alone.prompt_tokens();
  const uint32_t unit = config_.page_tokens;
  Content content;
  content.domain = life.request.cache_root;
  content.tokens = tokens;
  content.state = life.alone.State(tokens);
  content.entries = life.alone.Entries(tokens) - life.alone.Entries(tokens - unit);
  if (tokens / unit <= life.names.size()) content.name = life.names[tokens / unit - 1];
  content.pending = of_answer ? life.id : 0;
  content.of_answer = of_answer;
  return content;
}

// Whether it is what the first tokens of this text leave there.
bool Auditor::Holds(const Content& content, Life& life, uint32_t tokens) const {
  return content.tokens == tokens && content.domain == life.request.cache_root &&
         content.state == life.alone.State(tokens);
}

// The text of this request has no more than so many tokens. What lies behind them is nobody's.
void Auditor::Settle(uint64_t life, uint32_t text_tokens) {
  for (std::vector<Content>* contents : {&device_.pages, &device_.snapshots}) {
    for (Content& content : *contents) {
      if (content.pending != life) continue;
      content.pending = 0;
      if (content.tokens > text_tokens) content = {};
    }
  }
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
  place.life->slot = static_cast<int>(open.slot);
  const bool caches = place.life->caches() && config_.snapshots > 0;
  if (caches) books_.prefix_query_tokens += place.life->known();
  const uint32_t begins_at = open.resume.has_value() ? open.resume->n_tokens : 0;
  const uint32_t before = std::exchange(place.life->absorbed_before, 0);
  books_.recomputed_tokens += before - std::min(before, begins_at);
  tally_.recomputed_tokens += before - std::min(before, begins_at);
  if (!open.resume.has_value()) return;
  if (!caches) return Violate("I2: " + name + " begins behind a prefix and has no name for it");
  OnResume(*open.resume, place);
}

void Auditor::OnResume(const coordinator::Resume& resume, Place& place) {
  const std::string name = absl::StrCat("seq ", place.uid, " begins at ", resume.n_tokens);
  Life& life = *place.life;
  const uint32_t unit = config_.page_tokens;
  if (resume.n_tokens == 0 || resume.n_tokens >= life.known() ||
      resume.pages.size() * unit != resume.n_tokens) {
    return Violate(
        absl::StrCat("I2: ", name, " of ", life.known(), " with ", resume.pages.size(), " pages"));
  }
  life.alone.Token(resume.n_tokens);
  if (resume.snapshot >= device_.snapshots.size() ||
      !Holds(device_.snapshots[resume.snapshot], life, resume.n_tokens)) {
    return Violate(absl::StrCat("I2: ", name, " from snapshot ", resume.snapshot,
                                ", which holds no such text"));
  }
  if (device_.snapshots[resume.snapshot].pending != 0) {
    return Violate("I7: " + name + " from a snapshot of an answer that may still be cut");
  }
  for (uint32_t i = 0; i < resume.pages.size(); ++i) {
    const uint32_t page = resume.pages[i];
    if (page >= device_.pages.size() || !Holds(device_.pages[page], life, (i + 1) * unit)) {
      return Violate(absl::StrCat("I3: ", name, " with page ", page, ", which holds another text"));
    }
    if (device_.pages[page].pending != 0) {
      return Violate("I7: " + name + " with a page of an answer that may still be cut");
    }
    ++page_users_[page];
  }
  resumed_from_.push_back(resume.snapshot);
  place.pages = resume.pages;
  place.absorbed = place.committed = resume.n_tokens;
  books_.prefix_hit_tokens += resume.n_tokens;
  ++tally_.resumed;
  const auto count = [&](bool Content::*flag) {
    return device_.snapshots[resume.snapshot].*flag ||
           std::ranges::any_of(resume.pages,
                               [&](uint32_t page) { return device_.pages[page].*flag; });
  };
  tally_.resumed_restored += count(&Content::restored);
  tally_.resumed_adopted += count(&Content::adopted);
  tally_.resumed_tokens += resume.n_tokens;
  tally_.resumed_in_answers += device_.snapshots[resume.snapshot].of_answer;
}

void Auditor::OnCommit(const coordinator::Commit& commit) {
  const std::string name = absl::StrCat("commit of seq ", commit.seq_uid);
  Place* place = FindPlace(commit.seq_uid);
  if (place == nullptr) return Violate("I3: " + name + ", which is not open");
  if (std::exchange(place->commits, true)) return Violate("I10: two times a " + name);
  if (commit.export_at == 0) return;
  // A window in flight takes in what was before it.
  const Row* ahead = place->Ahead(plan_);
  const uint32_t from = ahead == nullptr ? place->committed : place->absorbed;
  const uint32_t to = place->AbsorbedBehind(ahead);
  if (commit.export_at <= from || commit.export_at > to) {
    return Violate(absl::StrCat("I2: ", name, " does not come by ", commit.export_at,
                                ", it goes from ", from, " to ", to));
  }
  if (place->life == nullptr && commit.export_at > place->ended->text_tokens) {
    return Violate(absl::StrCat("I7: ", name, " exports ", commit.export_at,
                                " tokens of a text of ", place->ended->text_tokens));
  }
  tally_.last_exports += place->life == nullptr;
  OnExport(commit.snapshot, commit.export_at, *place);
}

bool Auditor::MayExport(uint32_t snapshot, uint32_t tokens, const Place& place) {
  const std::string name = absl::StrCat("snapshot ", snapshot, " of seq ", place.uid);
  std::string error;
  if (snapshot >= device_.snapshots.size()) {
    error = "I3: " + name + " does not exist";
  } else if (tokens % config_.page_tokens != 0) {
    error = absl::StrCat("I2: ", name, " is taken at ", tokens, ", inside a unit");
  } else if (std::ranges::find(resumed_from_, snapshot) != resumed_from_.end()) {
    error = "I3: " + name + " is written while another sequence begins with it";
  } else if (IsCopied(TierCopy::Kind::kSnapshot, snapshot)) {
    error = "I3: " + name + " is written while it is copied";
  }
  for (const Place& other : places_) {
    for (const Row& row : other.rows) {
      if ((row.exported.has_value() && row.exported->snapshot == snapshot) ||
          std::ranges::find(row.inner, snapshot, &Export::snapshot) != row.inner.end()) {
        error = "I3: " + name + " is written twice in the steps in flight";
      }
    }
  }
  if (!error.empty()) Violate(error);
  return error.empty();
}

void Auditor::OnExport(uint32_t snapshot, uint32_t tokens, Place& place) {
  if (!MayExport(snapshot, tokens, place)) return;
  device_.snapshots[snapshot] = {};
  RowOfPlan(place).exported = Export{snapshot, tokens};
}

// The place's entry of the plan that is looked at.
Auditor::Row& Auditor::RowOfPlan(Place& place) {
  if (place.rows.empty() || place.rows.back().step != plan_) place.rows.push_back({.step = plan_});
  return place.rows.back();
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
    if (error.empty()) error = DraftsError(row, *place);
  }
  if (!error.empty()) {
    return Violate(absl::StrCat(error, " (row of seq ", row.seq_uid, " at ", row.position, ", ",
                                row.n_tokens, " tokens)"));
  }
  TakePages(row, *place);
  Row& kept = RowOfPlan(*place);
  kept.tokens = row.n_tokens;
  kept.samples = row.sample;
  kept.verifies = row.kind == PlanRow::Kind::kVerify;
  kept.chain = row.draft_chain;
  for (const coordinator::SnapshotExport& exported : row.exports) {
    const bool inner = exported.offset < row.n_tokens;
    if (kept.verifies || exported.offset > row.n_tokens || kept.exported.has_value() ||
        (inner && row.kind != PlanRow::Kind::kPrefill)) {
      return Violate(absl::StrCat("I2: seq ", row.seq_uid, " exports outside of a prompt's row"));
    }
    const uint32_t tokens = row.position + exported.offset;
    if (!inner) {
      OnExport(exported.snapshot, tokens, *place);
    } else if (MayExport(exported.snapshot, tokens, *place)) {
      device_.snapshots[exported.snapshot] = {};
      kept.inner.push_back({exported.snapshot, tokens});
      ++tally_.inner_exports;
    }
  }
}

std::string Auditor::RowError(const PlanRow& row, Place& place) {
  if (row.slot >= places_.size() || &places_[row.slot] != &place) return "I3: it has another slot";
  if (!place.rows.empty() && place.rows.back().step == plan_ && place.rows.back().tokens != 0) {
    return "I10: it has two rows";
  }
  if (row.n_tokens == 0) return "I9: the row is empty";
  const Row* ahead = place.Ahead(plan_);
  const uint32_t absorbed = place.AbsorbedBehind(ahead);
  if (row.position != absorbed) {
    return absl::StrCat("I1: ", absorbed, " tokens are absorbed",
                        ahead != nullptr ? " with the step in flight" : "");
  }
  // The last token is drawn by the step in flight, and not absorbed.
  const uint32_t known = ahead != nullptr && ahead->samples ? absorbed + 1 : place.life->known();
  const uint32_t end = row.position + row.n_tokens - row.draft_tokens;
  if (row.draft_tokens >= row.n_tokens) return "I10: it has no token but drafts";
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
    if (life.paused) return "I9: its client does not read";
    // Behind a window of which it is not known how far it comes there is a window.
    const Row* ahead = place.Ahead(plan_);
    const bool window =
        row.n_tokens > 1 || (ahead != nullptr && ahead->verifies && ahead->tokens > 1);
    const bool decodes = row.kind == (window ? PlanRow::Kind::kVerify : PlanRow::Kind::kDecode) &&
                         place.DecodesBehind(ahead);
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

std::string Auditor::DraftsError(const PlanRow& row, Place& place) {
  Life& life = *place.life;
  const uint32_t longest = config_.num_speculative_tokens;
  if (row.draft_tokens > 0 && row.kind != PlanRow::Kind::kVerify) return "I10: drafts in no window";
  const Row* ahead = place.Ahead(plan_);
  const uint32_t drafts = ahead != nullptr ? ahead->chain : place.drafts;
  if (row.draft_tokens > drafts) {
    return absl::StrCat("I10: ", row.draft_tokens, " drafts, ", drafts, " were made");
  }
  if (row.draft_chain > (row.sample ? longest : 0))
    return "I10: a chain of more drafts than may be";
  if (row.draft != (longest > 0)) return "I12: the drafter does not see all tokens";
  const uint32_t end = row.position + row.n_tokens;
  if (longest > 0 && !row.sample && row.mtp_next != life.alone.Token(end)) {
    return "I1: the drafter is told another token";
  }
  const uint32_t room = config_.max_model_len - life.alone.prompt_tokens();
  const uint32_t most = life.request.max_tokens == 0 ? room : life.request.max_tokens;
  // The step in flight says one at least.
  const uint32_t told = life.told + (ahead != nullptr && ahead->samples ? 1 : 0);
  if (row.sample && told + 1 + row.draft_tokens > most) {
    return absl::StrCat("I7: ", row.draft_tokens, " drafts, it may say ", most - told);
  }
  return "";
}

void Auditor::TakePages(const PlanRow& row, Place& place) {
  for (const uint32_t page : row.new_pages) {
    if (page >= page_users_.size() || page_users_[page] != 0) {
      return Violate(absl::StrCat("I3: page ", page, " is given to seq ", row.seq_uid,
                                  " and belongs to another, or does not exist"));
    }
    if (IsCopied(TierCopy::Kind::kPage, page)) {
      return Violate(
          absl::StrCat("I3: page ", page, " is given to seq ", row.seq_uid, " while it is copied"));
    }
    ++page_users_[page];
    device_.pages[page] = {};
    place.pages.push_back(page);
  }
  const uint64_t room = uint64_t{config_.page_tokens} * place.pages.size();
  // The first draft of a chain needs no place of its own.
  const uint64_t end = uint64_t{row.position} + row.n_tokens + std::max(row.draft_chain, 1u) - 1;
  if (end > room || end > config_.max_model_len) {
    Violate(absl::StrCat("I10: seq ", row.seq_uid, " is to reach ", end, " tokens, its pages hold ",
                         room, ", the context ", config_.max_model_len));
  }
}

void Auditor::CheckProgress(bool has_prompt_rows) {
  bool prompt_waits = false;
  for (Place& place : places_) {
    if (place.life == nullptr) continue;
    if (!place.rows.empty() && place.rows.back().step == plan_ && place.rows.back().tokens != 0) {
      place.idle_plans = 0;
      continue;
    }
    if (place.DecodesBehind(place.Ahead(plan_))) {
      if (place.life->paused || MayRest(place)) continue;
      return Violate(absl::StrCat("I9: request ", place.life->id, " decodes and has no row"));
    }
    prompt_waits = prompt_waits || !(CopiesRun() || saving_);
    if (has_prompt_rows && ++place.idle_plans >= coordinator::kProgressPlans) {
      return Violate(absl::StrCat("I9: request ", place.life->id, " is admitted and has no row in ",
                                  place.idle_plans, " plans with rows of other prompts"));
    }
  }
  decode_only_steps_ = has_prompt_rows || !prompt_waits ? 0 : decode_only_steps_ + 1;
  if (decode_only_steps_ > (config_.min_decode_share > 0 ? kDecodeOnlyStepsMax : 0)) {
    Violate(absl::StrCat("I9: an admitted prompt waits, and ", decode_only_steps_,
                         " steps had no row of any prompt"));
  }
}

// Whether a sequence that decodes needs no row: it says its last token with the step in flight, or
// the page that it needs is held by copies in flight, or until somebody's state is saved.
bool Auditor::MayRest(const Place& place) const {
  if (CopiesRun() || saving_) return true;
  const Row* ahead = place.Ahead(plan_);
  if (ahead == nullptr) return false;
  Life& life = *place.life;
  const uint32_t room = config_.max_model_len - life.alone.prompt_tokens();
  const uint32_t most = life.request.max_tokens == 0 ? room : life.request.max_tokens;
  return life.told + 1 >= most || place.AbsorbedBehind(ahead) >= config_.max_model_len;
}

void Auditor::OnAnswer(const StepCollector::Answer& answer) {
  const auto step = std::ranges::find(in_flight_, answer.step_id, &Step::id);
  if (answer.epoch != config_.epoch || step == in_flight_.end() || !answer.error.empty() ||
      answer.rank >= ranks_) {
    return;
  }
  auto& hash = step->hashes[answer.rank];
  if (hash.has_value()) return;
  hash = answer.agreement_hash;
  if (answer.rank == 0) step->rows = answer.rows;
  if (answer.step_id != copies_step_) return;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const bool said = i < answer.copies.size();
    copies_[i].worst =
        std::max(copies_[i].worst, said ? answer.copies[i] : coordinator::CopyOutcome::kMissing);
  }
}

void Auditor::OnApplied(uint64_t epoch, uint64_t step_id, bool taken) {
  const uint64_t oldest = in_flight_.empty() ? 0 : in_flight_.front().id;
  if (epoch != config_.epoch || step_id != oldest || oldest == 0 || !taken) {
    return Violate(absl::StrCat("I11: a result of epoch ", epoch, ", step ", step_id, " is ",
                                taken ? "taken" : "refused", ", in flight is step ", oldest,
                                " of epoch ", config_.epoch));
  }
  const Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const std::optional<uint64_t>& hash : step.hashes) {
    if (hash.has_value() && hash == step.hashes.front()) continue;
    return Violate(absl::StrCat("I4: step ", step_id,
                                " counts, and not all ranks have answered "
                                "with the same hash"));
  }
  if (step_id == copies_step_) ApplyCopies();
  for (Place& place : places_) {
    if (place.rows.empty() || place.rows.front().step != step_id) continue;
    const Row row = place.rows.front();
    place.rows.erase(place.rows.begin());
    ApplyRow(place, row, step);
  }
}

// What the step did for one sequence.
void Auditor::ApplyRow(Place& place, const Row& row, const Step& step) {
  const std::optional<Export>& exported = row.exported;
  if (place.life == nullptr || place.life->cancelled || place.life->truncated.has_value()) {
    // What a row did after its request had ended is nobody's, but it took what was before it into
    // the live state.
    if (row.tokens != 0) place.committed = place.absorbed;
    if (exported.has_value() && place.ended != nullptr &&
        exported->tokens <= std::min(place.absorbed, place.ended->text_tokens)) {
      Content& content = device_.snapshots[exported->snapshot];
      content = ContentOf(*place.ended, exported->tokens);
      content.pending = 0;
    }
    return;
  }
  if (row.tokens == 0) return;
  Life& life = *place.life;
  const uint32_t before = place.absorbed;
  if (row.samples) {
    ApplyTokens(place, life, row, step);
  } else {
    place.absorbed += row.tokens;
    place.committed = place.absorbed;
  }
  if (life.failing) return;  // the row did not count
  place.decodes = place.decodes || row.samples;
  place.drafts = row.chain;
  FillPages(place, life, before);
  for (const Export& inner : row.inner) {
    device_.snapshots[inner.snapshot] = ContentOf(life, inner.tokens);
    ++tally_.exports;
  }
  // A window before it may have come less far than it could.
  if (exported.has_value() && exported->tokens <= place.committed) {
    Content& content = device_.snapshots[exported->snapshot];
    content = ContentOf(life, exported->tokens);
    ++(exported->tokens > life.alone.prompt_tokens() ? tally_.answer_exports : tally_.exports);
  }
  if (!life.prompt_counted && place.absorbed >= life.alone.prompt_tokens()) {
    life.prompt_counted = true;
    books_.prompt_tokens += life.alone.prompt_tokens();
  }
}

// A row that drew tokens: one, or in a window one more than drafts were accepted.
void Auditor::ApplyTokens(Place& place, Life& life, const Row& row, const Step& step) {
  const auto answer = std::ranges::find(step.rows, place.uid, &coordinator::RowOutcome::seq_uid);
  const auto drawn = answer == step.rows.end() ? 0 : static_cast<uint32_t>(answer->tokens.size());
  const uint32_t known = life.known();
  if (!row.verifies || drawn == 0) {
    // Perhaps the text breaks off here, or in the window that begins here.
    const uint32_t looked_at = row.verifies ? row.tokens : 1;
    for (uint32_t i = 0; i < looked_at && !life.failing; ++i) {
      life.failing = life.alone.Token(known + i) == HashModel::kNan;
    }
    if (life.failing) return;
  }
  const uint32_t tokens = row.verifies ? std::clamp(drawn, 1u, row.tokens) : 1;
  uint32_t said = 0;
  while (said < tokens) {
    const int32_t token = life.alone.Token(known + said);
    ++said;
    life.ends_at_due = Ending(life, token, life.told + said).has_value();
    if (life.ends_at_due) break;
  }
  life.due += said;
  place.committed = row.verifies ? place.absorbed : place.absorbed + row.tokens;
  place.absorbed += row.verifies ? tokens : row.tokens;
  if (!row.verifies || row.tokens == 1) return;
  const uint32_t used = std::min(tokens - 1, said);
  ++books_.spec_drafts;
  books_.spec_draft_tokens += row.tokens - 1;
  books_.spec_accepted_tokens += used;
  for (uint32_t i = 0; i < used; ++i) ++books_.spec_accepted_at[i];
  ++tally_.windows[tokens - 1];
  tally_.cut_windows += said < tokens;
}

// The units that were full before are what they were.
void Auditor::FillPages(Place& place, Life& life, uint32_t from) {
  const uint32_t unit = config_.page_tokens;
  for (uint32_t i = from / unit; (i + 1) * unit <= place.absorbed; ++i) {
    device_.pages[place.pages[i]] = ContentOf(life, (i + 1) * unit);
  }
}

}  // namespace quartet::simulation
