// The JSON of answers, whole and in pieces.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_ANSWER_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_ANSWER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "services/gateway/openai/logprobs.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/routing/generation.h"

namespace quartet::gateway {

struct AnswerHead {
  std::string id;
  int64_t created_unix_s = 0;
  std::string model;
  std::string system_fingerprint;
};

// Writes one request's answer. Every method returns one line of JSON. Used by one thread at a time.
class AnswerWriter {
 public:
  AnswerWriter(AnswerHead head, AnswerStyle style, size_t choices);

  // Pieces, for streams. `usage` is that of all choices so far.
  // The first of a choice: the role for chats; the echoed prompt for completions that ask for it.
  std::string FirstChunk(uint32_t choice, const std::string* echo_text,
                         const std::vector<int32_t>* prompt_ids) const;
  bool NeedsFirstChunk() const { return style_.chat || style_.echo || style_.return_token_ids; }
  // One for each run of text of one kind; none if nothing is to be seen.
  std::vector<std::string> Chunks(const ChoiceUpdate& update);
  std::string UsageChunk() const;

  // For whole answers: keeps what Chunks would have sent.
  void Collect(const ChoiceUpdate& update);
  std::string Whole(const std::vector<std::string>& echo_texts,
                    const std::vector<std::vector<int32_t>>& prompt_ids) const;

  // Usage of all choices; a prompt counts once, however many choices it has.
  void NoteUsage(uint32_t choice, const ChoiceUsage& usage) { usage_[choice] = usage; }
  ChoiceUsage TotalUsage() const;

 private:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };
  struct Collected {
    std::string content;
    std::string reasoning;
    std::vector<Call> calls;
    std::vector<int32_t> ids;
    std::vector<ScoredToken> prompt;  // with log-probabilities of either
    std::vector<ScoredToken> output;
    ChoiceFinish finish;
  };
  // What a piece of a stream tells of the tokens that it was made from.
  struct Tokens {
    const std::vector<int32_t>* ids = nullptr;
    const std::vector<int32_t>* prompt_ids = nullptr;
    std::string logprobs;  // JSON; empty for null
  };
  std::string Chunk(uint32_t choice, std::string_view delta, const Tokens& tokens,
                    const ChoiceFinish* finish) const;
  std::string Open(std::string_view object) const;
  // Empty if there is nothing to show.
  std::string Delta(const text::TextPiece& piece) const;
  void AppendMessage(const Collected& collected, std::string* out) const;
  void AppendLogprobs(const Collected& collected, std::string* out) const;

  const AnswerHead head_;
  const AnswerStyle style_;
  std::vector<ChoiceUsage> usage_;
  std::vector<CompletionLogprobs> completion_logprobs_;  // of streams
  std::vector<Collected> collected_;
};

// A name for a tool call that no other has.
std::string NewCallId();
std::string UsageJson(const ChoiceUsage& usage);
// "stop", "length" or "tool_calls".
std::string_view FinishReasonName(const ChoiceFinish& finish);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_ANSWER_H_
