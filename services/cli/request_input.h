// What `quartet render` and `quartet parse` share: a request that is read from standard input, and
// the error that the gateway would answer it with.
#ifndef QUARTET_SERVICES_CLI_REQUEST_INPUT_H_
#define QUARTET_SERVICES_CLI_REQUEST_INPUT_H_

#include <istream>
#include <string>
#include <string_view>
#include <variant>

#include "services/gateway/openai/api_error.h"
#include "services/gateway/text/value.h"

namespace quartet::cli {

inline constexpr size_t kInputBytesMax = size_t{64} << 20;

std::variant<std::string, gateway::ApiError> ReadAll(std::istream& in);
// A JSON object; anything else is the error that the gateway has for it.
std::variant<text::Value, gateway::ApiError> ParseObject(std::string_view text);

// Prints a refused request: as {"status":..,"error":{..}} on standard output, or as a line on
// standard error. Returns the exit code.
int Refuse(const gateway::ApiError& error, bool json);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_REQUEST_INPUT_H_
