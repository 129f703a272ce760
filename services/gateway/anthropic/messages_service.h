// Anthropic's API over HTTP: POST /v1/messages and POST /v1/messages/count_tokens.
#ifndef QUARTET_SERVICES_GATEWAY_ANTHROPIC_MESSAGES_SERVICE_H_
#define QUARTET_SERVICES_GATEWAY_ANTHROPIC_MESSAGES_SERVICE_H_

#include <vector>

#include "services/gateway/http/http_server.h"
#include "services/gateway/routing/gateway_core.h"

namespace quartet::gateway {

// The routes; `core` must outlive the server that they are given to.
std::vector<HttpRoute> AnthropicRoutes(GatewayCore* core);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ANTHROPIC_MESSAGES_SERVICE_H_
