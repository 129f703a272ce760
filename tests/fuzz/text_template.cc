#include <string>

#include "services/gateway/text/json.h"
#include "services/gateway/text/template/chat_template.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is a template. Whatever it is, it parses or not, and renders or not, within its limits.
QUARTET_FUZZ_TARGET(FuzzTemplate) {
  using namespace quartet::text;
  const auto chat_template = ChatTemplate::Parse(input, "fuzz");
  if (!chat_template.ok()) return;
  const auto variables = ParseJson(
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[1,2.5,null]}],
          "s":"h\u00e9llo","n":3,"l":[3,1,2],"m":{"a":{"b":1}},"t":true})");
  TemplateLimits limits;
  limits.steps_max = 100000;
  limits.output_bytes_base = 1 << 16;
  const auto text = (*chat_template)->Render(*variables, limits);
  if (text.ok()) quartet::fuzz::Require(text->size() <= (1 << 16) + 4 * variables->weight());
}
