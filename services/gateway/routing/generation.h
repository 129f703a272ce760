// A request at work: its choices, each a sequence of the engine and a pipeline that makes text of
// its ids.
#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_GENERATION_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_GENERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "services/gateway/routing/engine_client.h"
#include "services/gateway/routing/output_pipeline.h"
#include "services/gateway/text/model_text.h"

namespace quartet::gateway {

struct ChoicePlan {
  std::vector<int32_t> prompt_ids;
  // 0: nothing is generated, and the engine is asked only for log-probabilities of the prompt.
  uint32_t max_tokens = 1;
  bool opens_think = false;
  uint32_t system_tokens = 0;  // of the prompt: the system prompt and the tools
  uint32_t choice =
      0;  // index among the choices of one prompt: part of the key of the random numbers
};

// What a request asks for in vain, for the log.
struct IgnoredFields {
  std::vector<std::string> samplers;  // that other servers have
  std::vector<std::string> unknown;
};

struct GenerationPlan {
  std::string request_id;
  IgnoredFields ignored;
  std::vector<ChoicePlan> choices;  // at least one
  Sampling sampling;
  OutputOptions output;  // text.opens_think comes from the choice
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  LogprobsWanted logprobs;
  std::optional<ThinkingBudget> thinking;  // `open` comes from the choice
  std::string grammar;                     // serialised; each choice keeps to it
  std::string cache_salt;
  bool cache_read_only = false;
  Scheduling scheduling;
  std::shared_ptr<void> held_tokens;  // KeyGate::HoldTokens; let go when the generation ends
};

// kCall: the one call that was allowed is complete.
enum class FinishKind { kEndToken, kStopId, kStopString, kCall, kLength };

struct ChoiceFinish {
  FinishKind kind = FinishKind::kEndToken;
  std::string stop_string;  // with kStopString
  int32_t stop_id = 0;      // with kStopId
  uint32_t complete_calls = 0;
};

// How a choice ended: as its text says, if that ended it, else as `engine` says.
ChoiceFinish FinishOf(const text::AnswerText& text, ChoiceFinish engine);

struct ChoiceUsage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t reasoning_tokens = 0;
  uint32_t cached_tokens = 0;
};

struct ScoredId {
  int32_t id = 0;
  std::string bytes;  // that the token stands for; they may be part of a character
  float logprob = 0;
};

// A token of the prompt or the output with its log-probability.
struct ScoredToken : ScoredId {
  bool first = false;    // of the prompt: it has no log-probability
  bool shown = true;     // its text is part of the prompt's or the output's
  bool content = false;  // ... and of what is neither reasoning nor a call
  std::vector<ScoredId> top;
};

struct ChoiceUpdate {
  uint32_t choice = 0;
  std::vector<text::TextPiece> pieces;
  std::vector<int32_t> ids;
  std::vector<ScoredToken> scored;         // as ids, if it is wanted
  std::vector<ScoredToken> scored_prompt;  // the next piece, from the first token on
  ChoiceUsage usage;                       // so far
  std::optional<ChoiceFinish> finish;      // in the choice's last update
};

// Told about a generation, one call at a time, on any thread; must not block. Either OnFinished
// (all choices have finished) or OnError comes last, exactly once, unless the generation was
// cancelled: then nothing more comes.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void OnAdmitted(uint32_t choice, const ChoiceUsage& usage) = 0;
  // False: whoever reads the output is slow; the generation pauses itself until SetPaused(false).
  virtual bool OnUpdate(ChoiceUpdate update) = 0;
  virtual void OnFinished() = 0;
  // `admitted`: the engine had begun to work on some choice.
  virtual void OnError(const absl::Status& status, bool admitted) = 0;
};

// Thread safe; none of the methods blocks.
class Generation {
 public:
  virtual ~Generation() = default;
  // The client has gone: all sequences are dropped and the observer is let go.
  virtual void Cancel() = 0;
  // Ends with an error that the observer is told.
  virtual void Abort(const absl::Status& status) = 0;
  // Whether to take more from the engine.
  virtual void SetPaused(bool paused) = 0;
};

// Submits all choices. The observer may be called before this returns. Client and model must
// outlive the generation's end.
std::shared_ptr<Generation> StartGeneration(EngineClient* engine,
                                            std::shared_ptr<const text::ModelText> model,
                                            GenerationPlan plan,
                                            std::shared_ptr<GenerationObserver> observer);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_GENERATION_H_
