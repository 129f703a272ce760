#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "services/gateway/text/template/chat_template.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::string> Rendered(std::string_view source, const Value& variables,
                                     const TemplateLimits& limits = {}) {
  const auto chat_template = ChatTemplate::Parse(source, "t.jinja");
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)->Render(variables, limits);
}

absl::StatusOr<std::string> Rendered(std::string_view source) {
  return Rendered(source, Value::MakeObject({}));
}

std::string ErrorOf(std::string_view source) {
  const absl::StatusOr<std::string> text = Rendered(source);
  EXPECT_FALSE(text.ok()) << source << " renders " << *text;
  return std::string(text.status().message());
}

// template_cases.json was made with the reference implementation.
TEST(Template, RendersLikeJinja) {
  const Value file = LoadJson("tests/unit/text/template_cases.json");
  ASSERT_GT(file.Get("cases").list().size(), 200u);
  for (const Value& c : file.Get("cases").list()) {
    const std::string& source = c.Get("template").string();
    const absl::StatusOr<std::string> text = Rendered(source, file.Get("variables"));
    if (c.Find("error") != nullptr) {
      EXPECT_FALSE(text.ok()) << source << " renders " << *text;
    } else {
      ASSERT_TRUE(text.ok()) << source << ": " << text.status();
      EXPECT_EQ(*text, c.Get("expected").string()) << source;
    }
  }
}

TEST(Template, NumbersKeepTheirSpelling) {
  const Value variables = Json(R"({"v": {"a": 1.0, "b": 12.50, "c": 123456789012345678901}})");
  EXPECT_EQ(
      *Rendered("{{ v | tojson }} {{ v.a }} {{ v.b }} {{ v.c }}", variables),
      R"({"a": 1.0, "b": 12.50, "c": 123456789012345678901} 1.0 12.50 123456789012345678901)");
}

TEST(Template, GenerationBlocksOnlyMarkText) {
  EXPECT_EQ(*Rendered("a{% generation %}b{% endgeneration %}c"), "abc");
}

TEST(Template, StrftimeNowFormatsTheTime) {
  const std::string year = *Rendered("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GE(year, "2024");
}

TEST(Template, CanRefuseItsInput) {
  const absl::StatusOr<std::string> text =
      Rendered("{% if true %}{{ raise_exception('no ' ~ 'such role') }}{% endif %}");
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(text.status().message(), "no such role");
}

TEST(Template, ErrorsNameTheLine) {
  EXPECT_EQ(ErrorOf("a\n\n{{ nothing.x }}"), "t.jinja:3: 'nothing' is undefined");
  EXPECT_EQ(ErrorOf("a\n{% for x in [1] %}\n{{ x.y.z }}{% endfor %}"),
            "t.jinja:3: 'y' is undefined");
}

TEST(Template, UnsupportedConstructsAreRefusedWhenParsed) {
  struct Case {
    const char* source;
    const char* message;
  };
  const Case cases[] = {
      {"\n{% include 'x' %}", "t.jinja:2: the block 'include' is not supported"},
      {"{% extends 'x' %}", "the block 'extends' is not supported"},
      {"{% import 'x' as y %}", "the block 'import' is not supported"},
      {"{% call m() %}{% endcall %}", "the block 'call' is not supported"},
      {"{% filter upper %}{% endfilter %}", "the block 'filter' is not supported"},
      {"{{ x | frobnicate }}", "the filter 'frobnicate' is not supported"},
      {"{{ x is frobnicated }}", "the test 'frobnicated' is not supported"},
      {"{{ x.frobnicate() }}", "the method 'frobnicate' is not supported"},
      {"{{ x.__class__() }}", "the method '__class__' is not supported"},
      {"{{ frobnicate() }}", "there is no macro or function 'frobnicate'"},
      {"{{ x()() }}", "only names and methods can be called"},
      {"{{ range(*x) }}", "arguments with * and ** are not supported"},
      {"{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"},
      {"{% for x in y %}{% macro m() %}{% endmacro %}{% endfor %}", "a macro inside a loop"},
      {"{% break %}", "'break' stands outside of a loop"},
      {"{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "a macro inside"},
      {"{% if x %}", "'endif' is missing"},
      {"{% for x in y %}\n", "'endfor' is missing"},
      {"{% endif %}", "the block 'endif' is not supported"},
      {"{{ x", "a tag does not end"},
      {"{% if x", "a tag does not end"},
      {"{# x", "a comment does not end"},
      {"{% raw %} x", "a raw block does not end"},
      {"{{ 'x }}", "a string does not end"},
      {"{{ }}", "an expression is expected"},
      {"{{ 1 + }}", "an expression is expected"},
      {"{{ a b }}", "'}}' is expected, 'b' found"},
      {"{{ (1 }}", "unexpected '}'"},
      {"{{ [1 2] }}", "',' is expected"},
      {"{{ 1) }}", "unexpected ')'"},
      {"{{ x ? y }}", "unexpected character '?'"},
      {"{{ 99999999999999999999 }}", "does not fit 64 bits"},
      {"{% set 1 = 2 %}", "the name of a variable is expected"},
      {"{% set x %}", "'endset' is missing"},
      {"{% %}", "the name of a block is expected"},
      {"\xFF", "not valid UTF-8"},
  };
  for (const Case& c : cases) {
    const auto parsed = ChatTemplate::Parse(c.source, "t.jinja");
    ASSERT_FALSE(parsed.ok()) << c.source;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.message)) << c.source;
    EXPECT_EQ(parsed.status().message().substr(0, 7), "t.jinja") << c.source;
  }
}

TEST(TemplateLimits, StepsAreBounded) {
  const auto text =
      Rendered("{% for a in range(100000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}");
  EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("steps"));
}

TEST(TemplateLimits, OutputAndTextsAreBounded) {
  TemplateLimits limits;
  limits.output_bytes_base = 1000;
  const Value none = Value::MakeObject({});
  for (const char* source :
       {"{% for a in range(1000) %}xx{% endfor %}", "{{ 'x' * 2000 }}", "{{ 'x' * 99999999999 }}",
        "{% set ns = namespace(s='abc') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(s=['abc']) %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        // Sharing makes a small value print without end.
        "{% set ns = namespace(s='abc') %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% "
        "endfor %}"}) {
    EXPECT_EQ(Rendered(source, none, limits).status().code(), absl::StatusCode::kResourceExhausted)
        << source;
  }
}

TEST(TemplateLimits, NestingIsBounded) {
  EXPECT_THAT(ErrorOf("{% set ns = namespace(s=1) %}{% for a in range(1000) %}{% set ns.s = [ns.s] "
                      "%}{% endfor %}"),
              HasSubstr("nests values deeper than 200"));
  EXPECT_THAT(ErrorOf("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("macros deeper than 100"));
  const auto repeat = [](std::string_view unit, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += unit;
    return out;
  };
  for (const int depth : {1000, 100000}) {
    for (const std::string& source :
         {"{{ " + repeat("(", depth) + "1" + repeat(")", depth) + " }}",
          "{{ " + repeat("[", depth) + "1" + repeat("]", depth) + " }}",
          "{{ " + repeat("not ", depth) + "1 }}", "{{ " + repeat("-", depth) + "1 }}",
          "{{ 1" + repeat(" + 1", depth) + " }}", "{{ 1" + repeat(" or 1", depth) + " }}",
          "{{ x" + repeat(".a", depth) + " }}", "{{ x" + repeat("[0]", depth) + " }}",
          "{{ x" + repeat("|upper", depth) + " }}", "{{ 1" + repeat(" if 1 else 1", depth) + " }}",
          repeat("{% if x %}", depth) + repeat("{% endif %}", depth)}) {
      EXPECT_THAT(std::string(ChatTemplate::Parse(source, "t").status().message()),
                  HasSubstr("nested deeper"))
          << source.substr(0, 40);
    }
  }
}

TEST(TemplateLimits, ValuesThatOnlyATemplateKnowsStayOutOfValues) {
  EXPECT_THAT(ErrorOf("{% set ns = namespace() %}{% set ns.me = ns %}"), HasSubstr("cannot hold"));
  EXPECT_THAT(ErrorOf("{% set ns = namespace() %}{{ [ns] }}"), HasSubstr("cannot hold"));
  EXPECT_THAT(ErrorOf("{% macro m() %}{% endmacro %}{{ {'a': m} }}"), HasSubstr("cannot hold"));
}

TEST(TemplateLimits, IntegersDoNotOverflow) {
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}",
        "{{ 9223372036854775807 * 2 }}", "{{ 10 ** 30 }}", "{{ 3 ** 9999999999 }}"}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("does not fit 64 bits"));
  }
  EXPECT_EQ(*Rendered("{{ (-9223372036854775807 - 1) % -1 }} {{ (-1) ** 9999999999 }} {{ "
                      "'abc'[:9223372036854775807:9223372036854775807] }}"),
            "0 -1 a");
}

TEST(Template, ServesManyThreads) {
  const auto parsed = ChatTemplate::Parse("{% for x in l %}{{ x }}{% endfor %}", "t");
  ASSERT_TRUE(parsed.ok());
  const Value variables = Json(R"({"l": [1, 2, 3]})");
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto text = (*parsed)->Render(variables);
        right[t] += text.ok() && *text == "123";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(right, testing::Each(200));
}

}  // namespace
}  // namespace quartet::text
