// The grammar of an answer, from what a request says that the answer must look like.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_ANSWER_GRAMMAR_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_ANSWER_GRAMMAR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/text/end_tokens.h"
#include "services/gateway/text/tokenizer.h"
#include "services/gateway/text/value.h"
#include "services/grammar/grammar.h"
#include "services/grammar/vocabulary.h"

namespace quartet::text {

// What an answer's content must be: exactly one of the first four.
struct ContentForm {
  std::optional<Value> json_schema;  // see json_schema.h
  bool json_object = false;          // any JSON object
  std::optional<std::string> regex;  // all of the content; see regex.h
  std::vector<std::string> choices;  // one of these
};

// Which tools are called, and how often.
struct ToolForm {
  Value tools;                     // the request's list
  std::vector<std::string> names;  // of those that may be called; empty: all
  bool required = false;           // at least one call must come
  bool parallel = true;            // more than one may
};

struct AnswerForm {
  std::optional<ContentForm> content;
  std::optional<ToolForm> tools;
  // The answer begins inside a reasoning block. Then anything goes, but no end, until </think>, or,
  // with tools, a call.
  bool opens_think = false;
};

// `content` alone: the content is of that form. `tools` alone: calls only if they are required,
// else free text with any number of calls among it. Both: either of the two. InvalidArgument says
// what of a schema, regular expression or tool cannot be compiled.
absl::StatusOr<grammar::Grammar> AnswerGrammar(const AnswerForm& form, const Tokenizer& tokenizer);

// What the process that holds answers to their grammars must know of a tokenizer.
absl::StatusOr<grammar::Vocabulary> GrammarVocabulary(const Tokenizer& tokenizer,
                                                      const EndTokens& end);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_ANSWER_GRAMMAR_H_
