// A coordinator for tests of gateways: speaks engine.proto over real gRPC, and what it "samples" is
// written down before.
#ifndef QUARTET_TESTS_SUPPORT_SCRIPTED_ENGINE_H_
#define QUARTET_TESTS_SUPPORT_SCRIPTED_ENGINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quartet::testing {

// What became of one sequence.
struct SeenSequence {
  std::string request_id;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> end_ids;
  std::vector<int32_t> stop_ids;
  int32_t first_padding_id = 0;
  uint32_t max_tokens = 0;
  bool ignore_eos = false;
  float temperature = 0;
  float top_p = 0;
  float min_p = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 0;
  uint32_t min_tokens = 0;
  std::map<int32_t, float> logit_bias;
  std::vector<int32_t> banned_ids;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  bool prompt_logprobs = false;
  uint32_t prompt_top_logprobs = 0;
  std::optional<uint32_t> thinking_tokens;
  bool thinking_open = false;
  std::vector<int32_t> thinking_end_ids;
  std::string grammar;
  std::string cache_salt;
  bool cache_read_only = false;
  uint64_t fair_key = 0;
  bool batch = false;
  uint32_t first_token_deadline_ms = 0;
  uint32_t total_deadline_ms = 0;

  size_t tokens_sent = 0;
  std::optional<uint32_t> truncated;
  bool paused = false;  // as the gateway said last
  int resumes = 0;
  bool cancelled = false;  // by the gateway, before the end
  bool ended = false;
};

// The log-probability that the engine tells of any token at a place of prompt or output, from 0.
inline float ScriptedLogprob(size_t place) {
  return -0.25f * static_cast<float>(place);
}
// The likeliest ids beside a token are those above it, each half less likely than the one before.

// How a sequence is answered. Like a coordinator, the engine ends it at an end id, a stop id or
// max_tokens.
struct SequenceScript {
  std::vector<int32_t> ids;
  size_t ids_per_event = 1;
  bool repeat =
      false;  // start again when `ids` are used up, else finish as if an end token had come
  uint32_t cached_tokens = 0;
  absl::Status refusal;           // not OK: the call ends with it, without admission
  uint32_t retry_after_ms = 0;    // said before a refusal; 0 = not
  bool hold_admission = false;    // wait for Release() before admitting
  std::optional<size_t> hold_at;  // wait for Release() before the token with this index
  std::optional<size_t> fail_at;  // end with `failure` before the token with this index
  absl::Status failure = absl::AbortedError("a worker was lost");
};

// Thread safe. Destroying it breaks all calls.
class ScriptedEngine {
 public:
  // `script` is called for every sequence, on a gRPC thread.
  using Script = std::function<SequenceScript(const SeenSequence&)>;
  // `port` 0 takes a free one.
  static std::unique_ptr<ScriptedEngine> Start(Script script, int port = 0);
  virtual ~ScriptedEngine() = default;

  virtual std::string address() const = 0;
  virtual void SetReady(bool ready, const std::string& reason = "") = 0;
  virtual void SetMaxModelLen(uint32_t tokens) = 0;
  virtual void SetMetrics(const std::string& text) = 0;
  // What was put last; empty if nothing was.
  virtual std::string vocabulary() const = 0;
  // Lets everything that holds now or later go on.
  virtual void Release() = 0;
  virtual std::vector<SeenSequence> seen() const = 0;
  // Waits until the sequences fulfil `done`; false after `timeout`.
  virtual bool WaitFor(const std::function<bool(const std::vector<SeenSequence>&)>& done,
                       absl::Duration timeout = absl::Seconds(20)) = 0;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_SCRIPTED_ENGINE_H_
