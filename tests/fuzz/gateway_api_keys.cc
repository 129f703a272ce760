#include "services/gateway/access/api_keys.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is a file of API keys; its lines are refused or taken, and a digest is never a key.
QUARTET_FUZZ_TARGET(FuzzApiKeys) {
  using namespace quartet;
  const auto keys = gateway::ApiKeys::Parse(input, "keys", {});
  if (!keys.ok()) return;
  fuzz::Require(keys->size() >= 1 && keys->size() <= gateway::kApiKeysMax);
  fuzz::Require(!keys->Find(input.substr(0, gateway::kApiKeyBytesMax)).has_value());
  for (size_t i = 0; i < keys->size(); ++i) {
    fuzz::Require(!keys->name(i).empty() && keys->limits(i).requests >= 0);
  }
}
