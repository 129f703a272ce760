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
  Lease(std::string name, std::shared_ptr<Ledger> ledger, size_t key,
        std::optional<absl::Duration> began, Clock clock)
      : name_(std::move(name)),
        ledger_(std::move(ledger)),
        key_(key),
        began_(began),
        clock_(std::move(clock)) {}

  ~Lease() override {
    if (!began_) return;
    const absl::Duration took = clock_() - *began_;
    std::lock_guard lock(ledger_->mutex);
    Usage& usage = ledger_->usage[key_];
    usage.open.erase(usage.open.find(*began_));
    usage.typical += (took - usage.typical) / (usage.typical == absl::ZeroDuration() ? 1 : 4);
  }

  const std::string& name() const override { return name_; }

 private:
  const std::string name_;
  const std::shared_ptr<Ledger> ledger_;
  const size_t key_;
  const std::optional<absl::Duration> began_;
  const Clock clock_;
};

absl::Duration KeyGate::SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

KeyGate::KeyGate(ApiKeys keys, Clock clock) : keys_(std::move(keys)), clock_(std::move(clock)) {
  const absl::Duration now = clock_();
  for (size_t i = 0; i < keys_.size(); ++i) {
    Usage usage;
    usage.requests = {static_cast<double>(keys_.limits(i).requests_per_minute), now};
    usage.tokens = {static_cast<double>(keys_.limits(i).tokens_per_minute), now};
    ledger_->usage.push_back(std::move(usage));
  }
}

// The oldest request ends when it took as long as others did, as far as anybody can know.
absl::Duration KeyGate::WaitForPlace(const Usage& usage, absl::Duration now) {
  const absl::Duration age = now - *usage.open.begin();
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
  const std::optional<size_t> found = keys_.Find(key);
  if (!found) {
    return KeyRefusal{.reason = KeyRefusal::Reason::kWrongKey,
                      .message = "the API key is not one of this server's"};
  }
  const KeyLimits& limits = keys_.limits(*found);
  const auto lease = [&](std::optional<absl::Duration> began) {
    return std::make_shared<Lease>(keys_.name(*found), ledger_, *found, began, clock_);
  };
  if (!counted) return lease(std::nullopt);

  const absl::Duration now = clock_();
  std::lock_guard lock(ledger_->mutex);
  ledger_->caller.emplace(FairKey(authorization, ""), *found);
  Usage& usage = ledger_->usage[*found];
  usage.requests.Fill(limits.requests_per_minute, now);
  usage.tokens.Fill(limits.tokens_per_minute, now);
  std::string reached;
  absl::Duration wait;
  const auto reach = [&](int64_t limit, std::string_view what, absl::Duration needed) {
    if (needed <= wait) return;
    wait = needed;
    reached = absl::StrCat(limit, " ", std::string(what));
  };
  reach(limits.requests_per_minute, "requests in a minute",
        usage.requests.Wait(limits.requests_per_minute));
  reach(limits.tokens_per_minute, "tokens in a minute",
        usage.tokens.Wait(limits.tokens_per_minute));
  if (limits.requests > 0 && static_cast<int64_t>(usage.open.size()) >= limits.requests) {
    reach(limits.requests, "requests at a time", WaitForPlace(usage, now));
  }
  if (!reached.empty()) {
    return KeyRefusal{.reason = KeyRefusal::Reason::kLimit,
                      .message = absl::StrCat("this API key's limit is reached: ", reached),
                      .retry_after = wait};
  }
  usage.requests.level -= 1;
  usage.open.insert(now);
  return lease(now);
}

void KeyGate::ChargeTokens(uint64_t caller, int64_t tokens) {
  const absl::Duration now = clock_();
  std::lock_guard lock(ledger_->mutex);
  const auto found = ledger_->caller.find(caller);
  if (found == ledger_->caller.end()) return;
  const KeyLimits& limits = keys_.limits(found->second);
  if (limits.tokens_per_minute == 0) return;
  Bucket& bucket = ledger_->usage[found->second].tokens;
  bucket.Fill(limits.tokens_per_minute, now);
  bucket.level -= static_cast<double>(tokens);
}

}  // namespace quartet::gateway
