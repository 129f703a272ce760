// The functions that every template can call.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_FUNCTIONS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_FUNCTIONS_H_

#include <string_view>

#include "services/gateway/text/template/runtime.h"

namespace quartet::text {

// What namespace(...) returns: the only value whose attributes can be set. Belongs to one
// rendering.
class NamespaceValue final : public OpaqueValue {
 public:
  std::string_view type_name() const override { return "namespace"; }
  Value Get(std::string_view name) const;
  void Set(std::string_view name, Value value);

 private:
  Value::Entries entries_;  // few
};

// range, namespace, dict, raise_exception, strftime_now.
bool IsTemplateFunction(std::string_view name);

Value CallTemplateFunction(TemplateRuntime& runtime, std::string_view name,
                           const TemplateArguments& arguments);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_FUNCTIONS_H_
