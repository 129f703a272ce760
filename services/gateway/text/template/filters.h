// The filters that stand after "|".
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_FILTERS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_FILTERS_H_

#include <string_view>

#include "services/gateway/text/template/runtime.h"

namespace quartet::text {

using FilterFunction = Value (*)(TemplateRuntime& runtime, const Value& value,
                                 const TemplateArguments& arguments);

// nullptr if there is no such filter.
FilterFunction FindFilter(std::string_view name);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_FILTERS_H_
