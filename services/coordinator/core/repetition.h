#ifndef QUARTET_SERVICES_COORDINATOR_CORE_REPETITION_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_REPETITION_H_

#include <cstdint>
#include <span>

namespace quartet::coordinator {

// How much of an answer one n-gram has to cover, and how often it has to come in it at least, for
// the answer to be taken for a loop.
inline constexpr uint32_t kRepetitionTokens = 256;
inline constexpr uint32_t kRepetitionTimes = 4;

// The length of the shortest n-gram of which the tokens are a repetition (the last one may be cut
// short); the number of tokens if they repeat nothing, 0 if there are none. Linear.
uint32_t RepeatedNgram(std::span<const int32_t> tokens);

// Whether the text has ended in a loop.
bool EndsInLoop(std::span<const int32_t> answer);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_REPETITION_H_
