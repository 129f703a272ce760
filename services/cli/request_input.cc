#include "services/cli/request_input.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/json.h"

namespace quartet::cli {

std::variant<std::string, gateway::ApiError> ReadAll(std::istream& in) {
  std::string text;
  char bytes[1 << 16];
  while (in.read(bytes, sizeof(bytes)), in.gcount() > 0) {
    text.append(bytes, static_cast<size_t>(in.gcount()));
    if (text.size() > kInputBytesMax) {
      return gateway::ApiError{
          .status = 413,
          .message = absl::StrCat("the input is longer than ", kInputBytesMax, " bytes")};
    }
  }
  return text;
}

std::variant<text::Value, gateway::ApiError> ParseObject(std::string_view text) {
  absl::StatusOr<text::Value> value = text::ParseJson(text);
  if (!value.ok()) {
    return gateway::ApiError{.message = absl::StrCat("the input is not valid JSON: ",
                                                     std::string(value.status().message()))};
  }
  if (!value->is_object()) {
    return gateway::ApiError{.message = absl::StrCat("the input must be a JSON object, not ",
                                                     std::string(value->TypeName()))};
  }
  return *std::move(value);
}

int Refuse(const gateway::ApiError& error, bool json) {
  if (json) {
    // {"error":{...}} with the status in front.
    std::cout << "{\"status\":" << error.status << ',' << gateway::ApiErrorJson(error).substr(1)
              << "\n";
  } else {
    std::cerr << "quartet: " << (error.param.empty() ? "" : error.param + ": ") << error.message
              << " (HTTP status " << error.status << ")\n";
  }
  return 1;
}

}  // namespace quartet::cli
