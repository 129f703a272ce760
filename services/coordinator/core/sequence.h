#ifndef QUARTET_SERVICES_COORDINATOR_CORE_SEQUENCE_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "services/coordinator/core/prefix_index.h"
#include "services/coordinator/core/snapshot_plan.h"
#include "services/coordinator/core/speculation.h"
#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// A request is in one of the first three, and leaves the table in the transition to a terminal
// state. REFUSED is answered by OnSubmit and never enters the table.
enum class SequenceState {
  kQueued,   // holds no place; also after a preemption
  kPrefill,  // admitted: holds a slot and pages; part of its tokens are absorbed
  kDecode,   // all tokens but the last sampled one are absorbed
  kClosing,  // its request has ended; keeps its place until its text is in the prefix cache
};

// A row that is planned and not answered, as far as it is known what it does.
struct RowAhead {
  uint64_t step_id = 0;  // 0 = there is none
  uint32_t n_tokens = 0;
  bool window = false;  // of its tokens the first counts for certain, the others may not
  bool sample = false;
  uint32_t chain = 0;  // drafts that it leaves
};

struct Sequence {
  uint64_t id = 0;  // in order of arrival
  Request request;
  SequenceState state = SequenceState::kQueued;

  // The prompt, then what was sampled. All of it was given out.
  std::vector<int32_t> tokens;
  uint32_t prompt_tokens = 0;
  uint32_t absorbed = 0;  // tokens in the workers' state and pages
  // Of those, the ones in the live state; the others, at most a window of speculation, go into it
  // with the next row or commit.
  uint32_t committed = 0;
  uint32_t max_tokens = 0;

  // Valid while admitted. The workers know the sequence by seq_uid; it gets a fresh one with every
  // admission, because a number is never reused after its close.
  uint64_t seq_uid = 0;
  uint32_t slot = 0;
  std::vector<uint32_t> pages;

  // Its hold on the prefix cache, while admitted: the first lease.shared_units() of the pages
  // belong to the cache, except for the duplicates, whose units others had published before.
  PrefixLease lease;
  std::vector<uint32_t> duplicate_pages;
  PromptMarks marks;              // of this admission
  PrefixLease suspect;            // what its state is to be compared with when it comes there
  uint64_t cache_generation = 0;  // of the names in `request` (core_repetition.cc)
  uint32_t restores = 0;          // of its prefix from a lower tier, for this admission
  bool publishes = false;         // what it absorbs goes into the cache
  uint32_t cached_tokens = 0;     // of the first admission
  // Of the answer, ascending: they can be published when it is final.
  std::vector<FinishedSnapshot> answer_snapshots;

  // kClosing: how much of the tokens is the final text, and the snapshot that the step in flight
  // takes of its end.
  uint32_t text_tokens = 0;
  std::optional<FinishedSnapshot> last_snapshot;
  uint64_t commit_step = 0;  // the step that takes it; 0 = it is not planned yet

  uint32_t drafts = 0;  // that the workers hold for its next row
  // Of the newest plan that has one for it. A plan that is made stands behind this row; what was
  // answered is in the other members.
  RowAhead ahead;
  uint64_t mask_awaits = 0;  // the step that its next row's mask waits for; 0 = it is not counted
  DraftLength draft_length;

  // The client does not read: no rows until it does. Only rows behind the first token wait for it.
  bool paused = false;
  TimeUs expected_first_token = 0;  // as Output's

  uint32_t prompt_logprobs_sent = 0;
  bool admitted_before = false;
  // Once; from then on it takes no page twice, and its text goes into the cache only when it ends
  // or loses its place again.
  bool preempted = false;
  uint32_t absorbed_before =
      0;  // when it lost its place the last time; 0 once it is admitted again
  bool prompt_counted = false;
  bool loops = false;  // its answer was seen to end in a loop
  RequestTimes times;

  uint32_t generated() const { return static_cast<uint32_t>(tokens.size()) - prompt_tokens; }
  // For the plan in the making. A sequence that is admitted prefills until all of its tokens are
  // planned, and decodes from then on.
  bool prefills() const { return state == SequenceState::kPrefill && !ahead.sample; }
  bool decodes() const { return (state == SequenceState::kDecode || ahead.sample) && !paused; }
  // Its mask is made of what the row ahead draws.
  bool awaits_mask() const { return request.constrained && ahead.sample; }
  // Where its next row stands, or the furthest place where it may stand.
  uint32_t next_position() const { return absorbed + ahead.n_tokens; }
  bool next_position_is_known() const { return !ahead.window || ahead.n_tokens == 1; }
  uint32_t next_drafts() const { return ahead.step_id != 0 ? ahead.chain : drafts; }
  bool admitted() const { return state != SequenceState::kQueued; }
  // Tokens that it may still say, at most.
  uint32_t tokens_left(uint32_t max_model_len) const {
    const auto known = static_cast<uint32_t>(tokens.size());
    return std::min(max_tokens - generated(), max_model_len - known) - (ahead.sample ? 1 : 0);
  }
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_SEQUENCE_H_
