#include "services/gateway/anthropic/messages_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/gateway/anthropic/error.h"
#include "services/gateway/anthropic/message_writer.h"
#include "services/gateway/anthropic/request.h"
#include "services/gateway/exchange/exchange.h"
#include "services/gateway/http/sse.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/openai/translated_chat.h"

namespace quartet::gateway {
namespace {

using text::Value;

std::variant<MessagesRequest, ApiError> ReadMessages(std::string_view body, MessagesUse use) {
  auto parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  return TranslateMessages(std::get<Value>(parsed), use);
}

// What both requests share.
class AnthropicAnswer : public ApiAnswer {
 public:
  std::string_view request_id_header() const override { return "request-id"; }
  HttpStreamHead StreamHead() const override {
    HttpStreamHead head = SseHead();
    head.ping = AnthropicEvent("ping", "{\"type\":\"ping\"}");
    return head;
  }
  HttpReply ErrorReply(const ApiError& error) const override { return AnthropicErrorReply(error); }
  std::string ErrorEvents(const ApiError& error) override {
    return AnthropicEvent("error", AnthropicErrorJson(error));
  }
};

class MessagesAnswer final : public AnthropicAnswer {
 public:
  std::string_view endpoint() const override { return "messages"; }

  std::variant<GenerationPlan, HttpReply, ApiError> Prepare(
      std::string_view body, const PrepareContext& context) override {
    auto read = ReadMessages(body, MessagesUse::kAnswer);
    if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
    const MessagesRequest& request = std::get<MessagesRequest>(read);
    auto prepared = PrepareTranslated(request.chat, context);
    if (auto* error = std::get_if<ApiError>(&prepared)) return std::move(*error);
    stream_ = request.stream;
    writer_.emplace(MessageHead{.id = RandomId("msg_"),
                                .model = context.served_model_name,
                                .thinking = request.thinking},
                    stream_);
    return std::move(std::get<Prepared>(prepared).plan);
  }

  bool streams() const override { return stream_; }
  std::string Admit(uint32_t, const ChoiceUsage& usage) override { return writer_->Start(usage); }
  std::string Take(const ChoiceUpdate& update) override { return writer_->Take(update); }
  std::string Finish() override { return stream_ ? writer_->End() : writer_->Whole(); }
  ChoiceUsage usage() const override { return writer_->usage(); }

 private:
  bool stream_ = false;
  std::optional<MessageWriter> writer_;  // set by Prepare
};

// Generates nothing: its answer is complete when it is prepared.
class CountTokensAnswer final : public AnthropicAnswer {
 public:
  std::string_view endpoint() const override { return "count_tokens"; }

  std::variant<GenerationPlan, HttpReply, ApiError> Prepare(
      std::string_view body, const PrepareContext& context) override {
    auto read = ReadMessages(body, MessagesUse::kCount);
    if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
    auto count = CountPromptTokens(std::get<MessagesRequest>(read).chat, context);
    if (auto* error = std::get_if<ApiError>(&count)) return std::move(*error);
    return HttpReply{.body = absl::StrCat("{\"input_tokens\":", std::get<uint32_t>(count), "}")};
  }

  bool streams() const override { return false; }
  std::string Admit(uint32_t, const ChoiceUsage&) override { return ""; }
  std::string Take(const ChoiceUpdate&) override { return ""; }
  std::string Finish() override { return ""; }
  ChoiceUsage usage() const override { return {}; }
};

}  // namespace

std::vector<HttpRoute> AnthropicRoutes(GatewayCore* core) {
  return {ExchangeRoute(core, "/v1/messages", [] { return std::make_unique<MessagesAnswer>(); }),
          ExchangeRoute(core, "/v1/messages/count_tokens",
                        [] { return std::make_unique<CountTokensAnswer>(); })};
}

}  // namespace quartet::gateway
