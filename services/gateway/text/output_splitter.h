// Splits a model's output into reasoning, content and tool calls.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_OUTPUT_SPLITTER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_OUTPUT_SPLITTER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/detokenizer.h"
#include "services/gateway/text/text_piece.h"
#include "services/gateway/text/tool_call.h"
#include "services/gateway/text/tool_schema.h"

namespace quartet::text {

// One choice's output, fed in pieces of any size. What the pieces say together does not depend on
// how the text was cut. Text is held back only while it could be the beginning of a tag that counts
// in the current state, or while its meaning depends on what follows. Used by one thread at a time.
//
// * Reasoning ends at </think>, and, if tools are active, at <tool_call>.
// * A <think> as the very first text of reasoning is dropped: some models repeat the one that the
//   prompt ends with.
// * In content <think> starts reasoning again, and a stray </think> is dropped; so is a stray
//   </tool_call> if tools are active.
// * White space at the beginning of a run of content is held until something follows. It is dropped
//   before a call; a run that has nothing else and follows a call is dropped too.
class OutputSplitter {
 public:
  // `opens_think`: the prompt ended inside a reasoning block (ChatPrompt::opens_think). `tools`:
  // those that may be called; null if tools are not active, and then the tags of calls are text.
  OutputSplitter(bool opens_think, std::shared_ptr<const Tools> tools);

  // Appends the pieces that can be released now; neighbours of one kind are joined.
  void Append(std::string_view text, std::vector<TextPiece>* out);
  // The end of the output: releases what is held. Reasoning that was never closed stays reasoning.
  void Finish(OutputEnd end, std::vector<TextPiece>* out);

  // Whether the text fed so far ends in reasoning. A token counts as a reasoning token if this was
  // true before it was fed.
  bool in_reasoning() const { return state_ == State::kStart || state_ == State::kReasoning; }
  bool in_content() const { return state_ == State::kContent; }

 private:
  enum class State { kStart, kReasoning, kContent, kCall };

  void Process(std::vector<TextPiece>* out);
  // Each goes on in its state: true if `text` may hold more for the next one.
  bool PassReasoning(std::string_view* text, std::vector<TextPiece>* out);
  bool PassContent(std::string_view* text, std::vector<TextPiece>* out);
  bool PassCall(std::string_view* text, std::vector<TextPiece>* out);
  void EmitContent(std::string_view text, std::vector<TextPiece>* out);
  // Of content: at the beginning, after reasoning and after a call.
  void BeginRun(bool after_call);
  void EndRun(std::vector<TextPiece>* out);
  void BeginCall();
  void TakeFromCall(std::vector<TextPiece> pieces, std::vector<TextPiece>* out);

  const std::shared_ptr<const Tools> tools_;
  State state_;
  Utf8Assembler characters_;  // what follows looks at whole characters only
  std::string pending_;
  bool at_run_start_ = true;  // the run of content has nothing but space_
  bool after_call_ = false;   // it follows a call
  std::string space_;         // white space that is held
  std::optional<ToolCallParser> call_;
  uint32_t calls_ = 0;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_OUTPUT_SPLITTER_H_
