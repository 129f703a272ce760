// Who may ask, and how much: the check of API keys and their limits, for HTTP and gRPC alike.
#ifndef QUARTET_SERVICES_GATEWAY_ACCESS_KEY_GATE_H_
#define QUARTET_SERVICES_GATEWAY_ACCESS_KEY_GATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "services/gateway/access/api_keys.h"

namespace quartet::gateway {

// A place among the requests that a key may have at a time; given back when this is destroyed.
class KeyLease {
 public:
  virtual ~KeyLease() = default;
  // The key's name, for logs.
  virtual const std::string& name() const = 0;
};

struct KeyRefusal {
  enum class Reason { kNoKey, kWrongKey, kLimit };
  Reason reason = Reason::kNoKey;
  std::string message;
  // With kLimit: how long until the limit lets a request of this key through again, if nothing else
  // comes from it. Of requests at a time it is an estimate from how long the key's requests took.
  absl::Duration retry_after;
};

// Thread safe; nothing blocks. Leases may outlive the gate.
class KeyGate {
 public:
  // The time since some moment; never goes back.
  using Clock = std::function<absl::Duration()>;
  explicit KeyGate(ApiKeys keys, Clock clock = SteadyNow);

  // Checks the key in an Authorization header's value. `counted`: the request counts against the
  // key's limits, and is refused if they are used up.
  std::variant<std::shared_ptr<KeyLease>, KeyRefusal> Admit(std::string_view authorization,
                                                            bool counted);

  // Holds `tokens` of what the caller's requests may have at a time, until the result is let go of
  // (null if there is nothing to give back). A request that alone asks for more than the limit has
  // its turn when nothing else is held. `caller` as below.
  std::variant<std::shared_ptr<void>, KeyRefusal> HoldTokens(uint64_t caller, int64_t tokens);

  // Takes `tokens` from what the caller may use in a minute. They are known only afterwards, so the
  // rest may fall below zero; then the next requests wait until that is made up for. `caller` is
  // the FairKey of a header that was admitted; others are ignored.
  void ChargeTokens(uint64_t caller, int64_t tokens);

  // Lets these keys through from now on. What a key of the same name has used stays used, and
  // requests that are at work go on, whosever they are.
  void Replace(ApiKeys keys);

 private:
  // Fills up evenly, `per_minute` in a minute, to at most that many.
  struct Bucket {
    double level = 0;
    absl::Duration at;
    void Fill(int64_t per_minute, absl::Duration now);
    // Until it holds one if nothing is taken out; `per_minute` 0: it always does.
    absl::Duration Wait(int64_t per_minute) const;
  };
  struct Usage {
    KeyLimits limits;
    std::multiset<absl::Duration> open;  // when the requests at work began
    absl::Duration typical;              // how long requests took, later ones counting more
    int64_t held_tokens = 0;
    Bucket requests;
    Bucket tokens;
  };
  struct Table {
    ApiKeys keys;
    std::vector<std::shared_ptr<Usage>> usage;  // of each key
  };
  // Shared with the leases. All of it, and every Usage, under the mutex; the keys of a table do not
  // change.
  struct Ledger {
    std::mutex mutex;
    std::shared_ptr<const Table> table;
    std::map<uint64_t, std::shared_ptr<Usage>> caller;  // by FairKey
  };
  class Lease;
  class Hold;

  static absl::Duration SteadyNow();
  static absl::Duration WaitForPlace(const Usage& usage, absl::Duration now);

  const Clock clock_;
  const std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ACCESS_KEY_GATE_H_
