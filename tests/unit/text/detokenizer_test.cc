#include "services/gateway/text/detokenizer.h"

#include <gtest/gtest.h>

#include <string>

#include "services/gateway/text/utf8.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

TEST(Detokenizer, StreamsLikeTheReference) {
  const Value cases = LoadJson("tests/data/chat/tokenizer.json").Get("stream");
  ASSERT_EQ(cases.list().size(), 11u);
  for (const Value& c : cases.list()) {
    Detokenizer stream(&ToyTokenizer());
    std::string full;
    const std::vector<int32_t> ids = Ids(c.Get("ids"));
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string chunk = stream.Append(ids[i]);
      EXPECT_EQ(chunk, c.Get("chunks_after_each_token").list()[i].string())
          << c.Get("name").string() << ", token " << i;
      full += chunk;
    }
    const std::string rest = stream.Flush();
    EXPECT_EQ(rest, c.Get("flush_at_end").string()) << c.Get("name").string();
    EXPECT_EQ(full + rest, c.Get("full").string());
    EXPECT_EQ(Decode(ToyTokenizer(), ids), c.Get("full").string());
  }
}

std::string BytesOfHex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

TEST(Detokenizer, ReleasesSplitCharactersOnceAndWhole) {
  int run = 0;
  for (const Value& c : LoadJson("tests/data/chat/cases.json").Get("cases").list()) {
    if (c.Get("kind").string() != "detok") continue;
    ++run;
    Utf8Assembler assembler;
    const Value::List& tokens = c.Get("token_bytes_hex").list();
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string chunk;
      assembler.Append(BytesOfHex(tokens[i].string()), &chunk);
      EXPECT_EQ(chunk, c.Get("expect").Get("chunks").list()[i].string()) << i;
    }
    std::string rest;
    assembler.Flush(&rest);
    EXPECT_EQ(rest, c.Get("expect").Get("flush").string());
  }
  EXPECT_EQ(run, 1);
}

TEST(Detokenizer, TextDoesNotDependOnHowBytesAreCut) {
  const std::string bytes =
      "ok \xF0\x9F\xA6\x9C \xE4\xBD\xFF\xC0\x80 \xED\xA0\x80 \xF4\x90\x80\x80 \xC3\xA9\xF0\x9F";
  const std::string expected = ReplaceIllFormedUtf8(bytes);
  std::mt19937 random(1);
  for (int round = 0; round <= 200; ++round) {
    Utf8Assembler assembler;
    std::string text;
    for (const std::string& piece : round == 0 ? SingleBytes(bytes) : RandomCuts(bytes, random)) {
      assembler.Append(piece, &text);
    }
    assembler.Flush(&text);
    EXPECT_EQ(text, expected);
  }
}

TEST(Detokenizer, SkipsSpecialTokensOnRequestOnly) {
  const std::vector<int32_t> ids = {610, 623, 64, 624, 609, 65};
  EXPECT_EQ(Decode(ToyTokenizer(), ids), "<|assistant|><think>a</think><|user|>b");
  EXPECT_EQ(Decode(ToyTokenizer(), ids, {.skip_special_tokens = true}), "<think>a</think>b");
}

TEST(Detokenizer, IdsWithoutTextAddNothing) {
  EXPECT_EQ(Decode(ToyTokenizer(), std::vector<int32_t>{64, 638, 1000000, -5, 65}), "ab");
}

}  // namespace
}  // namespace quartet::text
