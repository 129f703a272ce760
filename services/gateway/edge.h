// What happens to every HTTP request around its handler: the key, the id, errors of the server
// itself, the access log.
#ifndef QUARTET_SERVICES_GATEWAY_EDGE_H_
#define QUARTET_SERVICES_GATEWAY_EDGE_H_

#include <string_view>
#include <vector>

#include "services/gateway/access/key_gate.h"
#include "services/gateway/http/http_server.h"
#include "services/gateway/routing/gateway_core.h"

namespace quartet::gateway {

// Everything that the gateway serves. `core` must outlive the server.
std::vector<HttpRoute> GatewayRoutes(GatewayCore* core);

// Whether a path is served without an API key: what says how the server is, and nothing about
// requests.
bool IsOpenPath(std::string_view path);

// The answer to a request that the gate refused, in the shape of the API that its client speaks.
HttpReply RefusalReply(const HttpRequest& request, const KeyRefusal& refusal);

// Sets the hooks of the HTTP server. `core` must outlive it.
void SetEdgeHooks(GatewayCore* core, HttpServerOptions* options);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_EDGE_H_
