#include "services/coordinator/simulation/auditor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

// The books of requests: what went in, what each was told, how it ended. Those of plans are in
// audit_plan.cc.

namespace quartet::simulation {

using coordinator::Core;
using coordinator::CoreConfig;
using coordinator::FinishReason;
using coordinator::Ledger;
using coordinator::Output;
using coordinator::Request;
using coordinator::SubmitOutcome;

namespace {

// The first one that counts for a request, with or without that for its place and first token; 0 =
// none.
uint32_t DeadlineMs(const CoreConfig& config, const Request& request, bool before_first_token) {
  uint32_t least = 0;
  const auto consider = [&least](uint32_t ms) {
    if (ms != 0 && (least == 0 || ms < least)) least = ms;
  };
  consider(config.total_timeout_ms);
  consider(request.total_deadline_ms);
  if (!before_first_token) return least;
  consider(config.queue_timeout_ms);
  consider(request.first_token_deadline_ms);
  return least;
}

}  // namespace

void Tally::Add(const Tally& other) {
  engines += other.engines;
  steps += other.steps;
  rows += other.rows;
  row_tokens += other.row_tokens;
  accepted += other.accepted;
  refused += other.refused;
  refused_late += other.refused_late;
  expired += other.expired;
  pauses += other.pauses;
  for (size_t i = 0; i < std::size(finished); ++i) finished[i] += other.finished[i];
  cancelled_queued += other.cancelled_queued;
  cancelled_prefill += other.cancelled_prefill;
  cancelled_decode += other.cancelled_decode;
  failed_rows += other.failed_rows;
  failed_engine += other.failed_engine;
  preemptions += other.preemptions;
  recomputed_tokens += other.recomputed_tokens;
  comparisons += other.comparisons;
  void_rows += other.void_rows;
  steps_behind_others += other.steps_behind_others;
  tokens += other.tokens;
  for (size_t i = 0; i < std::size(windows); ++i) windows[i] += other.windows[i];
  cut_windows += other.cut_windows;
  resumed += other.resumed;
  resumed_tokens += other.resumed_tokens;
  resumed_in_answers += other.resumed_in_answers;
  exports += other.exports;
  inner_exports += other.inner_exports;
  answer_exports += other.answer_exports;
  last_exports += other.last_exports;
  for (size_t i = 0; i < std::size(copies_to); ++i) copies_to[i] += other.copies_to[i];
  copies_missing += other.copies_missing;
  copies_checksum += other.copies_checksum;
  adopted += other.adopted;
  resumed_restored += other.resumed_restored;
  resumed_adopted += other.resumed_adopted;
}

Auditor::Life::Life(const HashModel& model, uint64_t id, Request taken)
    : id(id),
      alone(model, std::exchange(taken.prompt_ids, {}), taken.sampling, taken.first_padding_id),
      request(std::move(taken)),
      names(request.unit_keys) {}

Auditor::Auditor(const HashModel& model) : model_(model) {}

void Auditor::Violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

void Auditor::OnEngine(const CoreConfig& config, uint32_t ranks) {
  if (config.epoch <= last_epoch_) Violate("I11: an epoch comes after a later one");
  last_epoch_ = config.epoch;
  config_ = config;
  ranks_ = ranks;
  places_.clear();
  places_.resize(config.slots);
  page_users_.assign(config.pages, 0);
  device_.pages.assign(config.pages, {});
  device_.snapshots.assign(config.snapshots, {});
  host_.pages.assign(config.host_pages, {});
  host_.snapshots.assign(config.host_snapshots, {});
  disk_.pages.assign(config.disk_pages, {});
  disk_.snapshots.assign(config.disk_snapshots, {});
  copies_.clear();
  restore_only_steps_ = 0;
  copies_step_ = 0;
  decode_only_steps_ = 0;
  last_uid_ = 0;
  plan_ = 0;
  in_flight_.clear();
  engine_end_.clear();
  books_ = {};
  books_.slots_size = config.slots;
  books_.pages_size = config.pages;
  books_.snapshots_size = config.snapshots;
  ++tally_.engines;
}

void Auditor::OnSubmit(Request request, const SubmitOutcome& outcome) {
  uint64_t waiting = 0;
  uint64_t waiting_tokens = request.prompt_ids.size();
  for (const auto& [id, life] : lives_) {
    // Who has gone in this turn has left the queue, though it is told so at the turn's end.
    if (life->slot >= 0 || life->cancelled || life->truncated.has_value()) continue;
    ++waiting;
    waiting_tokens += life->known();
  }
  const bool full = waiting >= config_.max_queued_requests ||
                    (waiting > 0 && waiting_tokens > config_.max_queued_tokens);
  // By what the core expects of the future, which it knows best.
  const bool has_deadline = config_.queue_timeout_ms != 0 || request.total_deadline_ms != 0 ||
                            request.first_token_deadline_ms != 0;
  if (!full && has_deadline && outcome.kind == SubmitOutcome::Kind::kTooLate) {
    ++tally_.refused;
    ++tally_.refused_late;
    return;
  }
  const auto expected = full ? SubmitOutcome::Kind::kQueueFull : SubmitOutcome::Kind::kAccepted;
  if (outcome.kind != expected) {
    return Violate(absl::StrCat("a request was ", full ? "not refused" : "refused", " with ",
                                waiting, " waiting: ", outcome.message));
  }
  if (full) {
    ++tally_.refused;
    return;
  }
  ++tally_.accepted;
  ++books_.accepted;
  auto life = std::make_unique<Life>(model_, outcome.id, std::move(request));
  if (!lives_.emplace(outcome.id, std::move(life)).second) {
    Violate(absl::StrCat("I8: request number ", outcome.id, " is given out twice"));
  }
}

void Auditor::OnCancel(uint64_t id) {
  if (auto life = lives_.find(id); life != lives_.end()) life->second->cancelled = true;
}

void Auditor::OnPause(uint64_t id, bool paused) {
  if (auto life = lives_.find(id); life != lives_.end()) life->second->paused = paused;
  if (paused) ++tally_.pauses;
}

void Auditor::OnTruncate(uint64_t id, uint32_t n_tokens, Core::TruncateOutcome outcome) {
  auto found = lives_.find(id);
  auto expected = Core::TruncateOutcome::kEnded;
  // What a step of this turn has said or ended counts, though it is told at the turn's end.
  if (found != lives_.end() && !found->second->over()) {
    expected = n_tokens <= found->second->due ? Core::TruncateOutcome::kDone
                                              : Core::TruncateOutcome::kBeyond;
  }
  if (outcome != expected) {
    return Violate(absl::StrCat("I7: truncate of request ", id, " to ", n_tokens,
                                " tokens has outcome ", static_cast<int>(outcome), ", expected ",
                                static_cast<int>(expected)));
  }
  if (expected == Core::TruncateOutcome::kDone) found->second->truncated = n_tokens;
}

void Auditor::OnEngineEnd(const std::string& message) {
  engine_end_ = message;
  in_flight_.clear();
  copies_.clear();
  copies_step_ = 0;
}

void Auditor::OnOutput(const Output& output, TimeUs now) {
  auto found = lives_.find(output.id);
  if (found == lives_.end()) {
    return Violate(absl::StrCat("I8: request ", output.id, " is told something after its end"));
  }
  Life& life = *found->second;
  if (output.prompt_tokens != life.alone.prompt_tokens()) {
    Violate(absl::StrCat("request ", life.id, " has ", life.alone.prompt_tokens(),
                         " prompt tokens, told were ", output.prompt_tokens));
  }
  switch (output.kind) {
    case Output::Kind::kAdmitted:
      if (life.admitted || life.slot < 0) {
        Violate(absl::StrCat("request ", life.id, " is admitted twice or without a slot"));
      }
      life.admitted = true;
      return;
    case Output::Kind::kTokens:
      return OnTokens(output, life, now);
    default:
      OnEnd(output, life, now);
      if (life.slot >= 0) {
        Place& place = places_[life.slot];
        place.life = nullptr;
        if (!in_flight_.empty()) {
          tally_.void_rows += static_cast<uint64_t>(
              std::ranges::count_if(place.rows, [](const Row& row) { return row.tokens != 0; }));
        }
        Settle(life.id, life.text_tokens);
        place.ended = std::move(found->second);
      }
      lives_.erase(found);
  }
}

void Auditor::OnTokens(const Output& output, Life& life, TimeUs now) {
  const std::string name = absl::StrCat("request ", life.id);
  if (!life.admitted) return Violate(name + " gets tokens before it is admitted");
  if (life.told + output.tokens.size() != life.due) {
    return Violate(absl::StrCat("I4: ", name, " gets ", output.tokens.size(), " tokens, it has ",
                                life.told, ", by completed steps it should have ", life.due));
  }
  coordinator::TopLogprobs top;
  coordinator::TopLogprobs prompt_top;
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    if (life.ending.has_value()) return Violate("I7: " + name + " gets a token after its last");
    const int32_t expected = life.alone.Token(life.known());
    if (output.tokens[i] != expected) {
      return Violate(absl::StrCat("I12: ", name, " gets ", output.tokens[i], " as token ",
                                  life.told, " of its answer, alone it says ", expected));
    }
    const float logprob = HashModel::Logprob(life.alone.State(life.known()), expected);
    if (life.request.logprobs && (output.logprobs.size() <= i || output.logprobs[i] != logprob)) {
      return Violate("I12: " + name + " gets another log-probability than alone");
    }
    HashModel::AddTop(life.alone.State(life.known()), life.request.top_logprobs, top);
    ++life.told;
    ++tally_.tokens;
    ++books_.generated_tokens;
    life.ending = Ending(life, expected, life.told);
  }
  for (const float logprob : output.prompt_logprobs) {
    const uint32_t next = ++life.prompt_logprobs_told;
    if (next < life.alone.prompt_tokens()) {
      HashModel::AddTop(life.alone.State(next), life.request.prompt_top_logprobs, prompt_top);
    }
    if (next >= life.alone.prompt_tokens() ||
        logprob != HashModel::Logprob(life.alone.State(next), life.alone.Token(next))) {
      return Violate(absl::StrCat("I12: ", name, " gets a wrong log-probability of token ", next,
                                  " of its prompt"));
    }
  }
  const auto same = [](const coordinator::TopLogprobs& a, const coordinator::TopLogprobs& b) {
    return a.ids == b.ids && a.logprobs == b.logprobs;
  };
  if (!same(output.top, top) || !same(output.prompt_top, prompt_top)) {
    return Violate("I12: " + name + " gets other likeliest tokens than alone");
  }
  if (output.completion_tokens != life.told) {
    return Violate(absl::StrCat("I7: ", name, " was told ", life.told, " tokens, counted are ",
                                output.completion_tokens));
  }
  if (output.tokens.empty()) return;
  const coordinator::RequestTimes& times = output.times;
  if (times.submitted > times.admitted || times.admitted > times.first_token ||
      times.first_token > times.last_token || times.last_token != now ||
      output.previous_token != life.last_token) {
    return Violate(name + " has times out of order");
  }
  life.last_token = now;
}

// What this token means as the last of so many.
std::optional<FinishReason> Auditor::Ending(Life& life, int32_t token, uint32_t told) const {
  const auto in = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (!life.request.ignore_eos && in(life.request.end_ids)) return FinishReason::kEndToken;
  if (in(life.request.stop_ids)) return FinishReason::kStopId;
  const bool limited = life.request.max_tokens != 0 && told >= life.request.max_tokens;
  if (limited || life.alone.prompt_tokens() + told >= config_.max_model_len) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

void Auditor::OnEnd(const Output& output, Life& life, TimeUs now) {
  const std::string name = absl::StrCat("request ", life.id);
  life.text_tokens = life.alone.prompt_tokens();
  if (output.kind != Output::Kind::kFailed) life.text_tokens += life.truncated.value_or(life.told);
  switch (output.kind) {
    case Output::Kind::kCancelled: {
      ++books_.cancelled;
      if (!life.cancelled) return Violate("I8: " + name + " ends as cancelled, and nobody did it");
      const bool decoding = life.slot >= 0 && places_[life.slot].absorbed + 1 == life.known();
      ++(life.slot < 0 ? tally_.cancelled_queued
         : decoding    ? tally_.cancelled_decode
                       : tally_.cancelled_prefill);
      break;
    }
    case Output::Kind::kExpired: {
      ++books_.expired;
      ++tally_.expired;
      const uint32_t limit_ms = DeadlineMs(config_, life.request, life.told == 0);
      if (limit_ms == 0 || now - output.times.submitted < TimeUs{limit_ms} * 1000) {
        return Violate("I8: " + name + " ends for a deadline that has not passed");
      }
      break;
    }
    case Output::Kind::kFailed:
      ++books_.failed;
      if (!engine_end_.empty()) {
        ++tally_.failed_engine;
        if (output.message != engine_end_) Violate(name + " fails with another engine's message");
      } else {
        ++tally_.failed_rows;
        if (!life.failing) Violate("I8: " + name + " fails without a reason: " + output.message);
      }
      break;
    default:
      ++books_.finished;
      ++tally_.finished[static_cast<int>(output.reason)];
      return OnFinished(output, life);
  }
  if (output.completion_tokens != life.told) {
    Violate(absl::StrCat("I7: ", name, " ends with ", output.completion_tokens, " tokens, told ",
                         life.told));
  }
}

void Auditor::OnFinished(const Output& output, Life& life) {
  const std::string name = absl::StrCat("request ", life.id);
  std::optional<FinishReason> reason = life.ending;
  uint32_t tokens = life.told;
  if (life.truncated.has_value()) {
    reason = FinishReason::kTruncated;
    tokens = *life.truncated;
  }
  if (reason != output.reason) {
    return Violate(absl::StrCat("I8: ", name, " ends with reason ", static_cast<int>(output.reason),
                                ", expected ",
                                reason.has_value() ? static_cast<int>(*reason) : -1));
  }
  if (output.completion_tokens != tokens) {
    return Violate(absl::StrCat("I7: ", name, " is billed ", output.completion_tokens,
                                " tokens, its answer has ", tokens));
  }
  if (output.reason == FinishReason::kStopId &&
      output.stop_id != life.alone.Token(life.known() - 1)) {
    return Violate(absl::StrCat("I7: ", name, " ends at stop id ", output.stop_id));
  }
  if (life.request.prompt_logprobs && life.told > 0 &&
      life.prompt_logprobs_told + 1 != life.alone.prompt_tokens()) {
    return Violate(absl::StrCat(name, " got ", life.prompt_logprobs_told,
                                " log-probabilities of a prompt of ", life.alone.prompt_tokens()));
  }
}

void Auditor::CheckBooks(const Ledger& ledger) {
  Ledger& books = books_;
  books.running = books.waiting = 0;
  books.waiting_tokens = 0;
  for (const auto& [id, life] : lives_) {
    if (life->told != life->due || life->ending.has_value() || life->failing) {
      return Violate(absl::StrCat("I8: request ", id, " was told ", life->told, " tokens of ",
                                  life->due,
                                  life->ending.has_value() ? " and should have ended"
                                  : life->failing          ? " and should have failed"
                                                           : ""));
    }
    if (life->cancelled || life->truncated.has_value()) {
      return Violate(absl::StrCat("I8: request ", id, " is open after its cancel or truncate"));
    }
    if (life->slot >= 0) {
      ++books.running;
    } else {
      ++books.waiting;
      books.waiting_tokens += life->known();
    }
  }
  CheckPools(ledger);
  const auto compare = [this](const char* name, uint64_t says, uint64_t expected) {
    if (says == expected) return;
    Violate(absl::StrCat("I14: the ledger says ", says, " ", name, ", the books ", expected));
  };
  compare("running", ledger.running, books.running);
  compare("waiting", ledger.waiting, books.waiting);
  compare("waiting tokens", ledger.waiting_tokens, books.waiting_tokens);
  compare("slots", ledger.slots_size, books.slots_size);
  compare("pages", ledger.pages_size, books.pages_size);
  compare("snapshots", ledger.snapshots_size, books.snapshots_size);
  compare("accepted", ledger.accepted, books.accepted);
  compare("finished", ledger.finished, books.finished);
  compare("cancelled", ledger.cancelled, books.cancelled);
  compare("failed", ledger.failed, books.failed);
  compare("expired", ledger.expired, books.expired);
  compare("no progress", ledger.no_progress, 0);
  compare("preemptions", ledger.preemptions, books.preemptions);
  compare("rows awaiting masks", ledger.rows_awaiting_mask, 0);  // nothing is constrained
  compare("loops", ledger.repetitions_suspected, 0);             // the model has none
  compare("condemned states", ledger.states_condemned, 0);
  compare("recomputed tokens", ledger.recomputed_tokens, books.recomputed_tokens);
  compare("steps", ledger.steps, books.steps);
  compare("prompt tokens", ledger.prompt_tokens, books.prompt_tokens);
  compare("generated tokens", ledger.generated_tokens, books.generated_tokens);
  compare("prefix query tokens", ledger.prefix_query_tokens, books.prefix_query_tokens);
  compare("prefix hit tokens", ledger.prefix_hit_tokens, books.prefix_hit_tokens);
  compare("windows", ledger.spec_drafts, books.spec_drafts);
  compare("drafts", ledger.spec_draft_tokens, books.spec_draft_tokens);
  compare("accepted drafts", ledger.spec_accepted_tokens, books.spec_accepted_tokens);
  for (size_t i = 0; i < coordinator::kMaxDraftTokens; ++i) {
    compare("accepted drafts of a place", ledger.spec_accepted_at[i], books.spec_accepted_at[i]);
  }
}

// Who runs has its slot and pages; who has ended may have them until its close, if it used the
// cache; and the cache has others, of which the books know only that nobody needs them.
void Auditor::CheckPools(const Ledger& ledger) {
  std::vector<bool> live(config_.pages, false), held(config_.pages, false);
  uint32_t slots = 0;
  for (const Place& place : places_) {
    if (place.uid == 0) continue;
    const bool runs = place.life != nullptr;
    const bool may_stay =
        runs || (place.ended != nullptr && place.ended->caches() && config_.snapshots > 0);
    slots += may_stay;
    for (const uint32_t page : place.pages) {
      live[page] = live[page] || runs;
      held[page] = held[page] || may_stay;
    }
  }
  const auto between = [this](const char* name, uint64_t says, uint64_t least, uint64_t most) {
    if (least <= says && says <= most) return;
    Violate(absl::StrCat("I14: the ledger says ", says, " ", name, ", the books ", least,
                         least == most ? "" : absl::StrCat(" to ", most)));
  };
  const auto least = static_cast<uint64_t>(std::count(live.begin(), live.end(), true));
  const auto most = static_cast<uint64_t>(std::count(held.begin(), held.end(), true));
  between("slots used", ledger.slots_used, books_.running, slots);
  // A unit that two sequences have absorbed is there twice as long as both run; and copies hold
  // what they read and have what they write.
  const uint64_t twice = config_.snapshots == 0 ? 0 : ledger.cached_pages;
  const auto arriving =
      static_cast<uint64_t>(std::ranges::count_if(copies_, [this](const CopyInFlight& in_flight) {
        return copies_step_ != 0 && in_flight.copy.to == coordinator::CacheTier::kDevice &&
               in_flight.copy.kind == TierCopy::Kind::kPage;
      }));
  between("pages used", ledger.pages_used - ledger.evictable_pages, least, most + twice + arriving);
  between("snapshots used", ledger.snapshots_used, 0, config_.snapshots);
  // Of a page that the cache holds, the text is final.
  const auto final_text = [](const Content& content) {
    return content.tokens > 0 && content.pending == 0;
  };
  const auto cached = std::ranges::count_if(device_.pages, final_text);
  if (ledger.cached_pages > cached) {
    Violate(absl::StrCat("I7: ", ledger.cached_pages, " pages are cached, ", cached,
                         " hold a text that nobody can cut any more"));
  }
  CheckTierLedger("host", ledger.host_tier, books_.host_tier, host_);
  CheckTierLedger("disk", ledger.disk_tier, books_.disk_tier, disk_);
}

void Auditor::CheckStates(const std::vector<SimWorker>& workers) {
  CheckArrived(workers);
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    for (size_t slot = 0; slot < places_.size(); ++slot) {
      const Place& place = places_[slot];
      const SimWorker::Sequence& held = workers[rank].slot(static_cast<uint32_t>(slot));
      if (place.life == nullptr) continue;
      LoneRun& alone = place.life->alone;
      uint64_t absorbed_state = held.state;
      for (const int32_t token : held.window) {
        absorbed_state = HashModel::Absorb(absorbed_state, token);
      }
      if (held.uid == place.uid && held.absorbed == place.absorbed &&
          held.window.size() == place.absorbed - place.committed &&
          held.state == alone.State(place.committed) &&
          absorbed_state == alone.State(place.absorbed) &&
          workers[rank].Entries(held) == alone.Entries(place.absorbed)) {
        continue;
      }
      return Violate(absl::StrCat("I1: rank ", rank, " holds ", held.absorbed, " tokens of seq ",
                                  held.uid, " in slot ", slot, ", committed are ", place.absorbed,
                                  " of seq ", place.uid, "; state or pages are of other tokens"));
    }
  }
}

void Auditor::CheckIdle(const Ledger& ledger, const std::vector<SimWorker>& workers) {
  if (!lives_.empty()) {
    return Violate(absl::StrCat("I8: ", lives_.size(), " requests never ended"));
  }
  CheckBooks(ledger);
  for (const SimWorker& worker : workers) {
    if (worker.slots_used() == 0 && worker.pages_used() == 0) continue;
    return Violate(absl::StrCat("I5: nothing is open, and a rank holds ", worker.slots_used(),
                                " slots and ", worker.pages_used(), " pages"));
  }
  if (ledger.slots_used != 0 || ledger.pages_used != ledger.cached_pages || ledger.waiting != 0 ||
      ledger.cached_pages != ledger.evictable_pages) {
    Violate("I5: nothing is open, and the pools are in use");
  }
  if (ledger.copies_waiting != 0) {
    Violate(absl::StrCat("I5: nothing is open, and ", ledger.copies_waiting, " paths wait"));
  }
  if (config_.snapshots == 0 && ledger.pages_used != 0) {
    Violate("I5: nothing is open, nothing is cached, and pages are in use");
  }
}

}  // namespace quartet::simulation
