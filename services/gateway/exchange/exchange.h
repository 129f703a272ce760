// The way of a request through the gateway, the same for all APIs: its body goes to the text pool
// and is prepared there, the generation is started, and what it tells becomes the answer.
#ifndef QUARTET_SERVICES_GATEWAY_EXCHANGE_EXCHANGE_H_
#define QUARTET_SERVICES_GATEWAY_EXCHANGE_EXCHANGE_H_

#include <functional>
#include <memory>
#include <string>

#include "services/gateway/exchange/api_answer.h"
#include "services/gateway/http/http_server.h"
#include "services/gateway/routing/gateway_core.h"

namespace quartet::gateway {

// `model` must outlive what is prepared; zero `total_deadline`: none.
PrepareContext MakePrepareContext(const GatewayCore& core, const text::ModelText* model,
                                  std::string authorization, absl::Duration total_deadline);

// A POST route whose requests are answered in the form that `make` makes for each. `core` must
// outlive the server that the route is given to. The handler does nothing but hand on: preparing
// runs on the text pool, output on the engine client's threads.
HttpRoute ExchangeRoute(GatewayCore* core, std::string path,
                        std::function<std::unique_ptr<ApiAnswer>()> make);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_EXCHANGE_EXCHANGE_H_
