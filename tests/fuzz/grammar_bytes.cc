#include <memory>

#include "services/grammar/matcher.h"
#include "tests/fuzz/text_fuzz_target.h"

namespace {

using namespace quartet::grammar;

std::shared_ptr<const Vocabulary> SmallVocabulary() {
  std::vector<TokenText> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back({TokenText::Kind::kText, std::string(1, static_cast<char>(byte))});
  }
  for (const char* text : {"ab", "((", "})", "\xE2\x82"}) {
    tokens.push_back({TokenText::Kind::kText, text});
  }
  tokens.push_back({TokenText::Kind::kMarker, "<tag>"});
  tokens.push_back({TokenText::Kind::kSpecial, "<end>"});
  const auto end = static_cast<int32_t>(tokens.size() - 1);
  return std::make_shared<const Vocabulary>(*Vocabulary::Create(std::move(tokens), {end}));
}

}  // namespace

// What is not refused is a grammar: its answers can be followed, there is always a token to go on
// with, and the masks say what the matcher does.
QUARTET_FUZZ_TARGET(FuzzGrammarBytes) {
  static const std::shared_ptr<const Vocabulary> vocabulary = SmallVocabulary();
  using quartet::fuzz::Require;
  const auto grammar = Grammar::Parse(input);
  if (!grammar.ok()) return;
  Require(Grammar::Parse(grammar->Serialize()).ok());
  MaskMaker maker(vocabulary);
  auto loaded = maker.Load(input);
  if (!loaded.ok()) return;  // it names a token that is not there
  Matcher matcher(*std::move(loaded));
  for (uint32_t step = 0; step < 12 && !matcher.ended(); ++step) {
    const auto mask = matcher.MaskOf(matcher.state(), &maker);
    int32_t chosen = -1;
    for (int32_t id = 0; id < static_cast<int32_t>(vocabulary->size()); ++id) {
      Matcher trial = matcher;
      const bool allowed = trial.Advance(id);
      Require(allowed == Allowed(*mask, id));
      if (allowed && (chosen < 0 || (static_cast<uint32_t>(id) * 7 + step) % 3 == 0)) chosen = id;
    }
    Require(chosen >= 0);
    Require(matcher.Advance(chosen));
  }
}
