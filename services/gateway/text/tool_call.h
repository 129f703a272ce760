// One tool call as the model writes it:
//
//   <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TOOL_CALL_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TOOL_CALL_H_

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/text_piece.h"
#include "services/gateway/text/tool_schema.h"

namespace quartet::text {

// Makes the call's pieces out of its text, which comes cut at any places; what they say together
// does not depend on the cuts. Used by one thread at a time.
//
// * A block whose name is none of the tools' is content, verbatim. That is known as soon as what is
//   there cannot become a name any more.
// * White space around names and keys, and any text between arguments, does not count. Of a key
//   that comes again only the first value does, and a key without a value does not.
// * Tags inside a value are data. </arg_value> is one, unless an argument or the call's end follows
//   it, with white space at most between them, or the text ends.
// * A value that can only be a string is passed on as it comes; others are held until they end,
//   since only then their type is known.
class ToolCallParser {
 public:
  // `tools` must outlive this. `call` is the index that the call has if it is one.
  ToolCallParser(const Tools* tools, uint32_t call) : tools_(tools), call_(call) {}

  // Takes what it can of `text`, the text behind <tool_call>. True once the block has ended; what
  // is left of `text` then comes after it.
  bool Feed(std::string_view* text, std::vector<TextPiece>* out);
  // The output has ended inside the block, with `rest` not taken yet. An output that ends between
  // arguments by itself completes the call.
  void Finish(OutputEnd end, std::string_view rest, std::vector<TextPiece>* out);

 private:
  enum class State { kName, kArguments, kKey, kKeyDone, kValue, kValueDone };
  enum class Verdict { kOpen, kCall, kContent };

  // Takes text up to the first of `tags`, and that tag itself, from `from`; appends the text to
  // `to`. Without a tag it takes what cannot be the beginning of one. Returns the tag or nothing.
  std::string_view Advance(std::initializer_list<std::string_view> tags, std::string_view* from,
                           std::string* to, std::vector<TextPiece>* out);
  // Removes `bytes` from the front of `from`. In a block that is no call they are content.
  void Take(size_t bytes, std::string_view* from, std::vector<TextPiece>* out);
  void JudgeName(bool complete, std::vector<TextPiece>* out);
  void BeginValue();
  void PassOnString(std::vector<TextPiece>* out);
  void EndValue(std::vector<TextPiece>* out);
  void EndCall(std::vector<TextPiece>* out);
  // What precedes an argument's value.
  std::string KeyJson();

  const Tools* const tools_;
  const uint32_t call_;
  State state_ = State::kName;
  Verdict verdict_ = Verdict::kOpen;
  std::string block_{"<tool_call>"};  // all of it, until it is known what it is
  std::string name_;
  std::string key_;
  std::set<std::string, std::less<>> keys_;  // that had a value
  std::string value_;                        // the part that was not passed on yet
  std::string closing_;                      // </arg_value> and white space, of unknown meaning
  JsonTypes types_;
  bool counts_ = false;       // the value is to be passed on
  bool string_open_ = false;  // its opening quote was
  bool any_argument_ = false;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TOOL_CALL_H_
