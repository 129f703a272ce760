// /tokenize, /detokenize, /apply-template and /version.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::HasSubstr;
using testing::RawReply;

class TextApiTest : public GatewayTest {
 protected:
  static std::string List(const std::vector<int32_t>& ids) {
    return absl::StrCat("[", absl::StrJoin(ids, ","), "]");
  }
};

TEST_F(TextApiTest, TextBecomesTheIdsThatACompletionWouldBeGiven) {
  Start();
  const RawReply reply = Post("/tokenize", R"({"prompt":"hi<|user|>"})");
  EXPECT_EQ(reply.status, 200);
  const std::vector<int32_t> ids = Ids("hi<|user|>");
  EXPECT_EQ(At(reply.body, "tokens"), List(ids));
  EXPECT_EQ(At(reply.body, "count"), absl::StrCat(ids.size()));
  EXPECT_EQ(At(reply.body, "max_model_len"), "4096");
  EXPECT_EQ(At(reply.body, "token_strs"), "<none>");
  Post("/v1/completions", R"({"prompt":"hi<|user|>"})");
  EXPECT_EQ(List(LastSeen().prompt_ids), List(ids));
}

TEST_F(TextApiTest, AChatBecomesTheIdsThatTheEngineIsGiven) {
  Start();
  for (const char* fields :
       {"", R"("reasoning_effort":"low")", R"("chat_template_kwargs":{"reasoning_effort":"high"})",
        R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}])"}) {
    const RawReply reply = Post("/tokenize", ChatBody(fields));
    EXPECT_EQ(Chat(fields).status, 200);
    EXPECT_EQ(At(reply.body, "tokens"), List(LastSeen().prompt_ids)) << fields;
  }
}

TEST_F(TextApiTest, TokensAreShownAsTextOnRequest) {
  Start();
  const RawReply reply = Post("/tokenize", R"({"prompt":"hi<|user|>é","return_token_strs":true})");
  EXPECT_EQ(At(reply.body, "token_strs.0"), "hi");
  EXPECT_EQ(At(reply.body, "token_strs.1"), "<|user|>");
}

TEST_F(TextApiTest, IdsBecomeTheirText) {
  Start();
  const std::string text = "hi <|user|> é 42";
  const RawReply reply = Post("/detokenize", absl::StrCat("{\"tokens\":", List(Ids(text)), "}"));
  EXPECT_EQ(At(reply.body, "prompt"), text);
  EXPECT_EQ(At(Post("/detokenize", R"({"tokens":[]})").body, "prompt"), "");
}

TEST_F(TextApiTest, TheTemplateIsAppliedWithoutEncoding) {
  Start();
  EXPECT_EQ(At(Post("/apply-template", ChatBody("")).body, "prompt"),
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi<|assistant|><think>");
  EXPECT_EQ(
      At(Post("/apply-template", ChatBody(R"("add_generation_prompt":false)")).body, "prompt"),
      "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi");
}

TEST_F(TextApiTest, ErrorsNameTheField) {
  Start();
  struct Case {
    const char* path;
    const char* body;
    const char* param;
    int status = 400;
  };
  const Case cases[] = {
      {"/tokenize", "{}", "prompt"},
      {"/tokenize", "[]", "null"},
      {"/tokenize", "{", "null"},
      {"/tokenize", R"({"prompt":5})", "prompt"},
      {"/tokenize", R"({"prompt":"a","messages":[]})", "messages"},
      {"/tokenize", R"({"messages":7})", "messages"},
      {"/tokenize", R"({"messages":[]})", "messages"},
      {"/tokenize", R"({"prompt":"a","return_token_strs":"yes"})", "return_token_strs"},
      {"/tokenize", R"({"prompt":"a","model":"other"})", "model", 404},
      {"/detokenize", "{}", "tokens"},
      {"/detokenize", R"({"tokens":"1"})", "tokens"},
      {"/detokenize", R"({"tokens":[1,2048]})", "tokens[1]"},
      {"/detokenize", R"({"tokens":[-1]})", "tokens[0]"},
      {"/apply-template", "{}", "messages"},
      {"/apply-template", R"({"messages":[{"role":"king","content":"a"}]})", "messages[0].role"},
      {"/apply-template",
       R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
       "messages[0].content[0].image_url"},
  };
  for (const Case& c : cases) {
    const RawReply reply = Post(c.path, c.body);
    EXPECT_EQ(reply.status, c.status) << c.path << " " << c.body;
    EXPECT_EQ(At(reply.body, "error.param"), c.param) << c.path << " " << c.body << reply.body;
  }
}

TEST_F(TextApiTest, TextFarBeyondTheContextIsRefusedUnread) {
  Start();
  const std::string text(200'000, 'a');
  for (const std::string& body :
       {absl::StrCat("{\"prompt\":\"", text, "\"}"),
        absl::StrCat(R"({"messages":[{"role":"user","content":")", text, "\"}]}")}) {
    const RawReply reply = Post("/tokenize", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(At(reply.body, "error.code"), "context_length_exceeded");
  }
}

TEST_F(TextApiTest, TextIsEncodedWithoutAnEngineButNotWithoutAModel) {
  StartEngine();
  engine_->SetReady(false, "workers are missing");
  StartGatewayOnly();
  const RawReply early = Post("/tokenize", R"({"prompt":"hi"})");
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(early.headers.count("retry-after"), 1u);
  ASSERT_TRUE(gateway_->LoadModel().ok());
  EXPECT_EQ(Post("/tokenize", R"({"prompt":"hi"})").status, 200);
  EXPECT_EQ(Get("/readyz").status, 503);
}

TEST_F(TextApiTest, TheVersionIsTheProjects) {
  Start();
  EXPECT_THAT(At(Get("/version").body, "version"), ::testing::MatchesRegex("[0-9]+\\.[0-9]+.*"));
}

}  // namespace
}  // namespace quartet::gateway
