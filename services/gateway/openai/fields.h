// Reads typed fields of a JSON object and remembers the first one that is wrong.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_FIELDS_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_FIELDS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/openai/api_error.h"
#include "services/gateway/text/value.h"

namespace quartet::gateway {

// A field that is absent or null is no error and gives nothing. After the first error everything
// gives nothing.
class Fields {
 public:
  // `object` must be an object and outlive this. `prefix` stands before names in errors,
  // "stream_options." for example.
  Fields(const text::Value& object, std::string prefix, std::optional<ApiError>* error)
      : object_(object), prefix_(std::move(prefix)), error_(error) {}

  const text::Value* Get(std::string_view name);
  std::optional<bool> Bool(std::string_view name);
  // Within [min, max]. 3.0 is an integer, "3" is not.
  std::optional<int64_t> Integer(std::string_view name, int64_t min, int64_t max);
  // Finite and within [min, max].
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<std::string> String(std::string_view name);
  const text::Value* Object(std::string_view name);
  // A list of token ids, each within [0, vocab_size).
  std::optional<std::vector<int32_t>> Ids(std::string_view name, int32_t vocab_size,
                                          size_t count_max);

  // Records an error about a field unless there is one already.
  void Fail(std::string_view name, std::string_view message, std::string_view code = "");
  bool failed() const { return error_->has_value(); }

  // Names of what the object holds and nobody has asked for, in its order.
  std::vector<std::string> Unread() const;

 private:
  void WrongType(std::string_view name, std::string_view wanted, const text::Value& got);

  const text::Value& object_;
  const std::string prefix_;
  std::optional<ApiError>* const error_;
  std::set<std::string, std::less<>> read_;
};

// The value as an integer, if it is a number without a fraction that fits.
std::optional<int64_t> AsInteger(const text::Value& value);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_FIELDS_H_
