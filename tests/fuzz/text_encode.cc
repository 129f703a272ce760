#include <string>

#include "services/gateway/text/control_tokens.h"
#include "services/gateway/text/detokenizer.h"
#include "services/gateway/text/tokenizer.h"
#include "services/gateway/text/utf8.h"
#include "tests/fuzz/text_fuzz_target.h"

// Encoding and decoding gives the text back, whatever the bytes; so does hiding the control tokens
// in it.
QUARTET_FUZZ_TARGET(FuzzEncode) {
  using namespace quartet::text;
  static const auto tokenizer =
      Tokenizer::Load(QUARTET_SOURCE_DIR "/tests/data/chat/toy_tokenizer.json");
  quartet::fuzz::Require(tokenizer.ok());
  const std::string text = ReplaceIllFormedUtf8(input);
  for (const bool match : {true, false}) {
    const auto ids = (*tokenizer)->Encode(input, {.match_added_tokens = match});
    quartet::fuzz::Require(ids.ok());
    quartet::fuzz::Require(Decode(**tokenizer, *ids) == text);
  }
  const ControlTokenEscaper escaper((*tokenizer)->added_tokens());
  if (HoldsMarkerCharacter(text)) return;
  const std::string escaped = escaper.Escape(text);
  quartet::fuzz::Require(escaper.Unescape(escaped) == text);
  const auto ids = (*tokenizer)->EncodeRendered(escaped);
  quartet::fuzz::Require(ids.ok());
  for (const int32_t id : *ids) quartet::fuzz::Require(!(*tokenizer)->IsAdded(id));
}
