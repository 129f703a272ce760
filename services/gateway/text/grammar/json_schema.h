// JSON Schema as a grammar.
//
// Supported: type, enum, const; properties, required, additionalProperties, maxProperties; items,
// prefixItems, minItems, maxItems; minLength, maxLength, pattern (see regex.h); minimum, maximum,
// exclusiveMinimum, exclusiveMaximum; anyOf, oneOf (see alternatives.h), allOf; $ref to # and
// #/..., also to what it stands in; true and false. format and what only describes is passed over.
// Any other keyword is an error that names it.
//
// Every answer satisfies the schema. Of all that a schema allows an answer is what one would write:
//   - on one line, with at most one space after ':' and ','
//   - properties in the order of the schema
//   - other properties only where additionalProperties says so, or where no property is declared
//   - behind prefixItems other items only where items says so, or minItems needs them
//   - if no type is named, a type that the other keywords are about
//   - integers without a fraction; numbers between bounds without an exponent
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_JSON_SCHEMA_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_JSON_SCHEMA_H_

#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/gateway/text/grammar/json_text.h"
#include "services/gateway/text/grammar/regex.h"
#include "services/gateway/text/grammar/schema_goal.h"
#include "services/gateway/text/value.h"
#include "services/grammar/builder.h"

namespace quartet::text {

inline constexpr size_t kSchemaBytesMax = 64 << 10;
inline constexpr int kSchemaDepthMax = 64;
inline constexpr size_t kSchemaPartsMax = 1 << 19;
inline constexpr std::chrono::milliseconds kSchemaTimeMax{2000};

// InvalidArgument if a schema is larger, or nested more deeply, than a server compiles.
absl::Status CheckSchemaSize(const Value& schema);

// Compiles the schemas of one document with one builder. All arguments must outlive it.
class SchemaCompiler {
 public:
  // `deadline` is when it gives up with DeadlineExceeded.
  SchemaCompiler(const Value& root, SchemaReaderOptions options,
                 std::chrono::steady_clock::time_point deadline, grammar::GrammarBuilder* builder,
                 JsonText* json);

  SchemaReader& reader() { return reader_; }

  // JSON that satisfies a goal.
  absl::StatusOr<grammar::Expr> Json(const Goal& goal);
  // The same as text that is no string: without strings, and nothing if only strings are wanted.
  absl::StatusOr<grammar::Expr> JsonButStrings(const Wanted& wanted);
  // What a string may be, without quotes: by its pattern, or else of `characters` (null: any that
  // JSON can spell).
  absl::StatusOr<grammar::Expr> StringText(const Wanted& wanted, const RegexOptions& options,
                                           const grammar::TextAutomaton* characters);

 private:
  // A rule for the goal, which is defined later.
  grammar::Expr RuleFor(const Goal& goal);
  absl::Status DefineRules();
  absl::Status CheckLimits() const;
  absl::StatusOr<grammar::Expr> Define(const Goal& goal);
  absl::StatusOr<grammar::Expr> OfTypes(const Wanted& wanted, uint8_t types);
  absl::StatusOr<grammar::Expr> String(const Wanted& wanted);
  grammar::Expr Array(const Wanted& wanted);
  grammar::Expr Object(const Wanted& wanted);
  grammar::Expr OtherMembers(const Wanted& wanted, bool first);

  SchemaReader reader_;
  const std::chrono::steady_clock::time_point deadline_;
  grammar::GrammarBuilder& builder_;
  JsonText& json_;
  std::map<Goal, grammar::Expr> rules_;
  std::deque<std::pair<Goal, grammar::Expr>> undefined_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_JSON_SCHEMA_H_
