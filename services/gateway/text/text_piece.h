// The parts of an answer, as they are found in a model's output.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEXT_PIECE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEXT_PIECE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::text {

// A call comes as its name, then the text of its arguments in any number of pieces, then its end.
// One that the model did not complete has no end, and its arguments are cut JSON.
enum class TextKind { kReasoning, kContent, kCallName, kCallArguments, kCallEnd };

struct TextPiece {
  TextKind kind = TextKind::kContent;
  std::string text;   // empty with kCallEnd
  uint32_t call = 0;  // of the kinds of calls: which, counted from 0

  bool operator==(const TextPiece&) const = default;
};

// Appends a piece, or its text to the last one if that is of the same kind and call. Only a call's
// end may be without text.
inline void AppendPiece(TextKind kind, std::string_view text, uint32_t call,
                        std::vector<TextPiece>* out) {
  if (text.empty() && kind != TextKind::kCallEnd) return;
  if (!out->empty() && out->back().kind == kind && out->back().call == call) {
    out->back().text.append(text);
  } else {
    out->push_back({kind, std::string(text), call});
  }
}

// Whether an output ended by itself (an end token, a stop) or was cut off.
enum class OutputEnd { kStop, kLength };

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEXT_PIECE_H_
