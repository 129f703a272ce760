#include "services/gateway/text/template/runtime.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"

namespace quartet::text {

const Value* TemplateArguments::Get(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : keyword) {
    if (key == name) return &value;
  }
  return nullptr;
}

TemplateRuntime::TemplateRuntime(std::string_view template_name, const TemplateLimits& limits,
                                 size_t bytes_max)
    : template_name_(template_name),
      limits_(limits),
      bytes_max_(bytes_max),
      steps_left_(limits.steps_max) {}

Value TemplateRuntime::Fail(std::string_view what) {
  if (!failed()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(template_name_, ":", line_, ": ", Av(what)));
  }
  return {};
}

Value TemplateRuntime::FailLimit(std::string_view what) {
  if (!failed()) {
    status_ = absl::ResourceExhaustedError(
        absl::StrCat(template_name_, ":", line_, ": the chat template ", Av(what)));
  }
  return {};
}

Value TemplateRuntime::Raise(std::string_view message) {
  if (!failed()) status_ = absl::InvalidArgumentError(Av(message));
  return {};
}

bool TemplateRuntime::Charge(size_t steps) {
  steps_left_ -= static_cast<int64_t>(std::min<size_t>(steps, size_t{1} << 40));
  if (steps_left_ < 0) {
    FailLimit(absl::StrCat("needs more than ", limits_.steps_max, " steps for this input"));
  }
  return !failed();
}

Value TemplateRuntime::NewString(std::string text) {
  if (text.size() > bytes_max_) {
    return FailLimit(absl::StrCat("makes a text of more than ", bytes_max_, " bytes"));
  }
  // Copying counts, or a template could move gigabytes in few steps.
  if (!Charge(text.size() / 256)) return {};
  return Value::String(std::move(text));
}

Value TemplateRuntime::NewList(Value::List items) {
  if (!Charge(items.size() / 4)) return {};
  for (const Value& item : items) {
    if (item.is_opaque()) return Fail("a list cannot hold a macro, a namespace or a method");
  }
  Value list = Value::MakeList(std::move(items));
  if (list.weight() > bytes_max_) {
    return FailLimit(absl::StrCat("makes a value of more than ", bytes_max_, " bytes"));
  }
  if (list.depth() > limits_.nesting_max) {
    return FailLimit(absl::StrCat("nests values deeper than ", limits_.nesting_max));
  }
  return list;
}

Value TemplateRuntime::NewObject(Value::Entries entries) {
  if (!Charge(entries.size() / 4)) return {};
  for (const auto& [key, value] : entries) {
    if (value.is_opaque()) return Fail("a mapping cannot hold a macro, a namespace or a method");
  }
  Value object = Value::MakeObject(std::move(entries));
  if (object.weight() > bytes_max_) {
    return FailLimit(absl::StrCat("makes a value of more than ", bytes_max_, " bytes"));
  }
  if (object.depth() > limits_.nesting_max) {
    return FailLimit(absl::StrCat("nests values deeper than ", limits_.nesting_max));
  }
  return object;
}

bool TemplateRuntime::CheckArguments(const TemplateArguments& arguments, size_t max,
                                     std::string_view what,
                                     std::initializer_list<std::string_view> names) {
  if (arguments.positional.size() > max) {
    Fail(absl::StrCat(Av(what), " takes at most ", max, " arguments, got ",
                      arguments.positional.size()));
  }
  for (const auto& [key, value] : arguments.keyword) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      Fail(absl::StrCat(Av(what), " has no argument '", key, "'"));
    }
  }
  return !failed();
}

}  // namespace quartet::text
