// What a request says that its answer must look like.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_ANSWER_FORM_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_ANSWER_FORM_H_

#include <optional>
#include <string>
#include <variant>

#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/fields.h"
#include "services/gateway/text/grammar/answer_grammar.h"
#include "services/gateway/text/tokenizer.h"

namespace quartet::gateway {

struct AnswerFormFields {
  std::optional<text::ContentForm> content;
  std::string content_param;  // the field that says so
  // Calls that must come, or the only ones that may; with `content` also calls that may come
  // instead of it.
  std::optional<text::ToolForm> tools;

  bool constrained() const { return content.has_value() || tools.has_value(); }
};

// response_format, structured_outputs, guided_json, guided_regex, guided_choice, json_schema and
// regex: one of them at most. Forms that are not supported are refused by name.
void ParseContentForm(Fields& fields, std::optional<ApiError>* error, AnswerFormFields* out);

// tools, tool_choice and parallel_tool_calls of a chat request, after its content form.
// `no_tool_calls`: tool_choice is "none".
void ParseToolForm(Fields& fields, std::optional<ApiError>* error, bool* no_tool_calls,
                   bool* parallel_tool_calls, AnswerFormFields* out);

// The serialised grammar of the answer; empty if anything goes. The error names the field and what
// of it cannot be compiled. Takes up to seconds: belongs on the text pool.
std::variant<std::string, ApiError> CompileAnswerForm(const AnswerFormFields& form,
                                                      bool opens_think,
                                                      const text::Tokenizer& tokenizer);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_ANSWER_FORM_H_
