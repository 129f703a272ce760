#include "services/coordinator/core/fair_queue.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace quartet::coordinator {
namespace {

// What a key has before it is the next one's turn: about one chunk beside decoders.
constexpr int64_t kQuantumTokens = 512;

constexpr RequestClass kClasses[] = {RequestClass::kInteractive, RequestClass::kBatch};

}  // namespace

FairQueue::Entry* FairQueue::Find(uint64_t id) {
  auto entry = std::lower_bound(entries_.begin(), entries_.end(), id,
                                [](const Entry& e, uint64_t i) { return e.prompt.id < i; });
  return entry == entries_.end() || entry->prompt.id != id ? nullptr : &*entry;
}

const FairQueue::Entry* FairQueue::Find(uint64_t id) const {
  return const_cast<FairQueue*>(this)->Find(id);
}

FairQueue::Share* FairQueue::ShareOf(const Prompt& prompt) {
  auto share = std::find_if(shares_.begin(), shares_.end(), [&](const Share& s) {
    return s.key == prompt.key && s.request_class == prompt.request_class;
  });
  return share == shares_.end() ? nullptr : &*share;
}

bool FairQueue::HasRivals(const Share& share) const {
  return std::any_of(shares_.begin(), shares_.end(), [&](const Share& s) {
    return &s != &share && s.request_class == share.request_class;
  });
}

void FairQueue::Push(const Prompt& prompt) {
  auto place = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& other) { return other.prompt.id > prompt.id; });
  Entry entry;
  entry.prompt = prompt;
  entries_.insert(place, entry);
  ++waiting_;
  waiting_tokens_ += prompt.tokens;
  if (ShareOf(prompt) == nullptr) shares_.push_back({prompt.key, prompt.request_class, 0});
}

void FairQueue::PushPreempted(Prompt prompt) {
  Remove(prompt.id);  // if it was in the middle of its prompt
  prompt.preempted = true;
  Push(prompt);
  // It lost its place in the plan that is being made and does not get it back in the same one.
  Find(prompt.id)->done = true;
}

bool FairQueue::Remove(uint64_t id) {
  const Entry* entry = Find(id);
  if (entry == nullptr) return false;
  const Prompt prompt = entry->prompt;
  if (entry->waiting) {
    --waiting_;
    waiting_tokens_ -= prompt.tokens;
  }
  entries_.erase(entries_.begin() + (entry - entries_.data()));
  const bool last = std::none_of(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.prompt.key == prompt.key && e.prompt.request_class == prompt.request_class;
  });
  if (last) shares_.erase(shares_.begin() + (ShareOf(prompt) - shares_.data()));
  return true;
}

void FairQueue::BeginPlan(TimeUs now) {
  now_ = now;
  for (Entry& entry : entries_) entry.admitted = entry.served = entry.done = false;
}

bool FairQueue::Unovertakable(const Entry& entry) const {
  return entry.overtaken >= max_overtakes_ || now_ - entry.prompt.since >= max_wait_us_;
}

// Of two prompts of a key.
bool FairQueue::GoesFirst(const Entry& a, const Entry& b) const {
  if (a.prompt.preempted != b.prompt.preempted) return a.prompt.preempted;
  const bool old_a = a.prompt.preempted || Unovertakable(a);
  const bool old_b = b.prompt.preempted || Unovertakable(b);
  if (old_a != old_b) return old_a;
  if (!old_a && a.prompt.work != b.prompt.work) return a.prompt.work < b.prompt.work;
  return a.prompt.id < b.prompt.id;
}

const FairQueue::Entry* FairQueue::Overdue() const {
  const Entry* most = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.waiting || entry.done || entry.idle_plans + kOpenPromptsMax < kProgressPlans)
      continue;
    if (most == nullptr || entry.idle_plans > most->idle_plans) most = &entry;
  }
  return most;
}

const FairQueue::Entry* FairQueue::BestOf(const Share& share) const {
  const Entry* best = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.done || entry.prompt.key != share.key ||
        entry.prompt.request_class != share.request_class) {
      continue;
    }
    if (best == nullptr || GoesFirst(entry, *best)) best = &entry;
  }
  return best;
}

const FairQueue::Entry* FairQueue::BestOf(RequestClass request_class) {
  for (const Entry& entry : entries_) {
    if (!entry.done && entry.prompt.preempted && entry.prompt.request_class == request_class) {
      return &entry;
    }
  }
  // The first key that has credit left; if none has, the one that gets some first when all are
  // given the same again and again.
  const Entry* best = nullptr;
  int64_t best_rounds = 0;
  for (const Share& share : shares_) {
    if (share.request_class != request_class) continue;
    const Entry* entry = BestOf(share);
    if (entry == nullptr) continue;
    const int64_t rounds = share.credit > 0 ? 0 : 1 - share.credit / kQuantumTokens;
    if (best == nullptr || rounds < best_rounds) {
      best = entry;
      best_rounds = rounds;
    }
  }
  turn_rounds_ = best_rounds;
  return best;
}

const FairQueue::Prompt* FairQueue::Next() {
  const Entry* next = Overdue();
  turn_rounds_ = 0;
  turn_tokens_ = next != nullptr ? kChunkMultiple : std::numeric_limits<uint64_t>::max();
  for (const RequestClass request_class : kClasses) {
    if (next == nullptr) next = BestOf(request_class);
  }
  return next == nullptr ? nullptr : &next->prompt;
}

void FairQueue::Admit(uint64_t id, uint64_t work) {
  Entry* entry = Find(id);
  assert(entry != nullptr && entry->waiting);
  entry->waiting = false;
  entry->admitted = true;
  entry->prompt.work = work;
  --waiting_;
  waiting_tokens_ -= entry->prompt.tokens;
}

void FairQueue::Serve(uint64_t id, uint64_t tokens) {
  Entry* entry = Find(id);
  assert(entry != nullptr && !entry->waiting && !entry->done && tokens <= entry->prompt.work);
  entry->done = entry->served = true;
  entry->idle_plans = 0;
  entry->prompt.work -= tokens;
  entry->prompt.since = now_;
  Share& share = *ShareOf(entry->prompt);
  for (Share& other : shares_) {
    if (turn_rounds_ == 0 || other.request_class != share.request_class) continue;
    // Who could not use its credit does not save it up.
    other.credit = std::min(other.credit + turn_rounds_ * kQuantumTokens, kQuantumTokens);
  }
  // Whoever is alone owes nothing to those who come later.
  share.credit = HasRivals(share) ? share.credit - static_cast<int64_t>(tokens) : 0;
}

void FairQueue::PassOver(uint64_t id) {
  Entry* entry = Find(id);
  assert(entry != nullptr);
  entry->done = true;
}

void FairQueue::PassOverWaiting() {
  for (Entry& entry : entries_) entry.done = entry.done || entry.waiting;
}

uint64_t FairQueue::LeastWork() const {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const Entry& entry : entries_) {
    if (!entry.done) least = std::min(least, entry.prompt.work);
  }
  return least;
}

uint32_t FairQueue::EndPlan(bool held_up) {
  for (const Entry& late : entries_) {
    if (!late.admitted || late.prompt.preempted) continue;
    for (Entry& early : entries_) {
      if (early.prompt.id >= late.prompt.id) break;
      if (early.served || early.prompt.key != late.prompt.key ||
          early.prompt.request_class != late.prompt.request_class) {
        continue;
      }
      ++early.overtaken;
      ++overtakes_;
    }
  }
  // Who is held up is passed by those who are not.
  const bool counts = !held_up || std::ranges::any_of(entries_, &Entry::served);
  uint32_t stuck = 0;
  std::vector<uint64_t> computed;
  for (Entry& entry : entries_) {
    if (entry.served && entry.prompt.work == 0) computed.push_back(entry.prompt.id);
    if (entry.waiting || entry.served || !counts) continue;
    if (++entry.idle_plans == kProgressPlans) ++stuck;
  }
  for (const uint64_t id : computed) Remove(id);
  return stuck;
}

bool FairQueue::WaitsAbove(RequestClass request_class) const {
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.waiting && entry.prompt.request_class < request_class;
  });
}

bool FairQueue::waits(uint64_t id) const {
  const Entry* entry = Find(id);
  return entry != nullptr && entry->waiting;
}

bool FairQueue::Unovertakable(uint64_t id) const {
  const Entry* entry = Find(id);
  return entry != nullptr && (entry->prompt.preempted || Unovertakable(*entry));
}

FairQueue::Ahead FairQueue::Everything() const {
  Ahead ahead;
  for (const Entry& entry : entries_) ahead.Add(entry.prompt.work, entry.waiting);
  return ahead;
}

FairQueue::Ahead FairQueue::WorkAhead(const Prompt& prompt) const {
  Ahead ahead;
  for (const Entry& entry : entries_) {
    const Prompt& other = entry.prompt;
    const bool first = other.request_class != prompt.request_class
                           ? other.request_class == RequestClass::kInteractive
                           : other.key == prompt.key && (other.preempted || Unovertakable(entry) ||
                                                         other.work <= prompt.work);
    if (first) ahead.Add(other.work, entry.waiting);
  }
  // Other keys have as much as this one while it is at it.
  const uint64_t own = ahead.work + prompt.work;
  for (const Share& share : shares_) {
    if (share.key == prompt.key || share.request_class != prompt.request_class) continue;
    uint64_t left = own;
    for (const Entry& entry : entries_) {
      if (left == 0) break;
      if (entry.prompt.key != share.key || entry.prompt.request_class != share.request_class) {
        continue;
      }
      const uint64_t work = std::min(left, entry.prompt.work);
      ahead.Add(work, entry.waiting);
      left -= work;
    }
  }
  return ahead;
}

std::optional<uint32_t> FairQueue::IdlePlans(uint64_t id) const {
  const Entry* entry = Find(id);
  if (entry == nullptr || entry->waiting) return std::nullopt;
  return entry->idle_plans;
}

}  // namespace quartet::coordinator
