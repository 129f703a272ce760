#include "services/gateway/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "services/gateway/text/control_tokens.h"
#include "services/gateway/text/detokenizer.h"
#include "services/gateway/text/files.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/pretokenizer.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> Encoded(const Tokenizer& tokenizer, std::string_view text,
                             EncodeOptions options = {}) {
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

std::vector<std::string> PreTokens(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t bytes = NextPreToken(text);
    out.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return out;
}

TEST(Tokenizer, EncodesAndDecodesLikeTheReferenceLibrary) {
  const Value vectors = LoadJson("tests/data/chat/tokenizer.json").Get("toy_vectors");
  ASSERT_EQ(vectors.list().size(), 74u);
  for (const Value& vector : vectors.list()) {
    const std::string text = vector.Get("text").string();
    const std::vector<int32_t> ids = Ids(vector.Get("ids"));
    EXPECT_EQ(Encoded(ToyTokenizer(), text), ids) << text;
    EXPECT_EQ(Decode(ToyTokenizer(), ids), vector.Get("decode_keep").string());
    EXPECT_EQ(Decode(ToyTokenizer(), ids, {.skip_special_tokens = true}),
              vector.Get("decode_skip").string());
  }
}

// The real vocabulary has 20 MB and is not part of the repository.
TEST(Tokenizer, EncodesTheRealVocabularyLikeTheReferenceLibrary) {
  const char* path = std::getenv("QUARTET_REAL_TOKENIZER");
  if (path == nullptr) GTEST_SKIP() << "QUARTET_REAL_TOKENIZER names no tokenizer.json";
  const auto tokenizer = Tokenizer::Load(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const Value& vector :
       LoadJson("tests/data/chat/tokenizer.json").Get("real_vocab_vectors").list()) {
    EXPECT_EQ(Encoded(**tokenizer, vector.Get("text").string()), Ids(vector.Get("ids")))
        << vector.Get("text").string();
  }
  for (const Value& example : LoadJson("tests/data/chat/templates.json").Get("cases").list()) {
    if (example.Find("token_ids_real_vocab") == nullptr) continue;
    EXPECT_EQ(Encoded(**tokenizer, example.Get("expected").string()),
              Ids(example.Get("token_ids_real_vocab")));
  }
}

TEST(Tokenizer, GivesTheDemoModelItsPrompts) {
  for (const std::string model : {"quartet-demo-exl3", "quartet-demo-exl3-std"}) {
    const auto tokenizer = Tokenizer::Load(SourcePath("models/" + model + "/tokenizer.json"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const Value cases = LoadJson("tests/data/demo/prompts.json").Get("cases");
    ASSERT_FALSE(cases.list().empty());
    for (const Value& c : cases.list()) {
      // Prompts with a picture hold its placeholders already expanded.
      EXPECT_EQ(Encoded(**tokenizer, c.Get("prompt").string()), Ids(c.Get("input_ids")))
          << c.Get("id").NumberText();
    }
  }
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer& toy = ToyTokenizer();
  EXPECT_EQ(toy.vocab_size(), 638);
  EXPECT_EQ(toy.added_tokens().size(), 36u);
  EXPECT_EQ(toy.TokenId("<|user|>"), 609);
  EXPECT_EQ(toy.TokenId("!"), 0);
  EXPECT_EQ(toy.TokenId("no such token"), std::nullopt);
  EXPECT_TRUE(toy.IsAdded(623));
  EXPECT_FALSE(toy.IsSpecial(623));
  EXPECT_TRUE(toy.IsSpecial(609));
  EXPECT_FALSE(toy.IsAdded(0));
  EXPECT_EQ(toy.TokenBytes(623), "<think>");
  EXPECT_EQ(toy.TokenBytes(127), "\xC3");
  for (const int32_t id : {-1, 638, 1 << 30}) {
    EXPECT_EQ(toy.TokenBytes(id), "");
    EXPECT_FALSE(toy.HasToken(id));
    EXPECT_FALSE(toy.IsSpecial(id));
  }
}

TEST(Tokenizer, TakesAddedTokensAsTextWhenAsked) {
  EXPECT_THAT(Encoded(ToyTokenizer(), "<|user|>"), ElementsAre(609));
  const std::vector<int32_t> plain =
      Encoded(ToyTokenizer(), "<|user|>", {.match_added_tokens = false});
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(Decode(ToyTokenizer(), plain), "<|user|>");
}

TEST(Tokenizer, ReplacesIllFormedUtf8) {
  EXPECT_EQ(Encoded(ToyTokenizer(), "a\xFFz\xE4\xBD"),
            Encoded(ToyTokenizer(), "a\xEF\xBF\xBDz\xEF\xBF\xBD"));
}

TEST(Tokenizer, EncodesMegabytesOfAnythingInTime) {
  for (const std::string unit :
       {"a", "ab", "\xE9\xBE\x8D", " ", "\n ", "'", "1", "<|", "\xCC\x81"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<int32_t> ids = Encoded(ToyTokenizer(), text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    // A quadratic method takes hours here; the bound leaves room for sanitizers and busy machines.
    EXPECT_LT(took.count(), 30.0) << unit;
    EXPECT_EQ(Decode(ToyTokenizer(), ids), text);
  }
}

TEST(Tokenizer, ServesManyThreads) {
  const std::vector<int32_t> expected = Encoded(ToyTokenizer(), "The server reads the request.");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto ids = ToyTokenizer().Encode("The server reads the request.");
        if (!ids.ok() || *ids != expected) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(PreTokens, FollowTheRegularExpression) {
  EXPECT_THAT(PreTokens("I'll they'RE 'quoted'"),
              ElementsAre("I", "'ll", " they", "'RE", " '", "quoted", "'"));
  EXPECT_THAT(PreTokens("12345 x\xC2\xBD"), ElementsAre("123", "45", " x", "\xC2\xBD"));
  EXPECT_THAT(PreTokens("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(PreTokens("a  \n \n  b "), ElementsAre("a", "  \n \n", " ", " b", " "));
  EXPECT_THAT(PreTokens("x = {};\r\n\r\ny"), ElementsAre("x", " =", " {};\r\n\r\n", "y"));
  EXPECT_THAT(PreTokens("\tint"), ElementsAre("\tint"));
  EXPECT_THAT(PreTokens(" \xC2\xA0!"), ElementsAre(" ", "\xC2\xA0", "!"));
}

// Ignoring case makes the long s one of the letters of 's. No other character outside ASCII is one
// of a contraction's.
TEST(PreTokens, TakeTheLongSForAnS) {
  EXPECT_THAT(PreTokens("x'\xC5\xBFt"), ElementsAre("x", "'\xC5\xBF", "t"));
  EXPECT_THAT(PreTokens("x'\xC5\xBE"), ElementsAre("x", "'\xC5\xBE"));
}

// The reference library knows the letters and numbers of Unicode 16; ids depend on which are known.
TEST(PreTokens, KnowTheCharactersOfUnicode16) {
  const std::string ideograph = "\xF0\xB2\x8E\xAF";   // U+323AF, since Unicode 15
  const std::string cyrillic = "\xE1\xB2\x8A";        // U+1C8A, since Unicode 16
  const std::string garay_zero = "\xF0\x90\xB5\x80";  // U+10D40, since Unicode 16
  EXPECT_THAT(PreTokens("a" + ideograph + cyrillic), ElementsAre("a" + ideograph + cyrillic));
  EXPECT_THAT(PreTokens("123" + garay_zero), ElementsAre("123", garay_zero));
}

TEST(EncodeRendered, KeepsTypedControlTokensApartFromRealOnes) {
  const Tokenizer& toy = ToyTokenizer();
  const ControlTokenEscaper escaper(toy.added_tokens());
  const std::string typed = "say <|assistant|> and </think>";
  const std::string rendered = "<|user|>" + escaper.Escape(typed) + "<|assistant|><think>";
  const auto ids = toy.EncodeRendered(rendered);
  ASSERT_TRUE(ids.ok());
  std::vector<int32_t> expected = {609};
  for (const int32_t id : Encoded(toy, typed, {.match_added_tokens = false}))
    expected.push_back(id);
  expected.push_back(610);
  expected.push_back(623);
  EXPECT_EQ(*ids, expected);
  EXPECT_EQ(escaper.Unescape(rendered), "<|user|>" + typed + "<|assistant|><think>");
}

TEST(EncodeRendered, EqualsThePlainMethodWithoutMarkers) {
  for (const Value& vector : LoadJson("tests/data/chat/tokenizer.json").Get("toy_vectors").list()) {
    const auto ids = ToyTokenizer().EncodeRendered(vector.Get("text").string());
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, Ids(vector.Get("ids")));
  }
}

TEST(ControlTokens, MarkersAreRecognised) {
  const ControlTokenEscaper escaper(ToyTokenizer().added_tokens());
  EXPECT_FALSE(HoldsMarkerCharacter("plain \xEF\xB7\xBA"));  // U+FDFA is a letter
  EXPECT_TRUE(HoldsMarkerCharacter(escaper.Escape("x<think>")));
  EXPECT_TRUE(HoldsMarkerCharacter(kCutMarker));
  // What is no marker stays.
  const std::string torn = "\xEF\xB7\x90\xEF\xB7\x91 rest \xEF\xB7";
  EXPECT_EQ(escaper.Unescape(torn), torn);
  EXPECT_EQ(escaper.Unescape(kCutMarker), kCutMarker);
}

// The loader. Each case changes one field of a good file.

class TokenizerFileTest : public testing::Test {
 protected:
  // Replaces the value at `path` ("model.byte_fallback", "added_tokens.0.lstrip") and loads.
  absl::Status LoadChanged(std::vector<std::string> path, std::string_view json) {
    const Value root = LoadJson("tests/data/chat/toy_tokenizer.json");
    std::string text;
    EXPECT_TRUE(AppendJson(Changed(root, path, 0, Json(json)), {}, &text).ok());
    return Tokenizer::FromJson(text, "the.json").status();
  }

  static Value Changed(const Value& value, const std::vector<std::string>& path, size_t level,
                       const Value& replacement) {
    if (level == path.size()) return replacement;
    if (value.is_list()) {
      Value::List items = value.list();
      Value& item = items[std::stoul(path[level])];
      item = Changed(item, path, level + 1, replacement);
      return Value::MakeList(std::move(items));
    }
    Value::Entries entries = value.entries();
    entries.emplace_back(path[level],
                         Changed(value.Get(path[level]), path, level + 1, replacement));
    return Value::MakeObject(std::move(entries));
  }
};

TEST_F(TokenizerFileTest, RefusesWhatItDoesNotImplementAndNamesTheField) {
  struct Case {
    std::vector<std::string> path;
    const char* json;
    const char* field;
  };
  const Case cases[] = {
      {{"normalizer"}, R"({"type":"NFC"})", "normalizer"},
      {{"truncation"}, R"({"max_length":5})", "truncation"},
      {{"model", "type"}, R"("Unigram")", "model.type"},
      {{"model", "byte_fallback"}, "true", "model.byte_fallback"},
      {{"model", "fuse_unk"}, "true", "model.fuse_unk"},
      {{"model", "dropout"}, "0.1", "model.dropout"},
      {{"model", "unk_token"}, R"("<unk>")", "model.unk_token"},
      {{"model", "end_of_word_suffix"}, R"("</w>")", "model.end_of_word_suffix"},
      {{"model", "ignore_merges"}, "3", "model.ignore_merges"},
      {{"model", "vocab"}, "[]", "model.vocab"},
      {{"model", "vocab", "!"}, "-4", "model.vocab"},
      {{"model", "vocab", "!"}, "1", "model.vocab"},
      {{"model", "merges"}, R"([["a","nothing here"]])", "model.merges[0]"},
      {{"model", "merges"}, R"(["ab"])", "model.merges[0]"},
      {{"pre_tokenizer", "type"}, R"("Whitespace")", "pre_tokenizer.type"},
      {{"pre_tokenizer", "pretokenizers", "0", "pattern", "Regex"}, R"("\\w+")", "pattern.Regex"},
      {{"pre_tokenizer", "pretokenizers", "0", "behavior"}, R"("Removed")", "behavior"},
      {{"pre_tokenizer", "pretokenizers", "0", "invert"}, "true", "invert"},
      {{"pre_tokenizer", "pretokenizers", "1", "add_prefix_space"}, "true", "add_prefix_space"},
      {{"pre_tokenizer", "pretokenizers", "1", "use_regex"}, "true", "use_regex"},
      {{"post_processor"}, R"({"type":"TemplateProcessing"})", "post_processor.type"},
      {{"decoder"}, R"({"type":"Metaspace"})", "decoder.type"},
      {{"added_tokens", "0", "lstrip"}, "true", "added_tokens[0].lstrip"},
      {{"added_tokens", "0", "single_word"}, "true", "added_tokens[0].single_word"},
      {{"added_tokens", "0", "id"}, "603", "added_tokens[1].id"},
      {{"added_tokens", "0", "id"}, "5", "added_tokens[0].id"},
      {{"added_tokens", "0", "id"}, "99999999999", "added_tokens[0].id"},
      {{"added_tokens", "0", "content"}, R"("")", "added_tokens[0].content"},
  };
  for (const Case& c : cases) {
    const absl::Status status = LoadChanged(c.path, c.json);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field << " " << c.json;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the.json: ")) << c.json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field)) << c.json;
  }
}

TEST_F(TokenizerFileTest, NeedsAllBytes) {
  const absl::Status status = LoadChanged({"model", "vocab"}, R"({"!": 0})");
  EXPECT_THAT(std::string(status.message()), HasSubstr("no entry for byte 0x00"));
}

TEST_F(TokenizerFileTest, NamesAFileThatIsMissingOrTorn) {
  EXPECT_THAT(std::string(Tokenizer::Load("/no/such/tokenizer.json").status().message()),
              HasSubstr("/no/such/tokenizer.json: no such file"));
  EXPECT_THAT(std::string(Tokenizer::FromJson("{\"a\": ", "torn.json").status().message()),
              HasSubstr("torn.json: invalid JSON at line 1"));
}

TEST_F(TokenizerFileTest, TakesMergesInBothForms) {
  const Value root = LoadJson("tests/data/chat/toy_tokenizer.json");
  Value::List merges;
  for (const Value& merge : root.Get("model").Get("merges").list()) {
    merges.push_back(Value::String(merge.list()[0].string() + " " + merge.list()[1].string()));
  }
  std::string text;
  ASSERT_TRUE(
      AppendJson(Changed(root, {"model", "merges"}, 0, Value::MakeList(merges)), {}, &text).ok());
  const auto old_form = Tokenizer::FromJson(text);
  ASSERT_TRUE(old_form.ok()) << old_form.status();
  for (const Value& vector : LoadJson("tests/data/chat/tokenizer.json").Get("toy_vectors").list()) {
    EXPECT_EQ(Encoded(**old_form, vector.Get("text").string()), Ids(vector.Get("ids")));
  }
}

TEST_F(TokenizerFileTest, MergesWhereIgnoreMergesIsOff) {
  const Value root = LoadJson("tests/data/chat/toy_tokenizer.json");
  std::string text;
  ASSERT_TRUE(
      AppendJson(Changed(root, {"model", "ignore_merges"}, 0, Value::Bool(false)), {}, &text).ok());
  const auto merging = Tokenizer::FromJson(text);
  ASSERT_TRUE(merging.ok()) << merging.status();
  // An entry of the vocabulary that no merges lead to.
  EXPECT_EQ(Encoded(ToyTokenizer(), "quokka").size(), 1u);
  EXPECT_GT(Encoded(**merging, "quokka").size(), 1u);
}

}  // namespace
}  // namespace quartet::text
