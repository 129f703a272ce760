// Runs the gateway's fuzz targets over a small seeded corpus.
#include "tests/fuzz/fuzz_corpus.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/access/api_keys.h"

namespace quartet::fuzz {

void FuzzApiKeys(std::string_view input);
void FuzzHttpHead(std::string_view input);
void FuzzPrepareChat(std::string_view input);
void FuzzTextRequests(std::string_view input);
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

TEST(FuzzCorpus, PrepareChat) {
  const std::string chat =
      R"({"model":"m","messages":[{"role":"system","content":"Be <|user|> brief."},)"
      R"({"role":"user","content":[{"type":"text","text":"h\u00e9"}]},{"role":"assistant",)"
      R"("tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"n\":1}"}}]},)"
      R"({"role":"tool","tool_call_id":"a","content":"1"}],"tools":[{"type":"function","function":)"
      R"({"name":"f","parameters":{"properties":{"n":{"type":"integer"}}}}}],"max_tokens":9,)"
      R"("temperature":0.5,"stop":["a"],"seed":-1,"stream":true,"stream_options":{"include_usage":true}})";
  const std::string completion =
      R"({"prompt":[[1,2],[3]],"max_tokens":3,"top_p":0.5,"stop_token_ids":[5],"echo":true})";
  std::vector<std::string> seeds;
  for (char choice = 0; choice < 4; ++choice) seeds.push_back(std::string(1, choice) + chat);
  seeds.push_back("\x04" + completion);
  seeds.push_back(
      "\x04"
      R"({"prompt":["a <|user|>","b"],"n":1,"logit_bias":{"5":1}})");
  RunTarget(FuzzPrepareChat, seeds, 400);
}

TEST(FuzzCorpus, TextRequests) {
  RunTarget(FuzzTextRequests,
            {std::string(1, '\0') + R"({"prompt":"h\u00e9 <|user|>","return_token_strs":true})",
             std::string(1, '\0') + R"({"messages":[{"role":"user","content":"a"}]})",
             "\x01"
             R"({"tokens":[1,200,2047]})",
             "\x02"
             R"({"messages":[{"role":"user","content":"a"}],"reasoning_effort":"low"})"},
            500);
}

TEST(FuzzCorpus, HttpHead) {
  RunTarget(FuzzHttpHead,
            {"GET\nhttp://h/a?q\nid-1\nhttps://a.example\nPOST\nauthorization, x-a",
             "OPTIONS\n/item/b\napplication/json; charset=utf-8\ngzip\n\n\r", ""},
            3000);
}

TEST(FuzzCorpus, ApiKeys) {
  const std::string line = *gateway::MakeApiKeyLine("ann", "key-of-ann-0123456789");
  RunTarget(FuzzApiKeys, {line + " requests=2 tokens-per-minute=5\n# no\n", line + "\n" + line},
            2000);
}

}  // namespace
}  // namespace quartet::fuzz
