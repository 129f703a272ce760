#ifndef QUARTET_SERVICES_COORDINATOR_CORE_TYPES_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_TYPES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/coordinator/core/snapshot_plan.h"
#include "services/coordinator/core/unit_key.h"

// The plain structs that go in and out of the coordinator's core. They mirror the wire messages
// without depending on them, so that the core runs the same in production, in a simulator and in a
// replay.

namespace quartet::coordinator {

using TimeUs = int64_t;  // microseconds of whatever clock the driver uses; only differences count

// A chunk of a prompt has a multiple of this many tokens, unless it is the prompt's last one.
inline constexpr uint32_t kChunkMultiple = 64;

// Snapshots that a step's rows take before their ends, at most.
inline constexpr uint32_t kMaxInnerExports = 8;

// Likeliest ids that may be asked for at each place.
inline constexpr uint32_t kMaxTopLogprobs = 20;

// Drafts that a worker makes and verifies in one step at most.
inline constexpr uint32_t kMaxDraftTokens = 3;

// What decides whether a draft is accepted (worker.proto).
enum class Acceptance { kRejection, kCoupled };
// Where a page or a snapshot of the prefix cache is.
enum class CacheTier : uint8_t { kAbsent, kDevice, kHost, kDisk };

struct CoreConfig {
  uint64_t epoch = 1;
  uint32_t vocab_size = 0;
  uint32_t max_model_len = 0;  // tokens of prompt and answer together
  uint32_t slots = 0;          // live states = sequences that run at once
  uint32_t pages = 0;
  uint32_t page_tokens = 256;
  uint32_t max_num_batched_tokens = 512;  // of all rows of a step
  uint32_t prefill_chunk = 0;             // limit of one chunk; 0 = the token budget alone
  // Of live states, for the prefix cache; 0 = no cache. With it a page is a unit of the cache.
  uint32_t snapshots = 0;
  uint64_t page_bytes = 0;  // on one rank, as snapshot_bytes; their ratio decides what to evict
  uint64_t snapshot_bytes = 0;
  SnapshotPolicy snapshot_policy;       // its unit is a page
  uint32_t num_speculative_tokens = 0;  // drafts in a step, at most; 0 = no speculation
  bool spec_dynamic = true;             // fewer drafts where that is faster
  Acceptance spec_acceptance = Acceptance::kRejection;
  // The cache's tiers below the device; 0 pages = no such tier. What one of them holds comes back
  // to the device in steps that copy at most about so many bytes (of one rank) each.
  uint32_t host_pages = 0;
  uint32_t host_snapshots = 0;
  uint32_t disk_pages = 0;  // needs the host's
  uint32_t disk_snapshots = 0;
  uint64_t copy_bytes_per_step = uint64_t{256} << 20;
  uint32_t max_queued_requests = 64;
  uint64_t max_queued_tokens = 524288;
  uint32_t step_deadline_ms = 60000;
  // Plans that the workers hold at once, at most: with 2 they need not wait for the next one.
  uint32_t steps_in_flight = 1;
  // While sequences decode: how long a step with prompt rows may take by the cost model (0 = any
  // time), and which share of the time belongs to steps without, from 0 to below 1.
  uint32_t prefill_quantum_ms = 0;
  double min_decode_share = 0;
  // Of a key's prompts the shortest goes first, until another was overtaken so often or has waited
  // so long.
  uint32_t max_overtakes = 8;
  uint32_t max_wait_ms = 20000;
  // How long a request may wait for its place, and take as a whole; 0 = for ever.
  uint32_t queue_timeout_ms = 0;
  uint32_t total_timeout_ms = 0;
};

// Says what is wrong with a configuration; empty if nothing is.
std::string ConfigError(const CoreConfig& config);

struct Sampling {
  float temperature = 0;
  float top_p = 1;
  int32_t top_k = 0;
  float min_p = 0;
  uint64_t seed = 0;
  bool seeded = false;  // by the client: drafts must not change the text of the seed
  uint32_t choice = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  std::vector<std::pair<int32_t, float>> logit_bias;  // by id
  uint32_t min_tokens = 0;
  std::vector<int32_t> banned_ids;

  bool penalises() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

// How long the model may reason (sampling.proto).
struct ThinkingBudget {
  uint32_t max_tokens = 0;
  int32_t begin_id = -1;
  std::vector<int32_t> end_ids;
  bool open = false;
};

// The likeliest ids at some places, equally many at each, one place after the other.
struct TopLogprobs {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

enum class RequestClass : uint8_t {
  kInteractive,
  kBatch,  // has what the others leave
};

struct Request {
  std::string request_id;
  std::vector<int32_t> prompt_ids;
  Sampling sampling;
  uint32_t max_tokens = 0;  // 0 = what is left of the context
  std::vector<int32_t> end_ids;
  std::vector<int32_t> stop_ids;
  int32_t first_padding_id = 0;  // ids from here on are never sampled; 0 = none
  bool prompt_logprobs = false;
  bool logprobs = false;
  uint32_t top_logprobs = 0;  // beside each of them, and each of the prompt's
  uint32_t prompt_top_logprobs = 0;
  bool ignore_eos = false;
  std::optional<ThinkingBudget> thinking;
  // What may be drawn depends on what was said: each row that samples needs masks (allow_masks).
  bool constrained = false;
  // Whose it is: keys share the engine evenly. 0 = of nobody in particular.
  uint64_t fair_key = 0;
  RequestClass request_class = RequestClass::kInteractive;
  // From the submit on: when its first token, and its last, is of no use any more. 0 = never.
  uint32_t first_token_deadline_ms = 0;
  uint32_t total_deadline_ms = 0;
  // Names of the prompt's full units and what they are chained to; without either the request
  // neither uses nor fills the prefix cache.
  UnitKey cache_root;
  std::vector<UnitKey> unit_keys;
  // How many tokens of the prompt other conversations begin with too, as far as is known.
  uint32_t system_prefix_tokens = 0;
  // Begins behind what is cached, and leaves nothing in the cache.
  bool cache_read_only = false;

  // Whether its draws depend on the text itself, not only on the model's state.
  bool needs_text() const { return sampling.penalises() || thinking.has_value(); }
  bool has_keys() const { return cache_root != UnitKey() || !unit_keys.empty(); }
};

struct SubmitOutcome {
  enum class Kind {
    kAccepted,
    kInvalid,      // the request can never be served; `message` says what would be right
    kQueueFull,    // later, perhaps
    kTooLate,      // it would come after its deadline; later, perhaps
    kUnavailable,  // admissions are stopped
  };
  Kind kind = Kind::kAccepted;
  uint64_t id = 0;  // names the request in every later call and output; never reused
  std::string message;
  // With kQueueFull and kTooLate: when what is before it will be done, as far as one can tell, 1 to
  // 60 s, and up to a fifth of it more or less so that not all come back at once.
  uint32_t retry_after_ms = 0;
};

// ---- what the workers are told ---------------------------------------------------------------

// Where a sequence begins when a prefix of it is cached.
struct Resume {
  uint32_t snapshot = 0;
  uint32_t n_tokens = 0;
  std::vector<uint32_t> pages;  // shared
  std::vector<int32_t> tokens;  // all of them where the draws depend on them
};

struct SequenceOpen {
  uint64_t seq_uid = 0;
  uint32_t slot = 0;
  Sampling sampling;
  std::vector<int32_t> end_ids;  // not drawn before sampling.min_tokens
  int32_t first_padding_id = 0;
  uint32_t prompt_tokens = 0;
  std::optional<ThinkingBudget> thinking;
  std::optional<Resume> resume;
  Acceptance acceptance = Acceptance::kRejection;
};

// The state after the row's first `offset` tokens goes into a snapshot.
struct SnapshotExport {
  uint32_t offset = 0;
  uint32_t snapshot = 0;
};

struct PlanRow {
  enum class Kind { kPrefill, kDecode, kVerify };
  uint64_t seq_uid = 0;
  uint32_t slot = 0;
  Kind kind = Kind::kPrefill;
  std::vector<int32_t> tokens;  // empty with from_device
  bool from_device = false;     // the token last drawn for this sequence
  uint32_t position = 0;        // of the first token
  uint32_t n_tokens = 0;
  std::vector<uint32_t> new_pages;  // appended to the sequence's page table before this row
  bool sample = false;
  std::vector<int32_t> logprob_targets;  // none, or [i] follows tokens[i] for each token
  bool want_logprob = false;
  uint32_t top_logprobs = 0;         // beside each drawn token
  uint32_t target_top_logprobs = 0;  // beside each target
  // What may be drawn (worker.proto): none, or one for each draw. The core leaves them to its
  // driver, which knows the grammar of the request `masked_id`; 0 = the row needs none.
  std::vector<std::string> allow_masks;
  uint64_t masked_id = 0;
  std::vector<SnapshotExport> exports;
  // Speculation. kVerify: the token last drawn and so many drafts of the step before.
  uint32_t draft_tokens = 0;
  bool draft = false;        // the drafter sees this row's tokens
  int32_t mtp_next = 0;      // the token behind the row's last one, where that is known
  uint32_t draft_chain = 0;  // drafts to make for the next step
};

// The accepted tokens of the last window go into the live state; the state after `export_at` tokens
// (0 = none) on the way goes into the snapshot.
struct Commit {
  uint64_t seq_uid = 0;
  uint32_t export_at = 0;
  uint32_t snapshot = 0;
};

// What it takes to enter a unit of the prefix cache into an index again after a restart.
struct UnitOrigin {
  UnitKey root;    // of the key domain
  UnitKey parent;  // the unit before it, or the root
  std::vector<int32_t> tokens;
};

// An object of the prefix cache moves from a place of one tier to a place of another. From the
// device to the device: two snapshots are compared and nothing moves; kChecksum if they differ by
// more than rounding does.
struct TierCopy {
  enum class Kind { kPage, kSnapshot };
  Kind kind = Kind::kPage;
  CacheTier from = CacheTier::kAbsent;
  uint32_t from_place = 0;
  CacheTier to = CacheTier::kAbsent;
  uint32_t to_place = 0;
  // Of the unit that the page holds, or after which the state is; and the tokens up to its end.
  UnitKey key;
  uint32_t n_tokens = 0;
  UnitOrigin origin;  // to the disk only
};

// An object that lies in a tier from the life before.
struct CacheEntry {
  TierCopy::Kind kind = TierCopy::Kind::kPage;
  uint32_t place = 0;
  UnitKey key;
  uint32_t n_tokens = 0;
  UnitOrigin origin;
};

// What all ranks are told at once: first the closes, then the opens, the copies, the commits and
// the rows. Without copies, commits and rows there is no step: nothing is answered and step_id is
// 0.
struct StepPlan {
  uint64_t epoch = 0;
  uint64_t step_id = 0;
  uint32_t deadline_ms = 0;
  std::vector<uint64_t> closes;  // seq_uids
  std::vector<SequenceOpen> opens;
  std::vector<PlanRow> rows;
  std::vector<Commit> commits;
  std::vector<TierCopy> copies;
  uint64_t plan_hash = 0;

  bool is_step() const { return !rows.empty() || !commits.empty() || !copies.empty(); }
};

// ---- what comes back -------------------------------------------------------------------------

struct RowOutcome {
  uint64_t seq_uid = 0;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<float> target_logprobs;
  std::vector<int32_t> drafts;
  std::string error;  // only this row failed
  TopLogprobs top;
  TopLogprobs target_top;
};

// In rising order of badness: of several ranks the worst counts.
enum class CopyOutcome : uint8_t {
  kDone,
  kMissing,   // a rank's place did not hold it
  kChecksum,  // a rank holds other bytes than it once stored
};

struct StepOutcome {
  uint64_t epoch = 0;
  uint64_t step_id = 0;
  std::vector<RowOutcome> rows;
  std::vector<CopyOutcome> copies;  // of the plan's
};

// ---- what requests are told ------------------------------------------------------------------

enum class FinishReason { kEndToken, kStopId, kLength, kTruncated };

// When a request reached each stage; 0 = not yet.
struct RequestTimes {
  TimeUs submitted = 0;
  TimeUs admitted = 0;
  TimeUs first_token = 0;
  TimeUs last_token = 0;
};

struct Output {
  enum class Kind {
    kAdmitted,
    kTokens,
    kFinished,   // terminal
    kCancelled,  // terminal
    kFailed,     // terminal
    kExpired,    // terminal: a deadline has passed
  };
  uint64_t id = 0;
  Kind kind = Kind::kTokens;
  std::vector<int32_t> tokens;         // kTokens
  std::vector<float> logprobs;         // kTokens, as tokens
  std::vector<float> prompt_logprobs;  // kTokens: the next piece
  TopLogprobs top;                     // beside logprobs
  TopLogprobs prompt_top;              // beside prompt_logprobs
  FinishReason reason = FinishReason::kLength;
  int32_t stop_id = 0;
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt, when it was first admitted
  std::string message;         // kFailed, kExpired
  RequestTimes times;          // as before this output; kTokens: after it
  TimeUs previous_token = 0;   // kTokens: when the token before came; 0 = this is the first
  // kTokens, the first: when it was expected, as of its submit; 0 = there was nothing to go by.
  TimeUs expected_first_token = 0;

  bool terminal() const { return kind != Kind::kAdmitted && kind != Kind::kTokens; }
};

// Of one tier of the prefix cache: gauges, then counters since the start.
struct TierLedger {
  uint32_t pages = 0;
  uint32_t pages_size = 0;
  uint32_t snapshots = 0;
  uint32_t snapshots_size = 0;
  uint64_t page_bytes = 0;  // of all pages here, on each rank; the next one of all snapshots
  uint64_t snapshot_bytes = 0;
  uint64_t snapshots_published = 0;  // came here
  uint64_t snapshots_restored = 0;   // were used: by a sequence, or by the tier above
  uint64_t pages_restored = 0;       // went back to the tier above
  uint64_t snapshots_evicted = 0;    // made room for others
  uint64_t snapshots_discarded = 0;  // were found to be no good
  uint64_t pages_discarded = 0;      // the same, with what came after them
  uint64_t snapshots_checksum_failed = 0;
  uint64_t pages_checksum_failed = 0;
};

// The core's ledger: gauges are read from it, never counted beside it.
struct Ledger {
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t waiting_tokens = 0;
  uint32_t paused = 0;  // of running
  uint32_t steps_in_flight = 0;
  uint32_t slots_used = 0;
  uint32_t slots_size = 0;
  uint32_t pages_used = 0;
  uint32_t pages_size = 0;
  uint64_t accepted = 0;
  uint64_t finished = 0;
  uint64_t cancelled = 0;
  uint64_t failed = 0;
  uint64_t expired = 0;
  uint64_t repetitions_suspected = 0;  // answers that ended in a loop
  uint64_t states_condemned = 0;       // cached states that differed when they were computed again
  uint64_t preemptions = 0;
  uint64_t recomputed_tokens = 0;   // that had been absorbed before a preemption
  uint64_t overtakes = 0;           // of a prompt by one of its key that came later
  uint64_t no_progress = 0;         // admitted prompts that went without a row for too many plans
  uint64_t rows_awaiting_mask = 0;  // rows that waited for the tokens that their mask depends on
  uint64_t steps = 0;               // planned
  uint64_t prompt_tokens = 0;       // of requests whose prompt is absorbed, each counted once
  uint64_t generated_tokens = 0;    // sampled and given out
  uint64_t void_rows = 0;           // computed, but their request had ended meanwhile
  // Of the prefix cache.
  uint32_t cached_pages = 0;     // of pages_used
  uint32_t evictable_pages = 0;  // of those, what is given up when somebody needs it
  uint32_t snapshots_used = 0;
  uint32_t snapshots_size = 0;
  uint64_t prefix_query_tokens = 0;  // of prompts that were looked for
  uint64_t prefix_hit_tokens = 0;
  uint64_t prefix_lost_tokens = 0;  // shared with a cached text, but behind its last snapshot
  TierLedger device_tier;
  TierLedger host_tier;
  TierLedger disk_tier;
  uint32_t copies_waiting = 0;   // paths on their way between tiers
  uint64_t copies_given_up = 0;  // paths that were not written to the tier below, for lack of room
  // Of speculation. What lies behind the end of an answer counts nowhere.
  uint64_t spec_drafts = 0;                                     // windows with drafts in them
  uint64_t spec_draft_tokens = 0;                               // drafts in those
  uint64_t spec_accepted_tokens = 0;                            // of them
  std::array<uint64_t, kMaxDraftTokens> spec_accepted_at = {};  // by place in the window
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_TYPES_H_
