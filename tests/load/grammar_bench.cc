// How long a mask takes with a vocabulary of the real model's size: the first time in a state
// (a miss) and when it is remembered (a hit), and reading a token. The vocabulary is synthetic,
// built like a trained one: words with and without a space before them, in several scripts, pieces
// of characters, numbers of up to three digits, code, punctuation and white space.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/grammar/builder.h"
#include "services/grammar/constraint.h"

namespace quartet::grammar {
namespace {

constexpr size_t kTokens = 154'880;
constexpr size_t kBaseTokens = 154'820;

double CpuMicros() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

std::string Utf8(char32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  if (c < 0x800) {
    return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
  }
  return {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
          static_cast<char>(0x80 | (c & 0x3F))};
}

class VocabularyMaker {
 public:
  Vocabulary Make() {
    for (int byte = 0; byte < 256; ++byte) Add(std::string(1, static_cast<char>(byte)));
    for (int number = 0; number < 1000; ++number) {
      const std::string digits = std::to_string(number);
      for (size_t size = digits.size(); size <= 3; ++size) {
        Add(std::string(size - digits.size(), '0') + digits);
      }
    }
    for (size_t size = 2; size <= 128; ++size) {
      Add(std::string(size, ' '));
      if (size < 32) {
        Add(std::string(size, '\n'));
        Add(std::string(size, '\t'));
        Add("\n" + std::string(size, ' '));
        Add(std::string(size, '-'));
        Add(std::string(size, '='));
      }
    }
    const std::string marks = "\"'`.,:;!?()[]{}<>/\\|@#$%^&*-_=+~";
    Fill(9'000, [&] {
      std::string text = Chance(40) ? " " : "";
      for (size_t n = 1 + Below(4); n > 0; --n) text += marks[Below(marks.size())];
      if (Chance(25)) text += std::string(1 + Below(2), '\n');
      return text;
    });
    Fill(6'000, [&] { return std::string(1, marks[Below(marks.size())]) + Word(); });
    Fill(300, [&] {  // the first bytes of characters, perhaps behind whole ones
      const std::string c = Utf8(static_cast<char32_t>(0x4E00 + Below(20'000)));
      return (Chance(30) ? " " : "") + c.substr(0, 1 + Below(2));
    });
    Fill(28'000, [&] {
      std::string text;
      for (size_t n = 1 + Below(4); n > 0; --n) {
        text += Utf8(static_cast<char32_t>(0x4E00 + Below(Below(20'000) + 1)));
      }
      return text;
    });
    Fill(14'000, [&] {
      const char32_t base = Chance(50) ? 0x430 : 0x3B1;
      std::string text = Chance(60) ? " " : "";
      for (size_t n = 2 + Below(7); n > 0; --n)
        text += Utf8(base + static_cast<char32_t>(Below(24)));
      return text;
    });
    Fill(kBaseTokens - tokens_.size(), [&] {
      std::string word = Word();
      if (Chance(12)) word += Word();
      if (Chance(20)) word[0] = static_cast<char>(word[0] - 'a' + 'A');
      return (Chance(55) ? " " : "") + word;
    });
    const std::vector<std::string> added = {"<|endoftext|>", "<|user|>",    "<|observation|>",
                                            "<think>",       "</think>",    "<tool_call>",
                                            "</tool_call>",  "<arg_key>",   "</arg_key>",
                                            "<arg_value>",   "</arg_value>"};
    for (size_t i = 0; i < added.size(); ++i) {
      tokens_.push_back({i < 3 ? TokenText::Kind::kSpecial : TokenText::Kind::kMarker, added[i]});
    }
    tokens_.resize(kTokens);
    const auto first = static_cast<int32_t>(kBaseTokens);
    absl::StatusOr<Vocabulary> made =
        Vocabulary::Create(std::move(tokens_), {first, first + 1, first + 2});
    if (!made.ok()) std::abort();
    return *std::move(made);
  }

 private:
  size_t Below(size_t limit) { return random_() % limit; }
  bool Chance(size_t percent) { return Below(100) < percent; }

  std::string Word() {
    static const std::vector<std::string> begins = {
        "b", "c", "d", "f",  "g",  "l",  "m",  "n",  "p",   "r",  "s",  "t",
        "v", "w", "",  "st", "tr", "pr", "ch", "sh", "con", "re", "in", "un"};
    static const std::vector<std::string> middles = {"a",  "e",  "i",  "o", "u",
                                                     "ea", "ou", "ai", "io"};
    static const std::vector<std::string> ends = {"",     "n",  "r",  "s",  "t",   "l",
                                                  "ng",   "nt", "ck", "ss", "ble", "tion",
                                                  "ment", "er", "ly", "_"};
    std::string word;
    for (size_t n = 1 + Below(3); n > 0; --n) {
      word += begins[Below(begins.size())] + middles[Below(middles.size())] +
              ends[Below(Below(ends.size()) + 1)];
    }
    return word;
  }

  template <typename Make>
  void Fill(size_t count, Make make) {
    const size_t end = tokens_.size() + count;
    while (tokens_.size() < end) Add(make());
  }

  void Add(const std::string& text) {
    if (known_.insert(text).second) tokens_.push_back({TokenText::Kind::kText, text});
  }

  std::mt19937 random_{1};
  std::vector<TokenText> tokens_;
  std::set<std::string> known_;
};

TextAutomaton Characters(const CharSet& set) {
  return TextAutomaton::OfUnits(SpellUtf8(set));
}

// A record of the kind that a JSON Schema asks for. `seed` makes another grammar of the same shape.
Grammar RecordGrammar(int seed, uint32_t length_max, bool reasoning) {
  GrammarBuilder b;
  const CharSet plain = ~(CharSet::Of(0, 0x1F) | CharSet::Of('"') | CharSet::Of('\\'));
  std::vector<Spelling> spellings = SpellUtf8(plain);
  spellings.push_back({BytesOf("\\"), BytesOf("\"\\/bfnrt")});
  const TextAutomaton in_json = TextAutomaton::OfUnits(spellings);
  const auto string = [&](uint32_t max) {
    return b.Seq({b.Literal("\""), b.Text(in_json, 0, max), b.Literal("\"")});
  };
  const Expr number = b.Seq({b.Text(Characters(CharSet::Of('1', '9')), 1, 1),
                             b.Text(Characters(CharSet::Of('0', '9')), 0, 17)});
  const Expr comma = b.Seq({b.Literal(","), b.Optional(b.Literal(" "))});
  const auto key = [&](const std::string& name) {
    return b.Seq(
        {b.Literal("\"" + name + std::to_string(seed) + "\":"), b.Optional(b.Literal(" "))});
  };
  const Expr record = b.NewRule();
  const Expr list =
      b.Seq({b.Literal("["), b.Optional(b.Seq({record, b.Repeat(b.Seq({comma, record}), 0, 20)})),
             b.Literal("]")});
  b.Define(
      record,
      b.Seq({b.Literal("{"), key("title"), string(kUnlimited), comma, key("summary"),
             string(length_max), comma, key("count"), number, comma, key("kind"),
             b.Choice({"\"news\"", "\"note\"", "\"other\"", "null"}), comma, key("slug"),
             b.Literal("\""), b.Text(Characters(CharSet::Of('a', 'z') | CharSet::Of('-')), 3, 40),
             b.Literal("\""), b.Optional(b.Seq({comma, key("children"), list})), b.Literal("}")}));
  Expr start = record;
  if (reasoning) {
    const TextAutomaton thoughts = TextAutomaton::Without({"</think>"}, TextAutomaton::Unit::kByte);
    start = b.Seq({b.Text(thoughts, 0, kUnlimited, kMarkersAreText | kSpecialsAreText),
                   b.Alt({b.Token("</think>"), b.Literal("</think>")}), record});
  }
  absl::StatusOr<Grammar> grammar = b.Build(start);
  if (!grammar.ok()) std::abort();
  return *std::move(grammar);
}

// A list of texts whose ends are not to be seen: letters, then letters or digits.
Grammar HardGrammar() {
  GrammarBuilder b;
  const CharSet letters = CharSet::Of('a', 'z') | CharSet::Of(' ');
  const Expr item =
      b.Seq({b.Text(Characters(letters), 1, 30),
             b.Text(Characters(letters | CharSet::Of('0', '9')), 0, 30), b.Literal("\"")});
  absl::StatusOr<Grammar> grammar = b.Build(b.Repeat(item, 1, kUnlimited));
  if (!grammar.ok()) std::abort();
  return *std::move(grammar);
}

struct Samples {
  std::vector<double> miss_us;
  std::vector<double> hit_us;
  std::vector<double> advance_us;
  double load_us = 0;
};

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

void Print(const char* what, const std::vector<double>& us) {
  std::printf("  %-26s %8zu  median %8.1f us  p99 %8.1f us  max %9.1f us\n", what, us.size(),
              Percentile(us, 0.5), Percentile(us, 0.99), Percentile(us, 1));
}

// An allowed token: mostly an ordinary one, but what ends a string often enough.
int32_t Choose(const Mask& mask, const Vocabulary& vocabulary, std::mt19937& random) {
  const auto size = static_cast<uint32_t>(vocabulary.size());
  if (random() % 100 < 8) {
    for (const char* text : {"\"", "}", "]"}) {
      const auto byte = static_cast<int32_t>(static_cast<unsigned char>(text[0]));
      if (Allowed(mask, byte)) return byte;
    }
  }
  const uint32_t begin = random() % size;
  for (uint32_t i = 0; i < size; ++i) {
    const auto id = static_cast<int32_t>((begin + i) % size);
    if (Allowed(mask, id)) return id;
  }
  return -1;
}

// One answer by the grammar, at most `steps` tokens.
void Walk(const Grammar& grammar, const Vocabulary& vocabulary, MaskMaker* maker, int steps,
          std::mt19937& random, Samples* samples) {
  const double begin = CpuMicros();
  auto constraint = Constraint::Create(grammar.Serialize(), maker);
  if (!constraint.ok()) std::abort();
  samples->load_us = CpuMicros() - begin;
  for (int step = 0; step < steps && !constraint->ended(); ++step) {
    const uint64_t misses = maker->misses();
    const double before = CpuMicros();
    const std::shared_ptr<const Mask> mask = constraint->MaskAt(0);
    const double masked = CpuMicros();
    const int32_t token = Choose(*mask, vocabulary, random);
    if (token < 0) std::abort();
    const double chosen = CpuMicros();
    if (!constraint->Advance({&token, 1}).ok()) std::abort();
    const double advanced = CpuMicros();
    (maker->misses() > misses ? samples->miss_us : samples->hit_us).push_back(masked - before);
    samples->advance_us.push_back(advanced - chosen);
  }
}

int Run(int grammars, int steps) {
  const double begin = CpuMicros();
  const auto vocabulary = std::make_shared<const Vocabulary>(VocabularyMaker().Make());
  std::printf("%zu tokens, a mask of %zu bytes; vocabulary made in %.0f ms\n", vocabulary->size(),
              vocabulary->mask_words() * sizeof(uint32_t), (CpuMicros() - begin) / 1e3);
  MaskMaker maker(vocabulary);
  std::mt19937 random(2);
  Samples cold;
  Walk(RecordGrammar(0, 1000, true), *vocabulary, &maker, steps, random, &cold);
  std::printf("first answer of the process\n");
  Print("grammar loaded", {cold.load_us});
  Print("masks, not remembered", cold.miss_us);
  Print("masks, remembered", cold.hit_us);
  Samples warm;
  std::vector<double> loads;
  for (int i = 1; i <= grammars; ++i) {
    Walk(RecordGrammar(i, 1000, i % 2 == 0), *vocabulary, &maker, steps, random, &warm);
    loads.push_back(warm.load_us);
  }
  std::printf("%d answers, each by a grammar of its own\n", grammars);
  Print("grammars loaded", loads);
  Print("masks, not remembered", warm.miss_us);
  Print("masks, remembered", warm.hit_us);
  Print("tokens read", warm.advance_us);
  Samples hard;
  Walk(HardGrammar(), *vocabulary, &maker, steps, random, &hard);
  std::printf("texts that run into one another: [a-z ]{1,30}[a-z 0-9]{0,30}\n");
  Print("masks, not remembered", hard.miss_us);
  Print("masks, remembered", hard.hit_us);
  Print("tokens read", hard.advance_us);
  return 0;
}

}  // namespace
}  // namespace quartet::grammar

int main(int argc, char** argv) {
  CLI::App app("What constrained decoding costs for a vocabulary of 154,880 tokens");
  int grammars = 200;
  int steps = 400;
  app.add_option("--grammars", grammars, "Answers, each by a grammar of its own")
      ->check(CLI::Range(1, 100000));
  app.add_option("--steps", steps, "Tokens of an answer, at most")->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);
  return quartet::grammar::Run(grammars, steps);
}
