#include "services/coordinator/core/plan_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

namespace quartet::coordinator {
namespace {

class Hasher {
 public:
  void Add(uint64_t value) {
    // One round of the splitmix64 finaliser per word: every bit of input reaches every bit of
    // state.
    state_ += value + 0x9e3779b97f4a7c15u;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9u;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111ebu;
    state_ ^= state_ >> 31;
  }
  template <typename T>
  void AddAll(const std::vector<T>& values) {
    Add(values.size());
    for (const T& value : values) Add(static_cast<uint64_t>(value));
  }
  // Masks are long: four sums that do not wait for each other. Each step of one is a bijection, so
  // that no difference of a single word is lost.
  void AddBytes(std::string_view bytes) {
    Add(bytes.size());
    std::array<uint64_t, 4> sums = {1, 2, 3, 4};
    for (size_t at = 0; at < bytes.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
      uint64_t& sum = sums[at / 8 % 4];
      sum = std::rotl((sum ^ word) * 0x9e3779b97f4a7c15u, 29);
    }
    for (const uint64_t sum : sums) Add(sum);
  }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace

uint64_t PlanHash(const StepPlan& plan) {
  Hasher hash;
  hash.Add(plan.epoch);
  hash.Add(plan.step_id);
  hash.Add(plan.commits.size());
  for (const Commit& commit : plan.commits) {
    hash.Add(commit.seq_uid);
    hash.Add(commit.export_at);
    hash.Add(commit.snapshot);
  }
  hash.Add(plan.rows.size());
  for (const PlanRow& row : plan.rows) {
    hash.Add(row.seq_uid);
    hash.Add(row.slot);
    hash.Add(static_cast<uint64_t>(row.kind));
    hash.AddAll(row.tokens);
    hash.Add(row.from_device);
    hash.Add(row.position);
    hash.Add(row.n_tokens);
    hash.Add(row.draft_tokens);
    hash.AddAll(row.new_pages);
    hash.Add(row.sample);
    hash.AddAll(row.logprob_targets);
    hash.Add(row.want_logprob);
    hash.Add(row.top_logprobs);
    hash.Add(row.target_top_logprobs);
    hash.Add(row.allow_masks.size());
    for (const std::string& mask : row.allow_masks) hash.AddBytes(mask);
    hash.Add(row.exports.size());
    for (const SnapshotExport& e : row.exports) {
      hash.Add(e.offset);
      hash.Add(e.snapshot);
    }
    hash.Add(row.draft);
    hash.Add(static_cast<uint64_t>(row.mtp_next));
    hash.Add(row.draft_chain);
  }
  hash.Add(plan.copies.size());
  for (const TierCopy& copy : plan.copies) {
    hash.Add(static_cast<uint64_t>(copy.kind));
    hash.Add(static_cast<uint64_t>(copy.from));
    hash.Add(copy.from_place);
    hash.Add(static_cast<uint64_t>(copy.to));
    hash.Add(copy.to_place);
    hash.Add(copy.key.high);
    hash.Add(copy.key.low);
    hash.Add(copy.n_tokens);
  }
  return hash.state();
}

}  // namespace quartet::coordinator
