// Runs the gateway's fuzz targets over a small seeded corpus.
#include "tests/fuzz/fuzz_corpus.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace quartet::fuzz {

void FuzzTranslations(std::string_view input);

namespace {

TEST(FuzzCorpus, Translations) {
  const std::string messages =
      R"({"model":"m","max_tokens":9,"system":[{"type":"text","text":"s"}],"stop_sequences":["x"],)"
      R"("tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},)"
      R"("thinking":{"type":"enabled","budget_tokens":99},"output_config":{"effort":"low",)"
      R"("format":{"type":"json_schema","schema":{}}},"messages":[{"role":"user","content":"u"},)"
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"q"},)"
      R"({"type":"text","text":"c"},{"type":"tool_use","id":"t1","name":"f","input":{"a":1}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,)"
      R"("content":[{"type":"text","text":"r"}]},{"type":"tool_result","tool_use_id":"t2",)"
      R"("content":[{"type":"tool_reference","tool_name":"f"}]},{"type":"text","text":"v"}]},)"
      R"({"role":"assistant","content":"p"}]})";
  const std::string responses =
      R"({"model":"m","instructions":"i","max_output_tokens":9,"reasoning":{"effort":"low"},)"
      R"("text":{"format":{"type":"json_schema","name":"n","schema":{},"strict":true}},)"
      R"("tools":[{"type":"function","name":"f","parameters":{}}],"tool_choice":{"type":)"
      R"("allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]},)"
      R"("include":["reasoning.encrypted_content"],"input":[{"role":"user","content":[)"
      R"({"type":"input_text","text":"u"}]},{"type":"reasoning","summary":[],"content":[)"
      R"({"type":"reasoning_text","text":"t"}]},{"type":"message","role":"assistant","content":[)"
      R"({"type":"output_text","text":"c"}]},{"type":"function_call","call_id":"c1","name":"f",)"
      R"("arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"r"}]})";
  RunTarget(FuzzTranslations,
            {"0" + messages, "1" + messages, "2" + responses, "2{\"input\":\"x\"}"}, 3000);
}

}  // namespace
}  // namespace quartet::fuzz
