// The chat format of GLM-5.3-Flash, for where no checkpoint brings its own template.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_DEFAULT_TEMPLATE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_DEFAULT_TEMPLATE_H_

#include <string_view>

namespace quartet::text {

// The text of default_template.jinja.
std::string_view DefaultChatTemplate();

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_DEFAULT_TEMPLATE_H_
