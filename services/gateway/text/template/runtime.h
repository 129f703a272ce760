// What a rendering has used up so far, and the first thing that went wrong in it.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_RUNTIME_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_RUNTIME_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/gateway/text/template/chat_template.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// The arguments of a call of a function, a filter, a test or a method.
struct TemplateArguments {
  Value::List positional;
  Value::Entries keyword;

  // The argument at `index`, else the one called `name`, else nullptr.
  const Value* Get(size_t index, std::string_view name) const;
};

// One per rendering, used by one thread. Errors stick: the first one is kept, and whoever computes
// something checks failed() before going on. Results of failed operations are undefined values.
class TemplateRuntime {
 public:
  TemplateRuntime(std::string_view template_name, const TemplateLimits& limits, size_t bytes_max);

  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }
  void set_line(int line) { line_ = line; }
  size_t bytes_max() const { return bytes_max_; }

  // All return an undefined value, so that `return runtime.Fail(...)` reads well.
  Value Fail(std::string_view what);
  Value FailLimit(std::string_view what);
  // The template refuses the input itself.
  Value Raise(std::string_view message);

  // Counts work; false if the limit is reached.
  bool Charge(size_t steps);

  // Values that count against the limits.
  Value NewString(std::string text);
  Value NewList(Value::List items);
  Value NewObject(Value::Entries entries);

  // Fails unless there are at most `max` positional arguments and no keywords outside `names`.
  bool CheckArguments(const TemplateArguments& arguments, size_t max, std::string_view what,
                      std::initializer_list<std::string_view> names = {});

 private:
  const std::string template_name_;
  const TemplateLimits limits_;
  const size_t bytes_max_;
  int line_ = 0;
  int64_t steps_left_;
  absl::Status status_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_RUNTIME_H_
