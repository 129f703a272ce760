#include "services/gateway/openai/fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace quartet::gateway {

using text::Value;

std::optional<int64_t> AsInteger(const Value& value) {
  if (value.is_integer()) return value.integer();
  if (!value.is_number()) return std::nullopt;
  const double number = value.number();
  if (!std::isfinite(number) || number != std::trunc(number) ||
      std::abs(number) > 9007199254740992.0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

const Value* Fields::Get(std::string_view name) {
  if (!read_.contains(name)) read_.emplace(name);
  const Value* value = object_.Find(name);
  return value && !value->is_absent() ? value : nullptr;
}

std::vector<std::string> Fields::Unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.entries()) {
    if (!read_.contains(name)) names.push_back(name);
  }
  return names;
}

void Fields::Fail(std::string_view name, std::string_view message, std::string_view code) {
  if (error_->has_value()) return;
  const std::string param = absl::StrCat(prefix_, std::string(name));
  *error_ = ApiError{.status = 400,
                     .message = absl::StrCat(param, ": ", std::string(message)),
                     .param = param,
                     .code = std::string(code)};
}

void Fields::WrongType(std::string_view name, std::string_view wanted, const Value& got) {
  Fail(name, absl::StrCat("must be ", std::string(wanted), ", not ", std::string(got.TypeName())));
}

std::optional<bool> Fields::Bool(std::string_view name) {
  const Value* value = Get(name);
  if (!value || failed()) return std::nullopt;
  if (!value->is_bool()) {
    WrongType(name, "true or false", *value);
    return std::nullopt;
  }
  return value->boolean();
}

std::optional<int64_t> Fields::Integer(std::string_view name, int64_t min, int64_t max) {
  const Value* value = Get(name);
  if (!value || failed()) return std::nullopt;
  if (!value->is_number()) {
    WrongType(name, "an integer", *value);
    return std::nullopt;
  }
  const std::optional<int64_t> integer = AsInteger(*value);
  if (!integer || *integer < min || *integer > max) {
    Fail(name, absl::StrCat("must be an integer from ", min, " to ", max, ", not ",
                            value->NumberText().substr(0, 40)));
    return std::nullopt;
  }
  return integer;
}

std::optional<double> Fields::Number(std::string_view name, double min, double max) {
  const Value* value = Get(name);
  if (!value || failed()) return std::nullopt;
  if (!value->is_number()) {
    WrongType(name, "a number", *value);
    return std::nullopt;
  }
  const double number = value->number();
  if (!std::isfinite(number) || number < min || number > max) {
    Fail(name, absl::StrCat("must be a number from ", min, " to ", max, ", not ",
                            value->NumberText().substr(0, 40)));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> Fields::String(std::string_view name) {
  const Value* value = Get(name);
  if (!value || failed()) return std::nullopt;
  if (!value->is_string()) {
    WrongType(name, "a string", *value);
    return std::nullopt;
  }
  return value->string();
}

const Value* Fields::Object(std::string_view name) {
  const Value* value = Get(name);
  if (!value || failed()) return nullptr;
  if (!value->is_object()) {
    WrongType(name, "an object", *value);
    return nullptr;
  }
  return value;
}

std::optional<std::vector<int32_t>> Fields::Ids(std::string_view name, int32_t vocab_size,
                                                size_t count_max) {
  const Value* value = Get(name);
  if (!value || failed()) return std::nullopt;
  if (!value->is_list()) {
    WrongType(name, "a list of token ids", *value);
    return std::nullopt;
  }
  if (value->list().size() > count_max) {
    Fail(name,
         absl::StrCat("must hold at most ", count_max, " token ids, not ", value->list().size()));
    return std::nullopt;
  }
  std::vector<int32_t> ids;
  ids.reserve(value->list().size());
  for (size_t i = 0; i < value->list().size(); ++i) {
    const Value& item = value->list()[i];
    const std::optional<int64_t> id = AsInteger(item);
    if (!id || *id < 0 || *id >= vocab_size) {
      Fail(absl::StrCat(std::string(name), "[", i, "]"),
           absl::StrCat(
               "must be a token id from 0 to ", vocab_size - 1, ", not ",
               item.is_number() ? item.NumberText().substr(0, 40) : std::string(item.TypeName())));
      return std::nullopt;
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace quartet::gateway
