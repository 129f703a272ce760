#include "services/gateway/models_service.h"

#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/gateway/anthropic/error.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

constexpr std::string_view kOneModel = "/v1/models/";

std::string Quoted(std::string_view text) {
  std::string out;
  text::AppendJsonString(text, &out);
  return out;
}

// Tokens of the context as JSON; null until the engine has said it.
std::string ContextTokens(const GatewayCore& core) {
  const uint32_t tokens = core.engine()->state().max_model_len;
  return tokens > 0 ? absl::StrCat(tokens) : "null";
}

std::string OpenAiModel(const GatewayCore& core) {
  return absl::StrCat("{\"id\":", Quoted(core.options().served_model_name),
                      ",\"object\":\"model\",\"created\":", core.created_unix_s(),
                      ",\"owned_by\":\"quartet\",\"max_model_len\":", ContextTokens(core), "}");
}

std::string AnthropicModel(const GatewayCore& core) {
  const std::string name = Quoted(core.options().served_model_name);
  const std::string created = absl::FormatTime(
      "%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(core.created_unix_s()), absl::UTCTimeZone());
  const std::string tokens = ContextTokens(core);
  return absl::StrCat("{\"type\":\"model\",\"id\":", name, ",\"display_name\":", name,
                      ",\"created_at\":\"", created, "\",\"lifecycle\":\"active\"",
                      ",\"max_input_tokens\":", tokens, ",\"max_tokens\":", tokens, "}");
}

void ReplyModels(GatewayCore* core, HttpCall& call) {
  if (!SpeaksAnthropic(call.request())) {
    call.Reply({.body = absl::StrCat("{\"object\":\"list\",\"data\":[", OpenAiModel(*core), "]}")});
    return;
  }
  const std::string name = Quoted(core->options().served_model_name);
  call.Reply({.body = absl::StrCat("{\"data\":[", AnthropicModel(*core),
                                   "],\"has_more\":false,\"first_id\":", name,
                                   ",\"last_id\":", name, "}")});
}

// Names with a slash come with %2F for it.
std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      out += absl::HexStringToBytes(std::string(text.substr(i + 1, 2)));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

void ReplyModel(GatewayCore* core, HttpCall& call) {
  const std::string id = PercentDecoded(call.request().path.substr(kOneModel.size()));
  if (core->options().any_model || id == core->options().served_model_name) {
    call.Reply(
        {.body = SpeaksAnthropic(call.request()) ? AnthropicModel(*core) : OpenAiModel(*core)});
    return;
  }
  const ApiError error{
      .status = 404,
      .message = absl::StrCat("the model '", id.substr(0, 200), "' does not exist"),
      .param = "model",
      .code = "model_not_found"};
  call.Reply(SpeaksAnthropic(call.request()) ? AnthropicErrorReply(error) : ApiErrorReply(error));
}

}  // namespace

std::vector<HttpRoute> ModelRoutes(GatewayCore* core) {
  return {{.method = "GET",
           .path = "/v1/models",
           .handler = [core](auto call) { ReplyModels(core, *call); }},
          {.method = "GET", .path = std::string(kOneModel), .handler = [core](auto call) {
             ReplyModel(core, *call);
           }}};
}

}  // namespace quartet::gateway
