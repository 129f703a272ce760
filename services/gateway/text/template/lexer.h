// Cuts a template into text, tags and the words inside tags.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_LEXER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet::text {

struct TemplateToken {
  enum class Kind {
    kText,
    kPrintBegin,  // {{
    kPrintEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kInteger,
    kFloat,
    kString,    // text holds the string after its escapes
    kOperator,  // text holds the operator, or one bracket
    kEnd,
  };
  Kind kind;
  std::string text;
  int line;
};

// White space is treated as with trim_blocks and lstrip_blocks; one line break at the end of the
// file is dropped. Comments are left out and raw blocks come as text. Ends with a kEnd token.
// Errors read "NAME:LINE: what is wrong".
absl::StatusOr<std::vector<TemplateToken>> TokenizeTemplate(std::string_view source,
                                                            std::string_view name);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_LEXER_H_
