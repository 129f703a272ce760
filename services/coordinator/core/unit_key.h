#ifndef QUARTET_SERVICES_COORDINATOR_CORE_UNIT_KEY_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_UNIT_KEY_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace quartet::coordinator {

// Names a unit of tokens together with everything before it: keys are chained, so that two equal
// keys mean two equal prefixes. Computed outside the core (rpc/unit_keys.h), as hashing needs
// libcrypto.
struct UnitKey {
  uint64_t high = 0;
  uint64_t low = 0;

  friend auto operator<=>(const UnitKey&, const UnitKey&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const UnitKey& key) {
    return H::combine(std::move(state), key.high, key.low);
  }
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_UNIT_KEY_H_
