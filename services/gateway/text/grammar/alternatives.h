// anyOf and oneOf: what an answer may choose from.
//
// A grammar cannot say "this, but not that too". So a oneOf is taken where its alternatives are
// seen to exclude each other: by type, by values (const, enum), by bounds of numbers, lengths or
// counts, or by a part that is always there (a required property, an item) of which one of these is
// true. Such are the tagged unions that one meets. Another oneOf is an error.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_ALTERNATIVES_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_ALTERNATIVES_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/text/grammar/schema_goal.h"

namespace quartet::text {

// The goals of which an answer reaches one, if `expanded` holds alternatives. InvalidArgument if
// they are of a oneOf, and an answer to one might satisfy another; unless `reader` is to leave out
// what is not supported: then they are as those of anyOf.
absl::StatusOr<std::optional<std::vector<Goal>>> AlternativesOf(const Goal& expanded,
                                                                SchemaReader* reader);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_ALTERNATIVES_H_
