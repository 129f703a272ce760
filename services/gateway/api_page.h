// The description of the gateway's HTTP surface for people.
#ifndef QUARTET_SERVICES_GATEWAY_API_PAGE_H_
#define QUARTET_SERVICES_GATEWAY_API_PAGE_H_

#include <string>
#include <string_view>

namespace quartet::gateway {

// An HTML page made of an OpenAPI document: every operation with its parameters, the fields of its
// body and its answers, and every schema that they refer to. It needs nothing from outside and runs
// no script. Empty if the document is not JSON. Pure.
std::string ApiPage(std::string_view openapi_json);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_API_PAGE_H_
