#include "services/gateway/text/template/tests.h"

#include "services/gateway/text/template/operators.h"
#include "services/gateway/text/unicode.h"

namespace quartet::text {
namespace {

using Type = Value::Type;

template <CompareOp op>
bool CompareTest(TemplateRuntime& runtime, const Value& value, const TemplateArguments& arguments) {
  if (arguments.positional.size() != 1) {
    runtime.Fail("this test needs one argument");
    return false;
  }
  return Compare(runtime, op, value, arguments.positional[0]);
}

bool Multiple(TemplateRuntime& runtime, const Value& value, int64_t divisor) {
  const Value rest = Arithmetic(runtime, ArithmeticOp::kModulo, value, Value::Integer(divisor));
  return !runtime.failed() && rest.number() == 0.0;
}

struct Entry {
  std::string_view name;
  TestFunction function;
};

#define QUARTET_TEST_OF_VALUE(expression) \
  [](TemplateRuntime&, const Value& value, const TemplateArguments&) -> bool { return expression; }

constexpr Entry kTests[] = {
    {"defined", QUARTET_TEST_OF_VALUE(!value.is_undefined())},
    {"undefined", QUARTET_TEST_OF_VALUE(value.is_undefined())},
    {"none", QUARTET_TEST_OF_VALUE(value.is_none())},
    {"string", QUARTET_TEST_OF_VALUE(value.is_string())},
    {"mapping", QUARTET_TEST_OF_VALUE(value.is_object())},
    // An undefined value can be looped over, so that it counts as iterable and as a sequence.
    {"iterable", QUARTET_TEST_OF_VALUE(value.is_string() || value.is_list() || value.is_object() ||
                                       value.is_undefined())},
    {"sequence", QUARTET_TEST_OF_VALUE(value.is_string() || value.is_list() || value.is_object() ||
                                       value.is_undefined())},
    {"number", QUARTET_TEST_OF_VALUE(value.is_number() || value.is_bool())},
    {"integer", QUARTET_TEST_OF_VALUE(value.is_integer())},
    {"float", QUARTET_TEST_OF_VALUE(value.type() == Type::kFloat)},
    {"boolean", QUARTET_TEST_OF_VALUE(value.is_bool())},
    {"true", QUARTET_TEST_OF_VALUE(value.is_bool() && value.boolean())},
    {"false", QUARTET_TEST_OF_VALUE(value.is_bool() && !value.boolean())},
    {"lower",
     QUARTET_TEST_OF_VALUE(value.is_string() && ToLower(value.string()) == value.string())},
    {"upper",
     QUARTET_TEST_OF_VALUE(value.is_string() && ToUpper(value.string()) == value.string())},
    {"equalto", CompareTest<CompareOp::kEqual>},
    {"eq", CompareTest<CompareOp::kEqual>},
    {"ne", CompareTest<CompareOp::kNotEqual>},
    {"lt", CompareTest<CompareOp::kLess>},
    {"lessthan", CompareTest<CompareOp::kLess>},
    {"le", CompareTest<CompareOp::kLessEqual>},
    {"gt", CompareTest<CompareOp::kGreater>},
    {"greaterthan", CompareTest<CompareOp::kGreater>},
    {"ge", CompareTest<CompareOp::kGreaterEqual>},
    {"in", CompareTest<CompareOp::kIn>},
    {"even", [](TemplateRuntime& r, const Value& v,
                const TemplateArguments&) { return Multiple(r, v, 2); }},
    {"odd", [](TemplateRuntime& r, const Value& v,
               const TemplateArguments&) { return !Multiple(r, v, 2); }},
};

#undef QUARTET_TEST_OF_VALUE

}  // namespace

TestFunction FindTest(std::string_view name) {
  for (const Entry& entry : kTests) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace quartet::text
