// quartet-grammar-walks MODEL_FOLDER WALKS [long]: reads JSON Schemas from standard input, one a
// line, and writes answers that only masks have guided: for each schema WALKS lines
// {"schema":I,"text":"..."}. A schema that cannot be compiled is {"schema":I,"error":"..."}; an
// answer that is not complete after 2,000 tokens, {"schema":I,"unfinished":true}. They like to come
// to an end; with `long` they end where there is nothing else to say.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "services/gateway/text/end_tokens.h"
#include "services/gateway/text/grammar/answer_grammar.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/tokenizer.h"
#include "services/grammar/constraint.h"

namespace quartet::grammar {
namespace {

constexpr int kStepsMax = 2000;
// After this many tokens what closes something is preferred, so that recursion comes to an end.
constexpr int kStepsFree = 60;

bool InString(const std::string& text) {
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') inside = !inside;
    if (text[i] == '\\') ++i;
  }
  return inside;
}

// How much a token helps to come to an end.
int Closing(const std::string& bytes, bool in_string) {
  if (bytes.size() != 1) return 0;
  if (in_string) return bytes[0] == '"' ? 1 : 0;
  switch (bytes[0]) {
    case '}':
    case ']':
      return 3;
    case '"':
    case '[':
      return 1;
    case '{':
    case ',':
      return -1;
    default:
      return 2;
  }
}

enum class Wish { kGoOn, kWander, kClose };

int32_t Choose(const Mask& mask, const Vocabulary& vocabulary, const std::string& text, Wish wish,
               std::mt19937& random) {
  const bool close = wish == Wish::kClose || (wish == Wish::kWander && random() % 8 == 0);
  const bool in_string = InString(text);
  std::vector<int32_t> ids;
  std::vector<int32_t> ends;
  int best = -1000;
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    if (!Allowed(mask, id)) continue;
    if (vocabulary.IsEnd(id)) {
      ends.push_back(id);
      continue;
    }
    const int closing = close ? Closing(vocabulary.token(id).bytes, in_string) : 0;
    if (closing > best) {
      best = closing;
      ids.clear();
    }
    if (closing == best) ids.push_back(id);
  }
  const bool may_end = wish != Wish::kGoOn && (close || random() % 4 == 0);
  if (!ends.empty() && (ids.empty() || may_end)) return ends[0];
  return ids.empty() ? -1 : ids[random() % ids.size()];
}

void Print(size_t schema, const char* key, text::Value value) {
  std::string line;
  text::AppendJson(
      text::Value::MakeObject({{"schema", text::Value::Integer(static_cast<int64_t>(schema))},
                               {key, std::move(value)}}),
      {}, &line)
      .IgnoreError();
  std::puts(line.c_str());
}

// What could not be done, if anything.
std::string Walk(const Grammar& grammar, size_t schema, bool go_on, MaskMaker* maker,
                 const Vocabulary& vocabulary, std::mt19937& random) {
  auto constraint = Constraint::Create(grammar.Serialize(), maker);
  if (!constraint.ok()) return std::string(constraint.status().message());
  std::string text;
  for (int step = 0; step < kStepsMax; ++step) {
    const Wish wish = go_on ? Wish::kGoOn : step < kStepsFree ? Wish::kWander : Wish::kClose;
    const int32_t token = Choose(*constraint->MaskAt(0), vocabulary, text, wish, random);
    if (token < 0) return "no token is allowed after " + text;
    if (absl::Status status = constraint->Advance({&token, 1}); !status.ok()) {
      return std::string(status.message());
    }
    if (constraint->ended()) {
      Print(schema, "text", text::Value::String(text));
      return "";
    }
    text += vocabulary.token(token).bytes;
  }
  Print(schema, "unfinished", text::Value::Bool(true));
  return "";
}

int Run(const std::string& folder, int walks, bool go_on) {
  const auto tokenizer = text::Tokenizer::Load(folder + "/tokenizer.json");
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  const auto defaults = text::LoadGenerationDefaults(folder, **tokenizer);
  if (!defaults.ok()) {
    std::cerr << defaults.status() << "\n";
    return 1;
  }
  auto made = text::GrammarVocabulary(**tokenizer, defaults->end);
  if (!made.ok()) {
    std::cerr << made.status() << "\n";
    return 1;
  }
  const auto vocabulary = std::make_shared<const Vocabulary>(*std::move(made));
  MaskMaker maker(vocabulary);
  std::mt19937 random(1);
  std::string line;
  for (size_t schema = 0; std::getline(std::cin, line); ++schema) {
    auto parsed = text::ParseJson(line);
    if (!parsed.ok()) {
      std::cerr << parsed.status() << "\n";
      return 1;
    }
    text::AnswerForm form;
    form.content = text::ContentForm{.json_schema = *std::move(parsed)};
    const auto grammar = text::AnswerGrammar(form, **tokenizer);
    if (!grammar.ok()) {
      Print(schema, "error", text::Value::String(std::string(grammar.status().message())));
      continue;
    }
    for (int walk = 0; walk < walks; ++walk) {
      const std::string fault = Walk(*grammar, schema, go_on, &maker, *vocabulary, random);
      if (!fault.empty()) {
        std::cerr << "schema " << schema << ": " << fault << "\n";
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace quartet::grammar

int main(int argc, char** argv) {
  const bool go_on = argc == 4 && std::string_view(argv[3]) == "long";
  if (argc != 3 && !go_on) {
    std::cerr << "usage: quartet-grammar-walks MODEL_FOLDER WALKS [long] < schemas.jsonl\n";
    return 2;
  }
  return quartet::grammar::Run(argv[1], std::atoi(argv[2]), go_on);
}
