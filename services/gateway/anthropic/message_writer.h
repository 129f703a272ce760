// The JSON of a message as POST /v1/messages answers it, whole and as events.
#ifndef QUARTET_SERVICES_GATEWAY_ANTHROPIC_MESSAGE_WRITER_H_
#define QUARTET_SERVICES_GATEWAY_ANTHROPIC_MESSAGE_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/routing/generation.h"

namespace quartet::gateway {

// What a client gets to see of the model's reasoning: its text; a block without text; nothing.
enum class ThinkingDisplay { kShown, kOmitted, kHidden };

struct MessageHead {
  std::string id;
  std::string model;
  ThinkingDisplay thinking = ThinkingDisplay::kShown;
};

// Cuts an answer into blocks (thinking, text, tool_use), one after the other. A call that the model
// did not complete has an empty input in whole messages and cut JSON in events. Used by one thread
// at a time.
class MessageWriter {
 public:
  MessageWriter(MessageHead head, bool stream) : head_(std::move(head)), stream_(stream) {}

  // Each returns events, with their framing; nothing if the message is to be whole.
  std::string Start(const ChoiceUsage& usage);
  std::string Take(const ChoiceUpdate& update);
  std::string End();

  // The whole message.
  std::string Whole() const;

  const ChoiceUsage& usage() const { return usage_; }

 private:
  enum class BlockKind { kThinking, kText, kToolUse };
  struct Block {
    BlockKind kind = BlockKind::kText;
    std::string text;  // of a call its arguments; in streams only what is not sent yet: nothing
    std::string id;    // of a call
    std::string name;
    bool complete = false;  // of a call
  };

  void OpenBlock(BlockKind kind, std::string_view name, std::string* events);
  void AddText(std::string_view text, std::string* events);
  void CloseBlock(std::string* events);
  void AppendHead(std::string* out) const;
  void AppendBlock(const Block& block, std::string* out) const;
  void AppendStop(std::string* out) const;
  void AppendUsage(std::string* out) const;

  const MessageHead head_;
  const bool stream_;
  ChoiceUsage usage_;
  ChoiceFinish finish_;
  bool open_ = false;          // the last block is
  std::vector<Block> blocks_;  // in streams without their text
};

// "end_turn", "max_tokens", "stop_sequence" or "tool_use".
std::string_view StopReasonName(const ChoiceFinish& finish);
// One event whose data is `json`, an object of that type on one line.
std::string AnthropicEvent(std::string_view type, std::string_view json);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ANTHROPIC_MESSAGE_WRITER_H_
