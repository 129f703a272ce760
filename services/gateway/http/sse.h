// Server-sent events as OpenAI's API uses them: data lines only.
#ifndef QUARTET_SERVICES_GATEWAY_HTTP_SSE_H_
#define QUARTET_SERVICES_GATEWAY_HTTP_SSE_H_

#include <string>
#include <string_view>

#include "services/gateway/http/http_call.h"

namespace quartet::gateway {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSsePing = ": ping\n\n";

// One event. `json` must stand on one line.
inline std::string SseData(std::string_view json) {
  std::string event;
  event.reserve(json.size() + 8);
  event += "data: ";
  event += json;
  event += "\n\n";
  return event;
}

inline HttpStreamHead SseHead() {
  return {.status = 200,
          .content_type = "text/event-stream; charset=utf-8",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .ping = std::string(kSsePing)};
}

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_HTTP_SSE_H_
