// The messages of a chat request, brought into the form that templates expect. Used by
// chat_prompt.cc only.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_NORMALISE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_NORMALISE_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "services/gateway/text/chat_prompt.h"

namespace quartet::text {

// Turns one request's parts into template values. The first error is kept; results after it mean
// nothing.
class RequestNormaliser {
 public:
  RequestNormaliser(const ControlTokenEscaper& escaper, const ChatPromptOptions& options)
      : escaper_(escaper), options_(options) {}

  // The list of messages as the template gets it.
  Value Messages(const Value& messages);
  // The list of tools; none if the request has none.
  Value Tools(const Value& tools);
  // A client's value as it is, with its control tokens hidden.
  Value Passed(const Value& value, std::string_view param);

  bool failed() const { return error_.has_value(); }
  const RequestError& error() const { return *error_; }
  void Fail(std::string_view param, std::string_view message);

 private:
  Value Message(const Value& message, const std::string& path);
  Value ToolContent(const Value& content, const std::string& path);
  // Joins text parts. Thinking parts go to `*reasoning`.
  std::string JoinParts(const Value& parts, const std::string& path, std::string* reasoning);
  std::string Reasoning(const Value& message, const std::string& path);
  Value ToolCalls(const Value& calls, const std::string& path);
  Value Arguments(const Value& arguments, const std::string& path);
  Value Text(std::string_view text, std::string_view param);

  const ControlTokenEscaper& escaper_;
  const ChatPromptOptions& options_;
  std::optional<RequestError> error_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_NORMALISE_H_
