// What a request's tools say about the arguments of their calls.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TOOL_SCHEMA_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TOOL_SCHEMA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/value.h"

namespace quartet::text {

// A set of JSON types, or "unknown", which is any. Numbers include integers.
class JsonTypes {
 public:
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // a number that is no integer
    kString = 16,
    kArray = 32,
    kObject = 64,
  };
  constexpr JsonTypes() = default;
  constexpr explicit JsonTypes(uint8_t types) : bits_(types) {}
  static constexpr JsonTypes Unknown() { return JsonTypes(0xFF); }
  // By its name in a schema's "type"; unknown if there is no such type.
  static JsonTypes Named(std::string_view name);
  // Of one value. 3.0 is an integer.
  static JsonTypes Of(const Value& value);

  bool known() const { return (bits_ & kUnknownBit) == 0; }
  bool Holds(JsonTypes other) const { return (bits_ & other.bits_) != 0; }
  bool OnlyString() const { return bits_ == kString; }
  // What one of both allows; unknown if either is.
  JsonTypes operator|(JsonTypes other) const {
    return JsonTypes(static_cast<uint8_t>(bits_ | other.bits_));
  }
  // What both allow.
  JsonTypes operator&(JsonTypes other) const {
    return JsonTypes(static_cast<uint8_t>(bits_ & other.bits_));
  }
  bool operator==(const JsonTypes&) const = default;

 private:
  static constexpr uint8_t kUnknownBit = 128;
  uint8_t bits_ = 0;
};

// The tools that the model may call.
class Tools {
 public:
  // `list`: the request's tools, as the API has them or flat. What is no tool is passed over.
  explicit Tools(const Value& list);

  bool Has(std::string_view name) const;
  // Whether a name, white space around it, can begin with `text`.
  bool MayBecomeName(std::string_view text) const;
  // The types that the tool's schema allows for an argument; unknown where it does not say, where
  // it refers to itself and where it is nested deeper than 20 levels.
  JsonTypes ArgumentTypes(std::string_view tool, std::string_view key) const;

 private:
  struct Tool {
    std::string name;
    Value parameters;
  };
  const Tool* Find(std::string_view name) const;

  std::vector<Tool> tools_;
};

// The tools whose calls are to be found in the answer to the chat request `body`: none (null) if it
// has no tools or its tool_choice is "none".
std::shared_ptr<const Tools> ActiveTools(const Value& body);

// An argument as JSON, made from the text in which the model wrote it. Text that does not fit
// `types` becomes a string, for the client to judge.
std::string ArgumentJson(JsonTypes types, std::string_view text);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TOOL_SCHEMA_H_
