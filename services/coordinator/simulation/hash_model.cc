#include "services/coordinator/simulation/hash_model.h"

#include <cassert>
#include <utility>

namespace quartet::simulation {

int32_t HashModel::Draw(uint64_t state, uint64_t entries, uint32_t position,
                        const Sampling& sampling, int32_t first_padding_id) const {
  const uint64_t noise = Mix(Mix(sampling.seed) + sampling.choice) ^ Mix(position);
  const uint64_t drawn = Mix(state ^ Mix(entries ^ noise));
  if (nan_one_in != 0 && (drawn >> 40) % nan_one_in == 0) return kNan;
  const uint64_t limit = first_padding_id != 0 ? first_padding_id : vocab_size;
  return static_cast<int32_t>((drawn & 0xffffffffu) * limit >> 32);
}

int32_t HashModel::Draft(int32_t token, uint32_t position, const Sampling& sampling) const {
  const uint64_t luck = Mix(Mix(~sampling.seed) + sampling.choice) ^ Mix(position);
  if (token == kNan) return 0;
  const bool right =
      wrong_draft_every > 0 ? position % wrong_draft_every != 0 : Mix(luck) % 100 < draft_percent;
  return right ? token : token ^ 1;
}

std::vector<UnitKey> UnitNames::Append(const std::vector<int32_t>& tokens) {
  std::vector<UnitKey> keys;
  for (const int32_t token : tokens) {
    state_ = HashModel::Absorb(state_, token);
    if (++n_tokens_ % unit_tokens_ == 0) keys.push_back({.high = Mix(state_), .low = n_tokens_});
  }
  return keys;
}

LoneRun::LoneRun(const HashModel& model, std::vector<int32_t> prompt, const Sampling& sampling,
                 int32_t first_padding_id)
    : model_(model),
      sampling_(sampling),
      first_padding_id_(first_padding_id),
      prompt_tokens_(static_cast<uint32_t>(prompt.size())),
      tokens_(std::move(prompt)),
      memory_{{HashModel::kEmptyState, 0}} {}

int32_t LoneRun::Token(uint32_t position) {
  while (tokens_.size() <= position) {
    const auto end = static_cast<uint32_t>(tokens_.size());
    if (tokens_.back() == HashModel::kNan) return HashModel::kNan;
    const Memory& memory = At(end);
    tokens_.push_back(model_.Draw(memory.state, memory.entries, end, sampling_, first_padding_id_));
  }
  return tokens_[position];
}

const LoneRun::Memory& LoneRun::At(uint32_t n) {
  assert(n <= tokens_.size());
  while (memory_.size() <= n) {
    const auto position = static_cast<uint32_t>(memory_.size() - 1);
    const Memory& last = memory_.back();
    memory_.push_back({HashModel::Absorb(last.state, tokens_[position]),
                       last.entries + HashModel::Entry(position, tokens_[position])});
  }
  return memory_[n];
}

}  // namespace quartet::simulation
