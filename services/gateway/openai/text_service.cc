#include "services/gateway/openai/text_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/gateway/openai/fields.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/openai/request.h"
#include "services/gateway/text/chat_prompt.h"
#include "services/gateway/text/detokenizer.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/utf8.h"

namespace quartet::gateway {
namespace {

using text::Value;

constexpr size_t kIdsMax = 1 << 20;

// A token stands for at least a byte and seldom for more than a few: longer text is far beyond what
// the model can take, and encoding it would cost for nothing.
size_t TextBytesMax(const TextContext& context) {
  return size_t{8} * context.max_model_len + (64 << 10);
}

ApiError TooLong(std::string_view param, size_t bytes, const TextContext& context) {
  return {.message = absl::StrCat(std::string(param), ": ", bytes,
                                  " bytes of text are too long for the context of ",
                                  context.max_model_len, " tokens"),
          .param = std::string(param),
          .code = "context_length_exceeded"};
}

// The body as an object whose "model", if there is one, is served here.
std::variant<Value, ApiError> ReadBody(std::string_view body, const TextContext& context) {
  auto parsed = ParseBody(body);
  if (std::holds_alternative<ApiError>(parsed)) return parsed;
  Value& value = std::get<Value>(parsed);
  if (!value.is_object()) {
    return ApiError{.message = absl::StrCat("the body must be a JSON object, not ",
                                            std::string(value.TypeName()))};
  }
  std::optional<ApiError> error;
  Fields fields(value, "", &error);
  CheckModel(fields,
             {.served_model_name = context.served_model_name, .any_model = context.any_model},
             &error);
  if (error) return *std::move(error);
  return parsed;
}

std::variant<text::ChatPrompt, ApiError> BuildPrompt(const Value& body, size_t body_bytes,
                                                     const TextContext& context) {
  if (body_bytes > TextBytesMax(context)) return TooLong("messages", body_bytes, context);
  if (auto error = RefuseMedia(body.Get("messages"))) return *std::move(error);
  auto built = text::BuildChatPrompt(*context.model, body,
                                     {.trust_content_tokens = context.trust_content_tokens});
  if (auto* error = std::get_if<text::RequestError>(&built)) {
    return ApiError{.message = std::move(error->message),
                    .param = std::move(error->param),
                    .code = std::move(error->code)};
  }
  return std::move(std::get<text::ChatPrompt>(built));
}

std::variant<std::vector<int32_t>, ApiError> EncodePrompt(const std::string& prompt,
                                                          const TextContext& context) {
  if (prompt.size() > TextBytesMax(context)) return TooLong("prompt", prompt.size(), context);
  auto encoded = context.model->tokenizer->Encode(prompt);
  if (!encoded.ok()) {
    return ApiError{.message = absl::StrCat("prompt: ", std::string(encoded.status().message())),
                    .param = "prompt"};
  }
  return *std::move(encoded);
}

std::string PromptJson(std::string_view prompt) {
  std::string out = "{\"prompt\":";
  text::AppendJsonString(prompt, &out);
  out += '}';
  return out;
}

// One request from its body to its answer.
using TextHandler = std::variant<std::string, ApiError> (*)(std::string_view, const TextContext&);

void Answer(GatewayCore* core, TextHandler handler, std::shared_ptr<HttpCall> call) {
  const auto model = core->model();
  if (model == nullptr) {
    call->Reply(ApiErrorReply(NotReadyError()));
    return;
  }
  auto body = std::make_shared<std::string>(call->TakeBody());
  const size_t bytes = body->size();
  const bool posted = core->pool()->Post(bytes, [core, model, handler, call, body] {
    const uint32_t served = core->engine()->state().max_model_len;
    auto result = handler(
        *body,
        {.model = model.get(),
         .served_model_name = core->options().served_model_name,
         // Until the engine has said what it serves, what the model could.
         .max_model_len =
             served > 0 ? served : static_cast<uint32_t>(model->defaults.max_position_embeddings),
         .trust_content_tokens = core->options().trust_content_tokens,
         .any_model = core->options().any_model});
    if (auto* error = std::get_if<ApiError>(&result)) {
      call->Reply(ApiErrorReply(*error));
    } else {
      call->Reply({.body = std::move(std::get<std::string>(result))});
    }
  });
  if (!posted) {
    call->Reply(ApiErrorReply({.status = 429,
                               .message = "too many requests are waiting; try again",
                               .retry_after_s = 1}));
  }
}

}  // namespace

std::variant<std::string, ApiError> TokenizeText(std::string_view body,
                                                 const TextContext& context) {
  auto parsed = ReadBody(body, context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  const Value& value = std::get<Value>(parsed);
  std::optional<ApiError> error;
  Fields fields(value, "", &error);
  const std::optional<std::string> prompt = fields.String("prompt");
  const bool chat = fields.Get("messages") != nullptr;
  if (prompt && chat) fields.Fail("messages", "cannot be sent together with prompt");
  if (!prompt && !chat) fields.Fail("prompt", "is missing; send prompt or messages");
  // This tokenizer adds none.
  fields.Bool("add_special_tokens");
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  if (error) return *std::move(error);

  std::vector<int32_t> ids;
  if (chat) {
    auto built = BuildPrompt(value, body.size(), context);
    if (auto* fault = std::get_if<ApiError>(&built)) return std::move(*fault);
    ids = std::move(std::get<text::ChatPrompt>(built).ids);
  } else {
    auto encoded = EncodePrompt(*prompt, context);
    if (auto* fault = std::get_if<ApiError>(&encoded)) return std::move(*fault);
    ids = std::move(std::get<std::vector<int32_t>>(encoded));
  }
  std::string out =
      absl::StrCat("{\"count\":", ids.size(), ",\"max_model_len\":", context.max_model_len,
                   ",\"tokens\":[", absl::StrJoin(ids, ","), "]");
  if (strings) {
    out += ",\"token_strs\":[";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ',';
      const std::string_view bytes = context.model->tokenizer->TokenBytes(ids[i]);
      text::AppendJsonString(text::ReplaceIllFormedUtf8(std::string(bytes)), &out);
    }
    out += ']';
  }
  out += '}';
  return out;
}

std::variant<std::string, ApiError> DetokenizeIds(std::string_view body,
                                                  const TextContext& context) {
  auto parsed = ReadBody(body, context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  std::optional<ApiError> error;
  Fields fields(std::get<Value>(parsed), "", &error);
  const auto ids = fields.Ids("tokens", context.model->defaults.end.vocab_size, kIdsMax);
  if (!ids) fields.Fail("tokens", "is missing; send a list of token ids");
  if (error) return *std::move(error);
  return PromptJson(text::Decode(*context.model->tokenizer, *ids));
}

std::variant<std::string, ApiError> ApplyTemplate(std::string_view body,
                                                  const TextContext& context) {
  auto parsed = ReadBody(body, context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto built = BuildPrompt(std::get<Value>(parsed), body.size(), context);
  if (auto* error = std::get_if<ApiError>(&built)) return std::move(*error);
  return PromptJson(std::get<text::ChatPrompt>(built).text);
}

std::vector<HttpRoute> TextRoutes(GatewayCore* core) {
  const auto post = [core](std::string path, TextHandler handler) {
    return HttpRoute{.method = "POST",
                     .path = std::move(path),
                     .handler = [core, handler](auto call) { Answer(core, handler, call); },
                     .json_body = true};
  };
  return {post("/tokenize", TokenizeText),
          post("/detokenize", DetokenizeIds),
          post("/apply-template", ApplyTemplate),
          {.method = "GET", .path = "/version", .handler = [](auto call) {
             call->Reply({.body = "{\"version\":\"" QUARTET_VERSION "\"}"});
           }}};
}

}  // namespace quartet::gateway
