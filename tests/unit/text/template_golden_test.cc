#include <gtest/gtest.h>

#include <string>

#include "services/gateway/text/files.h"
#include "services/gateway/text/template/chat_template.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

TEST(ShippedTemplate, RendersWhatTheMakersTemplateRenders) {
  const auto source =
      ReadSmallFile(SourcePath("models/quartet-demo-exl3/chat_template.jinja"), 1 << 20);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto chat_template = ChatTemplate::Parse(*source, "chat_template.jinja");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const Value cases = LoadJson("tests/data/chat/templates.json").Get("cases");
  ASSERT_EQ(cases.list().size(), 54u);
  for (const Value& example : cases.list()) {
    const auto text = (*chat_template)->Render(TemplateVariables(example));
    ASSERT_TRUE(text.ok()) << text.status() << " in " << example.Get("id").string();
    EXPECT_EQ(*text, example.Get("expected").string()) << example.Get("id").string();
  }
  EXPECT_FALSE((*chat_template)->Mentions("enable_thinking"));
  EXPECT_TRUE((*chat_template)->Mentions("clear_thinking"));
}

TEST(ShippedTemplate, IsTheSameInBothModelFolders) {
  const auto one =
      ReadSmallFile(SourcePath("models/quartet-demo-exl3/chat_template.jinja"), 1 << 20);
  const auto two =
      ReadSmallFile(SourcePath("models/quartet-demo-exl3-std/chat_template.jinja"), 1 << 20);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(*one, *two);
}

}  // namespace
}  // namespace quartet::text
