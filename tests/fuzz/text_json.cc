#include <string>

#include "services/gateway/text/json.h"
#include "tests/fuzz/text_fuzz_target.h"

// What parses can be written, and reads back as the same value.
QUARTET_FUZZ_TARGET(FuzzJson) {
  using namespace quartet::text;
  const absl::StatusOr<Value> value = ParseJson(input);
  if (!value.ok()) return;
  for (const JsonStyle& style : {JsonStyle{}, JsonStyle{.indent = 1, .ensure_ascii = true}}) {
    std::string text;
    quartet::fuzz::Require(AppendJson(*value, style, &text).ok());
    const absl::StatusOr<Value> again = ParseJson(text);
    quartet::fuzz::Require(again.ok());
    quartet::fuzz::Require(again->Equals(*value));
  }
}
