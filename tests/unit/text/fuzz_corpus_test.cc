// Runs the fuzz targets over a small seeded corpus: hand-written inputs and random damage to them.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/files.h"
#include "tests/fuzz/fuzz_corpus.h"
#include "tests/unit/text/test_data.h"

namespace quartet::fuzz {

void FuzzEncode(std::string_view input);
void FuzzJson(std::string_view input);
void FuzzTemplate(std::string_view input);
void FuzzTokenizerFile(std::string_view input);
void FuzzToolCalls(std::string_view input);
void FuzzToolSchema(std::string_view input);

namespace {

TEST(FuzzCorpus, Json) {
  RunTarget(FuzzJson,
            {R"({"a":[1,-2.5e3,null,true,"x\u00e9\ud83d\ude00\n"],"b":{"a":1,"a":2}})", "[[[[]]]]",
             "\"\\ud800\"", "1e400", "", "\xEF\xBB\xBF{}"},
            2000);
}

TEST(FuzzCorpus, Template) {
  std::vector<std::string> seeds;
  for (const text::Value& c :
       text::LoadJson("tests/unit/text/template_cases.json").Get("cases").list()) {
    seeds.push_back(c.Get("template").string());
  }
  RunTarget(FuzzTemplate, seeds, 100);
  const auto shipped = text::ReadSmallFile(
      text::SourcePath("models/quartet-demo-exl3/chat_template.jinja"), 1 << 20);
  ASSERT_TRUE(shipped.ok());
  RunTarget(FuzzTemplate, {*shipped}, 500);
}

TEST(FuzzCorpus, Encode) {
  std::vector<std::string> seeds = {"\xFF\xC0\xED\xA0\x80", "<|user|><|user|",
                                    "\xEF\xB7\x90\xEF\xB7\x91"};
  for (const text::Value& v :
       text::LoadJson("tests/data/chat/tokenizer.json").Get("toy_vectors").list()) {
    seeds.push_back(v.Get("text").string());
  }
  RunTarget(FuzzEncode, seeds, 100);
}

TEST(FuzzCorpus, ToolCalls) {
  const std::string call =
      "<tool_call>f\n<arg_key>s</arg_key><arg_value>a</arg_value>b\\</arg_value><arg_key>n</"
      "arg_key>"
      "<arg_value>\"5\"</arg_value></tool_call>";
  std::vector<std::string> seeds;
  for (char choice = 0; choice < 8; ++choice) {
    seeds.push_back(std::string(1, choice) + "<think>hm</think>\n" + call + "\n" + call +
                    "</think>");
    seeds.push_back(std::string(1, choice) + call + " and <tool_call>no</tool_call>");
  }
  RunTarget(FuzzToolCalls, seeds, 500);
}

TEST(FuzzCorpus, ToolSchema) {
  RunTarget(
      FuzzToolSchema,
      {R"({"tools":[{"name":"f","parameters":{"properties":{"k":{"$ref":"#/$defs/a~1b"}},)"
       R"("$defs":{"a/b":{"anyOf":[{"type":["null","string"]},{"$ref":"#/properties/k"}]}}}}],)"
       R"("key":"k","text":" \"12.50\" "})",
       R"({"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":)"
       R"({"k":{"allOf":[{"enum":[1,"a",{}]},{"const":1}]}}}}}],"text":"[1, 1e400]"})"},
      2000);
}

TEST(FuzzCorpus, TokenizerFile) {
  const auto file =
      text::ReadSmallFile(text::SourcePath("tests/data/chat/toy_tokenizer.json"), 1 << 20);
  ASSERT_TRUE(file.ok());
  RunTarget(FuzzTokenizerFile, {*file, "{}", "[]", ""}, 200);
}

}  // namespace
}  // namespace quartet::fuzz
