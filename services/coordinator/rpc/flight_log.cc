#include "services/coordinator/rpc/flight_log.h"

#include <bit>
#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/coordinator/core/plan_hash.h"

namespace quartet::coordinator {
namespace {

constexpr std::string_view kMagic = "quartet flight 5\n";

template <typename S, typename T>
concept Is = std::same_as<std::remove_const_t<S>, T>;

// ---- the fields of each struct, for both directions ------------------------------------------
// A field that is added to one of these does not compile until it is named here: a recording that
// lacks an input cannot be replayed.

template <typename C, Is<UnitKey> S>
void Fields(C& code, S& s) {
  auto& [high, low] = s;
  code.All(high, low);
}

template <typename C, Is<SnapshotPolicy> S>
void Fields(C& code, S& s) {
  auto& [unit_tokens, block_tokens, boundary, last, turn, branch, system_prefix] = s;
  code.All(unit_tokens, block_tokens, boundary, last, turn, branch, system_prefix);
}

template <typename C, Is<CoreConfig> S>
void Fields(C& code, S& s) {
  auto& [epoch, vocab_size, max_model_len, slots, pages, page_tokens, max_num_batched_tokens,
         prefill_chunk, snapshots, page_bytes, snapshot_bytes, snapshot_policy,
         num_speculative_tokens, spec_dynamic, spec_acceptance, host_pages, host_snapshots,
         disk_pages, disk_snapshots, copy_bytes_per_step, max_queued_requests, max_queued_tokens,
         step_deadline_ms, steps_in_flight, prefill_quantum_ms, min_decode_share, max_overtakes,
         max_wait_ms, queue_timeout_ms, total_timeout_ms] = s;
  bool coupled = spec_acceptance == Acceptance::kCoupled;
  code.All(epoch, vocab_size, max_model_len, slots, pages, page_tokens, max_num_batched_tokens,
           prefill_chunk, snapshots, page_bytes, snapshot_bytes, snapshot_policy,
           num_speculative_tokens, spec_dynamic, coupled, host_pages, host_snapshots, disk_pages,
           disk_snapshots, copy_bytes_per_step, max_queued_requests, max_queued_tokens,
           step_deadline_ms, steps_in_flight, prefill_quantum_ms, min_decode_share, max_overtakes,
           max_wait_ms, queue_timeout_ms, total_timeout_ms);
  if constexpr (!std::is_const_v<S>) {
    spec_acceptance = coupled ? Acceptance::kCoupled : Acceptance::kRejection;
  }
}

template <typename C, Is<FlightHeader> S>
void Fields(C& code, S& s) {
  auto& [config, reason, first_event, events] = s;
  code.All(config, reason, first_event, events);
}

template <typename C, Is<Sampling> S>
void Fields(C& code, S& s) {
  auto& [temperature, top_p, top_k, min_p, seed, seeded, choice, presence_penalty,
         frequency_penalty, repetition_penalty, logit_bias, min_tokens, banned_ids] = s;
  code.All(temperature, top_p, top_k, min_p, seed, seeded, choice, presence_penalty,
           frequency_penalty, repetition_penalty, logit_bias, min_tokens, banned_ids);
}

template <typename C, Is<ThinkingBudget> S>
void Fields(C& code, S& s) {
  auto& [max_tokens, begin_id, end_ids, open] = s;
  code.All(max_tokens, begin_id, end_ids, open);
}

template <typename C, Is<TopLogprobs> S>
void Fields(C& code, S& s) {
  auto& [ids, logprobs] = s;
  code.All(ids, logprobs);
}

template <typename C, Is<Request> S>
void Fields(C& code, S& s) {
  auto& [request_id, prompt_ids, sampling, max_tokens, end_ids, stop_ids, first_padding_id,
         prompt_logprobs, logprobs, top_logprobs, prompt_top_logprobs, ignore_eos, thinking,
         constrained, fair_key, request_class, first_token_deadline_ms, total_deadline_ms,
         cache_root, unit_keys, system_prefix_tokens, cache_read_only] = s;
  bool batch = request_class == RequestClass::kBatch;
  code.All(request_id, prompt_ids, sampling, max_tokens, end_ids, stop_ids, first_padding_id,
           prompt_logprobs, logprobs, top_logprobs, prompt_top_logprobs, ignore_eos, thinking,
           constrained, fair_key, batch, first_token_deadline_ms, total_deadline_ms, cache_root,
           unit_keys, system_prefix_tokens, cache_read_only);
  if constexpr (!std::is_const_v<S>) {
    request_class = batch ? RequestClass::kBatch : RequestClass::kInteractive;
  }
}

template <typename C, Is<RowOutcome> S>
void Fields(C& code, S& s) {
  auto& [seq_uid, tokens, logprobs, target_logprobs, drafts, error, top, target_top] = s;
  code.All(seq_uid, tokens, logprobs, target_logprobs, drafts, error, top, target_top);
}

template <typename C, Is<StepOutcome> S>
void Fields(C& code, S& s) {
  auto& [epoch, step_id, rows, copies] = s;
  std::vector<uint8_t> outcomes;
  for (const CopyOutcome outcome : copies) outcomes.push_back(static_cast<uint8_t>(outcome));
  code.All(epoch, step_id, rows, outcomes);
  if constexpr (!std::is_const_v<S>) {
    copies.clear();
    for (const uint8_t outcome : outcomes) {
      copies.push_back(outcome > static_cast<uint8_t>(CopyOutcome::kChecksum)
                           ? CopyOutcome::kMissing
                           : static_cast<CopyOutcome>(outcome));
    }
  }
}

template <typename C, Is<SubmitInput> S>
void Fields(C& code, S& s) {
  auto& [now, request] = s;
  code.All(now, request);
}

template <typename C, Is<CancelInput> S>
void Fields(C& code, S& s) {
  auto& [id] = s;
  code.All(id);
}

template <typename C, Is<TruncateInput> S>
void Fields(C& code, S& s) {
  auto& [id, n_tokens] = s;
  code.All(id, n_tokens);
}

template <typename C, Is<UnitKeysInput> S>
void Fields(C& code, S& s) {
  auto& [id, keys] = s;
  code.All(id, keys);
}

template <typename C, Is<PauseInput> S>
void Fields(C& code, S& s) {
  auto& [id, paused] = s;
  code.All(id, paused);
}

template <typename C, Is<ExpireInput> S>
void Fields(C& code, S& s) {
  auto& [now] = s;
  code.All(now);
}

template <typename C, Is<UnitOrigin> S>
void Fields(C& code, S& s) {
  auto& [root, parent, tokens] = s;
  code.All(root, parent, tokens);
}

template <typename C, Is<CacheEntry> S>
void Fields(C& code, S& s) {
  auto& [kind, place, key, n_tokens, origin] = s;
  bool snapshot = kind == TierCopy::Kind::kSnapshot;
  code.All(snapshot, place, key, n_tokens, origin);
  if constexpr (!std::is_const_v<S>) {
    kind = snapshot ? TierCopy::Kind::kSnapshot : TierCopy::Kind::kPage;
  }
}

template <typename C, Is<AdoptInput> S>
void Fields(C& code, S& s) {
  auto& [entries] = s;
  code.All(entries);
}

template <typename C, Is<PlanInput> S>
void Fields(C& code, S& s) {
  auto& [now, planned, step_id, fingerprint] = s;
  code.All(now, planned, step_id, fingerprint);
}

template <typename C, Is<ResultInput> S>
void Fields(C& code, S& s) {
  auto& [now, outcome] = s;
  code.All(now, outcome);
}

template <typename C, Is<FailAllInput> S>
void Fields(C& code, S& s) {
  auto& [message] = s;
  code.All(message);
}

// ---- bytes -----------------------------------------------------------------------------------

// Whole numbers take seven bits a byte, the low ones first; negative ones are folded in between.
uint64_t Fold(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}

int64_t Unfold(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

class Encoder {
 public:
  template <typename... T>
  void All(const T&... values) {
    (Put(values), ...);
  }

  template <std::unsigned_integral T>
  void Put(T value) {
    uint64_t rest = value;
    for (; rest >= 0x80; rest >>= 7) bytes_.push_back(static_cast<char>(rest | 0x80));
    bytes_.push_back(static_cast<char>(rest));
  }
  template <std::signed_integral T>
  void Put(T value) {
    Put(Fold(value));
  }
  void Put(float value) { PutBits(std::bit_cast<uint32_t>(value)); }
  void Put(double value) { PutBits(std::bit_cast<uint64_t>(value)); }
  void Put(const std::string& value) {
    Put(value.size());
    bytes_.append(value);
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(values.size());
    for (const T& value : values) Put(value);
  }
  template <typename A, typename B>
  void Put(const std::pair<A, B>& value) {
    All(value.first, value.second);
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value.has_value()) Put(*value);
  }
  template <typename T>
  requires std::is_class_v<T>
  void Put(const T& value) { Fields(*this, value); }

  std::string Take() && { return std::move(bytes_); }

 private:
  template <typename T>
  void PutBits(T bits) {
    for (size_t i = 0; i < sizeof(T); ++i, bits >>= 8) bytes_.push_back(static_cast<char>(bits));
  }

  std::string bytes_;
};

// After the first thing that is wrong it reads nothing more, and ok() is false.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  template <typename... T>
  void All(T&... values) {
    (Get(values), ...);
  }

  template <std::unsigned_integral T>
  void Get(T& value) {
    uint64_t whole = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = Byte();
      if (shift == 63 && byte > 1) return Fail();
      whole |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    value = static_cast<T>(whole);
    if (uint64_t{value} != whole) Fail();
  }
  template <std::signed_integral T>
  void Get(T& value) {
    uint64_t folded = 0;
    Get(folded);
    value = static_cast<T>(Unfold(folded));
    if (int64_t{value} != Unfold(folded)) Fail();
  }
  void Get(float& value) { value = std::bit_cast<float>(Bits<uint32_t>()); }
  void Get(double& value) { value = std::bit_cast<double>(Bits<uint64_t>()); }
  void Get(std::string& value) {
    const size_t size = Size();
    value = bytes_.substr(at_, size);
    at_ += size;
  }
  template <typename T>
  void Get(std::vector<T>& values) {
    const size_t size = Size();
    for (size_t i = 0; i < size && ok_; ++i) Get(values.emplace_back());
  }
  template <typename A, typename B>
  void Get(std::pair<A, B>& value) {
    All(value.first, value.second);
  }
  template <typename T>
  void Get(std::optional<T>& value) {
    bool has_value = false;
    Get(has_value);
    value.reset();
    if (has_value) Get(value.emplace());
  }
  template <typename T>
  requires std::is_class_v<T>
  void Get(T& value) { Fields(*this, value); }

  bool ok() const { return ok_; }
  size_t at() const { return at_; }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  void Fail() { ok_ = false; }
  template <typename T>
  T Bits() {
    T bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) bits |= T{Byte()} << (8 * i);
    return bits;
  }
  uint8_t Byte() {
    if (!ok_ || at_ == bytes_.size()) {
      Fail();
      return 0;
    }
    return static_cast<uint8_t>(bytes_[at_++]);
  }
  // Of what follows. Everything takes a byte at least, so a size beyond the rest is a lie, and no
  // memory is taken for it.
  size_t Size() {
    uint64_t size = 0;
    Get(size);
    if (size > bytes_.size() - at_) Fail();
    return ok_ ? size : 0;
  }

  const std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

template <size_t kKind = 0>
std::optional<FlightEvent> DecodeEvent(Decoder& code, uint64_t kind) {
  if constexpr (kKind < std::variant_size_v<FlightEvent>) {
    if (kind != kKind) return DecodeEvent<kKind + 1>(code, kind);
    std::variant_alternative_t<kKind, FlightEvent> event;
    code.Get(event);
    return event;
  }
  return std::nullopt;
}

}  // namespace

uint64_t PlanFingerprint(const StepPlan& plan) {
  Encoder code;
  code.All(PlanHash(plan), plan.closes);
  for (const SequenceOpen& open : plan.opens) {
    code.All(open.seq_uid, open.slot, open.prompt_tokens);
    if (open.resume.has_value()) {
      code.All(open.resume->snapshot, open.resume->n_tokens, open.resume->pages,
               open.resume->tokens);
    }
  }
  // FNV-1a.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : std::move(code).Take()) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

std::string EncodeFlightEvent(const FlightEvent& event) {
  Encoder code;
  code.Put(event.index());
  std::visit([&code](const auto& input) { code.Put(input); }, event);
  return std::move(code).Take();
}

std::string EncodeFlightHeader(const FlightHeader& header) {
  Encoder code;
  code.Put(header);
  return std::string(kMagic) + std::move(code).Take();
}

absl::StatusOr<FlightLog> DecodeFlightLog(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    return absl::InvalidArgumentError(
        "not a flight recording of this version: it does not begin with 'quartet flight 5'");
  }
  bytes.remove_prefix(kMagic.size());
  Decoder code(bytes);
  FlightLog log;
  code.Get(log.header);
  if (!code.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header is broken at byte ", kMagic.size() + code.at()));
  }
  while (!code.at_end()) {
    uint64_t kind = 0;
    code.Get(kind);
    std::optional<FlightEvent> event = DecodeEvent(code, kind);
    if (!code.ok() || !event.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "event ", log.events.size(), " is broken at byte ", kMagic.size() + code.at()));
    }
    log.events.push_back(*std::move(event));
  }
  if (log.events.size() != log.header.events) {
    return absl::InvalidArgumentError(absl::StrCat("the header speaks of ", log.header.events,
                                                   " events, ", log.events.size(),
                                                   " follow: the file was cut"));
  }
  return log;
}

}  // namespace quartet::coordinator
