#include "services/gateway/edge.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/common/log.h"
#include "services/gateway/anthropic/error.h"
#include "services/gateway/anthropic/messages_service.h"
#include "services/gateway/api_page.h"
#include "services/gateway/models_service.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/openai_service.h"
#include "services/gateway/openai/text_service.h"
#include "services/gateway/openapi_document.h"

namespace quartet::gateway {
namespace {

constexpr std::string_view kOpenPaths[] = {"/livez",   "/readyz",       "/health", "/metrics",
                                           "/version", "/openapi.json", "/docs"};

bool IsMessagesPath(std::string_view path) {
  return path == "/v1/messages" || path.starts_with("/v1/messages/");
}

// An error in the shape of the API that the path belongs to or, if it is none's, the client speaks.
std::string EdgeErrorJson(const HttpRequest& request, const ApiError& error) {
  return IsMessagesPath(request.path) || SpeaksAnthropic(request) ? AnthropicErrorJson(error)
                                                                  : ApiErrorJson(error);
}

HttpAdmission Admit(KeyGate* keys, const HttpRequest& request, const HttpRoute& route) {
  HttpAdmission admission;
  if (keys == nullptr || IsOpenPath(route.path)) return admission;
  // What is only looked up costs nothing worth counting.
  auto result = keys->Admit(request.authorization, request.method == "POST");
  if (auto* refusal = std::get_if<KeyRefusal>(&result)) {
    admission.refusal = RefusalReply(request, *refusal);
    return admission;
  }
  auto& lease = std::get<std::shared_ptr<KeyLease>>(result);
  admission.caller = lease->name();
  admission.lease = std::move(lease);
  return admission;
}

void LogAccess(Metrics* metrics, const HttpAccess& access) {
  metrics
      ->GetCounter("quartet_gateway_http_requests_total",
                   "HTTP requests; status 499: the client went away first.",
                   {{"path", access.route}, {"status", absl::StrCat(access.status)}})
      .Add();
  metrics
      ->GetHistogram("quartet_gateway_http_request_seconds",
                     "From the first byte of a request to the last of its answer.",
                     LatencyBuckets(), {{"path", access.route}})
      .Observe(access.seconds);
  const std::string line = absl::StrFormat(
      "access method=%s path=%s status=%d in=%d out=%d ms=%.1f remote=%s request=%s%s",
      access.method, access.path.substr(0, 100), access.status, access.request_bytes,
      access.response_bytes, access.seconds * 1000, access.remote, access.request_id, access.notes);
  // Probes come every few seconds and say nothing that the metrics do not say.
  if (access.status == 200 && IsOpenPath(access.route)) {
    LogDebug(line);
  } else {
    LogInfo(line);
  }
}

}  // namespace

std::vector<HttpRoute> GatewayRoutes(GatewayCore* core) {
  std::vector<HttpRoute> routes = OpenAiRoutes(core);
  std::ranges::move(AnthropicRoutes(core), std::back_inserter(routes));
  std::ranges::move(ModelRoutes(core), std::back_inserter(routes));
  std::ranges::move(TextRoutes(core), std::back_inserter(routes));
  routes.push_back({.method = "GET", .path = "/openapi.json", .handler = [](auto call) {
                      call->Reply({.body = std::string(OpenApiDocument())});
                    }});
  auto page = std::make_shared<const std::string>(ApiPage(OpenApiDocument()));
  routes.push_back({.method = "GET", .path = "/docs", .handler = [page](auto call) {
                      // The page has all that it needs, and nothing may be slipped into it.
                      call->Reply({.content_type = "text/html; charset=utf-8",
                                   .headers = {{"Content-Security-Policy",
                                                "default-src 'none'; style-src 'unsafe-inline'"}},
                                   .body = *page});
                    }});
  return routes;
}

bool IsOpenPath(std::string_view path) {
  return std::find(std::begin(kOpenPaths), std::end(kOpenPaths), path) != std::end(kOpenPaths);
}

HttpReply RefusalReply(const HttpRequest& request, const KeyRefusal& refusal) {
  const ApiError error = FromKeyRefusal(refusal);
  HttpReply reply = ErrorReplyWith(error, EdgeErrorJson(request, error));
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

void SetEdgeHooks(GatewayCore* core, HttpServerOptions* options) {
  options->make_request_id = [] { return RandomId("req_"); };
  options->error_body = [](const HttpRequest& request, int status, const std::string& message) {
    return EdgeErrorJson(request, {.status = status, .message = message});
  };
  options->admit = [core](const HttpRequest& request, const HttpRoute& route) {
    return Admit(core->options().keys, request, route);
  };
  options->on_access = [core](const HttpAccess& access) { LogAccess(core->metrics(), access); };
}

}  // namespace quartet::gateway
