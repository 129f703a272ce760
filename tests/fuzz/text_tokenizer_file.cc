#include "services/gateway/text/tokenizer.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is a tokenizer.json. If it is accepted, it can be used.
QUARTET_FUZZ_TARGET(FuzzTokenizerFile) {
  const auto tokenizer = quartet::text::Tokenizer::FromJson(input);
  if (!tokenizer.ok()) return;
  quartet::fuzz::Require((*tokenizer)->Encode("Hello, <|user|> 123").ok());
  for (int32_t id = 0; id < 300; ++id) (void)(*tokenizer)->TokenBytes(id);
}
