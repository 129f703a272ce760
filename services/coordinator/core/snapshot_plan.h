#ifndef QUARTET_SERVICES_COORDINATOR_CORE_SNAPSHOT_PLAN_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_SNAPSHOT_PLAN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// At which lengths of a sequence the state is worth a snapshot. Pure functions: what a snapshot is
// and where it is kept is the business of prefix_index.h.
//
// The state of a hybrid model is valid at exactly one length, so a prompt can be continued only
// from a length at which somebody took a snapshot. All offsets here count tokens from the start of
// the sequence and are multiples of the unit: the state after `offset` tokens.

namespace quartet::coordinator {

// Why a snapshot was taken, in rising order of how likely it is to be used again. When several
// reasons meet at one offset the last of them counts.
enum class SnapshotKind : uint8_t {
  kBoundary,         // a multiple of the block, inside a text
  kConversationEnd,  // the last unit of a prompt or of a turn: the next turn starts here
  kBranch,           // two texts were seen to part here
  kSystemPrefix,     // the end of a system prompt or of tools, as marked by the gateway
};

struct SnapshotPolicy {
  uint32_t unit_tokens = 256;
  uint32_t block_tokens = 2304;
  bool boundary = true;       // each multiple of the block
  bool last = true;           // the last unit before a prompt's end
  bool turn = true;           // the deepest unit when a sequence finishes
  bool branch = true;         // where prompts part
  bool system_prefix = true;  // the marked prefix
};

// Says what is wrong with a policy; empty if nothing is.
const char* SnapshotPolicyError(const SnapshotPolicy& policy);

struct SnapshotMark {
  uint32_t offset = 0;
  SnapshotKind kind = SnapshotKind::kBoundary;

  friend bool operator==(const SnapshotMark&, const SnapshotMark&) = default;
};

// What is known of a prompt before it is computed.
struct PromptMarks {
  uint32_t prompt_tokens = 0;  // after a preemption: all tokens to be absorbed again
  uint32_t cached_tokens = 0;  // the length of the hit: nothing up to here is computed
  uint32_t branch_point = 0;   // PrefixMatch::branch_point; 0 = none
  uint32_t system_prefix = 0;  // tokens of the marked prefix, any number; 0 = none
};

// The snapshots that a prefill chunk of the tokens [begin, end) should export, ascending, each
// offset once and in (begin, end]. The chunks of a prompt together export what one chunk of the
// whole would.
std::vector<SnapshotMark> PrefillSnapshots(const SnapshotPolicy& policy, const PromptMarks& marks,
                                           uint32_t begin, uint32_t end);

struct DecodeExport {
  uint32_t offset = 0;
  // True: a block boundary, to be published as soon as the text up to it is final. False: kept in a
  // scratch snapshot of the sequence in case the turn ends before the next unit does; the next
  // export replaces it.
  bool boundary = false;

  friend bool operator==(const DecodeExport&, const DecodeExport&) = default;
};

// The snapshot to export when a commit takes a decoding sequence from `before` absorbed tokens to
// `after`. A commit is shorter than a unit, so there is one at most.
std::optional<DecodeExport> DecodeSnapshot(const SnapshotPolicy& policy, uint32_t before,
                                           uint32_t after);

// The offset whose state is to be published (kConversationEnd) when a sequence finishes; 0 = none.
// absorbed_tokens: in the committed state. text_tokens: prompt and answer up to and including the
// stop position. A state can be newer than the text that was given out; it is never published then.
uint32_t TurnEnd(const SnapshotPolicy& policy, uint32_t absorbed_tokens, uint32_t text_tokens);

// Which snapshots of a finished conversation to give up. `marks`: all snapshots along it,
// ascending. Kept are branch points and marked prefixes, the last four of the others, and before
// those one per power of two of the distance from the last snapshot, in units. Of a range the
// oldest is kept: as the conversation grows it moves on into the next one, so that thinning after
// every turn leaves all ranges occupied. Returns offsets, ascending.
std::vector<uint32_t> SnapshotsToThin(const SnapshotPolicy& policy,
                                      std::span<const SnapshotMark> marks);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_SNAPSHOT_PLAN_H_
