// The gateway's line to a coordinator: token ids out, token ids in.
#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_ENGINE_CLIENT_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_ENGINE_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quartet::gateway {

struct Sampling {
  float temperature = 0;  // 0: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;  // 0: off
  uint64_t seed = 0;
  bool seeded = false;  // by the client, who expects the text of the seed again
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> banned_ids;
  uint32_t min_tokens = 0;
};

// How long the model may reason (sampling.proto).
struct ThinkingBudget {
  uint32_t max_tokens = 0;
  int32_t begin_id = -1;
  std::vector<int32_t> end_ids;
  bool open = false;
};

// Which log-probabilities are wanted, and how many of the likeliest ids beside each.
struct LogprobsWanted {
  bool output = false;
  uint32_t output_top = 0;
  bool prompt = false;
  uint32_t prompt_top = 0;
};

// How a request is scheduled among others.
struct Scheduling {
  uint64_t fair_key = 0;  // of FairKey
  bool batch = false;     // has what the others leave
  // From the submit on, when the first token and the last are of no use any more; zero = never.
  absl::Duration first_token_deadline;
  absl::Duration total_deadline;
};

struct SequenceRequest {
  std::string request_id;
  std::vector<int32_t> prompt_ids;
  Sampling sampling;
  uint32_t system_prefix_tokens = 0;  // of the prompt, which others begin with too
  uint32_t choice = 0;                // index among the choices of one prompt
  uint32_t max_tokens = 1;            // at least 1
  std::vector<int32_t> end_ids;
  std::vector<int32_t> stop_ids;
  int32_t first_padding_id = 0;
  bool ignore_eos = false;
  LogprobsWanted logprobs;
  std::optional<ThinkingBudget> thinking;
  std::string grammar;  // what the answer must look like, serialised; empty: anything
  std::string cache_salt;
  bool cache_read_only = false;
  Scheduling scheduling;
};

struct IdLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// Of a token, and of the likeliest ids in its place.
struct PlaceLogprobs {
  float logprob = 0;
  std::vector<IdLogprob> top;
};

struct SequenceTokens {
  std::span<const int32_t> ids;                // of the output
  std::vector<PlaceLogprobs> logprobs;         // as ids, if they are wanted
  std::vector<PlaceLogprobs> prompt_logprobs;  // the next piece; the prompt's first token has none
};

// How a sequence ended. With a status that is not OK nothing else counts.
struct SequenceEnd {
  enum class Reason { kEndToken, kStopId, kLength, kTruncated };
  absl::Status status;  // may say when to try again (retry_after.h)
  Reason reason = Reason::kEndToken;
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;  // the end token included
  uint32_t cached_tokens = 0;
  int32_t stop_id = 0;  // with kStopId
};

// Told about one sequence: OnAdmitted at most once, then OnTokens any number of times, and OnEnd
// exactly once, whatever happens. Called one at a time, on the client's threads; must not block.
class SequenceObserver {
 public:
  virtual ~SequenceObserver() = default;
  virtual void OnAdmitted(uint32_t cached_tokens) = 0;
  virtual void OnTokens(SequenceTokens tokens) = 0;
  virtual void OnEnd(const SequenceEnd& end) = 0;
};

// A sequence that was handed to the engine. All methods are thread safe, do not block and never
// call the observer themselves. Letting go of the handle changes nothing.
class Sequence {
 public:
  virtual ~Sequence() = default;
  // The engine drops the sequence; OnEnd (CANCELLED) follows unless the end was already on its way.
  virtual void Cancel() = 0;
  // Of the sampled tokens the first `n_tokens` count.
  virtual void Truncate(uint32_t n_tokens) = 0;
  // While paused no more than one further event is taken from the engine, which is told to make no
  // further tokens.
  virtual void SetPaused(bool paused) = 0;
};

// What is known about the engine, at most a poll interval old.
struct EngineState {
  bool ready = false;
  std::string not_ready_reason = "the coordinator has not answered yet";
  uint32_t max_model_len = 0;
  uint32_t max_num_seqs = 0;
  uint32_t vocab_size = 0;
  uint64_t epoch = 0;
  std::string checkpoint_digest;
};

// Thread safe. Destroying it ends all sequences (their OnEnd has been called when the destructor
// returns).
class EngineClient {
 public:
  virtual ~EngineClient() = default;
  // Does not block; errors come through OnEnd.
  virtual std::shared_ptr<Sequence> Submit(const SequenceRequest& request,
                                           std::shared_ptr<SequenceObserver> observer) = 0;
  virtual EngineState state() const = 0;
  // A serialised grammar::Vocabulary, for coordinators that hold answers to grammars
  // (EngineClientOptions::gives_vocabulary).
  virtual void SetVocabulary(std::string vocabulary) = 0;
  // Calls `done`, in this thread or another, with the coordinator's metrics, at most 1 s old; empty
  // if it does not answer within half a second.
  virtual void FetchMetrics(std::function<void(std::string)> done) = 0;
  // The last ones known if they are at most 1 s old, else empty. Does not block.
  virtual std::string CachedMetrics() const = 0;
};

struct EngineClientOptions {
  std::string address;  // host:port or unix:/path
  absl::Duration poll_interval = absl::Milliseconds(500);
  absl::Duration poll_timeout = absl::Seconds(2);
  // A coordinator counts as ready only when it was offered the vocabulary.
  bool gives_vocabulary = false;
  // Called on the polling thread whenever readiness changes.
  std::function<void(const EngineState&)> on_change;
};

// Connects in the background and again whenever the connection breaks.
std::unique_ptr<EngineClient> ConnectEngine(EngineClientOptions options);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_ENGINE_CLIENT_H_
