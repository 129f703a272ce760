// The description of the gateway's own HTTP surface.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAPI_DOCUMENT_H_
#define QUARTET_SERVICES_GATEWAY_OPENAPI_DOCUMENT_H_

#include <string_view>

namespace quartet::gateway {

// The text of docs/openapi.json.
std::string_view OpenApiDocument();

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAPI_DOCUMENT_H_
