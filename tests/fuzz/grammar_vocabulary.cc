#include "services/grammar/vocabulary.h"
#include "tests/fuzz/text_fuzz_target.h"

// Whatever the bytes are, they are refused or a vocabulary that comes back from its own bytes.
QUARTET_FUZZ_TARGET(FuzzGrammarVocabulary) {
  using namespace quartet::grammar;
  const auto vocabulary = Vocabulary::Parse(input);
  if (!vocabulary.ok()) return;
  const auto again = Vocabulary::Parse(vocabulary->Serialize());
  quartet::fuzz::Require(again.ok() && again->Serialize() == vocabulary->Serialize());
}
