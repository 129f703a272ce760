#include "services/gateway/text/json.h"
#include "services/gateway/text/tool_schema.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is {"tools": [...], "key": "...", "text": "..."}. Whatever the schema says, an argument
// becomes JSON.
QUARTET_FUZZ_TARGET(FuzzToolSchema) {
  using namespace quartet::text;
  const auto request = ParseJson(input);
  if (!request.ok()) return;
  const Tools tools(request->Get("tools"));
  const Value key = request->Get("key");
  const Value text = request->Get("text");
  const JsonTypes types = tools.ArgumentTypes("f", key.is_string() ? key.string() : "k");
  const std::string argument = text.is_string() ? text.string() : "1";
  quartet::fuzz::Require(ParseJson(ArgumentJson(types, argument)).ok());
  quartet::fuzz::Require(ParseJson(ArgumentJson(JsonTypes::Unknown(), argument)).ok());
}
