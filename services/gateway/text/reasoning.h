// Splits a model's output into reasoning and content.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_REASONING_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_REASONING_H_

#include <string>
#include <string_view>
#include <vector>

namespace quartet::text {

enum class TextKind { kReasoning, kContent };

struct TextPiece {
  TextKind kind;
  std::string text;
};

// One choice's output, fed in pieces of any size. The concatenated pieces of each kind do not
// depend on how the text was cut. Text is held back only while it could be the beginning of a tag
// that counts in the current state. Used by one thread at a time.
//
// * Reasoning ends at </think>. It also ends at <tool_call> if tools are active; the call's text,
// up to and including
//   </tool_call>, is passed on as content without looking for tags inside.
// * A <think> as the very first text of reasoning is dropped: some models repeat the one that the
// prompt ends with.
// * In content <think> starts reasoning again and a stray </think> is dropped.
// * White space at the beginning of content is held until something follows: it is dropped before a
// tool call and kept
//   otherwise.
class ReasoningSplitter {
 public:
  // `opens_think`: the prompt ended inside a reasoning block (ChatPrompt::opens_think).
  ReasoningSplitter(bool opens_think, bool tools_active);

  // Appends the pieces that can be released now; neighbours of one kind are joined.
  void Append(std::string_view text, std::vector<TextPiece>* out);
  // The end of the output: releases what is held. Reasoning that was never closed stays reasoning.
  void Finish(std::vector<TextPiece>* out);

  // Whether the text fed so far ends in reasoning. A token counts as a reasoning token if this was
  // true before it was fed.
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State { kReasoning, kContent, kCall };

  void Process(bool at_end, std::vector<TextPiece>* out);
  void Emit(std::string_view text, std::vector<TextPiece>* out);

  State state_;
  bool tools_active_;
  bool at_start_ = true;          // nothing of the output has been consumed yet
  bool content_started_ = false;  // the current content has something other than white space
  std::string pending_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_REASONING_H_
