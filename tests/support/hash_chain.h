#ifndef QUARTET_TESTS_SUPPORT_HASH_CHAIN_H_
#define QUARTET_TESTS_SUPPORT_HASH_CHAIN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "proto/quartet/v1/worker.pb.h"

// A model without weights: the state of a sequence is a running hash of the tokens it absorbed, and
// the next token is a function of that hash, the position and the seed. One token absorbed twice,
// left out or taken from another sequence changes everything after it.

namespace quartet::testing {

uint64_t HashChainAbsorb(uint64_t state, int32_t token);

// Decides the token at `position` after a sequence with this state.
using TokenRule =
    std::function<int32_t(uint64_t state, uint32_t position, const v1::SamplingParams& sampling)>;

// Ids from 0 to limit - 1, all equally likely.
TokenRule HashChainRule(int32_t limit);

// Whether the workers' draft for this position is what the model will say there; else it is another
// token.
using DraftRule = std::function<bool(uint32_t position, const v1::SamplingParams& sampling)>;

// Right in about so many of a hundred places.
DraftRule HashChainDrafts(uint32_t percent);

float HashChainLogprob(uint64_t state, int32_t token);

// What a sequence says when it is alone: the first n tokens after the prompt.
std::vector<int32_t> HashChainText(const TokenRule& rule, const std::vector<int32_t>& prompt,
                                   const v1::SamplingParams& sampling, size_t n);

// Executes step plans with that model and checks everything that a worker relies on: ids and steps
// in order, rows that continue where the sequence is, pages and slots with one owner, budgets.
// Tokens are kept in pages and states in slots, as a real worker keeps them. Not thread safe.
class HashChainExecutor {
 public:
  struct Pools {
    uint64_t epoch = 0;
    uint32_t slots = 0;
    uint32_t pages = 0;
    uint32_t page_tokens = 256;
    uint32_t max_num_batched_tokens = 0;
    uint32_t max_model_len = 0;
    uint32_t snapshots = 0;
    uint32_t host_pages = 0;
    uint32_t host_snapshots = 0;
    uint32_t disk_pages = 0;
    uint32_t disk_snapshots = 0;
  };
  HashChainExecutor(const Pools& pools, TokenRule rule, DraftRule drafts = HashChainDrafts(70));

  void Open(const v1::SequenceOpen& open);
  void Close(const v1::SequenceClose& close);
  // What the disk holds, and what another life of this worker left there.
  v1::CacheInventory DiskInventory() const;
  void TakeDiskOf(HashChainExecutor& other);
  // Decides which copies to the lower tiers are damaged on their way; none without it.
  void DamageCopies(std::function<bool(const v1::Copy&)> damages) { damages_ = std::move(damages); }
  // All snapshots on the device become states of other texts, which no checksum sees.
  void SpoilSnapshots() {
    spoiled_ = true;
    for (Snapshot& snapshot : snapshots_) ++snapshot.state;
  }
  // All rows are filled in, as rank 0 sends them.
  v1::StepResult Run(const v1::StepPlan& plan, uint32_t rank);

  // Empty as long as nobody broke the contract; else the first breach.
  const std::string& violation() const { return violation_; }
  size_t open_sequences() const { return sequences_.size(); }
  uint64_t steps() const { return last_step_; }

 private:
  struct Sequence {
    v1::SequenceOpen open;
    std::vector<uint32_t> pages;
    uint32_t absorbed = 0;        // the window included
    uint32_t furthest = 0;        // the same if all of its drafts had been accepted
    std::vector<int32_t> window;  // accepted, and not in the live state yet
    std::vector<int32_t> drafts;
    int32_t last_drawn = -1;
    int32_t announced = -1;  // the next token of its prompt, as the drafter was told
  };
  void Check(bool good, const std::string& what);
  void Resume(const v1::Resume& resume, Sequence& sequence);
  v1::CopyResult::Kind RunCopy(const v1::Copy& copy);
  void Commit(const v1::Commit& commit);
  void CommitWindow(Sequence& sequence, uint32_t export_at, uint32_t snapshot);
  void CheckRow(const v1::Row& row, const Sequence& sequence, const std::string& name);
  void RunRow(const v1::Row& row, v1::RowResult* result);
  uint64_t Walk(Sequence& sequence, uint64_t state, int32_t token, uint32_t position);
  void Draw(const v1::Row& row, const std::string& name, uint64_t state, uint32_t position,
            Sequence& sequence, v1::RowResult* result);
  void Draft(uint32_t chain, uint64_t state, Sequence& sequence, v1::RowResult* result);

  const Pools pools_;
  const TokenRule rule_;
  const DraftRule draft_rule_;
  std::map<uint64_t, Sequence> sequences_;
  std::map<uint64_t, bool> closed_;
  std::vector<uint64_t> slot_state_;
  std::vector<uint64_t> slot_owner_;  // seq_uid, 0 = none
  std::vector<int> page_users_;       // sequences that fill or read it
  std::vector<std::vector<int32_t>> page_text_;
  struct Snapshot {
    uint64_t state = 0;
    uint32_t tokens = 0;  // 0 = never written
  };
  std::vector<Snapshot> snapshots_;
  bool spoiled_ = false;
  struct Stored {
    bool filled = false;
    v1::Copy copy;  // that brought it
    bool damaged = false;
    std::vector<int32_t> text;
    Snapshot snapshot;
  };
  struct LowerTier {
    std::vector<Stored> pages;
    std::vector<Stored> snapshots;
  };
  Stored* FindStored(v1::Copy::Tier tier, v1::Copy::Kind kind, uint32_t place);
  LowerTier host_;
  LowerTier disk_;
  std::function<bool(const v1::Copy&)> damages_;
  uint64_t last_step_ = 0;
  std::string violation_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_HASH_CHAIN_H_
