#include "services/gateway/access/key_gate.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/access/fair_key.h"

namespace quartet::gateway {
namespace {

// What is left of a whole one by rounding counts as a whole one.
constexpr double kAlmostOne = 1.0 - 1e-6;
constexpr absl::Duration kPlaceWaitMax = absl::Minutes(1);

}  // namespace

void KeyGate::Bucket::Fill(int64_t per_minute, absl::Duration now) {
  const double limit = static_cast<double>(per_minute);
  level = std::min(limit, level + limit * absl::FDivDuration(now - at, absl::Minutes(1)));
  at = now;
}

absl::Duration KeyGate::Bucket::Wait(int64_t per_minute) const {
  if (per_minute == 0 || level >= kAlmostOne) return absl::ZeroDuration();
  return absl::Minutes(1) * ((1.0 - level) / static_cast<double>(per_minute));
}

class KeyGate::Lease final : public KeyLease {
 public:
  // `began`: nothing if the request does not count.
  Lease(std::string name, std::shared_ptr<Ledger> ledger, std::shared_ptr<Usage> usage,
        std::optional<absl::Duration> began, Clock clock)
      : name_(std::move(name)),
        ledger_(std::move(ledger)),
        usage_(std::move(usage)),
        began_(began),
        clock_(std::move(clock)) {}

  ~Lease() override {
    if (!began_) return;
    const absl::Duration took = clock_() - *began_;
    std::lock_guard lock(ledger_->mutex);
    usage_->open.erase(usage_->open.find(*began_));
    usage_->typical += (took - usage_->typical) / (usage_->typical == absl::ZeroDuration() ? 1 : 4);
  }

  const std::string& name() const override { return name_; }

 private:
  const std::string name_;
  const std::shared_ptr<Ledger> ledger_;
  const std::shared_ptr<Usage> usage_;
  const std::optional<absl::Duration> began_;
  const Clock clock_;
};

// Tokens of a request at work.
class KeyGate::Hold final {
 public:
  Hold(std::shared_ptr<Ledger> ledger, std::shared_ptr<Usage> usage, int64_t tokens)
      : ledger_(std::move(ledger)), usage_(std::move(usage)), tokens_(tokens) {}
  ~Hold() {
    std::lock_guard lock(ledger_->mutex);
    usage_->held_tokens -= tokens_;
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  const std::shared_ptr<Ledger> ledger_;
  const std::shared_ptr<Usage> usage_;
  const int64_t tokens_;
};

absl::Duration KeyGate::SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

KeyGate::KeyGate(ApiKeys keys, Clock clock) : clock_(std::move(clock)) {
  Replace(std::move(keys));
}

void KeyGate::Replace(ApiKeys keys) {
  const absl::Duration now = clock_();
  std::lock_guard lock(ledger_->mutex);
  std::map<std::string_view, std::shared_ptr<Usage>> known;
  const std::shared_ptr<const Table> before = ledger_->table;
  for (size_t i = 0; before && i < before->usage.size(); ++i) {
    known.emplace(before->keys.name(i), before->usage[i]);
  }
  auto table = std::make_shared<Table>(Table{.keys = std::move(keys), .usage = {}});
  for (size_t i = 0; i < table->keys.size(); ++i) {
    const KeyLimits& limits = table->keys.limits(i);
    std::shared_ptr<Usage>& usage = known[table->keys.name(i)];
    if (!usage) usage = std::make_shared<Usage>();
    // Under another limit, or under none, the rest says nothing about this one.
    if (!before || usage->limits.requests_per_minute != limits.requests_per_minute) {
      usage->requests = {static_cast<double>(limits.requests_per_minute), now};
    }
    if (!before || usage->limits.tokens_per_minute != limits.tokens_per_minute) {
      usage->tokens = {static_cast<double>(limits.tokens_per_minute), now};
    }
    usage->limits = limits;
    table->usage.push_back(usage);
  }
  // Whoever asks again is entered again; those at work have still to be charged.
  std::erase_if(ledger_->caller, [](const auto& entry) { return entry.second->open.empty(); });
  ledger_->table = std::move(table);
}

// The oldest request ends when it took as long as others did, as far as anybody can know.
absl::Duration KeyGate::WaitForPlace(const Usage& usage, absl::Duration now) {
  const absl::Duration age = usage.open.empty() ? absl::ZeroDuration() : now - *usage.open.begin();
  return std::clamp(usage.typical - age, absl::Seconds(1), kPlaceWaitMax);
}

std::variant<std::shared_ptr<KeyLease>, KeyRefusal> KeyGate::Admit(std::string_view authorization,
                                                                   bool counted) {
  const std::string_view key = BearerKey(authorization);
  if (key.empty()) {
    return KeyRefusal{
        .reason = KeyRefusal::Reason::kNoKey,
        .message = "no API key was given; send Authorization: Bearer KEY or X-Api-Key: KEY"};
  }
  std::shared_ptr<const Table> table;
  {
    std::lock_guard lock(ledger_->mutex);
    table = ledger_->table;
  }
  const std::optional<size_t> found = table->keys.Find(key);
  if (!found) {
    return KeyRefusal{.reason = KeyRefusal::Reason::kWrongKey,
                      .message = "the API key is not one of this server's"};
  }
  const std::shared_ptr<Usage>& usage = table->usage[*found];
  const auto lease = [&](std::optional<absl::Duration> began) {
    return std::make_shared<Lease>(table->keys.name(*found), ledger_, usage, began, clock_);
  };
  if (!counted) return lease(std::nullopt);

  const absl::Duration now = clock_();
  std::lock_guard lock(ledger_->mutex);
  ledger_->caller.insert_or_assign(FairKey(authorization, ""), usage);
  const KeyLimits& limits = usage->limits;
  usage->requests.Fill(limits.requests_per_minute, now);
  usage->tokens.Fill(limits.tokens_per_minute, now);
  std::string reached;
  absl::Duration wait;
  const auto reach = [&](int64_t limit, std::string_view what, absl::Duration needed) {
    if (needed <= wait) return;
    wait = needed;
    reached = absl::StrCat(limit, " ", std::string(what));
  };
  reach(limits.requests_per_minute, "requests in a minute",
        usage->requests.Wait(limits.requests_per_minute));
  reach(limits.tokens_per_minute, "tokens in a minute",
        usage->tokens.Wait(limits.tokens_per_minute));
  if (limits.requests > 0 && static_cast<int64_t>(usage->open.size()) >= limits.requests) {
    reach(limits.requests, "requests at a time", WaitForPlace(*usage, now));
  }
  if (!reached.empty()) {
    return KeyRefusal{.reason = KeyRefusal::Reason::kLimit,
                      .message = absl::StrCat("this API key's limit is reached: ", reached),
                      .retry_after = wait};
  }
  usage->requests.level -= 1;
  usage->open.insert(now);
  return lease(now);
}

std::variant<std::shared_ptr<void>, KeyRefusal> KeyGate::HoldTokens(uint64_t caller,
                                                                    int64_t tokens) {
  const absl::Duration now = clock_();
  std::lock_guard lock(ledger_->mutex);
  const auto found = ledger_->caller.find(caller);
  if (found == ledger_->caller.end()) return std::shared_ptr<void>();
  Usage& usage = *found->second;
  const int64_t limit = usage.limits.tokens;
  if (limit > 0 && usage.held_tokens > 0 && tokens > limit - usage.held_tokens) {
    return KeyRefusal{.reason = KeyRefusal::Reason::kLimit,
                      .message = absl::StrCat("this API key's limit is reached: ", limit,
                                              " tokens of requests at a time; ", usage.held_tokens,
                                              " are at work, and this request may need ", tokens),
                      .retry_after = WaitForPlace(usage, now)};
  }
  usage.held_tokens += tokens;
  return std::shared_ptr<void>(std::make_shared<Hold>(ledger_, found->second, tokens));
}

void KeyGate::ChargeTokens(uint64_t caller, int64_t tokens) {
  const absl::Duration now = clock_();
  std::lock_guard lock(ledger_->mutex);
  const auto found = ledger_->caller.find(caller);
  if (found == ledger_->caller.end()) return;
  Usage& usage = *found->second;
  if (usage.limits.tokens_per_minute == 0) return;
  usage.tokens.Fill(usage.limits.tokens_per_minute, now);
  usage.tokens.level -= static_cast<double>(tokens);
}

}  // namespace quartet::gateway
