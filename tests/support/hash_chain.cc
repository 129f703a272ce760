#include "tests/support/hash_chain.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::testing {
namespace {

uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

constexpr uint64_t kEmptyState = 1;

void AddTop(uint64_t state, uint32_t count, v1::TopLogprobs* to) {
  for (uint32_t i = 0; i < count; ++i) {
    to->add_ids(static_cast<int32_t>(i));
    to->add_logprobs(HashChainLogprob(state, static_cast<int32_t>(i)));
  }
}

// The first id from `id` on, going round, whose bit is set; -1 if none is.
int32_t NextAllowed(const std::string& mask, int32_t id) {
  const auto ids = static_cast<int32_t>(8 * mask.size());
  for (int32_t i = 0; i < ids; ++i) {
    const int32_t at = (id + i) % ids;
    if ((static_cast<uint8_t>(mask[static_cast<size_t>(at) / 8]) >> (at % 8) & 1) != 0) return at;
  }
  return -1;
}

}  // namespace

uint64_t HashChainAbsorb(uint64_t state, int32_t token) {
  return Mix(state * 3 + static_cast<uint32_t>(token));
}

TokenRule HashChainRule(int32_t limit) {
  return [limit](uint64_t state, uint32_t position, const v1::SamplingParams& sampling) {
    const uint64_t key = Mix(sampling.seed() * 31 + sampling.choice());
    return static_cast<int32_t>(Mix(state ^ key ^ Mix(position)) % limit);
  };
}

float HashChainLogprob(uint64_t state, int32_t token) {
  return -static_cast<float>(Mix(state + static_cast<uint32_t>(token)) % 1000) / 100;
}

std::vector<int32_t> HashChainText(const TokenRule& rule, const std::vector<int32_t>& prompt,
                                   const v1::SamplingParams& sampling, size_t n) {
  uint64_t state = kEmptyState;
  for (int32_t token : prompt) state = HashChainAbsorb(state, token);
  std::vector<int32_t> text;
  while (text.size() < n) {
    text.push_back(rule(state, static_cast<uint32_t>(prompt.size() + text.size()), sampling));
    state = HashChainAbsorb(state, text.back());
  }
  return text;
}

DraftRule HashChainDrafts(uint32_t percent) {
  return [percent](uint32_t position, const v1::SamplingParams& sampling) {
    return Mix(Mix(sampling.seed()) + position) % 100 < percent;
  };
}

HashChainExecutor::HashChainExecutor(const Pools& pools, TokenRule rule, DraftRule drafts)
    : pools_(pools),
      rule_(std::move(rule)),
      draft_rule_(std::move(drafts)),
      slot_state_(pools.slots, 0),
      slot_owner_(pools.slots, 0),
      page_users_(pools.pages, 0),
      page_text_(pools.pages, std::vector<int32_t>(pools.page_tokens, -1)),
      snapshots_(pools.snapshots),
      host_{std::vector<Stored>(pools.host_pages), std::vector<Stored>(pools.host_snapshots)},
      disk_{std::vector<Stored>(pools.disk_pages), std::vector<Stored>(pools.disk_snapshots)} {}

void HashChainExecutor::Check(bool good, const std::string& what) {
  if (!good && violation_.empty()) violation_ = what;
}

void HashChainExecutor::Open(const v1::SequenceOpen& open) {
  const uint64_t uid = open.seq_uid();
  Check(!sequences_.contains(uid) && !closed_.contains(uid),
        absl::StrCat("sequence ", uid, " is opened again"));
  if (open.slot() >= pools_.slots) return Check(false, "a slot outside of the pool");
  Check(slot_owner_[open.slot()] == 0, absl::StrCat("slot ", open.slot(), " has an owner"));
  slot_owner_[open.slot()] = uid;
  slot_state_[open.slot()] = kEmptyState;
  sequences_[uid].open = open;
  if (open.has_resume()) Resume(open.resume(), sequences_[uid]);
}

void HashChainExecutor::Resume(const v1::Resume& resume, Sequence& sequence) {
  if (resume.snapshot() >= snapshots_.size()) return Check(false, "a snapshot outside of the pool");
  const Snapshot& snapshot = snapshots_[resume.snapshot()];
  Check(snapshot.tokens == resume.n_tokens() && resume.n_tokens() > 0,
        absl::StrCat("snapshot ", resume.snapshot(), " is of ", snapshot.tokens,
                     " tokens, a sequence begins there at ", resume.n_tokens()));
  Check(resume.pages_size() * pools_.page_tokens == resume.n_tokens(),
        "a sequence begins with pages that do not fit its tokens");
  for (const uint32_t page : resume.pages()) {
    if (page >= pools_.pages) return Check(false, "a page outside of the pool");
    ++page_users_[page];
    sequence.pages.push_back(page);
  }
  sequence.absorbed = sequence.furthest = resume.n_tokens();
  slot_state_[sequence.open.slot()] = snapshot.state;
}

void HashChainExecutor::Close(const v1::SequenceClose& close) {
  auto found = sequences_.find(close.seq_uid());
  if (found == sequences_.end()) return Check(false, "close of a sequence that is not open");
  for (uint32_t page : found->second.pages) --page_users_[page];
  slot_owner_[found->second.open.slot()] = 0;
  closed_[found->first] = true;
  sequences_.erase(found);
}

v1::StepResult HashChainExecutor::Run(const v1::StepPlan& plan, uint32_t rank) {
  Check(plan.epoch() == pools_.epoch, "a plan of another epoch");
  Check(plan.step_id() == last_step_ + 1,
        absl::StrCat("step ", plan.step_id(), " after ", last_step_));
  last_step_ = plan.step_id();
  v1::StepResult result;
  result.set_epoch(plan.epoch());
  result.set_step_id(plan.step_id());
  result.set_rank(rank);
  uint64_t tokens = 0;
  uint64_t agreement = Mix(plan.plan_hash());
  bool prefill_seen = false;
  Check(plan.rows_size() + plan.commits_size() + plan.copies_size() > 0, "a plan of nothing");
  for (const v1::Copy& copy : plan.copies()) result.add_copies()->set_kind(RunCopy(copy));
  for (const v1::Commit& commit : plan.commits()) Commit(commit);
  for (const v1::Row& row : plan.rows()) {
    tokens += row.n_tokens();
    Check(!(prefill_seen && row.kind() != v1::Row::KIND_PREFILL), "a decode row behind a prefill");
    prefill_seen = prefill_seen || row.kind() == v1::Row::KIND_PREFILL;
    v1::RowResult* out = result.add_rows();
    RunRow(row, out);
    agreement = Mix(agreement ^ row.seq_uid());
    for (int32_t token : out->tokens()) agreement = Mix(agreement ^ static_cast<uint32_t>(token));
  }
  Check(tokens <= pools_.max_num_batched_tokens,
        absl::StrCat(tokens, " tokens in a step of at most ", pools_.max_num_batched_tokens));
  result.set_agreement_hash(agreement);
  return result;
}

void HashChainExecutor::Commit(const v1::Commit& commit) {
  auto found = sequences_.find(commit.seq_uid());
  if (found == sequences_.end()) return Check(false, "a commit of a sequence that is not open");
  CommitWindow(found->second, commit.export_at(), commit.snapshot());
}

void HashChainExecutor::CommitWindow(Sequence& sequence, uint32_t export_at, uint32_t snapshot) {
  uint64_t& state = slot_state_[sequence.open.slot()];
  uint32_t at = sequence.absorbed - static_cast<uint32_t>(sequence.window.size());
  bool exported = false;
  for (const int32_t token : sequence.window) {
    state = HashChainAbsorb(state, token);
    if (++at != export_at) continue;
    if (snapshot >= snapshots_.size()) return Check(false, "a snapshot outside of the pool");
    snapshots_[snapshot] = {state, at};
    exported = true;
  }
  sequence.window.clear();
  Check(export_at == 0 || exported || (export_at > at && export_at <= sequence.furthest),
        absl::StrCat("a commit that cannot reach ", export_at));
  Check(export_at % pools_.page_tokens == 0, "a commit that exports inside a page");
}

void HashChainExecutor::CheckRow(const v1::Row& row, const Sequence& sequence,
                                 const std::string& name) {
  const bool verifies = row.kind() == v1::Row::KIND_VERIFY;
  Check(row.slot() == sequence.open.slot(), name + " changed its slot");
  // Behind a window whose result the planner did not have, the furthest place where it may stand.
  const uint32_t furthest = row.from_device() ? sequence.furthest : sequence.absorbed;
  Check(row.position() >= sequence.absorbed && row.position() <= furthest,
        absl::StrCat(name, " is at ", sequence.absorbed, ", its row starts at ", row.position()));
  Check(row.n_tokens() > 0, name + " has an empty row");
  Check(row.draft_tokens() == (verifies ? row.n_tokens() - 1 : 0),
        name + " has another number of drafts than of tokens");
  Check(row.draft_tokens() <= sequence.drafts.size(), name + " has drafts that were never made");
  Check(!verifies || (row.from_device() && row.sample() && row.exports_size() == 0),
        name + " has a window that is none");
  Check(row.draft_chain() == 0 || (row.draft() && row.sample()),
        name + " has a chain of drafts behind nothing");
  Check(row.logprob_targets_size() == 0 ||
            static_cast<uint32_t>(row.logprob_targets_size()) == row.n_tokens(),
        name + " has neither no target nor one for each token");
  if (row.kind() == v1::Row::KIND_PREFILL && !row.sample()) {
    Check(row.n_tokens() % 64 == 0, name + " has an inner chunk that is no multiple of 64");
  }
  if (row.from_device()) {
    Check(row.tokens_size() == 0 && sequence.last_drawn >= 0, name + " has no token on the device");
    Check(row.n_tokens() == 1 || verifies, name + " has a row with another number of tokens");
    return;
  }
  Check(static_cast<uint32_t>(row.tokens_size()) == row.n_tokens(),
        name + " has a row with another number of tokens");
  Check(sequence.announced < 0 || row.tokens(0) == sequence.announced,
        name + " goes on with another token than was announced");
}

HashChainExecutor::Stored* HashChainExecutor::FindStored(v1::Copy::Tier tier, v1::Copy::Kind kind,
                                                         uint32_t place) {
  if (tier == v1::Copy::TIER_DEVICE) return nullptr;
  LowerTier& lower = tier == v1::Copy::TIER_DISK ? disk_ : host_;
  std::vector<Stored>& places = kind == v1::Copy::KIND_PAGE ? lower.pages : lower.snapshots;
  if (place < places.size()) return &places[place];
  Check(false, "a copy from or to a place that does not exist");
  return nullptr;
}

v1::CopyResult::Kind HashChainExecutor::RunCopy(const v1::Copy& copy) {
  const bool page = copy.kind() == v1::Copy::KIND_PAGE;
  Check(page || copy.kind() == v1::Copy::KIND_SNAPSHOT, "a copy of no kind");
  if (copy.from() == v1::Copy::TIER_DEVICE && copy.to() == v1::Copy::TIER_DEVICE) {
    Check(!page && copy.from_place() < pools_.snapshots && copy.to_place() < pools_.snapshots,
          "a comparison of what is no snapshot");
    const Snapshot& a = snapshots_[copy.from_place()];
    const Snapshot& b = snapshots_[copy.to_place()];
    Check(a.tokens == b.tokens && a.tokens == copy.name().n_tokens(),
          "a comparison of states after different numbers of tokens");
    return a.state == b.state ? v1::CopyResult::KIND_DONE : v1::CopyResult::KIND_CHECKSUM;
  }
  Check(copy.from() - copy.to() == 1 || copy.to() - copy.from() == 1,
        "a copy between tiers that do not stand next to each other");
  const auto on_device = [&](uint32_t place) {
    const bool exists = place < (page ? pools_.pages : pools_.snapshots);
    Check(exists, "a copy from or to a place of the device that does not exist");
    return exists;
  };
  Stored* const from = FindStored(copy.from(), copy.kind(), copy.from_place());
  Stored* const to = FindStored(copy.to(), copy.kind(), copy.to_place());
  if (from != nullptr) {
    Check(from->filled && from->copy.name().SerializeAsString() == copy.name().SerializeAsString(),
          "what is wanted from a place is not what was stored there");
    if (copy.to() < copy.from() && from->damaged) return v1::CopyResult::KIND_CHECKSUM;
  }
  if (copy.to() == v1::Copy::TIER_DEVICE) {
    if (from == nullptr || !on_device(copy.to_place())) return v1::CopyResult::KIND_MISSING;
    Check(!page || page_users_[copy.to_place()] == 0,
          "a page that somebody uses is written by a copy");
    if (page) {
      page_text_[copy.to_place()] = from->text;
    } else {
      snapshots_[copy.to_place()] = from->snapshot;
    }
    return v1::CopyResult::KIND_DONE;
  }
  if (to == nullptr) return v1::CopyResult::KIND_MISSING;
  if (from != nullptr) {
    *to = *from;
  } else if (!on_device(copy.from_place())) {
    return v1::CopyResult::KIND_MISSING;
  } else if (page) {
    *to = {.filled = true, .text = page_text_[copy.from_place()]};
  } else {
    *to = {.filled = true, .snapshot = snapshots_[copy.from_place()]};
    Check(to->snapshot.tokens == copy.name().n_tokens(),
          "a snapshot is stored as the state after another number of tokens");
  }
  const std::vector<int32_t> unit(copy.origin().tokens().begin(), copy.origin().tokens().end());
  Check(copy.to() != v1::Copy::TIER_DISK || (page ? unit == to->text : !unit.empty()),
        "a unit is stored with tokens that are not its own");
  to->copy = copy;
  to->damaged = to->damaged || (damages_ && damages_(copy));
  return v1::CopyResult::KIND_DONE;
}

v1::CacheInventory HashChainExecutor::DiskInventory() const {
  v1::CacheInventory inventory;
  for (const auto* places : {&disk_.pages, &disk_.snapshots}) {
    for (size_t place = 0; place < places->size(); ++place) {
      const Stored& stored = (*places)[place];
      if (!stored.filled) continue;
      v1::CacheEntry& entry = *inventory.add_entries();
      entry.set_kind(stored.copy.kind());
      entry.set_place(static_cast<uint32_t>(place));
      *entry.mutable_name() = stored.copy.name();
      *entry.mutable_origin() = stored.copy.origin();
    }
  }
  return inventory;
}

void HashChainExecutor::TakeDiskOf(HashChainExecutor& other) {
  disk_ = std::move(other.disk_);
}

void HashChainExecutor::RunRow(const v1::Row& row, v1::RowResult* result) {
  const std::string name = absl::StrCat("sequence ", row.seq_uid());
  result->set_seq_uid(row.seq_uid());
  auto found = sequences_.find(row.seq_uid());
  if (found == sequences_.end()) return Check(false, name + " has a row but is not open");
  Sequence& sequence = found->second;
  CheckRow(row, sequence, name);
  for (uint32_t page : row.new_pages()) {
    if (page >= pools_.pages) return Check(false, "a page outside of the pool");
    Check(page_users_[page] == 0, absl::StrCat("page ", page, " has two owners"));
    ++page_users_[page];
    sequence.pages.push_back(page);
  }
  const uint64_t end = row.position() + row.n_tokens();
  const uint64_t scratch_end = end + (row.draft_chain() > 1 ? row.draft_chain() - 1 : 0);
  if (scratch_end > sequence.pages.size() * pools_.page_tokens) {
    return Check(false, name + " has a row beyond its pages");
  }
  Check(scratch_end <= pools_.max_model_len, name + " is longer than the context");

  CommitWindow(sequence, 0, 0);
  std::vector<int32_t> tokens(row.tokens().begin(), row.tokens().end());
  if (row.from_device()) {
    tokens = {sequence.last_drawn};
    tokens.insert(tokens.end(), sequence.drafts.begin(),
                  sequence.drafts.begin() + row.draft_tokens());
  }
  sequence.announced = row.draft() && !row.sample() ? row.mtp_next() : -1;
  sequence.drafts.clear();

  uint64_t state = slot_state_[row.slot()];
  if (row.kind() == v1::Row::KIND_VERIFY) {
    // The whole window is written to the pages; what is not accepted is written again later.
    std::vector<uint64_t> states;
    for (size_t i = 0; i < tokens.size(); ++i) {
      state = Walk(sequence, state, tokens[i], sequence.absorbed + static_cast<uint32_t>(i));
      states.push_back(state);
    }
    size_t used = 0;
    do {
      state = states[used++];
      Draw(row, name, state, sequence.absorbed + static_cast<uint32_t>(used), sequence, result);
    } while (used < tokens.size() && sequence.last_drawn == tokens[used]);
    sequence.window.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(used));
    sequence.furthest = sequence.absorbed + row.n_tokens();
    sequence.absorbed += static_cast<uint32_t>(used);
    return Draft(row.draft_chain(), state, sequence, result);
  }

  for (size_t i = 0; i < tokens.size(); ++i) {
    state = Walk(sequence, state, tokens[i], sequence.absorbed++);
    if (static_cast<int>(i) < row.logprob_targets_size()) {
      result->add_target_logprobs(HashChainLogprob(state, row.logprob_targets(i)));
      AddTop(state, row.target_top_logprobs(), result->mutable_target_top());
    }
    for (const v1::Export& e : row.exports()) {
      if (e.offset() != i + 1) continue;
      Check(sequence.absorbed % pools_.page_tokens == 0,
            name + " has an export that is not at the end of a page");
      if (e.snapshot() >= snapshots_.size()) return Check(false, "a snapshot outside of the pool");
      snapshots_[e.snapshot()] = {state, sequence.absorbed};
    }
  }
  sequence.furthest = sequence.absorbed;
  slot_state_[row.slot()] = state;
  if (!row.sample()) return;
  Draw(row, name, state, sequence.absorbed, sequence, result);
  Draft(row.draft_chain(), state, sequence, result);
}

uint64_t HashChainExecutor::Walk(Sequence& sequence, uint64_t state, int32_t token,
                                 uint32_t position) {
  page_text_[sequence.pages[position / pools_.page_tokens]][position % pools_.page_tokens] = token;
  return HashChainAbsorb(state, token);
}

// The token at `position`.
void HashChainExecutor::Draw(const v1::Row& row, const std::string& name, uint64_t state,
                             uint32_t position, Sequence& sequence, v1::RowResult* result) {
  // The state in the slot and the text in the pages must tell the same story.
  uint64_t from_pages = kEmptyState;
  for (uint32_t at = 0; at < position; ++at) {
    from_pages = HashChainAbsorb(
        from_pages, page_text_[sequence.pages[at / pools_.page_tokens]][at % pools_.page_tokens]);
  }
  Check(spoiled_ || from_pages == state, name + " has pages that somebody else wrote to");
  sequence.last_drawn = rule_(state, position, sequence.open.sampling());
  if (row.allow_masks_size() > 0) {
    Check(row.allow_masks_size() == static_cast<int>(row.draft_tokens()) + 1,
          name + " has another number of masks than of draws");
    sequence.last_drawn = NextAllowed(row.allow_masks(result->tokens_size()), sequence.last_drawn);
    Check(sequence.last_drawn >= 0, name + " has a mask that allows nothing");
  }
  result->add_tokens(sequence.last_drawn);
  if (!row.want_logprob()) return;
  result->add_logprobs(HashChainLogprob(state, sequence.last_drawn));
  AddTop(state, row.top_logprobs(), result->mutable_top());
}

// `state`: before the token that was drawn last.
void HashChainExecutor::Draft(uint32_t chain, uint64_t state, Sequence& sequence,
                              v1::RowResult* result) {
  int32_t last = sequence.last_drawn;
  for (uint32_t i = 0; i < chain; ++i) {
    state = HashChainAbsorb(state, last);
    const uint32_t position = sequence.absorbed + 1 + i;
    last = rule_(state, position, sequence.open.sampling());
    if (!draft_rule_(position, sequence.open.sampling())) last ^= 1;
    sequence.drafts.push_back(last);
    result->add_drafts(last);
  }
}

}  // namespace quartet::testing
