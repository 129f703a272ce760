// The tests that stand after "is".
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_TESTS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_TESTS_H_

#include <string_view>

#include "services/gateway/text/template/runtime.h"

namespace quartet::text {

using TestFunction = bool (*)(TemplateRuntime& runtime, const Value& value,
                              const TemplateArguments& arguments);

// nullptr if there is no such test.
TestFunction FindTest(std::string_view name);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_TESTS_H_
