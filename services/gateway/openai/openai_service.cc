#include "services/gateway/openai/openai_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/log.h"
#include "services/gateway/exchange/exchange.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/openai_answer.h"
#include "services/gateway/openai/responses_answer.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

std::string ModelJson(const GatewayCore& core) {
  std::string out = "{\"id\":";
  text::AppendJsonString(core.options().served_model_name, &out);
  absl::StrAppend(&out, ",\"object\":\"model\",\"created\":", core.created_unix_s(),
                  ",\"owned_by\":\"quartet\",\"max_model_len\":");
  const uint32_t length = core.engine()->state().max_model_len;
  if (length > 0) {
    absl::StrAppend(&out, length, "}");
  } else {
    out += "null}";
  }
  return out;
}

void ReplyModels(GatewayCore* core, HttpCall& call) {
  call.Reply({.body = absl::StrCat("{\"object\":\"list\",\"data\":[", ModelJson(*core), "]}")});
}

void ReplyModel(GatewayCore* core, HttpCall& call) {
  const std::string id = call.request().path.substr(std::string_view("/v1/models/").size());
  if (id == core->options().served_model_name) {
    call.Reply({.body = ModelJson(*core)});
    return;
  }
  call.Reply(
      ApiErrorReply({.status = 404,
                     .message = absl::StrCat("the model '", id.substr(0, 200), "' does not exist"),
                     .param = "model",
                     .code = "model_not_found"}));
}

void ReplyReady(GatewayCore* core, HttpCall& call) {
  const std::string reason = core->NotReadyReason();
  if (reason.empty()) {
    call.Reply({.body = "{\"status\":\"ok\"}"});
    return;
  }
  HttpReply reply{.status = 503,
                  .headers = {{"Retry-After", "2"}},
                  .body = "{\"status\":\"not ready\",\"reason\":"};
  text::AppendJsonString(reason, &reply.body);
  reply.body += '}';
  call.Reply(std::move(reply));
}

constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

void ReplyMetrics(GatewayCore* core, std::shared_ptr<HttpCall> call) {
  core->engine()->FetchMetrics([core, call](std::string engine) {
    call->Reply({.content_type = std::string(kMetricsType), .body = core->OwnMetrics() + engine});
  });
}

}  // namespace

std::vector<HttpRoute> OpenAiRoutes(GatewayCore* core) {
  return {
      ExchangeRoute(core, "/v1/chat/completions", MakeChatAnswer),
      ExchangeRoute(core, "/v1/completions", MakeCompletionAnswer),
      ExchangeRoute(core, "/v1/responses", MakeResponsesAnswer),
      {.method = "GET",
       .path = "/v1/models",
       .handler = [core](auto call) { ReplyModels(core, *call); }},
      {.method = "GET",
       .path = "/v1/models/",
       .handler = [core](auto call) { ReplyModel(core, *call); }},
      {.method = "GET",
       .path = "/livez",
       .handler = [](auto call) { call->Reply({.body = "{\"status\":\"ok\"}"}); }},
      {.method = "GET",
       .path = "/readyz",
       .handler = [core](auto call) { ReplyReady(core, *call); }},
      {.method = "GET",
       .path = "/health",
       .handler = [core](auto call) { ReplyReady(core, *call); }},
      {.method = "GET",
       .path = "/metrics",
       .handler = [core](auto call) { ReplyMetrics(core, call); }},
  };
}

std::string GatewayMetricsText(const GatewayCore& core) {
  return core.OwnMetrics() + core.engine()->CachedMetrics();
}

}  // namespace quartet::gateway
