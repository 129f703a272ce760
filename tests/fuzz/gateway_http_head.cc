#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/http/http_rules.h"
#include "tests/fuzz/text_fuzz_target.h"

// The lines of the input are what a request's head says. What is decided about it never puts a line
// break or another control character into a header of the answer, and lets only known pages read.
QUARTET_FUZZ_TARGET(FuzzHttpHead) {
  using namespace quartet;
  using namespace quartet::gateway;
  std::string_view lines[6];
  for (std::string_view& line : lines) {
    line = input.substr(0, input.find('\n'));
    input.remove_prefix(std::min(input.size(), line.size() + 1));
  }
  static const std::vector<HttpRoute> routes = {{.method = "GET", .path = "/a"},
                                                {.method = "POST", .path = "/a"},
                                                {.method = "GET", .path = "/item/"}};
  static const std::vector<std::string> origins = {"https://a.example"};
  const auto plain = [](const HttpHeaders& headers) {
    for (const auto& [name, value] : headers) {
      fuzz::Require(std::all_of(value.begin(), value.end(),
                                [](unsigned char c) { return c >= ' ' && c < 127; }));
    }
  };
  const std::string path = RequestPath(lines[1]);
  const RouteMatch match = FindRoute(routes, lines[0], path);
  fuzz::Require(match.route == nullptr || match.route->path.starts_with('/'));
  const std::string id = FitRequestId(lines[2]);
  fuzz::Require(id.empty() || id == lines[2]);
  plain({{"X-Request-Id", id}});
  (void)BodyHeadersFault(lines[2], lines[3]);
  const CorsRequest cors{.origin = lines[3], .method = lines[4], .headers = lines[5]};
  const HttpHeaders headers = CorsHeaders(origins, cors);
  fuzz::Require(headers.empty() == (lines[3] != origins[0]));
  plain(headers);
  plain(PreflightHeaders(cors, match.allowed));
}
