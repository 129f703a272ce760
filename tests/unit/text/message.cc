#include "tests/unit/text/message.h"

#include <gtest/gtest.h>

#include <random>

#include "services/gateway/text/json.h"
#include "services/gateway/text/output_splitter.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {

void PrintTo(const Message& message, std::ostream* out) {
  *out << "reasoning \"" << message.reasoning << "\" content \"" << message.content << '"';
  for (const Call& call : message.calls) {
    *out << " call " << call.name << ' ' << call.arguments << (call.complete ? "" : " (cut off)");
  }
}

Message ToMessage(const std::vector<TextPiece>& pieces) {
  Message message;
  for (const TextPiece& piece : pieces) {
    EXPECT_EQ(piece.text.empty(), piece.kind == TextKind::kCallEnd);
    switch (piece.kind) {
      case TextKind::kReasoning:
        message.reasoning += piece.text;
        break;
      case TextKind::kContent:
        message.content += piece.text;
        break;
      case TextKind::kCallName:
        EXPECT_EQ(piece.call, message.calls.size());
        message.calls.push_back({piece.text, "", false});
        break;
      case TextKind::kCallArguments:
      case TextKind::kCallEnd: {
        if (message.calls.empty() || piece.call + 1 != message.calls.size() ||
            message.calls.back().complete) {
          ADD_FAILURE() << "a piece of call " << piece.call << ", which is not open";
          break;
        }
        Call& call = message.calls.back();
        call.arguments += piece.text;
        call.complete = piece.kind == TextKind::kCallEnd;
        if (call.complete) {
          const auto value = ParseJson(call.arguments);
          EXPECT_TRUE(value.ok() && value->is_object()) << call.arguments;
        }
        break;
      }
    }
  }
  return message;
}

std::vector<TextPiece> Split(const std::vector<std::string>& chunks, const Start& start) {
  OutputSplitter splitter(start.opens_think, start.tools);
  std::vector<TextPiece> pieces;
  for (const std::string& chunk : chunks) splitter.Append(chunk, &pieces);
  splitter.Finish(start.end, &pieces);
  return pieces;
}

Message MessageOf(std::string_view text, const Start& start) {
  const std::vector<TextPiece> whole = Split({std::string(text)}, start);
  EXPECT_EQ(Split(SingleBytes(text), start), whole) << "byte by byte: " << text;
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(Split(RandomCuts(text, random), start), whole) << "cut at random: " << text;
  }
  return ToMessage(whole);
}

std::shared_ptr<const Tools> MakeTools(std::string_view parameters_of_f,
                                       std::string_view parameters_of_g) {
  const auto tool = [](const char* name, std::string_view parameters) {
    return Value::MakeObject({{"type", Value::String("function")},
                              {"function", Value::MakeObject({{"name", Value::String(name)},
                                                              {"parameters", Json(parameters)}})}});
  };
  return std::make_shared<const Tools>(
      Value::MakeList({tool("f", parameters_of_f), tool("g", parameters_of_g)}));
}

}  // namespace quartet::text
