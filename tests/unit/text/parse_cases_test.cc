// The cases of tests/data/chat/cases.json that concern the model's output, and texts that are made
// at random.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "services/gateway/text/answer_text.h"
#include "services/gateway/text/json.h"
#include "tests/unit/text/message.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

std::vector<std::string> Chunks(const Value& c) {
  std::vector<std::string> chunks;
  for (const Value& chunk : c.Get("chunks").list()) chunks.push_back(chunk.string());
  return chunks;
}

Start StartOf(const Value& c) {
  const Value tools = c.Get("request").Get("tools");
  return {
      .opens_think = c.Get("prompt_tail").string().ends_with("<think>"),
      .tools = tools.Truthy() ? std::make_shared<const Tools>(tools) : nullptr,
      .end = c.Get("engine_finish").string() == "length" ? OutputEnd::kLength : OutputEnd::kStop};
}

std::string TextOf(const Value& value) {
  return value.is_string() ? value.string() : "";
}

// The pieces as a case writes them: ["reasoning", text], ["tool_start", index, name] and so on.
std::string Events(const std::vector<TextPiece>& pieces) {
  Value::List events;
  for (const TextPiece& piece : pieces) {
    const Value call = Value::Integer(piece.call);
    const Value text = Value::String(piece.text);
    switch (piece.kind) {
      case TextKind::kReasoning:
        events.push_back(Value::MakeList({Value::String("reasoning"), text}));
        break;
      case TextKind::kContent:
        events.push_back(Value::MakeList({Value::String("content"), text}));
        break;
      case TextKind::kCallName:
        events.push_back(Value::MakeList({Value::String("tool_start"), call, text}));
        break;
      case TextKind::kCallArguments:
        break;
      case TextKind::kCallEnd:
        events.push_back(Value::MakeList({Value::String("tool_done"), call}));
        break;
    }
  }
  std::string json;
  EXPECT_TRUE(AppendJson(Value::MakeList(std::move(events)), {}, &json).ok());
  return json;
}

TEST(ParseCases, PublicBugsAreParsedRight) {
  int run = 0;
  for (const Value& c : LoadJson("tests/data/chat/cases.json").Get("cases").list()) {
    if (c.Get("kind").string() != "parse") continue;
    SCOPED_TRACE(c.Get("id").string());
    ++run;
    const Start start = StartOf(c);
    const std::vector<TextPiece> pieces = Split(Chunks(c), start);
    std::string text;
    for (const std::string& chunk : Chunks(c)) text += chunk;
    const Message message = MessageOf(text, start);
    EXPECT_EQ(ToMessage(pieces), message) << "as the case cuts it";

    const Value expect = c.Get("expect");
    EXPECT_EQ(message.reasoning, TextOf(expect.Get("reasoning_content")));
    EXPECT_EQ(message.content, TextOf(expect.Get("content")));
    const Value calls = expect.Get("tool_calls");
    ASSERT_EQ(message.calls.size(), calls.list().size());
    for (size_t i = 0; i < message.calls.size(); ++i) {
      const Value& call = calls.list()[i];
      EXPECT_EQ(message.calls[i].name, call.Get("name").string());
      const Value* prefix = call.Find("arguments_text_prefix");
      EXPECT_EQ(message.calls[i].complete, prefix == nullptr);
      if (prefix) {
        EXPECT_EQ(message.calls[i].arguments, prefix->string());
      } else {
        const Value arguments = Json(message.calls[i].arguments);
        EXPECT_TRUE(arguments.Equals(call.Get("arguments"))) << message.calls[i].arguments;
      }
    }
    std::string events;
    ASSERT_TRUE(AppendJson(expect.Get("merged_events"), {}, &events).ok());
    EXPECT_EQ(Events(pieces), events);
  }
  EXPECT_EQ(run, 7);
}

// A random text and what must become of it.
struct Written {
  std::string text;
  Message message;
};

class Writer {
 public:
  explicit Writer(uint32_t seed) : random_(seed) {}

  // Without a tag; may hold the beginning of one, and characters of all lengths.
  std::string Words(size_t words_max) {
    static const std::vector<std::string> kWords = {
        "a",  " ", "\n", "\"",   "\\", "{",          "<",      "</",   "<arg_",
        "\t", "é", "天", "🌤", "}",  "</arg_valu", "\u2028", "0042", "true"};
    std::string text;
    for (size_t words = random_() % (words_max + 1); words > 0; --words) {
      text += kWords[random_() % kWords.size()];
    }
    return text + (text.empty() || text.back() != '<' ? "" : ".");
  }

  // An argument of a random type: as the model writes it, as JSON.
  struct Argument {
    std::string type;
    std::string text;
    std::string json;
  };
  Argument MakeArgument() {
    const auto quoted = [](const std::string& text) {
      std::string json;
      AppendJsonString(text, &json);
      return json;
    };
    const std::string space = random_() % 3 ? "" : "\n ";
    const std::string number = std::to_string(random_() % 1000);
    switch (random_() % 6) {
      case 0: {
        const std::string tag = random_() % 3 ? "" : "</arg_value>.<tool_call></tool_call>";
        const std::string text = Words(8) + tag + Words(2);
        return {R"("string")", text, quoted(text)};
      }
      case 1:
        return {R"("integer")", space + number + space, number};
      case 2:
        return {R"("number")", number + ".50" + space, number + ".50"};
      case 3:
        return {R"("boolean")", random_() % 2 ? "true" : "True", "true"};
      case 4:
        return {R"(["object","null"])", space + "{\"k\":[" + number + "]}",
                "{\"k\": [" + number + "]}"};
      default:  // an integer that is none
        return {R"("integer")", "x" + number, quoted("x" + number)};
    }
  }

  // One call and, in `properties`, the schema that its arguments need.
  Written MakeCall(int number, std::string* properties) {
    Written call;
    std::string text = "f";
    std::string arguments;
    for (size_t i = 0, n = random_() % 4; i < n; ++i) {
      const std::string key = "k" + std::to_string(number) + "_" + std::to_string(i);
      const Argument argument = MakeArgument();
      const std::string space = random_() % 2 ? "" : "\n";
      text += space + "<arg_key>" + key + "</arg_key>" + space + "<arg_value>" + argument.text +
              "</arg_value>";
      *properties +=
          (properties->empty() ? "\"" : ",\"") + key + "\":{\"type\":" + argument.type + "}";
      arguments += (i ? ", \"" : "\"") + key + "\": " + argument.json;
    }
    call.text = "<tool_call>" + text + "</tool_call>";
    call.message.calls = {{"f", "{" + arguments + "}"}};
    return call;
  }

  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

TEST(ParseRandom, WhatIsWrittenComesBackHoweverItIsCut) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Writer writer(seed);
    Written answer;
    answer.message.reasoning = writer.Words(10);
    answer.text = answer.message.reasoning + "</think>";
    std::string properties;
    for (int i = 0, n = static_cast<int>(writer.random()() % 4); i < n; ++i) {
      if (writer.random()() % 2) {
        const std::string content = "." + writer.Words(6) + ".";
        answer.text += content;
        answer.message.content += content;
      } else if (writer.random()() % 2) {
        answer.text += "\n";
      }
      const Written call = writer.MakeCall(i, &properties);
      answer.text += call.text;
      answer.message.calls.push_back(call.message.calls[0]);
    }
    const Start start = {.tools = MakeTools("{\"properties\":{" + properties + "}}")};
    const std::vector<TextPiece> whole = Split({answer.text}, start);
    EXPECT_EQ(ToMessage(whole), answer.message) << answer.text;
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(Split(RandomCuts(answer.text, writer.random()), start), whole) << answer.text;
    }
  }
}

// Whatever a model writes: the pieces are those of a well-formed answer (ToMessage checks that),
// and the same however the text is cut. No text is lost that no rule drops.
TEST(ParseRandom, AnyTextMakesAWellFormedAnswerHoweverItIsCut) {
  static const std::vector<std::string> kParts = {
      "<think>",   "</think>",   "<tool_call>", "</tool_call>",
      "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
      "f",         "g",          "h",           "s",
      "n",         "x",          " ",           "\n",
      "3",         "<",          "</arg_",      "\"",
      "\\",        "\xE3\x80",   "天",          "\xFF"};
  const auto tools =
      MakeTools(R"({"properties":{"s":{"type":"string"},"n":{"type":"integer"}}})", "{}");
  std::mt19937 random(3);
  size_t calls = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = random() % 2 ? "" : "<tool_call>f<arg_key>s</arg_key><arg_value>";
    for (size_t parts = random() % 16; parts > 0; --parts) text += kParts[random() % kParts.size()];
    const Start start = {.opens_think = random() % 4 == 0,
                         .tools = random() % 4 ? tools : nullptr,
                         .end = random() % 2 ? OutputEnd::kStop : OutputEnd::kLength};
    const std::vector<TextPiece> whole = Split({text}, start);
    const Message message = ToMessage(whole);
    calls += message.calls.size();
    EXPECT_TRUE(start.tools || message.calls.empty());
    for (size_t i = 0; i + 1 < message.calls.size(); ++i) EXPECT_TRUE(message.calls[i].complete);
    ASSERT_EQ(Split(SingleBytes(text), start), whole) << text;
    ASSERT_EQ(Split(RandomCuts(text, random), start), whole) << text;
  }
  EXPECT_GT(calls, 2000u) << "the texts are not worth much";
}

}  // namespace
}  // namespace quartet::text
