// What a request's head decides before its body is read.
#ifndef QUARTET_SERVICES_GATEWAY_HTTP_HTTP_RULES_H_
#define QUARTET_SERVICES_GATEWAY_HTTP_HTTP_RULES_H_

#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/http/http_server.h"

namespace quartet::gateway {

// All functions here are pure.
struct RouteMatch {
  const HttpRoute* route = nullptr;
  std::vector<std::string> allowed;  // methods of the path, if only the method did not fit
};
RouteMatch FindRoute(const std::vector<HttpRoute>& routes, std::string_view method,
                     std::string_view path);

// Why a body with these headers (empty: absent) cannot be taken as JSON; empty if it can.
std::string BodyHeadersFault(std::string_view content_type, std::string_view content_encoding);

// The path of a request's target, without the query and, in absolute form, without the host.
std::string RequestPath(std::string_view target);

// What the headers of a request say about another site's page that sent it; empty: absent.
struct CorsRequest {
  std::string_view origin;
  std::string_view method;   // Access-Control-Request-Method, in a preflight
  std::string_view headers;  // Access-Control-Request-Headers, in a preflight
};
// What lets the page read the answer; empty if it is none of `origins` (or there is no origin).
HttpHeaders CorsHeaders(const std::vector<std::string>& origins, const CorsRequest& request);
// What lets the page send the request that it asks for, to a path with these methods; beside
// CorsHeaders.
HttpHeaders PreflightHeaders(const CorsRequest& request, const std::vector<std::string>& methods);

// A client's own request id as it may go to logs and back into headers; empty if it does not fit.
std::string FitRequestId(std::string_view id);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_HTTP_HTTP_RULES_H_
