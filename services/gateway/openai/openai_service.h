// OpenAI's API over HTTP, and the paths that say how the gateway is.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_OPENAI_SERVICE_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_OPENAI_SERVICE_H_

#include <string>
#include <vector>

#include "services/gateway/http/http_server.h"
#include "services/gateway/routing/gateway_core.h"

namespace quartet::gateway {

// The routes; `core` must outlive the server that they are given to. Handlers do nothing but hand
// on: parsing runs on the text pool, output on the engine client's threads.
std::vector<HttpRoute> OpenAiRoutes(GatewayCore* core);

// Of the gateway and, as far as known, the coordinator. Does not block.
std::string GatewayMetricsText(const GatewayCore& core);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_OPENAI_SERVICE_H_
