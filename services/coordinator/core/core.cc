#include "services/coordinator/core/core.h"

#include <algorithm>
#include <cassert>
#include <span>
#include <utility>

#include "services/coordinator/core/sampling_check.h"

namespace quartet::coordinator {
namespace {

constexpr size_t kMaxStopIds = 1024;

std::string Num(uint64_t value) {
  return std::to_string(value);
}

// What stands at `place`, `width` ids, goes behind what is there.
void CopyTop(const TopLogprobs& from, size_t place, size_t width, TopLogprobs& to) {
  const auto begin = static_cast<std::ptrdiff_t>(place * width);
  const auto end = begin + static_cast<std::ptrdiff_t>(width);
  to.ids.insert(to.ids.end(), from.ids.begin() + begin, from.ids.begin() + end);
  to.logprobs.insert(to.logprobs.end(), from.logprobs.begin() + begin, from.logprobs.begin() + end);
}

}  // namespace

std::string ConfigError(const CoreConfig& config) {
  if (config.vocab_size == 0) return "vocab_size is 0";
  if (config.max_model_len < 2) return "max_model_len is below 2: no room for a prompt and a token";
  if (config.slots == 0) return "there is no slot for a live sequence";
  if (config.page_tokens == 0 || config.page_tokens % kChunkMultiple != 0) {
    return "page_tokens is " + Num(config.page_tokens) + ", which is not a multiple of " +
           Num(kChunkMultiple);
  }
  const uint64_t context_pages =
      (config.max_model_len + config.page_tokens - 1) / config.page_tokens;
  if (config.pages < context_pages) {
    return Num(config.pages) + " pages do not hold one context of " + Num(config.max_model_len) +
           " tokens, which needs " + Num(context_pages);
  }
  if (config.max_num_batched_tokens + 1 < kChunkMultiple + config.slots) {
    // Else a prompt could wait for ever beside the rows of decoding sequences.
    return "max_num_batched_tokens is " + Num(config.max_num_batched_tokens) + "; with " +
           Num(config.slots) + " sequences it must be at least " +
           Num(kChunkMultiple + config.slots - 1);
  }
  if (config.prefill_chunk % kChunkMultiple != 0) {
    return "prefill_chunk is " + Num(config.prefill_chunk) + ", which is not a multiple of " +
           Num(kChunkMultiple);
  }
  if (config.snapshots > 0 && (config.page_bytes == 0 || config.snapshot_bytes == 0)) {
    return "a prefix cache needs to know how large a page and a snapshot are; page_bytes is " +
           Num(config.page_bytes) + ", snapshot_bytes is " + Num(config.snapshot_bytes);
  }
  if (config.snapshots > 0) {
    if (const char* error = SnapshotPolicyError(config.snapshot_policy); *error != '\0') {
      return std::string("snapshot_policy: ") + error;
    }
    if (config.page_tokens != config.snapshot_policy.unit_tokens) {
      return "page_tokens is " + Num(config.page_tokens) + "; the prefix cache has units of " +
             Num(config.snapshot_policy.unit_tokens) + " tokens, a page each";
    }
  }
  if (config.steps_in_flight < 1 || config.steps_in_flight > 2) {
    return "steps_in_flight is " + Num(config.steps_in_flight) + "; it must be 1 or 2";
  }
  if (config.num_speculative_tokens > kMaxDraftTokens) {
    return "num_speculative_tokens is " + Num(config.num_speculative_tokens) +
           "; workers make at most " + Num(kMaxDraftTokens) + " drafts in a step";
  }
  if (!(config.min_decode_share >= 0 && config.min_decode_share < 1)) {
    return "min_decode_share is " + std::to_string(config.min_decode_share) +
           "; it must be from 0 to below 1";
  }
  if (config.host_pages > 0 && config.snapshots == 0) {
    return "there are " + Num(config.host_pages) +
           " pages of host memory for a prefix cache that is off (snapshots is 0)";
  }
  if ((config.host_pages > 0) != (config.host_snapshots > 0) ||
      (config.disk_pages > 0) != (config.disk_snapshots > 0)) {
    return "a tier needs pages and snapshots; the host has " + Num(config.host_pages) + " and " +
           Num(config.host_snapshots) + ", the disk " + Num(config.disk_pages) + " and " +
           Num(config.disk_snapshots);
  }
  if (config.disk_pages > 0 && config.host_pages == 0) {
    return "there are " + Num(config.disk_pages) +
           " pages on disk and none of host memory, through which they come and go";
  }
  if (config.max_queued_requests == 0) return "max_queued_requests is 0: nothing could be admitted";
  return "";
}

Core::Core(const CoreConfig& config)
    : config_(config),
      queue_(config.max_overtakes, TimeUs{config.max_wait_ms} * 1000),
      pacer_(config.prefill_quantum_ms, config.min_decode_share),
      slots_(config.slots),
      pages_(config.pages),
      snapshots_(config.snapshots) {
  assert(ConfigError(config).empty());
  if (config.snapshots > 0) {
    index_.emplace(PrefixIndexConfig{.unit_tokens = config.page_tokens,
                                     .page_bytes = config.page_bytes,
                                     .snapshot_bytes = config.snapshot_bytes},
                   &pages_, &snapshots_);
  }
  if (config.host_pages > 0) tiers_.emplace(config, &pages_, &snapshots_, &*index_);
  running_.reserve(config.slots);
  draft_.reserve(config.slots);
}

std::string Core::RequestError(const Request& request) const {
  const uint64_t prompt = request.prompt_ids.size();
  const uint64_t context = config_.max_model_len;
  if (prompt == 0) return "the prompt is empty; it needs at least one token";
  if (prompt >= context) {
    return "the prompt has " + Num(prompt) + " tokens, which leaves no room for an answer in a " +
           "context of " + Num(context) + " tokens";
  }
  if (prompt + request.max_tokens > context) {
    return "prompt (" + Num(prompt) + " tokens) + max_tokens (" + Num(request.max_tokens) +
           ") = " + Num(prompt + request.max_tokens) + " exceeds the context of " + Num(context) +
           " tokens";
  }
  const auto in_vocabulary = [&](int32_t id) {
    return id >= 0 && static_cast<uint32_t>(id) < config_.vocab_size;
  };
  for (size_t i = 0; i < prompt; ++i) {
    if (in_vocabulary(request.prompt_ids[i])) continue;
    return "prompt token " + Num(i) + " is " + std::to_string(request.prompt_ids[i]) +
           "; ids are 0 to " + Num(config_.vocab_size - 1);
  }
  if (request.system_prefix_tokens > prompt) {
    return "system_prefix_tokens is " + Num(request.system_prefix_tokens) + ", the prompt has " +
           Num(prompt) + " tokens";
  }
  for (const auto* ids : {&request.end_ids, &request.stop_ids}) {
    const std::string name = ids == &request.end_ids ? "end_ids" : "stop_ids";
    if (ids->size() > kMaxStopIds) {
      return name + " has " + Num(ids->size()) + " entries; at most " + Num(kMaxStopIds);
    }
    for (int32_t id : *ids) {
      if (in_vocabulary(id)) continue;
      return name + " contains " + std::to_string(id) + "; ids are 0 to " +
             Num(config_.vocab_size - 1);
    }
  }
  if (request.first_padding_id < 0 ||
      static_cast<uint32_t>(request.first_padding_id) > config_.vocab_size) {
    return "first_padding_id is " + std::to_string(request.first_padding_id) +
           "; it must be 0 (none) to " + Num(config_.vocab_size);
  }
  return SamplingError(request, config_.vocab_size);
}

void Core::OnCancel(uint64_t id) {
  auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Output output;
  output.kind = Output::Kind::kCancelled;
  output.completion_tokens = found->second->generated();
  ++counts_.cancelled;
  // Nobody takes back what it was told before.
  End(*found->second, std::move(output), static_cast<uint32_t>(found->second->tokens.size()));
}

void Core::OnPause(uint64_t id, bool paused) {
  auto found = sequences_.find(id);
  if (found != sequences_.end()) found->second->paused = paused;
}

Core::TruncateOutcome Core::OnTruncate(uint64_t id, uint32_t n_tokens) {
  auto found = sequences_.find(id);
  if (found == sequences_.end()) return TruncateOutcome::kEnded;
  if (n_tokens > found->second->generated()) return TruncateOutcome::kBeyond;
  Finish(*found->second, FinishReason::kTruncated, n_tokens, 0);
  return TruncateOutcome::kDone;
}

bool Core::OnStepResult(const StepOutcome& outcome, TimeUs now) {
  if (in_flight_.empty() || outcome.epoch != config_.epoch ||
      outcome.step_id != in_flight_.front().id) {
    return false;
  }
  InFlightStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  clock_ = now;
  // The workers began it when they had it and were through with the one before.
  step.since = std::max(step.since, std::exchange(answered_, now));
  // Copies take time of their own.
  if (outcome.copies.empty()) {
    pacer_.OnStep(step.shape, now - step.since);
    ObserveStep(step, now);
  }
  if (step.has_copies) {
    const auto copies = std::span(outcome.copies);
    const auto of_tiers = copies.first(std::min<size_t>(step.n_tier_copies, copies.size()));
    if (tiers_.has_value()) tiers_->OnStepResult(of_tiers, now);
    ApplyComparisons(copies.subspan(of_tiers.size()));
  }
  FinishTurns(step.id, now);
  for (InFlightRow& row : step.rows) {
    auto result = std::find_if(outcome.rows.begin(), outcome.rows.end(),
                               [&](const RowOutcome& r) { return r.seq_uid == row.seq_uid; });
    ApplyRow(step.id, row, result == outcome.rows.end() ? nullptr : &*result, now);
  }
  assert(CheckInvariants().empty());
  return true;
}

std::string Core::RowError(const Sequence& sequence, const InFlightRow& row,
                           const RowOutcome* outcome) const {
  if (outcome == nullptr) {
    return "the workers' result has no row for this sequence";
  }
  if (!outcome->error.empty()) return outcome->error;
  const size_t least = row.sample ? 1 : 0;
  const size_t most = row.kind == PlanRow::Kind::kVerify ? row.n_tokens : least;
  const size_t drawn = outcome->tokens.size();
  if (drawn < least || drawn > most || outcome->target_logprobs.size() != row.n_targets ||
      (row.sample && sequence.request.logprobs && outcome->logprobs.size() != drawn)) {
    return "the workers' result has " + Num(drawn) + " tokens, " + Num(outcome->logprobs.size()) +
           " log-probabilities and " + Num(outcome->target_logprobs.size()) + " of " +
           Num(row.n_targets) + " target log-probabilities for this sequence";
  }
  const auto fits = [](const TopLogprobs& top, size_t count) {
    return top.ids.size() == count && top.logprobs.size() == count;
  };
  if (!fits(outcome->top, drawn * row.top) ||
      !fits(outcome->target_top, size_t{row.n_targets} * row.target_top)) {
    return "the workers' result has " + Num(outcome->top.ids.size()) + " likeliest tokens, not " +
           Num(drawn * row.top) + ", or " + Num(outcome->target_top.ids.size()) +
           " beside targets, not " + Num(size_t{row.n_targets} * row.target_top);
  }
  for (int32_t token : outcome->tokens) {
    if (token >= 0 && static_cast<uint32_t>(token) < config_.vocab_size) continue;
    return "the workers drew token " + std::to_string(token) + "; ids are 0 to " +
           Num(config_.vocab_size - 1);
  }
  return "";
}

// A step that only decodes tells what drafts cost.
void Core::ObserveStep(const InFlightStep& step, TimeUs now) {
  if (step.shape.prefill_tokens > 0 || step.shape.decode_tokens == 0) return;
  decode_cost_.Observe(step.shape.decode_tokens, now - step.since);
}

// Its request has ended, or has lost its place, while the workers held the step.
void Core::ApplyVoidRow(uint64_t step_id, const InFlightRow& row) {
  ++counts_.void_rows;
  for (const auto& closing : closing_) {
    if (closing->seq_uid != row.seq_uid) continue;
    if (closing->ahead.step_id == step_id) closing->ahead = {};
    // Of what was said before: this row has taken it into the live state.
    if (row.exports_answer && row.exported.has_value() &&
        row.exported->offset <= std::min(closing->absorbed, closing->text_tokens)) {
      ReturnInner(row);
      return KeepAnswerSnapshot(*closing, *row.exported);
    }
  }
  ReturnExport(row);
}

void Core::ApplyRow(uint64_t step_id, InFlightRow& row, const RowOutcome* outcome, TimeUs now) {
  auto found = sequences_.find(row.id);
  if (found == sequences_.end() || found->second->seq_uid != row.seq_uid) {
    return ApplyVoidRow(step_id, row);
  }
  Sequence& sequence = *found->second;
  if (sequence.ahead.step_id == step_id) sequence.ahead = {};
  if (const std::string error = RowError(sequence, row, outcome); !error.empty()) {
    ReturnExport(row);
    return Fail(sequence, error);
  }
  const bool verified = row.kind == PlanRow::Kind::kVerify;
  const auto drawn = static_cast<uint32_t>(outcome->tokens.size());
  const uint32_t position = sequence.absorbed;  // the row's, as it turned out to be
  sequence.absorbed += verified ? drawn : row.n_tokens;
  sequence.committed = verified ? position : sequence.absorbed;
  sequence.drafts = row.chain;
  if (row.exported.has_value() && row.exported->offset > sequence.committed) {
    // Too few drafts were accepted for the live state to come there.
    snapshots_.Return(row.exported->snapshot);
    row.exported.reset();
  }
  Publish(sequence, row, now);
  if (!sequence.prompt_counted && sequence.absorbed >= sequence.prompt_tokens) {
    sequence.prompt_counted = true;
    counts_.prompt_tokens += sequence.prompt_tokens;
  }

  Output output;
  output.id = sequence.id;
  output.kind = Output::Kind::kTokens;
  output.prompt_tokens = sequence.prompt_tokens;
  for (uint32_t i = 0; i < row.n_prompt_targets; ++i) {
    // A recomputed prompt delivers again what was given out before.
    if (row.position + i < sequence.prompt_logprobs_sent) continue;
    output.prompt_logprobs.push_back(outcome->target_logprobs[i]);
    CopyTop(outcome->target_top, i, row.target_top, output.prompt_top);
    ++sequence.prompt_logprobs_sent;
  }

  // What a window says behind the end of the answer was never said.
  std::optional<FinishReason> stop;
  for (uint32_t i = 0; i < drawn && !stop.has_value(); ++i) {
    const int32_t token = outcome->tokens[i];
    sequence.tokens.push_back(token);
    output.tokens.push_back(token);
    if (sequence.request.logprobs) output.logprobs.push_back(outcome->logprobs[i]);
    CopyTop(outcome->top, i, row.top, output.top);
    stop = StopReason(sequence, token);
  }
  if (row.sample) {
    sequence.state = SequenceState::kDecode;
    counts_.generated_tokens += output.tokens.size();
    output.previous_token = sequence.times.last_token;
    if (sequence.times.first_token == 0) {
      sequence.times.first_token = now;
      output.expected_first_token = sequence.expected_first_token;
    }
    sequence.times.last_token = now;
  }
  if (row.sample && row.n_drafts() == 0) sequence.draft_length.Observe(0, 0);
  if (row.n_drafts() > 0) {
    CountDrafts(sequence, row.n_drafts(), drawn - 1, static_cast<uint32_t>(output.tokens.size()));
  }
  LookForLoop(sequence, static_cast<uint32_t>(output.tokens.size()));
  const int32_t last = sequence.tokens.back();
  output.completion_tokens = sequence.generated();
  output.times = sequence.times;
  if (!output.tokens.empty() || !output.prompt_logprobs.empty()) {
    outputs_.push_back(std::move(output));
  }
  if (stop.has_value()) Finish(sequence, *stop, sequence.generated(), last);
}

void Core::CountDrafts(Sequence& sequence, uint32_t drafted, uint32_t accepted, uint32_t told) {
  sequence.draft_length.Observe(drafted, accepted);
  const uint32_t used = std::min(accepted, told);
  ++counts_.spec_drafts;
  counts_.spec_draft_tokens += drafted;
  counts_.spec_accepted_tokens += used;
  for (uint32_t place = 0; place < used; ++place) ++counts_.spec_accepted_at[place];
}

std::optional<FinishReason> Core::StopReason(const Sequence& sequence, int32_t token) const {
  const Request& request = sequence.request;
  const auto contains = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (!request.ignore_eos && contains(request.end_ids)) return FinishReason::kEndToken;
  if (contains(request.stop_ids)) return FinishReason::kStopId;
  if (sequence.generated() >= sequence.max_tokens) return FinishReason::kLength;
  if (sequence.tokens.size() >= config_.max_model_len) return FinishReason::kLength;
  return std::nullopt;
}

void Core::Finish(Sequence& sequence, FinishReason reason, uint32_t completion_tokens,
                  int32_t stop_id) {
  Output output;
  output.kind = Output::Kind::kFinished;
  output.reason = reason;
  output.completion_tokens = completion_tokens;
  if (reason == FinishReason::kStopId) output.stop_id = stop_id;
  ++counts_.finished;
  End(sequence, std::move(output), sequence.prompt_tokens + completion_tokens);
}

void Core::Fail(Sequence& sequence, const std::string& message) {
  Output output;
  output.kind = Output::Kind::kFailed;
  output.completion_tokens = sequence.generated();
  output.message = message;
  ++counts_.failed;
  End(sequence, std::move(output), 0);
}

// text_tokens: how many of its tokens are its final text; 0 = none can be relied on.
void Core::End(Sequence& sequence, Output output, uint32_t text_tokens) {
  output.id = sequence.id;
  output.prompt_tokens = sequence.prompt_tokens;
  output.cached_tokens = sequence.cached_tokens;
  output.times = sequence.times;
  outputs_.push_back(std::move(output));
  queue_.Remove(sequence.id);
  const auto owned = sequences_.find(sequence.id);
  if (sequence.admitted() && outputs_.back().kind == Output::Kind::kFinished) NoteService(sequence);
  if (sequence.state == SequenceState::kDecode && sequence.lease.active() && text_tokens > 0 &&
      !sequence.request.cache_read_only) {
    BeginClosing(std::move(owned->second), text_tokens);
  } else if (sequence.admitted()) {
    ReleasePlace(sequence);
  }
  sequences_.erase(owned);
}

void Core::ReleasePlace(Sequence& sequence) {
  for (size_t i = sequence.lease.shared_units(); i < sequence.pages.size(); ++i) {
    pages_.Return(sequence.pages[i]);
  }
  for (const uint32_t page : sequence.duplicate_pages) pages_.Return(page);
  for (const FinishedSnapshot& kept : sequence.answer_snapshots) snapshots_.Return(kept.snapshot);
  sequence.duplicate_pages.clear();
  sequence.answer_snapshots.clear();
  sequence.pages.clear();
  sequence.lease = {};
  sequence.suspect = {};
  slots_.Return(sequence.slot);
  closes_.push_back(sequence.seq_uid);
  std::erase(running_, &sequence);
  sequence.state = SequenceState::kQueued;
  sequence.seq_uid = 0;  // rows in flight are of nobody now
  sequence.ahead = {};
}

void Core::FailAll(const std::string& message) {
  admitting_ = false;
  for (const InFlightStep& step : in_flight_) {
    for (const InFlightRow& row : step.rows) ReturnExport(row);
  }
  in_flight_.clear();
  if (tiers_.has_value()) tiers_->Abandon();
  for (Comparison& comparison : std::exchange(comparisons_, {})) {
    snapshots_.Return(comparison.computed);
  }
  std::vector<uint64_t> ids;
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) Fail(*sequences_.at(id), message);
  DropTurns();
  assert(CheckInvariants().empty());
}

std::vector<Output> Core::TakeOutputs() {
  return std::exchange(outputs_, {});
}

Ledger Core::GetLedger() const {
  Ledger ledger = counts_;
  ledger.running = static_cast<uint32_t>(running_.size());
  ledger.waiting = static_cast<uint32_t>(queue_.size());
  ledger.waiting_tokens = queue_.tokens();
  ledger.paused = static_cast<uint32_t>(std::count_if(
      running_.begin(), running_.end(), [](const Sequence* sequence) { return sequence->paused; }));
  ledger.overtakes = queue_.overtakes();
  ledger.slots_used = slots_.used();
  ledger.slots_size = slots_.size();
  ledger.pages_used = pages_.used();
  ledger.pages_size = pages_.size();
  ledger.steps = next_step_ - 1;
  ledger.steps_in_flight = steps_in_flight();
  ledger.snapshots_used = snapshots_.used();
  ledger.snapshots_size = snapshots_.size();
  if (index_.has_value()) {
    const PrefixLedger cache = index_->GetLedger();
    ledger.cached_pages = cache.pages;
    ledger.evictable_pages = cache.pages - cache.pages_referenced;
    ledger.prefix_query_tokens = cache.query_tokens;
    ledger.prefix_hit_tokens = cache.hit_tokens;
    ledger.prefix_lost_tokens = cache.lost_to_granularity_tokens;
    ledger.device_tier.pages = cache.pages;
    ledger.device_tier.pages_size = pages_.size();
    ledger.device_tier.snapshots = cache.snapshots;
    ledger.device_tier.snapshots_size = snapshots_.size();
    ledger.device_tier.page_bytes = cache.pages * config_.page_bytes;
    ledger.device_tier.snapshot_bytes = cache.snapshots * config_.snapshot_bytes;
    ledger.device_tier.snapshots_published = cache.snapshots_published;
    ledger.device_tier.snapshots_evicted = cache.snapshots_evicted;
  }
  if (tiers_.has_value()) {
    ledger.host_tier = tiers_->host_ledger();
    ledger.disk_tier = tiers_->disk_ledger();
    ledger.copies_waiting = tiers_->waiting();
    ledger.copies_given_up = tiers_->given_up();
  }
  return ledger;
}

}  // namespace quartet::coordinator
