// Methods of texts and mappings: value.name(arguments).
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_METHODS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_METHODS_H_

#include <string_view>

#include "services/gateway/text/template/runtime.h"

namespace quartet::text {

// Whether any kind of value has this method; a template that calls another one is refused when it
// is parsed.
bool IsMethodName(std::string_view name);

// Whether this very value has it.
bool HasMethod(const Value& receiver, std::string_view name);

Value CallMethod(TemplateRuntime& runtime, const Value& receiver, std::string_view name,
                 const TemplateArguments& arguments);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_METHODS_H_
