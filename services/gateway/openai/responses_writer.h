// The JSON of a response as POST /v1/responses answers it, whole and as events.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_WRITER_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_WRITER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/exchange/api_error.h"
#include "services/gateway/routing/generation.h"

namespace quartet::gateway {

struct ResponseHead {
  std::string id;
  int64_t created_unix_s = 0;
  std::string model;
  // What the response repeats of its request: fields of a JSON object, each behind a comma.
  std::string repeated;
};

// Cuts an answer into items (reasoning, message, function_call), one after the other. Used by one
// thread at a time.
class ResponsesWriter {
 public:
  ResponsesWriter(ResponseHead head, bool stream) : head_(std::move(head)), stream_(stream) {}

  // Each returns events, with their framing; nothing if the response is to be whole.
  std::string Start(const ChoiceUsage& usage);
  std::string Take(const ChoiceUpdate& update);
  std::string End();

  // The whole response.
  std::string Whole() const;
  // The last event of a stream that fails.
  std::string Failed(const ApiError& error);

  const ChoiceUsage& usage() const { return usage_; }

 private:
  enum class ItemKind { kReasoning, kMessage, kCall };
  enum class Status { kInProgress, kCompleted, kIncomplete };
  struct Item {
    ItemKind kind = ItemKind::kMessage;
    Status status = Status::kInProgress;
    std::string id;
    std::string text;     // of a call its arguments
    std::string call_id;  // of a call, as its name
    std::string name;
    std::string logprobs;     // of a message: the entries of its tokens
    size_t scored_bytes = 0;  // that those tokens stand for
  };

  void OpenItem(ItemKind kind, std::string_view name, std::string* events);
  void AddText(std::string_view text, std::string* events);
  // Moves tokens whose text begins in that of the last item from waiting_ to it; their entries.
  std::string TakeLogprobs();
  void CloseItem(Status status, std::string* events);
  // An event about the item in work; `rest` begins with a comma.
  std::string ItemEvent(std::string_view type, std::string_view rest);
  std::string Event(std::string_view type, std::string_view rest);
  std::string ResponseEvent(std::string_view type, std::string_view status);
  // The content part of an item of reasoning or of a message.
  static std::string Part(const Item& item);
  static std::string ItemJson(const Item& item);
  std::string Response(std::string_view status, const ApiError* error) const;
  std::string_view FinalStatus() const;

  const ResponseHead head_;
  const bool stream_;
  uint64_t sequence_number_ = 0;
  ChoiceUsage usage_;
  ChoiceFinish finish_;
  bool open_ = false;  // the last item is
  // Tokens with log-probabilities whose text has not come yet: it is held while its meaning is
  // open.
  std::deque<ScoredToken> waiting_;
  std::vector<Item> items_;
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_WRITER_H_
