#include <memory>
#include <string>
#include <utility>

#include "services/gateway/text/grammar/json_schema.h"
#include "services/gateway/text/json.h"
#include "services/grammar/builder.h"
#include "services/grammar/machine.h"
#include "tests/fuzz/text_fuzz_target.h"

// Whatever the schema says, it is refused or compiled, and what the grammar's shortest-sighted
// reader writes is JSON.
QUARTET_FUZZ_TARGET(FuzzGrammarSchema) {
  using namespace quartet;
  using grammar::Machine;
  const auto schema = text::ParseJson(input);
  if (!schema.ok() || !text::CheckSchemaSize(*schema).ok()) return;
  grammar::GrammarBuilder builder;
  text::JsonText json(&builder);
  text::SchemaCompiler compiler(
      *schema, {}, std::chrono::steady_clock::now() + text::kSchemaTimeMax, &builder, &json);
  const auto start = compiler.Json(compiler.reader().root_goal());
  if (!start.ok()) return;
  auto built = builder.Build(*start);
  if (!built.ok()) return;
  fuzz::Require(grammar::Grammar::Parse(built->Serialize()).ok());
  Machine machine(std::make_shared<const grammar::Grammar>(*std::move(built)));
  grammar::Readings now = machine.Start();
  grammar::Readings next;
  std::string text;
  // Closing what is open comes first.
  for (int step = 0; step < 400 && !Machine::MayEnd(now); ++step) {
    const grammar::ByteSet first = machine.First(now, /*texts=*/true);
    fuzz::Require(first.any());
    char byte = 0;
    for (const char wish : std::string_view("}]\",:n0159t{[a-")) {
      if (byte == 0 && first.test(static_cast<unsigned char>(wish))) byte = wish;
    }
    for (unsigned b = 0; b < 256 && byte == 0; ++b) {
      if (first.test(b)) byte = static_cast<char>(b);
    }
    machine.Step(now, static_cast<uint8_t>(byte), &next);
    std::swap(now, next);
    text += byte;
  }
  if (Machine::MayEnd(now)) fuzz::Require(text::ParseJson(text).ok());
}
