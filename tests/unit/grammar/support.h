// What the tests of grammars share.
#ifndef QUARTET_TESTS_UNIT_GRAMMAR_SUPPORT_H_
#define QUARTET_TESTS_UNIT_GRAMMAR_SUPPORT_H_

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/text/grammar/answer_grammar.h"
#include "services/gateway/text/tokenizer.h"
#include "services/gateway/text/value.h"
#include "services/grammar/constraint.h"
#include "services/grammar/grammar.h"
#include "services/grammar/matcher.h"
#include "services/grammar/vocabulary.h"

namespace quartet::grammar {

// Whether `text`, byte by byte, is a whole answer of the grammar.
bool Accepts(const Grammar& grammar, std::string_view text);
// Whether it is one or the beginning of one.
bool Begins(const Grammar& grammar, std::string_view text);

// Of a response format. The test fails if it cannot be compiled.
Grammar SchemaGrammar(std::string_view schema);
// The error of compiling it; empty if there is none.
std::string SchemaError(std::string_view schema);

// The demo model's.
const text::Tokenizer& DemoTokenizer();
std::shared_ptr<const Vocabulary> DemoVocabulary();
int32_t DemoToken(std::string_view text);
// The end tokens of the demo model.
inline constexpr int32_t kDemoEnd = 1984;

// A small vocabulary: all single bytes, then `texts`, then the added tokens (an end token first).
std::shared_ptr<const Vocabulary> SmallVocabulary(const std::vector<std::string>& texts,
                                                  const std::vector<std::string>& markers);

// The mask that follows from trying every token.
Mask TriedMask(const Matcher& matcher);

// A matcher for a grammar, loaded by `maker`.
Matcher MatcherFor(const Grammar& grammar, MaskMaker* maker);

// An allowed token, chosen at random: of ordinary tokens and of the others with equal chances, so
// that strings come to an end.
int32_t RandomToken(const Mask& mask, const Vocabulary& vocabulary, std::mt19937& random);

}  // namespace quartet::grammar

#endif  // QUARTET_TESTS_UNIT_GRAMMAR_SUPPORT_H_
