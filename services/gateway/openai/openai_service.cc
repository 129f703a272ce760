#include "services/gateway/openai/openai_service.h"

#include <utility>

#include "services/gateway/exchange/exchange.h"
#include "services/gateway/openai/openai_answer.h"
#include "services/gateway/openai/responses_answer.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

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
