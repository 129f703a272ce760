#include "tests/unit/grammar/support.h"

#include <gtest/gtest.h>

#include <utility>

#include "services/gateway/text/json.h"

namespace quartet::grammar {
namespace {

Readings ReadingsAfter(Machine* machine, std::string_view text) {
  Readings now = machine->Start();
  Readings next;
  for (const char byte : text) {
    machine->Step(now, static_cast<uint8_t>(byte), &next);
    std::swap(now, next);
  }
  return now;
}

absl::StatusOr<Grammar> CompileSchema(std::string_view schema) {
  absl::StatusOr<text::Value> value = text::ParseJson(schema);
  if (!value.ok()) return value.status();
  text::AnswerForm form;
  form.content = text::ContentForm{.json_schema = *std::move(value)};
  return text::AnswerGrammar(form, DemoTokenizer());
}

}  // namespace

bool Accepts(const Grammar& grammar, std::string_view text) {
  Machine machine(std::make_shared<const Grammar>(grammar));
  return Machine::MayEnd(ReadingsAfter(&machine, text));
}

bool Begins(const Grammar& grammar, std::string_view text) {
  Machine machine(std::make_shared<const Grammar>(grammar));
  return !ReadingsAfter(&machine, text).empty();
}

Grammar SchemaGrammar(std::string_view schema) {
  absl::StatusOr<Grammar> grammar = CompileSchema(schema);
  EXPECT_TRUE(grammar.ok()) << schema << "\n" << grammar.status();
  return *std::move(grammar);
}

std::string SchemaError(std::string_view schema) {
  return std::string(CompileSchema(schema).status().message());
}

const text::Tokenizer& DemoTokenizer() {
  static const auto tokenizer = text::Tokenizer::Load(std::string(QUARTET_SOURCE_DIR) +
                                                      "/models/quartet-demo-exl3/tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return **tokenizer;
}

std::shared_ptr<const Vocabulary> DemoVocabulary() {
  static const auto vocabulary = [] {
    const auto defaults = text::LoadGenerationDefaults(
        std::string(QUARTET_SOURCE_DIR) + "/models/quartet-demo-exl3", DemoTokenizer());
    EXPECT_TRUE(defaults.ok()) << defaults.status();
    absl::StatusOr<Vocabulary> made = text::GrammarVocabulary(DemoTokenizer(), defaults->end);
    EXPECT_TRUE(made.ok()) << made.status();
    return std::make_shared<const Vocabulary>(*std::move(made));
  }();
  return vocabulary;
}

int32_t DemoToken(std::string_view text) {
  const std::optional<int32_t> id = DemoTokenizer().TokenId(text);
  EXPECT_TRUE(id.has_value()) << text;
  return id.value_or(-1);
}

std::shared_ptr<const Vocabulary> SmallVocabulary(const std::vector<std::string>& texts,
                                                  const std::vector<std::string>& markers) {
  std::vector<TokenText> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back({TokenText::Kind::kText, std::string(1, static_cast<char>(byte))});
  }
  for (const std::string& text : texts) tokens.push_back({TokenText::Kind::kText, text});
  const auto end = static_cast<int32_t>(tokens.size());
  tokens.push_back({TokenText::Kind::kSpecial, "<end>"});
  for (const std::string& text : markers) tokens.push_back({TokenText::Kind::kMarker, text});
  absl::StatusOr<Vocabulary> made = Vocabulary::Create(std::move(tokens), {end});
  EXPECT_TRUE(made.ok()) << made.status();
  return std::make_shared<const Vocabulary>(*std::move(made));
}

Mask TriedMask(const Matcher& matcher) {
  const Vocabulary& vocabulary = *matcher.grammar().vocabulary;
  Mask mask = vocabulary.EmptyMask();
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    Matcher trial = matcher;
    if (trial.Advance(id)) Allow(id, &mask);
  }
  return mask;
}

Matcher MatcherFor(const Grammar& grammar, MaskMaker* maker) {
  auto loaded = maker->Load(grammar.Serialize());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return Matcher(*std::move(loaded));
}

int32_t RandomToken(const Mask& mask, const Vocabulary& vocabulary, std::mt19937& random) {
  std::vector<int32_t> letters;
  std::vector<int32_t> others;
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    if (!Allowed(mask, id)) continue;
    const TokenText& token = vocabulary.token(id);
    const bool plain = token.kind == TokenText::Kind::kText &&
                       token.bytes.find_first_of("\"{}[],:") == std::string::npos;
    (plain ? letters : others).push_back(id);
  }
  if (letters.empty() && others.empty()) return -1;
  const bool from_letters = others.empty() || (!letters.empty() && random() % 2 == 0);
  const std::vector<int32_t>& from = from_letters ? letters : others;
  return from[random() % from.size()];
}

}  // namespace quartet::grammar
