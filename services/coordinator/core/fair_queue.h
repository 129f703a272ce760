#ifndef QUARTET_SERVICES_COORDINATOR_CORE_FAIR_QUEUE_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_FAIR_QUEUE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// An admitted prompt has a row at least in every so many plans that have prompt rows at all.
inline constexpr uint32_t kProgressPlans = 8;
// Admitted prompts whose end is not reached in a plan. Half of the above, so that each of them can
// have its turn in time.
inline constexpr uint32_t kOpenPromptsMax = kProgressPlans / 2;

// All prompts that are not computed to their end, those that wait for admission and those in the
// middle, and whose turn it is:
//
//   1. who was admitted and has gone without a row for too long,
//   2. the class: batch has what interactive leaves,
//   3. who was preempted, in order of arrival,
//   4. the key, by deficit round robin in tokens that were computed,
//   5. inside a key the one with the fewest tokens left, unless another has become unovertakable:
//   it
//      was overtaken max_overtakes times, or has gone without a token for max_wait.
//
// Linear in its prompts, whose number its owner limits. Not thread safe.
class FairQueue {
 public:
  struct Prompt {
    uint64_t id = 0;      // in order of arrival
    uint64_t tokens = 0;  // what it counts in the limit of the queue
    uint64_t work = 0;    // tokens still to be computed; a guess while it waits
    uint64_t key = 0;     // of whom it is
    RequestClass request_class = RequestClass::kInteractive;
    TimeUs since = 0;  // without a token: its arrival, later its last row
    bool preempted = false;
  };

  FairQueue(uint32_t max_overtakes, TimeUs max_wait_us)
      : max_overtakes_(max_overtakes), max_wait_us_(max_wait_us) {}

  void Push(const Prompt& prompt);
  // A sequence has lost its place and must be computed again.
  void PushPreempted(Prompt prompt);
  // It has ended. False if it is not here.
  bool Remove(uint64_t id);

  // One plan: prompts come from Next until there is none; each is served (with a row) or passed
  // over, and does not come again in this plan.
  void BeginPlan(TimeUs now);
  const Prompt* Next();
  // The most tokens of the row of the prompt that Next said last: who only comes because it went
  // without for too long gets no more than a sign of life.
  uint64_t turn_tokens() const { return turn_tokens_; }
  // It has a place; so much is to be computed.
  void Admit(uint64_t id, uint64_t work);
  void Serve(uint64_t id, uint64_t tokens);
  void PassOver(uint64_t id);
  void PassOverWaiting();
  // Of those that Next may still say, the least that one of them has left.
  uint64_t LeastWork() const;
  // Forgets prompts of which nothing is left to compute. How many have now gone without a row for
  // kProgressPlans: none, if all goes well. A plan without any row does not count if it is held up
  // by something that is sure to pass with the step in flight.
  uint32_t EndPlan(bool held_up = false);

  bool waits(uint64_t id) const;
  // Whether it was overtaken, or has waited, for long enough.
  bool Unovertakable(uint64_t id) const;
  // Whether somebody of a higher class than this waits.
  bool WaitsAbove(RequestClass request_class) const;
  // Of those that wait.
  size_t size() const { return waiting_; }
  bool empty() const { return waiting_ == 0; }
  uint64_t tokens() const { return waiting_tokens_; }
  // What is before somebody.
  struct Ahead {
    uint64_t work = 0;     // tokens
    uint32_t prompts = 0;  // of which they are
    uint32_t waiting = 0;  // prompts that need a place

    void Add(uint64_t tokens, bool waits) {
      work += tokens;
      ++prompts;
      waiting += waits;
    }
  };
  Ahead Everything() const;
  // What is computed before this prompt, which is not here, if nobody else comes.
  Ahead WorkAhead(const Prompt& prompt) const;

  uint64_t overtakes() const { return overtakes_; }
  // Plans with prompt rows, but none for this one, since it had one. Nothing if it waits.
  std::optional<uint32_t> IdlePlans(uint64_t id) const;

 private:
  struct Entry {
    Prompt prompt;
    bool waiting = true;
    uint32_t overtaken = 0;
    uint32_t idle_plans = 0;
    // In this plan.
    bool admitted = false;
    bool served = false;
    bool done = false;  // served or passed over
  };
  // A key of a class that has prompts here.
  struct Share {
    uint64_t key = 0;
    RequestClass request_class = RequestClass::kInteractive;
    int64_t credit = 0;  // tokens until it is others' turn
  };

  Entry* Find(uint64_t id);
  const Entry* Find(uint64_t id) const;
  bool Unovertakable(const Entry& entry) const;
  bool GoesFirst(const Entry& a, const Entry& b) const;
  Share* ShareOf(const Prompt& prompt);
  bool HasRivals(const Share& share) const;
  const Entry* Overdue() const;
  const Entry* BestOf(RequestClass request_class);
  const Entry* BestOf(const Share& share) const;

  const uint32_t max_overtakes_;
  const TimeUs max_wait_us_;
  std::vector<Entry> entries_;  // in order of arrival
  std::vector<Share> shares_;   // in order of coming
  TimeUs now_ = 0;
  // Of what Next said last.
  uint64_t turn_tokens_ = 0;
  int64_t turn_rounds_ = 0;  // of credit for all keys of its class, until it is its turn
  size_t waiting_ = 0;
  uint64_t waiting_tokens_ = 0;
  uint64_t overtakes_ = 0;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_FAIR_QUEUE_H_
