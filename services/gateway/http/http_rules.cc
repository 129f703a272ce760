#include "services/gateway/http/http_rules.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "services/gateway/text/absl_strings.h"

namespace quartet::gateway {

using text::Av;

namespace {

bool PathFits(const std::string& pattern, std::string_view path) {
  if (!pattern.ends_with('/')) return pattern == path;
  return path.size() > pattern.size() && path.starts_with(pattern) &&
         path.find('/', pattern.size()) == std::string_view::npos;
}

}  // namespace

RouteMatch FindRoute(const std::vector<HttpRoute>& routes, std::string_view method,
                     std::string_view path) {
  RouteMatch match;
  for (const HttpRoute& route : routes) {
    if (!PathFits(route.path, path)) continue;
    if (route.method == method || (method == "HEAD" && route.method == "GET")) {
      match.route = &route;
      return match;
    }
    match.allowed.push_back(route.method);
    if (route.method == "GET") match.allowed.push_back("HEAD");
  }
  return match;
}

std::string BodyHeadersFault(std::string_view content_type, std::string_view content_encoding) {
  if (!content_encoding.empty() && !absl::EqualsIgnoreCase(Av(content_encoding), "identity")) {
    return "compressed request bodies are not supported; leave Content-Encoding out";
  }
  const absl::string_view type =
      absl::StripTrailingAsciiWhitespace(Av(content_type.substr(0, content_type.find(';'))));
  if (!type.empty() && !absl::EqualsIgnoreCase(type, "application/json")) {
    return "the body must be JSON: send Content-Type: application/json";
  }
  return "";
}

std::string RequestPath(std::string_view target) {
  if (absl::StartsWithIgnoreCase(Av(target), "http://")) {
    const size_t slash = target.find('/', 7);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  return std::string(target.substr(0, target.find('?')));
}

HttpHeaders CorsHeaders(const std::vector<std::string>& origins, const CorsRequest& request) {
  if (request.origin.empty()) return {};
  const bool any = std::find(origins.begin(), origins.end(), "*") != origins.end();
  const bool named = std::find(origins.begin(), origins.end(), request.origin) != origins.end();
  if (!any && !named) return {};
  HttpHeaders headers = {{"Access-Control-Allow-Origin", any ? "*" : std::string(request.origin)},
                         {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"}};
  if (!any) headers.emplace_back("Vary", "Origin");
  return headers;
}

HttpHeaders PreflightHeaders(const CorsRequest& request, const std::vector<std::string>& methods) {
  HttpHeaders headers = {{"Access-Control-Allow-Methods", absl::StrJoin(methods, ", ")},
                         {"Access-Control-Max-Age", "600"}};
  // Clients in browsers send headers of their own, which are harmless: nobody reads them.
  const bool plain =
      std::all_of(request.headers.begin(), request.headers.end(), [](unsigned char c) {
        return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == ',' || c == ' ';
      });
  if (plain && !request.headers.empty()) {
    headers.emplace_back("Access-Control-Allow-Headers", std::string(request.headers));
  }
  return headers;
}

std::string FitRequestId(std::string_view id) {
  if (id.empty() || id.size() > 128) return "";
  for (char c : id) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                       c == '.' || c == ':';
    if (!plain) return "";
  }
  return std::string(id);
}

}  // namespace quartet::gateway
