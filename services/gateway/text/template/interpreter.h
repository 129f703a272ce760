// Runs a parsed template.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_INTERPRETER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_INTERPRETER_H_

#include <string>

#include "absl/status/statusor.h"
#include "services/gateway/text/template/ast.h"
#include "services/gateway/text/template/chat_template.h"

namespace quartet::text {

// See ChatTemplate::Render. The tree is only read.
absl::StatusOr<std::string> RunTemplate(const TemplateTree& tree, const Value& variables,
                                        const TemplateLimits& limits);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_INTERPRETER_H_
