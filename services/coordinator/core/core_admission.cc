#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/coordinator/core/core.h"

// Who is let in, what is promised to whom, and what is expected of the future: all by the times
// that steps took so far.

namespace quartet::coordinator {
namespace {

constexpr double kRetryAfterMinMs = 1000;
constexpr double kRetryAfterMaxMs = 60000;
constexpr double kRetryAfterJitter = 0.2;
// How much the time of the last answer counts in the mean of them.
constexpr double kServiceShare = 0.2;

std::string Num(uint64_t value) {
  return std::to_string(value);
}

// -1 to 1, the same for the same name.
double Spread(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, and a finish that reaches the high bits
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccd;
  hash ^= hash >> 33;
  return static_cast<double>(hash >> 11) / static_cast<double>(uint64_t{1} << 52) - 1;
}

}  // namespace

// ---- what is expected --------------------------------------------------------------------------

StepShape Core::DecodeShape() const {
  StepShape shape;
  for (const Sequence* sequence : running_) {
    if (sequence->decodes()) shape.AddDecode(1, sequence->absorbed);
  }
  return shape;
}

double Core::PrefillUs(uint64_t work, uint64_t prompts) const {
  const uint64_t position = work / std::max<uint64_t>(1, 2 * prompts);  // in the middle of a prompt
  return pacer_.PrefillUs(DecodeShape(), work, static_cast<uint32_t>(position),
                          config_.max_num_batched_tokens);
}

// Until all that is before a prompt is computed and there is a place for it. Places become free as
// often as they did so far.
double Core::WaitUs(const FairQueue::Ahead& ahead) const {
  const double places = static_cast<double>(ahead.waiting) + 1 - slots_.free();
  const double for_place = std::max(0.0, places) * service_us_ / config_.slots;
  return std::max(for_place, PrefillUs(ahead.work, ahead.prompts));
}

// The rest of an answer that goes to its limit, at so many microseconds a token.
double Core::AnswerUs(const Sequence& sequence, double token_us) const {
  return token_us * (sequence.max_tokens - std::min(sequence.max_tokens, sequence.generated()));
}

// A waiting request from its admission to its last token, at the slowest.
double Core::ServiceUs(const Sequence& sequence) const {
  return PrefillUs(PromptOf(sequence).work, 1) +
         AnswerUs(sequence, pacer_.TokenUsBesidePrompts(DecodeShape()));
}

// Until so many pages are free for this one, if those that run go to their limits without being
// held up; nothing if it is not to be passed in any case.
double Core::UsUntilFree(uint64_t pages, const Sequence& sequence) const {
  if (queue_.Unovertakable(sequence.id)) return 0;
  struct End {
    double us;
    uint64_t pages;
  };
  const double token_us = pacer_.cost().PredictUs(DecodeShape());
  std::vector<End> ends;
  for (const Sequence* other : running_) {
    const uint64_t left = other->tokens.size() - other->absorbed;
    ends.push_back(
        {(left > 1 ? PrefillUs(left, 1) : 0) + AnswerUs(*other, token_us), other->pages.size()});
  }
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.us < b.us; });
  uint64_t free = pages_.free();
  if (index_.has_value()) free += index_->GetLedger().pages - index_->GetLedger().pages_referenced;
  if (free >= pages) return 0;
  for (const End& end : ends) {
    free += end.pages;
    if (free >= pages) return end.us;
  }
  return ends.empty() ? 0 : ends.back().us;
}

uint32_t Core::RetryAfterMs(const std::string& request_id) const {
  const double drain_ms = WaitUs(queue_.Everything()) / 1000;
  const double jitter = 1 + kRetryAfterJitter * Spread(request_id);
  return static_cast<uint32_t>(std::clamp(drain_ms * jitter, kRetryAfterMinMs, kRetryAfterMaxMs));
}

void Core::NoteService(const Sequence& sequence) {
  const auto took = static_cast<double>(clock_ - sequence.times.admitted);
  service_us_ = service_us_ == 0 ? took : service_us_ + kServiceShare * (took - service_us_);
}

// ---- who is let in -----------------------------------------------------------------------------

FairQueue::Prompt Core::PromptOf(const Sequence& sequence) const {
  FairQueue::Prompt prompt;
  prompt.id = sequence.id;
  prompt.tokens = sequence.tokens.size();
  prompt.work = prompt.tokens - sequence.absorbed;
  if (!sequence.admitted() && UsesCache(sequence)) {
    prompt.work -= index_->Match(PathOf(sequence)).cached_tokens;
  }
  prompt.key = sequence.request.fair_key;
  prompt.request_class = sequence.request.request_class;
  prompt.since = clock_;
  return prompt;
}

SubmitOutcome Core::Refuse(SubmitOutcome::Kind kind, const std::string& request_id,
                           std::string message) const {
  return {kind, 0, std::move(message), RetryAfterMs(request_id)};
}

SubmitOutcome Core::OnSubmit(Request request, TimeUs now) {
  clock_ = now;
  if (!admitting_) {
    return {SubmitOutcome::Kind::kUnavailable, 0, "the engine takes no new requests"};
  }
  if (std::string error = RequestError(request); !error.empty()) {
    return {SubmitOutcome::Kind::kInvalid, 0, std::move(error)};
  }
  if (queue_.size() >= config_.max_queued_requests) {
    return Refuse(SubmitOutcome::Kind::kQueueFull, request.request_id,
                  "the queue is full: " + Num(queue_.size()) + " requests wait, the limit is " +
                      Num(config_.max_queued_requests));
  }
  const uint64_t prompt = request.prompt_ids.size();
  // An empty queue takes any prompt that fits the context, else such a prompt would never run.
  if (!queue_.empty() && queue_.tokens() + prompt > config_.max_queued_tokens) {
    return Refuse(SubmitOutcome::Kind::kQueueFull, request.request_id,
                  "the queue is full: " + Num(queue_.tokens()) +
                      " prompt tokens wait, this prompt has " + Num(prompt) + ", the limit is " +
                      Num(config_.max_queued_tokens));
  }

  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_;
  sequence->tokens = std::move(request.prompt_ids);
  sequence->prompt_tokens = static_cast<uint32_t>(prompt);
  sequence->max_tokens = request.max_tokens != 0
                             ? request.max_tokens
                             : config_.max_model_len - static_cast<uint32_t>(prompt);
  sequence->request = std::move(request);
  sequence->request.prompt_ids.clear();
  sequence->draft_length = DraftLength(config_.num_speculative_tokens);
  sequence->times.submitted = now;
  RenameForGeneration(*sequence);

  const FairQueue::Prompt entry = PromptOf(*sequence);
  if (pacer_.cost().has_seen_prefill()) {
    const FairQueue::Ahead ahead = queue_.WorkAhead(entry);
    const double first_token_us = WaitUs(ahead) + PrefillUs(entry.work, 1);
    if (std::string why = TooLate(sequence->request, ahead, first_token_us); !why.empty()) {
      return Refuse(SubmitOutcome::Kind::kTooLate, sequence->request.request_id, std::move(why));
    }
    sequence->expected_first_token = now + static_cast<TimeUs>(first_token_us);
  }
  queue_.Push(entry);
  ++counts_.accepted;
  ++next_id_;
  const uint64_t id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
  return {SubmitOutcome::Kind::kAccepted, id, ""};
}

// Never accept what cannot be served in time. Says why; empty if it can.
std::string Core::TooLate(const Request& request, const FairQueue::Ahead& ahead,
                          double first_token_us) const {
  const auto beyond = [](double us, uint32_t limit_ms) {
    return limit_ms != 0 && us > 1000.0 * limit_ms;
  };
  const auto ms = [](double us) { return Num(static_cast<uint64_t>(us / 1000)) + " ms"; };
  // For those who did not ask for it only what is certain counts: the prompts before, not when
  // places will become free.
  const double computed_us = PrefillUs(ahead.work, ahead.prompts);
  if (beyond(computed_us, config_.queue_timeout_ms)) {
    return "the prompts before it take about " + ms(computed_us) + ", requests may wait for " +
           Num(config_.queue_timeout_ms) + " ms";
  }
  for (const uint32_t limit : {request.first_token_deadline_ms, request.total_deadline_ms}) {
    if (!beyond(first_token_us, limit)) continue;
    return "its first token would come after about " + ms(first_token_us) + ", its deadline is " +
           Num(limit) + " ms";
  }
  return "";
}

// ---- deadlines ---------------------------------------------------------------------------------

// The next one that counts for it, in milliseconds from its submit; 0 = none.
uint32_t Core::DeadlineMs(const Sequence& sequence) const {
  const Request& request = sequence.request;
  uint32_t least = 0;
  const auto consider = [&least](uint32_t limit) {
    if (limit != 0 && (least == 0 || limit < least)) least = limit;
  };
  consider(config_.total_timeout_ms);
  consider(request.total_deadline_ms);
  if (sequence.times.first_token == 0) consider(request.first_token_deadline_ms);
  if (!sequence.admitted_before) consider(config_.queue_timeout_ms);
  return least;
}

std::optional<TimeUs> Core::NextDeadline() const {
  std::optional<TimeUs> next;
  for (const auto& [id, sequence] : sequences_) {
    const uint32_t limit_ms = DeadlineMs(*sequence);
    if (limit_ms == 0) continue;
    const TimeUs at = sequence->times.submitted + TimeUs{limit_ms} * 1000;
    if (!next.has_value() || at < *next) next = at;
  }
  return next;
}

void Core::ExpireDeadlines(TimeUs now) {
  std::vector<uint64_t> late;
  for (const auto& [id, sequence] : sequences_) {
    const uint32_t limit_ms = DeadlineMs(*sequence);
    if (limit_ms != 0 && now - sequence->times.submitted >= TimeUs{limit_ms} * 1000) {
      late.push_back(id);
    }
  }
  if (late.empty()) return;
  clock_ = now;
  std::sort(late.begin(), late.end());
  for (const uint64_t id : late) {
    Sequence& sequence = *sequences_.at(id);
    Output output;
    output.kind = Output::Kind::kExpired;
    output.completion_tokens = sequence.generated();
    output.message = "its deadline of " + Num(DeadlineMs(sequence)) + " ms passed after " +
                     Num(sequence.generated()) + " tokens";
    ++counts_.expired;
    // As with a cancel: nobody takes back what it was told before.
    End(sequence, std::move(output), static_cast<uint32_t>(sequence.tokens.size()));
  }
}

}  // namespace quartet::coordinator
