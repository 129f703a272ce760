// Reads JSON Schemas: what several of them together want of one value.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_SCHEMA_GOAL_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_SCHEMA_GOAL_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/gateway/text/grammar/number_range.h"
#include "services/gateway/text/value.h"
#include "services/grammar/grammar.h"

namespace quartet::text {

// A schema that a value must satisfy, perhaps less one or both of its lists of alternatives, from
// which a choice was made already.
struct SchemaUse {
  const Value* schema = nullptr;
  bool any_of_done = false;
  bool one_of_done = false;
  bool expanded = false;  // what its $ref and allOf name is in the goal too
  auto operator<=>(const SchemaUse&) const = default;
};

// Schemas that a value must satisfy all. Sorted, without repeats.
using Goal = std::vector<SchemaUse>;

// The keywords of a goal's schemas, joined. What is absent is not limited.
struct Wanted {
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kNumber = 8,  // any number, integers included
    kString = 16,
    kArray = 32,
    kObject = 64,
  };
  uint8_t types = 0;          // a set of these, of which an answer has one
  uint8_t types_allowed = 0;  // the schemas allow these, also where they do not speak of them

  bool has_values = false;
  std::vector<Value> values;  // of enum and const: those that satisfy all

  NumberRange range;

  uint32_t length_min = 0;
  uint32_t length_max = grammar::kUnlimited;
  std::string pattern;  // empty: none
  std::string pattern_pointer;

  std::vector<Goal> prefix_items;
  std::optional<Goal> items;  // behind them; nothing: anything
  uint32_t items_min = 0;
  uint32_t items_max = grammar::kUnlimited;

  struct Property {
    std::string name;
    Goal goal;
    bool required = false;
  };
  std::vector<Property> properties;  // in the order in which they are mentioned
  // What else may be there: a goal for the values. Nothing: no other members.
  std::optional<Goal> others;
  uint32_t others_max = grammar::kUnlimited;
};

struct SchemaReaderOptions {
  // Leaves out keywords that are not supported, instead of refusing them.
  bool ignore_unsupported = false;
};

// Reads the schemas of one document, which must outlive it. Errors name the keyword and its JSON
// pointer in the document.
class SchemaReader {
 public:
  explicit SchemaReader(const Value& root, SchemaReaderOptions options = {});

  Goal root_goal() const { return {SchemaUse{&root_}}; }

  // Adds what $ref and allOf name.
  absl::StatusOr<Goal> Expand(const Goal& goal);
  // The goals of which one must be reached, if `expanded` holds alternatives.
  struct Alternatives {
    std::vector<Goal> goals;
    const Value* one_of = nullptr;  // the schema with the oneOf that they are from
  };
  absl::StatusOr<std::optional<Alternatives>> FindAlternatives(const Goal& expanded);
  // Of an expanded goal without alternatives.
  absl::StatusOr<Wanted> Want(const Goal& expanded);
  // Whether a value satisfies what was wanted. InvalidArgument if that cannot be told.
  absl::StatusOr<bool> Satisfies(const Value& value, const Wanted& wanted,
                                 const std::string& pointer) const;
  // The JSON pointer of the first schema of a goal.
  std::string PointerOf(const Goal& goal) const;
  // What is wrong with a keyword of a schema.
  absl::Status Wrong(const Value& schema, std::string_view keyword, std::string_view what) const;
  const SchemaReaderOptions& options() const { return options_; }

 private:
  absl::Status CheckKeywords(const Value& schema);
  absl::StatusOr<const Value*> Resolve(const std::string& reference, const std::string& pointer);
  absl::Status CheckBase(std::string_view pointer) const;
  const Value* Child(const Value& parent, const Value& child, std::string_view step);
  absl::StatusOr<uint32_t> Count(const Value& schema, std::string_view keyword, uint32_t fallback);
  absl::Status WantTypes(const Goal& goal, Wanted* wanted);
  absl::Status WantValues(const Goal& goal, Wanted* wanted);
  absl::Status WantScalars(const Value& schema, Wanted* wanted);
  absl::Status WantItems(const Goal& goal, Wanted* wanted);
  absl::Status WantProperties(const Goal& goal, Wanted* wanted);

  const Value& root_;
  const SchemaReaderOptions options_;
  std::map<const Value*, std::string> pointers_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_SCHEMA_GOAL_H_
