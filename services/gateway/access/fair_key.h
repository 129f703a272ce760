// Whose request it is, for the engine's fair shares and for what it may find in the prefix cache.
#ifndef QUARTET_SERVICES_GATEWAY_ACCESS_FAIR_KEY_H_
#define QUARTET_SERVICES_GATEWAY_ACCESS_FAIR_KEY_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace quartet::gateway {

// A digest of the bearer token in an Authorization header, or, without one, of the `user` that the
// request names; 0, which all of them share, without either. The token wins, so that nobody gets a
// larger share by naming many users. Pure; neither can be told from the digest.
uint64_t FairKey(std::string_view authorization, std::string_view user);

// Keeps the cached prefixes of different bearer tokens apart, so that nobody learns from the time
// of an answer what others asked; empty without a token.
std::string SaltOfKey(std::string_view authorization);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ACCESS_FAIR_KEY_H_
