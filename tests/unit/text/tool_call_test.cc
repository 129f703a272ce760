#include "services/gateway/text/tool_call.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/gateway/text/output_splitter.h"
#include "tests/unit/text/message.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

const char kSchema[] = R"({"type":"object","properties":{
    "s":{"type":"string"}, "n":{"type":"integer"}, "o":{"type":"object"}, "any":{}}})";

Start Stop() {
  return {.opens_think = false, .tools = MakeTools(kSchema)};
}
Start Length() {
  return {.opens_think = false, .tools = MakeTools(kSchema), .end = OutputEnd::kLength};
}

std::string Argument(const std::string& key, const std::string& value) {
  return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}
std::string Block(const std::string& inside) {
  return "<tool_call>" + inside + "</tool_call>";
}

// The arguments of the one call that `inside` makes.
std::string ArgumentsOf(const std::string& inside) {
  const Message message = MessageOf(Block(inside), Stop());
  EXPECT_EQ(message.content, "");
  if (message.calls.size() != 1 || !message.calls[0].complete) {
    ADD_FAILURE() << "not one complete call: " << ::testing::PrintToString(message);
    return "";
  }
  return message.calls[0].arguments;
}

Message Content(std::string content) {
  return {"", std::move(content), {}};
}

TEST(ToolCall, ArgumentsAreOneObjectInTheOrderOfTheText) {
  EXPECT_EQ(ArgumentsOf("f" + Argument("s", "x") + Argument("n", "3") + Argument("any", "[1]")),
            R"({"s": "x", "n": 3, "any": [1]})");
  EXPECT_EQ(ArgumentsOf("f"), "{}");
}

TEST(ToolCall, WhiteSpaceAroundNamesKeysAndTagsDoesNotCount) {
  EXPECT_EQ(ArgumentsOf("f\n" + Argument(" s ", " x ") + "\n " + Argument("n", " 3\n") + "\n"),
            R"({"s": " x ", "n": 3})");
}

TEST(ToolCall, OtherTextBetweenTagsIsSkipped) {
  EXPECT_EQ(ArgumentsOf("f<arg_key>s</arg_key> is </arg_key><arg_value>x</arg_value>" +
                        Argument("n", "3")),
            R"({"s": "x", "n": 3})");
}

TEST(ToolCall, AKeyWithoutAValueIsIgnored) {
  EXPECT_EQ(ArgumentsOf("f<arg_key>s</arg_key>" + Argument("n", "3")), R"({"n": 3})");
  EXPECT_EQ(ArgumentsOf("f<arg_key>n</arg_key>" + Argument("n", "3")), R"({"n": 3})");
  EXPECT_EQ(ArgumentsOf("f<arg_key>n</arg_key>"), "{}");
}

TEST(ToolCall, OfAKeyThatComesTwiceTheFirstValueCounts) {
  EXPECT_EQ(ArgumentsOf("f" + Argument("s", "x") + Argument("s", "y") + Argument("n", "3")),
            R"({"s": "x", "n": 3})");
}

TEST(ToolCall, KeysAndStringsAreEscaped) {
  EXPECT_EQ(
      ArgumentsOf("f" + Argument("s", "a\"\\\n\x01\xF0\x9F\x8C\xA4") + Argument("\"k\nk", "1")),
      "{\"s\": \"a\\\"\\\\\\n\\u0001\xF0\x9F\x8C\xA4\", \"\\\"k\\nk\": 1}");
}

TEST(ToolCall, TagsInsideAValueAreData) {
  for (const std::string data :
       {"</tool_call>", "<tool_call>f</tool_call>", "</think><think>", "<arg_key>", "</arg_key>",
        "<arg_value>", "</arg_value>", "</arg_value> </arg_value>\n", "</arg_value> and so on",
        "</arg_value></arg_key>", "</arg_value><arg_", "</arg_valu", "<"}) {
    EXPECT_EQ(ArgumentsOf("f" + Argument("s", data + "x")),
              "{\"s\": \"" +
                  (data == "</arg_value> </arg_value>\n" ? "</arg_value> </arg_value>\\n" : data) +
                  "x\"}");
  }
  // What looks like the end of the value is its end.
  EXPECT_EQ(ArgumentsOf("f" + Argument("s", "a</arg_value> \n<arg_key>n</arg_key><arg_value>1")),
            R"({"s": "a", "n": 1})");
}

TEST(ToolCall, CallsMayFollowEachOther) {
  const Message two = {"", "", {{"f", R"({"s": "x"})"}, {"g", R"({"s": "y"})"}}};
  EXPECT_EQ(MessageOf(Block("f" + Argument("s", "x")) + Block("g" + Argument("s", "y")), Stop()),
            two);
  EXPECT_EQ(MessageOf("\n" + Block("f" + Argument("s", "x")) + "\n" +
                          Block("g" + Argument("s", "y")) + "\n",
                      Stop()),
            two)
      << "white space beside calls says nothing";
}

TEST(ToolCall, ReasoningEndsAtACall) {
  const Start thinking = {.tools = MakeTools(kSchema)};
  const Message call = {"let me", "", {{"f", "{}"}}};
  EXPECT_EQ(MessageOf("let me" + Block("f"), thinking), call);
  EXPECT_EQ(MessageOf("let me</think>\n\n" + Block("f"), thinking), call);
}

TEST(ToolCall, ContentMayStandAroundCalls) {
  EXPECT_EQ(MessageOf("Yes:\n" + Block("f") + "\n\nand " + Block("g") + " done.", Stop()),
            (Message{"", "Yes:\n\n\nand  done.", {{"f", "{}"}, {"g", "{}"}}}));
  EXPECT_EQ(MessageOf(Block("f") + " <think>hm</think> " + Block("g"), Stop()),
            (Message{"hm", "", {{"f", "{}"}, {"g", "{}"}}}));
}

TEST(ToolCall, AStrayClosingTagInContentIsDropped) {
  EXPECT_EQ(MessageOf("a</tool_call>b" + Block("f") + "</tool_call>", Stop()),
            (Message{"", "ab", {{"f", "{}"}}}));
  EXPECT_EQ(MessageOf("a</tool_call>b", {.tools = MakeTools(kSchema)}),
            (Message{"a</tool_call>b", "", {}}))
      << "in reasoning it is text";
}

TEST(ToolCall, ABlockWithoutAToolsNameIsContent) {
  for (const std::string& block :
       {Block("h"), Block(""), Block("ff" + Argument("s", "x")), Block("f f"), Block("F"),
        Block("h" + Argument("s", "</tool_call>")), Block("h<tool_call>f"),
        Block("h<arg_key>a</arg_key> <think> ")}) {
    EXPECT_EQ(MessageOf(block, Stop()), Content(block));
    EXPECT_EQ(MessageOf(" \n" + block + "\n" + Block("f"), Stop()),
              (Message{"", " \n" + block + "\n", {{"f", "{}"}}}));
    EXPECT_EQ(MessageOf(block.substr(0, block.size() - 12), Stop()),
              Content(block.substr(0, block.size() - 12)));
  }
}

TEST(ToolCall, TextThatCannotBecomeANameIsReleasedAtOnce) {
  OutputSplitter splitter(false, MakeTools(kSchema));
  std::vector<TextPiece> out;
  splitter.Append("The tag <tool_call> begins", &out);
  EXPECT_EQ(ToMessage(out), Content("The tag <tool_call> begins"));
}

TEST(ToolCall, AnEndBetweenArgumentsCompletesTheCall) {
  const std::string some = "<tool_call>f" + Argument("n", "3");
  for (const char* rest :
       {"", " \n", " <arg_key>s", "<arg_key>s</arg_key> text", "<arg_key>s</arg_key> <arg_v"}) {
    EXPECT_EQ(MessageOf(some + rest, Stop()), (Message{"", "", {{"f", R"({"n": 3})"}}})) << rest;
    EXPECT_EQ(MessageOf(some + rest, Length()), (Message{"", "", {{"f", R"({"n": 3)", false}}}))
        << rest;
  }
  EXPECT_EQ(MessageOf("<tool_call>f<arg_key>s", Stop()), (Message{"", "", {{"f", "{}"}}}));
  EXPECT_EQ(MessageOf("<tool_call>f<arg_key>s", Length()), (Message{"", "", {{"f", "", false}}}));
}

TEST(ToolCall, AnEndInsideTheNameMakesItContentUnlessItWasCutOff) {
  EXPECT_EQ(MessageOf("\n<tool_call>f", Stop()), Content("\n<tool_call>f"));
  EXPECT_EQ(MessageOf("\n<tool_call>f</tool", Stop()), Content("\n<tool_call>f</tool"));
  EXPECT_EQ(MessageOf("\n<tool_call>f</tool", Length()), Content(""));
  EXPECT_EQ(MessageOf("<tool_call>h", Length()), Content("<tool_call>h")) << "no tool's name";
}

TEST(ToolCall, AnEndInsideAValueLeavesTheArgumentsOpen) {
  for (const Start& start : {Stop(), Length()}) {
    const auto cut = [&](const std::string& inside) {
      return MessageOf("<tool_call>f" + inside, start);
    };
    const auto open = [](std::string arguments) {
      return Message{"", "", {{"f", std::move(arguments), false}}};
    };
    EXPECT_EQ(cut("<arg_key>s</arg_key><arg_value>first li"), open(R"({"s": "first li)"));
    EXPECT_EQ(cut("<arg_key>s</arg_key><arg_value>a</arg_"), open(R"({"s": "a</arg_)"));
    EXPECT_EQ(cut("<arg_key>s</arg_key><arg_value>a</arg_value> b"),
              open(R"({"s": "a</arg_value> b)"));
    EXPECT_EQ(cut("<arg_key>s</arg_key><arg_value>"), open(""));
    EXPECT_EQ(cut(Argument("s", "x") + "<arg_key>n</arg_key><arg_value>12"), open(R"({"s": "x")"))
        << "a value whose type is open is not begun";
  }
}

TEST(ToolCall, StringsAreStreamedAndOtherValuesAreNot) {
  OutputSplitter splitter(false, MakeTools(kSchema));
  const auto feed = [&splitter](std::string_view text) {
    std::vector<TextPiece> out;
    splitter.Append(text, &out);
    std::string arguments;
    for (const TextPiece& piece : out) {
      EXPECT_EQ(piece.kind, TextKind::kCallArguments);
      arguments += piece.text;
    }
    return arguments;
  };
  std::vector<TextPiece> out;
  splitter.Append("<tool_call>f", &out);
  EXPECT_TRUE(out.empty()) << "a name is sent when it is complete";
  splitter.Append("<arg_key>", &out);
  EXPECT_EQ(out, (std::vector<TextPiece>{{TextKind::kCallName, "f", 0}}));
  EXPECT_EQ(feed("s</arg_key><arg_value>"), "");
  EXPECT_EQ(feed("a"), R"({"s": "a)");
  EXPECT_EQ(feed("\n\""), R"(\n\")");
  EXPECT_EQ(feed("b <"), "b ");
  EXPECT_EQ(feed("/arg_value>"), "");
  EXPECT_EQ(feed(" <arg_key>"), "\"");
  EXPECT_EQ(feed("n</arg_key><arg_value>1"), "");
  EXPECT_EQ(feed("2</arg_value><arg_key>"), R"(, "n": 12)");
}

}  // namespace
}  // namespace quartet::text
