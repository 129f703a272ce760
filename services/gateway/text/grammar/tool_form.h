// Tool calls in the form in which the model writes them, as parts of a grammar.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_TOOL_FORM_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_TOOL_FORM_H_

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/text/grammar/json_text.h"
#include "services/gateway/text/tokenizer.h"
#include "services/gateway/text/value.h"
#include "services/grammar/builder.h"

namespace quartet::text {

// A tag of the model's output: its own token if the tokenizer has one, else its text.
grammar::Expr TagExpr(std::string_view tag, const Tokenizer& tokenizer,
                      grammar::GrammarBuilder* builder);

// One call, <tool_call> and </tool_call> included:
//
//   <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>
//
// NAME is one of `names`, or of any tool if that is empty. The arguments come in the order of the
// tool's schema, required ones always; a tool without declared properties takes any. A line break
// may stand before each tag. Values are JSON, but strings stand as they are: text without
// </arg_value>, which keeps to enum, const, pattern and the limits of the length. A value that can
// be a free string can be any text. Keywords that are not supported are passed over, unless the
// tool says "strict": true. InvalidArgument names the tool.
absl::StatusOr<grammar::Expr> ToolCallExpr(const Value& tools,
                                           const std::vector<std::string>& names,
                                           const Tokenizer& tokenizer,
                                           std::chrono::steady_clock::time_point deadline,
                                           grammar::GrammarBuilder* builder, JsonText* json);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_TOOL_FORM_H_
