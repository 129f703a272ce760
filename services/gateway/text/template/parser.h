// Parses the words of a template into a tree.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_PARSER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_PARSER_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/gateway/text/template/ast.h"

namespace quartet::text {

// Levels of blocks and of expressions inside one another.
inline constexpr int kTemplateNestingMax = 200;

// Refuses everything that the interpreter does not know, so that a tree can always be run. Errors
// read "NAME:LINE: what is wrong".
absl::StatusOr<std::unique_ptr<const TemplateTree>> ParseTemplate(std::string_view source,
                                                                  std::string_view name);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_PARSER_H_
