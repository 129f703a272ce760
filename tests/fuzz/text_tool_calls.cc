#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/json.h"
#include "services/gateway/text/output_splitter.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is what a model writes; its first byte chooses how it is read. The pieces are the same
// for the whole text and for single bytes, and a complete call has an object for its arguments.
QUARTET_FUZZ_TARGET(FuzzToolCalls) {
  using namespace quartet::text;
  static const auto tools = std::make_shared<const Tools>(*ParseJson(
      R"([{"name":"f","parameters":{"$defs":{"a":{"anyOf":[{"type":"null"},{"$ref":"#"}]}},
          "properties":{"s":{"type":"string"},"n":{"type":"integer"},"a":{"$ref":"#/$defs/a"},
                        "e":{"enum":["x",1.5,null]},"u":{}}}},{"name":"go"}])"));
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input[0]);
  input.remove_prefix(1);
  const OutputEnd end = choice & 1 ? OutputEnd::kLength : OutputEnd::kStop;

  const auto split = [&](size_t chunk) {
    OutputSplitter splitter(choice & 2, choice & 4 ? nullptr : tools);
    std::vector<TextPiece> pieces;
    for (size_t at = 0; at < input.size(); at += chunk) {
      splitter.Append(input.substr(at, chunk), &pieces);
    }
    splitter.Finish(end, &pieces);
    return pieces;
  };
  const std::vector<TextPiece> pieces = split(input.size() + 1);
  quartet::fuzz::Require(split(1) == pieces);
  quartet::fuzz::Require(split(1 + choice / 8) == pieces);
  std::string arguments;
  for (const TextPiece& piece : pieces) {
    if (piece.kind == TextKind::kCallName) arguments.clear();
    if (piece.kind == TextKind::kCallArguments) arguments += piece.text;
    if (piece.kind != TextKind::kCallEnd) continue;
    const auto value = ParseJson(arguments);
    quartet::fuzz::Require(value.ok() && value->is_object());
  }
}
