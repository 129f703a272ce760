// From sampled ids to what the client sees: the detokeniser, then the parts of the answer.
#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_OUTPUT_PIPELINE_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_OUTPUT_PIPELINE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "services/gateway/text/answer_text.h"
#include "services/gateway/text/detokenizer.h"
#include "services/gateway/text/tokenizer.h"

namespace quartet::gateway {

struct OutputOptions {
  text::AnswerTextOptions text;
  bool skip_special_tokens = true;
  // Tokens that end the output; they count, their text is not shown. Empty with ignore_eos.
  std::vector<int32_t> end_ids;
  std::vector<int32_t> stop_ids;
  // In the text of so many tokens, the first ones, no stop string is looked for.
  uint32_t min_tokens = 0;
};

// One choice's output. The text does not depend on how the ids were cut into calls. Used by one
// thread at a time; the tokenizer must outlive it.
class OutputPipeline {
 public:
  OutputPipeline(const text::Tokenizer* tokenizer, OutputOptions options);

  struct Output {
    std::vector<text::TextPiece> pieces;  // neighbours of one kind are joined
    std::vector<int32_t> ids;             // the ids that count, of those given
    std::vector<bool> in_content;         // as ids: content before the token and behind it
  };
  // Feeds ids in the order in which they were sampled. Once stopped() nothing more is taken.
  void Append(std::span<const int32_t> ids, Output* out);
  // The engine has ended the sequence: releases what was held back. May find a stop string yet.
  void Finish(text::OutputEnd end, Output* out);

  // The text ended the answer (AnswerText::stopped). Of the tokens the first completion_tokens()
  // count.
  bool stopped() const { return text_.stopped(); }
  const text::AnswerText& text() const { return text_; }
  uint32_t completion_tokens() const { return completion_tokens_; }
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  // Whether the text of such a token is part of the output.
  bool IsShown(int32_t id) const;

 private:
  void NoteStop(Output* out);

  struct Mark {
    uint64_t searched_bytes;  // when the token was done
    uint32_t reasoning_tokens;
  };

  const OutputOptions options_;
  const text::Tokenizer* const tokenizer_;
  text::Detokenizer detokenizer_;
  text::AnswerText text_;
  std::vector<Mark> marks_;  // of each token; kept only if there are stop strings
  uint32_t completion_tokens_ = 0;
  uint32_t reasoning_tokens_ = 0;
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_OUTPUT_PIPELINE_H_
