#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_HASH_MODEL_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_HASH_MODEL_H_

#include <cstdint>
#include <vector>

#include "services/coordinator/core/types.h"
#include "services/coordinator/simulation/random.h"

// A model without weights that remembers as the real one does: a state of fixed size, here a
// running hash of all tokens absorbed, and an entry in the pages for every position. The next token
// is a function of the state, of all entries, of seed, choice and position. One token absorbed
// twice, left out or taken from another sequence, or one page that is somebody else's, changes
// everything that comes after.

namespace quartet::simulation {

using coordinator::Sampling;
using coordinator::TimeUs;
using coordinator::UnitKey;

struct HashModel {
  uint32_t vocab_size = 1000;
  // One draw in so many finds no finite logit, as a function of the text like everything else.
  // 0 = none does.
  uint32_t nan_one_in = 0;
  // In so many places of a hundred a draft is what will be said there, again as a function of seed
  // and position.
  uint32_t draft_percent = 70;
  // Instead: it is wrong at every position that is a multiple of this. 0 = not so.
  uint32_t wrong_draft_every = 0;

  static constexpr uint64_t kEmptyState = 1;
  static constexpr int32_t kNan = -1;

  static uint64_t Absorb(uint64_t state, int32_t token) {
    state = (state ^ static_cast<uint32_t>(token)) * 0x9fb21c651e98df25u;
    return state ^ (state >> 32);
  }
  // What the pages hold for a token. The draw takes the sum of all, as attention does, so that the
  // text does not depend on the size of a page.
  static uint64_t Entry(uint32_t position, int32_t token) {
    return Mix((uint64_t{position} << 32) ^ static_cast<uint32_t>(token));
  }
  // The token at `position` after the positions before it; kNan = there is none.
  int32_t Draw(uint64_t state, uint64_t entries, uint32_t position, const Sampling& sampling,
               int32_t first_padding_id) const;
  // A draft for `position`, where the model says `token`.
  int32_t Draft(int32_t token, uint32_t position, const Sampling& sampling) const;
  static float Logprob(uint64_t state, int32_t token) {
    return -static_cast<float>(Mix(state + static_cast<uint32_t>(token)) % 1000) / 100;
  }
  // So many "likeliest" ids after `state` go behind what is there; they tell which state it was.
  static void AddTop(uint64_t state, uint32_t count, coordinator::TopLogprobs& to) {
    for (uint32_t i = 0; i < count; ++i) {
      to.ids.push_back(static_cast<int32_t>(i));
      to.logprobs.push_back(Logprob(state, static_cast<int32_t>(i)));
    }
  }
};

// What one request says when nothing else happens in the world, computed as far as somebody asks.
class LoneRun {
 public:
  LoneRun(const HashModel& model, std::vector<int32_t> prompt, const Sampling& sampling,
          int32_t first_padding_id);

  uint32_t prompt_tokens() const { return prompt_tokens_; }
  // Prompt, then answer; kNan where the text breaks off.
  int32_t Token(uint32_t position);
  // After the first n tokens.
  uint64_t State(uint32_t n) { return At(n).state; }
  uint64_t Entries(uint32_t n) { return At(n).entries; }

 private:
  struct Memory {
    uint64_t state = 0;
    uint64_t entries = 0;
  };
  const Memory& At(uint32_t n);

  const HashModel model_;
  const Sampling sampling_;
  const int32_t first_padding_id_;
  const uint32_t prompt_tokens_;
  std::vector<int32_t> tokens_;
  std::vector<Memory> memory_;  // [i] = after i tokens
};

// Names the units of a text for the prefix cache, as the coordinator's engine does with libcrypto.
// Texts of different domains have no name in common.
class UnitNames {
 public:
  UnitNames(uint64_t domain, uint32_t unit_tokens)
      : unit_tokens_(unit_tokens), root_(Mix(domain)), state_(root_) {}

  UnitKey root() const { return {.high = root_, .low = 0}; }
  // The names of the units that these tokens fill.
  std::vector<UnitKey> Append(const std::vector<int32_t>& tokens);

 private:
  uint32_t unit_tokens_;
  uint64_t root_;
  uint64_t state_;
  uint64_t n_tokens_ = 0;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_HASH_MODEL_H_
