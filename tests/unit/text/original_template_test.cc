#include <gtest/gtest.h>

#include <string>

#include "services/gateway/text/files.h"
#include "services/gateway/text/template/chat_template.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

// Renders all examples with a template of the model's makers. Some results differ between its
// revisions.
void ExpectExamples(const std::string& file, const char* revision_key) {
  const auto source = ReadSmallFile(std::string(QUARTET_ORIGINAL_TEMPLATES) + "/" + file, 1 << 20);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto chat_template = ChatTemplate::Parse(*source, file);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const Value cases = LoadJson("tests/data/chat/templates.json").Get("cases");
  ASSERT_EQ(cases.list().size(), 54u);
  for (const Value& example : cases.list()) {
    const Value* other = example.Find(revision_key);
    const auto text = (*chat_template)->Render(TemplateVariables(example));
    ASSERT_TRUE(text.ok()) << text.status() << " in " << example.Get("id").string();
    EXPECT_EQ(*text, (other == nullptr ? example.Get("expected") : *other).string())
        << example.Get("id").string();
  }
}

TEST(OriginalTemplate, NewestRevisionRenders) {
  ExpectExamples("chat_template.jinja", "expected");
}

TEST(OriginalTemplate, PreviousRevisionRenders) {
  ExpectExamples("chat_template_prev.jinja", "expected_prev_revision");
}

}  // namespace
}  // namespace quartet::text
