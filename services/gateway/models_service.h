// The served model: GET /v1/models and GET /v1/models/{id}, in OpenAI's form and, for clients that
// say which version of Anthropic's API they speak, in that one's.
#ifndef QUARTET_SERVICES_GATEWAY_MODELS_SERVICE_H_
#define QUARTET_SERVICES_GATEWAY_MODELS_SERVICE_H_

#include <vector>

#include "services/gateway/http/http_server.h"
#include "services/gateway/routing/gateway_core.h"

namespace quartet::gateway {

// The routes; `core` must outlive the server that they are given to.
std::vector<HttpRoute> ModelRoutes(GatewayCore* core);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_MODELS_SERVICE_H_
