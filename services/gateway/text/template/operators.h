// What operators, indexing and printing do to values. Errors go to the runtime.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_OPERATORS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_OPERATORS_H_

#include <optional>
#include <string>

#include "services/gateway/text/template/ast.h"
#include "services/gateway/text/template/runtime.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// As {{ value }} prints it: None, True, numbers, text as it is, lists and mappings in Python's
// style, undefined as nothing.
std::string PrintValue(const Value& value);

Value Arithmetic(TemplateRuntime& runtime, ArithmeticOp op, const Value& a, const Value& b);
bool Compare(TemplateRuntime& runtime, CompareOp op, const Value& a, const Value& b);

// container[key]; undefined if there is no such item.
Value GetItem(TemplateRuntime& runtime, const Value& container, const Value& key);
Value GetSlice(TemplateRuntime& runtime, const Value& container, std::optional<int64_t> begin,
               std::optional<int64_t> end, int64_t step);

// The items that a loop over `value` sees: of a list its items, of a mapping its keys, of a text
// its characters; none of an undefined value. Fails for other values.
Value::List Iterate(TemplateRuntime& runtime, const Value& value);

// Items, keys, characters. Nothing for values without a length.
std::optional<int64_t> Length(const Value& value);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_OPERATORS_H_
