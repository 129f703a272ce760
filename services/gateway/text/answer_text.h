// From a model's text to the parts of an answer: the split, then what ends the answer early.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_ANSWER_TEXT_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_ANSWER_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/output_splitter.h"
#include "services/gateway/text/stop_strings.h"
#include "services/gateway/text/text_piece.h"

namespace quartet::text {

struct AnswerTextOptions {
  bool split = false;                  // else all text is content
  bool opens_think = false;            // with split: the text starts as reasoning
  std::shared_ptr<const Tools> tools;  // with split: those that may be called; null for none
  bool one_call = false;               // the answer ends with the first complete call
  std::vector<std::string> stop;       // looked for in each run of content
  bool stop_in_reasoning = false;      // ... and of reasoning
  bool include_stop_string = false;
  // An answer that ends by itself with nothing but reasoning says it once more as content.
  bool nonempty_content = false;
};

// One choice's text, fed in pieces of any size; the result does not depend on the cuts. Used by one
// thread at a time.
class AnswerText {
 public:
  explicit AnswerText(AnswerTextOptions options);

  // Appends the pieces that can be released now to `out`; neighbours of one kind are joined. Once
  // stopped() nothing more is taken.
  void Append(std::string_view text, std::vector<TextPiece>* out);
  // The end of the text: releases what was held back. May find a stop string yet.
  void Finish(OutputEnd end, std::vector<TextPiece>* out);

  // Whether stop strings are looked for in what is released from now on; they are unless this is
  // told.
  void set_stops_active(bool active) { stops_active_ = active; }

  // A stop string was found, or the one call is complete.
  bool stopped() const { return matcher_.stopped() || call_done_; }
  bool stopped_by_string() const { return matcher_.stopped(); }
  const std::string& stop_string() const { return matcher_.stop_string(); }
  uint32_t complete_calls() const { return complete_calls_; }
  bool in_reasoning() const { return splitter_ && splitter_->in_reasoning(); }
  bool in_content() const { return !splitter_ || splitter_->in_content(); }
  // Bytes so far of the text in which stop strings are looked for, and, where one was found, up to
  // its end: it may have been found some time after it had ended.
  uint64_t searched_bytes() const { return searched_bytes_; }
  uint64_t stop_end() const { return matcher_.match_end(); }

 private:
  void Take(std::vector<TextPiece>* out);
  void Search(const TextPiece& piece, std::vector<TextPiece>* out);

  const AnswerTextOptions options_;
  std::optional<OutputSplitter> splitter_;
  StopMatcher matcher_;
  std::vector<TextPiece> split_;
  TextKind run_ = TextKind::kContent;  // of the text that the matcher holds
  uint64_t searched_bytes_ = 0;
  bool only_reasoning_ = true;
  std::string reasoning_;  // all of it; kept only for nonempty_content
  uint32_t complete_calls_ = 0;
  bool call_done_ = false;
  bool stops_active_ = true;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_ANSWER_TEXT_H_
