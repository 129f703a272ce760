// From sampled ids to what the client sees: detokeniser, reasoning split, stop strings.
#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_OUTPUT_PIPELINE_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_OUTPUT_PIPELINE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/gateway/text/detokenizer.h"
#include "services/gateway/text/reasoning.h"
#include "services/gateway/text/stop_strings.h"
#include "services/gateway/text/tokenizer.h"

namespace quartet::gateway {

struct OutputOptions {
  bool split_reasoning = false;  // else all text is content
  bool opens_think = false;      // with split_reasoning: the output starts as reasoning
  bool tools_active = false;
  bool skip_special_tokens = true;
  std::vector<std::string> stop;  // looked for in content only
  bool include_stop_string = false;
  // Tokens that end the output; they count, their text is not shown. Empty with ignore_eos.
  std::vector<int32_t> end_ids;
  std::vector<int32_t> stop_ids;
};

// One choice's output. The text does not depend on how the ids were cut into calls. Used by one
// thread at a time; the tokenizer must outlive it.
class OutputPipeline {
 public:
  OutputPipeline(const text::Tokenizer* tokenizer, OutputOptions options);

  struct Output {
    std::vector<text::TextPiece> pieces;  // neighbours of one kind are joined
    std::vector<int32_t> ids;             // the ids that count, of those given
  };
  // Feeds ids in the order in which they were sampled. Once stopped() nothing more is taken.
  void Append(std::span<const int32_t> ids, Output* out);
  // The engine has ended the sequence: releases what was held back. May find a stop string yet.
  void Finish(Output* out);

  // A stop string was found. Of the tokens the first completion_tokens() count.
  bool stopped() const { return stopped_; }
  const std::string& stop_string() const { return matcher_.stop_string(); }
  uint32_t completion_tokens() const { return completion_tokens_; }
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void Feed(std::string_view text, bool at_end, Output* out);
  void NoteStop(Output* out);

  struct Mark {
    uint64_t content_bytes;  // fed to the matcher when the token was done
    uint32_t reasoning_tokens;
  };

  OutputOptions options_;
  text::Detokenizer detokenizer_;
  std::optional<text::ReasoningSplitter> splitter_;
  text::StopMatcher matcher_;
  std::vector<text::TextPiece> split_;
  std::vector<Mark> marks_;  // of each token; kept only if there are stop strings
  uint64_t content_bytes_ = 0;
  uint32_t completion_tokens_ = 0;
  uint32_t reasoning_tokens_ = 0;
  bool stopped_ = false;
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_OUTPUT_PIPELINE_H_
