#include "services/gateway/text/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <variant>

#include "services/gateway/text/chat_prompt.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

TEST(ModelText, ReadsBothDemoModels) {
  for (const std::string model : {"quartet-demo-exl3", "quartet-demo-exl3-std"}) {
    const auto text = LoadModelText(SourcePath("models/" + model));
    ASSERT_TRUE(text.ok()) << text.status();
    const GenerationDefaults& defaults = (*text)->defaults;
    EXPECT_THAT(defaults.end.ids, ElementsAre(1984, 1991, 1993));
    EXPECT_TRUE(defaults.end.Contains(1991));
    EXPECT_FALSE(defaults.end.Contains(1990));
    EXPECT_EQ(defaults.end.first_padding_id, 2020);
    EXPECT_EQ(defaults.end.vocab_size, 2048);
    EXPECT_TRUE(defaults.sampling.greedy);
    EXPECT_EQ(defaults.sampling.temperature, 0.0);
    EXPECT_EQ(defaults.sampling.top_p, 0.95);
    EXPECT_GT(defaults.max_position_embeddings, 0);
    EXPECT_THAT((*text)->chat_template_origin, testing::EndsWith("/chat_template.jinja"));
  }
}

// A small model folder of which each test changes one thing.
class ModelFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_.Write("tokenizer.json", Read(SourcePath("tests/data/chat/toy_tokenizer.json")));
    folder_.Write("config.json", R"({"text_config":{"vocab_size":640}})");
    folder_.Write("generation_config.json", R"({"eos_token_id":602})");
    folder_.Write("chat_template.jinja", "from the file");
  }

  absl::StatusOr<std::unique_ptr<const ModelText>> Load(const ModelTextOptions& options = {}) {
    return LoadModelText(folder_.path(), options);
  }
  std::string Error(const ModelTextOptions& options = {}) {
    return std::string(Load(options).status().message());
  }
  std::string TemplateText(const ModelTextOptions& options = {}) {
    const auto model = Load(options);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *(*model)->chat_template->Render(Value::MakeObject({})) : "";
  }
  void Remove(const std::string& name) {
    ASSERT_EQ(remove((folder_.path() + "/" + name).c_str()), 0);
  }

  TemporaryFolder folder_;
};

TEST_F(ModelFolderTest, EndTokensAreTheUnionOfAllFiles) {
  folder_.Write(
      "config.json",
      R"({"eos_token_id":609,"text_config":{"vocab_size":640,"eos_token_id":[611,602]}})");
  folder_.Write("generation_config.json", R"({"eos_token_id":[602,608]})");
  folder_.Write("tokenizer_config.json", R"({"eos_token":"<eop>"})");
  EXPECT_THAT((*Load())->defaults.end.ids, ElementsAre(602, 607, 608, 609, 611));
  folder_.Write("tokenizer_config.json", R"({"eos_token":{"content":"<sop>"}})");
  EXPECT_THAT((*Load())->defaults.end.ids, ElementsAre(602, 606, 608, 609, 611));
}

TEST_F(ModelFolderTest, ReadsSamplingDefaults) {
  folder_.Write(
      "generation_config.json",
      R"({"eos_token_id":602,"do_sample":true,"temperature":0.7,"top_p":0.8,"top_k":40,"min_p":0.1,"repetition_penalty":1.1})");
  const SamplingDefaults sampling = (*Load())->defaults.sampling;
  EXPECT_FALSE(sampling.greedy);
  EXPECT_EQ(sampling.temperature, 0.7);
  EXPECT_EQ(sampling.top_p, 0.8);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.min_p, 0.1);
  EXPECT_EQ(sampling.repetition_penalty, 1.1);
}

TEST_F(ModelFolderTest, NamesTheFileAndTheFieldThatIsWrong) {
  struct Case {
    const char* file;
    const char* text;
    const char* message;
  };
  for (const Case& c :
       {Case{"config.json", "{}", "config.json: vocab_size is missing"},
        Case{"config.json", R"({"vocab_size":10})",
             "config.json: vocab_size is 10; at least the tokenizer's 638"},
        Case{"config.json", "[]", "config.json: the top level is array"},
        Case{"config.json", "{", "config.json: invalid JSON"},
        Case{"generation_config.json", R"({"eos_token_id":640})",
             "generation_config.json: eos_token_id is 640; an id from 0 to 639"},
        Case{"generation_config.json", R"({"eos_token_id":"x"})",
             "generation_config.json: eos_token_id"},
        Case{"generation_config.json", R"({})", "no end token is known"},
        Case{"generation_config.json", R"({"eos_token_id":602,"top_p":7})",
             "generation_config.json: top_p is 7"},
        Case{"generation_config.json", R"({"eos_token_id":602,"do_sample":"no"})",
             "generation_config.json: do_sample"},
        Case{"tokenizer_config.json", R"({"eos_token":"<nope>"})",
             "tokenizer_config.json: eos_token is \"<nope>\""},
        Case{"tokenizer.json", R"({"normalizer":{}})", "tokenizer.json: normalizer"},
        Case{"chat_template.jinja", "a\n{% nope %}", "chat_template.jinja:2: the block 'nope'"}}) {
    SetUp();
    folder_.Write("tokenizer_config.json", "{}");
    folder_.Write(c.file, c.text);
    EXPECT_THAT(Error(), HasSubstr(c.message));
    EXPECT_THAT(Error(), HasSubstr(folder_.path()));
  }
}

TEST_F(ModelFolderTest, NamesWhatIsMissing) {
  Remove("config.json");
  EXPECT_THAT(Error(), HasSubstr("/config.json: no such file"));
  Remove("tokenizer.json");
  EXPECT_THAT(Error(), HasSubstr("/tokenizer.json: no such file"));
}

TEST_F(ModelFolderTest, TheTemplateFileWinsOverTheConfiguration) {
  folder_.Write("tokenizer_config.json", R"({"chat_template":"from the configuration"})");
  EXPECT_EQ(TemplateText(), "from the file");
  Remove("chat_template.jinja");
  EXPECT_EQ(TemplateText(), "from the configuration");
  folder_.Write(
      "tokenizer_config.json",
      R"({"chat_template":[{"name":"rag","template":"r"},{"name":"default","template":"the default"}]})");
  EXPECT_EQ(TemplateText(), "the default");
  folder_.Write("tokenizer_config.json", R"({"chat_template":[{"name":"rag","template":"r"}]})");
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json: chat_template must be"));
}

TEST_F(ModelFolderTest, WithoutATemplateOfItsOwnACheckpointGetsTheBuiltInOne) {
  Remove("chat_template.jinja");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->chat_template_origin, "the built-in template");
  const auto prompt = BuildChatPrompt(
      **model, Json(R"({"messages":[{"role":"user","content":"hi"}],"reasoning_effort":"low"})"));
  ASSERT_TRUE(std::holds_alternative<ChatPrompt>(prompt));
  EXPECT_EQ(std::get<ChatPrompt>(prompt).text,
            "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>hi<|assistant|><think>");
  folder_.Write("mine.jinja", "mine");
  EXPECT_EQ(TemplateText({.chat_template_file = folder_.path() + "/mine.jinja"}), "mine");
  folder_.Write("tokenizer_config.json", R"({"chat_template":"from the configuration"})");
  EXPECT_EQ(TemplateText(), "from the configuration");
}

TEST_F(ModelFolderTest, TheBuiltInTemplateIsOnlyForTokenizersThatHaveItsTokens) {
  Remove("chat_template.jinja");
  std::string tokenizer = Read(SourcePath("tests/data/chat/toy_tokenizer.json"));
  const std::string tag = "<|observation|>";
  for (size_t at; (at = tokenizer.find(tag)) != std::string::npos;) {
    tokenizer.replace(at, tag.size(), "<|other|>");
  }
  folder_.Write("tokenizer.json", tokenizer);
  EXPECT_THAT(Error(), HasSubstr(folder_.path() + "/chat_template.jinja: no such file"));
  EXPECT_THAT(Error(), HasSubstr("writes the token <|observation|>"));
  EXPECT_THAT(Error(), HasSubstr("--chat-template FILE"));
}

TEST_F(ModelFolderTest, AGivenTemplateFileWinsOverAll) {
  folder_.Write("mine.jinja", "mine");
  EXPECT_EQ(TemplateText({.chat_template_file = folder_.path() + "/mine.jinja"}), "mine");
  EXPECT_THAT(Error({.chat_template_file = "/no/such.jinja"}),
              HasSubstr("/no/such.jinja: no such file"));
}

}  // namespace
}  // namespace quartet::text
