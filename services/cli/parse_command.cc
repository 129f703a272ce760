#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "services/cli/commands.h"
#include "services/cli/request_input.h"
#include "services/cli/terminal.h"
#include "services/gateway/openai/answer.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/openai/request.h"
#include "services/gateway/text/answer_text.h"
#include "services/gateway/text/json.h"

namespace quartet::cli {
namespace {

using gateway::ApiError;
using text::TextKind;
using text::TextPiece;
using text::Value;

struct ParseFlags {
  std::string request_file;
  std::string prompt_tail = "<think>";
  std::string finish = "stop";
  bool deltas = false;
  bool json = false;
};

// What a model wrote, and to which request.
struct ParseInput {
  Value request;
  std::string prompt_tail;
  std::vector<std::string> chunks;
  bool length = false;
};

struct Parsed {
  std::vector<TextPiece> pieces;              // neighbours of one kind are joined
  std::vector<std::vector<TextPiece>> steps;  // what each chunk released, and the end
  gateway::ChoiceFinish finish;
};

ApiError WrongField(const char* name, std::string_view wanted, const Value& got) {
  return {.message = absl::StrCat(name, " must be ", std::string(wanted), ", not ",
                                  std::string(got.TypeName())),
          .param = name};
}

// {"request", "prompt_tail", "chunks", "engine_finish"}: all but the chunks may be missing.
std::variant<ParseInput, ApiError> ReadCase(const Value& object) {
  ParseInput input{.request = Value::MakeObject({}), .prompt_tail = "<think>"};
  if (const Value* request = object.Find("request")) input.request = *request;
  if (const Value* tail = object.Find("prompt_tail")) {
    if (!tail->is_string()) return WrongField("prompt_tail", "a string", *tail);
    input.prompt_tail = tail->string();
  }
  if (const Value* finish = object.Find("engine_finish")) {
    if (!finish->is_string() || (finish->string() != "stop" && finish->string() != "length")) {
      return WrongField("engine_finish", "\"stop\" or \"length\"", *finish);
    }
    input.length = finish->string() == "length";
  }
  const Value chunks = object.Get("chunks");
  if (!chunks.is_list()) return WrongField("chunks", "a list of strings", chunks);
  for (const Value& chunk : chunks.list()) {
    if (!chunk.is_string()) return WrongField("chunks", "a list of strings", chunk);
    input.chunks.push_back(chunk.string());
  }
  return input;
}

std::variant<ParseInput, ApiError> ReadInput(const ParseFlags& flags) {
  auto text = ReadAll(std::cin);
  if (auto* error = std::get_if<ApiError>(&text)) return *error;
  if (flags.json) {
    auto object = ParseObject(std::get<std::string>(text));
    if (auto* error = std::get_if<ApiError>(&object)) return *error;
    return ReadCase(std::get<Value>(object));
  }
  ParseInput input{.request = Value::MakeObject({}),
                   .prompt_tail = flags.prompt_tail,
                   .chunks = {std::get<std::string>(text)},
                   .length = flags.finish == "length"};
  if (!flags.request_file.empty()) {
    std::ifstream file(flags.request_file, std::ios::binary);
    if (!file) {
      return ApiError{.message = absl::StrCat("cannot read --request ", flags.request_file)};
    }
    text = ReadAll(file);
    if (auto* error = std::get_if<ApiError>(&text)) return *error;
    auto object = ParseObject(std::get<std::string>(text));
    if (auto* error = std::get_if<ApiError>(&object)) {
      error->message = absl::StrCat("--request ", flags.request_file, ": ", error->message);
      return *error;
    }
    input.request = std::get<Value>(object);
  }
  return input;
}

// The request's fields, checked. Its messages have done their work before a model writes.
std::variant<gateway::ChatFields, ApiError> ReadFields(const Value& request) {
  if (!request.is_object()) return WrongField("request", "an object", request);
  Value::Entries entries = request.entries();
  const Value message = Value::MakeObject({{"role", Value::String("user")}});
  if (!request.Find("messages")) entries.emplace_back("messages", Value::MakeList({message}));
  const Value* model = request.Find("model");
  return gateway::ParseChatFields(
      Value::MakeObject(std::move(entries)),
      {.served_model_name = model && model->is_string() ? model->string() : "",
       .vocab_size = std::numeric_limits<int32_t>::max()});
}

Parsed Parse(const ParseInput& input, const gateway::ChatFields& fields) {
  text::AnswerText answer(
      gateway::ChatTextOptions(input.request, fields, input.prompt_tail.ends_with("<think>")));
  Parsed parsed;
  const auto take = [&parsed](std::vector<TextPiece> step) {
    for (const TextPiece& piece : step) {
      text::AppendPiece(piece.kind, piece.text, piece.call, &parsed.pieces);
    }
    parsed.steps.push_back(std::move(step));
  };
  for (const std::string& chunk : input.chunks) {
    std::vector<TextPiece> step;
    answer.Append(chunk, &step);
    take(std::move(step));
  }
  std::vector<TextPiece> step;
  answer.Finish(input.length ? text::OutputEnd::kLength : text::OutputEnd::kStop, &step);
  take(std::move(step));
  parsed.finish = gateway::FinishOf(
      answer,
      {.kind = input.length ? gateway::FinishKind::kLength : gateway::FinishKind::kEndToken});
  return parsed;
}

// The stream's data, a line each.
void PrintDeltas(const Parsed& parsed, const gateway::ChatFields& fields) {
  gateway::AnswerWriter writer({.id = "chatcmpl-parsed"},
                               {.chat = true, .include_reasoning = fields.include_reasoning}, 1);
  const auto print = [&writer](const gateway::ChoiceUpdate& update) {
    for (const std::string& chunk : writer.Chunks(update)) std::cout << chunk << "\n";
  };
  for (const std::vector<TextPiece>& step : parsed.steps) print({.pieces = step});
  print({.finish = parsed.finish});
}

struct Call {
  std::string name;
  std::string arguments;
  bool complete = false;
};

struct Message {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
};

Message ToMessage(const std::vector<TextPiece>& pieces) {
  Message message;
  for (const TextPiece& piece : pieces) {
    switch (piece.kind) {
      case TextKind::kReasoning:
        message.reasoning += piece.text;
        break;
      case TextKind::kContent:
        message.content += piece.text;
        break;
      case TextKind::kCallName:
        message.calls.push_back({.name = piece.text});
        break;
      case TextKind::kCallArguments:
        message.calls.back().arguments += piece.text;
        break;
      case TextKind::kCallEnd:
        message.calls.back().complete = true;
        break;
    }
  }
  return message;
}

Value StringOrNull(const std::string& text) {
  return text.empty() ? Value::None() : Value::String(text);
}

Value CallValue(const Call& call) {
  if (!call.complete) {
    return Value::MakeObject({{"name", Value::String(call.name)},
                              {"arguments_text_prefix", Value::String(call.arguments)}});
  }
  auto arguments = text::ParseJson(call.arguments);
  return Value::MakeObject(
      {{"name", Value::String(call.name)},
       {"arguments", arguments.ok() ? *std::move(arguments) : Value::String(call.arguments)}});
}

// ["reasoning", text], ["content", text], ["tool_start", index, name], ["tool_done", index].
Value EventsValue(const std::vector<TextPiece>& pieces) {
  Value::List events;
  for (const TextPiece& piece : pieces) {
    const Value text = Value::String(piece.text);
    const Value call = Value::Integer(piece.call);
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
  return Value::MakeList(std::move(events));
}

void PrintJson(const Parsed& parsed) {
  const Message message = ToMessage(parsed.pieces);
  Value::List calls;
  for (const Call& call : message.calls) calls.push_back(CallValue(call));
  const bool string = parsed.finish.kind == gateway::FinishKind::kStopString;
  const Value object = Value::MakeObject(
      {{"reasoning_content", StringOrNull(message.reasoning)},
       {"content", StringOrNull(message.content)},
       {"tool_calls", Value::MakeList(std::move(calls))},
       {"finish_reason", Value::String(std::string(gateway::FinishReasonName(parsed.finish)))},
       {"stop_reason", string ? Value::String(parsed.finish.stop_string) : Value::None()},
       {"merged_events", EventsValue(parsed.pieces)}});
  std::string out;
  // Cannot fail: all of it is JSON.
  (void)text::AppendJson(object, {}, &out);
  std::cout << out << "\n";
}

void PrintText(const Parsed& parsed) {
  const Message message = ToMessage(parsed.pieces);
  if (!message.reasoning.empty())
    std::cout << "reasoning: " << Printable(message.reasoning) << "\n";
  if (!message.content.empty()) std::cout << "content: " << Printable(message.content) << "\n";
  for (const Call& call : message.calls) {
    std::cout << "call: " << Printable(call.name) << " " << Printable(call.arguments)
              << (call.complete ? "" : " (cut off)") << "\n";
  }
  std::cout << "finish_reason: " << gateway::FinishReasonName(parsed.finish) << "\n";
}

int RunParse(const ParseFlags& flags) {
  const auto input = ReadInput(flags);
  if (auto* error = std::get_if<ApiError>(&input)) return Refuse(*error, flags.json);
  const auto fields = ReadFields(std::get<ParseInput>(input).request);
  if (auto* error = std::get_if<ApiError>(&fields)) return Refuse(*error, flags.json);
  const auto& checked = std::get<gateway::ChatFields>(fields);
  const Parsed parsed = Parse(std::get<ParseInput>(input), checked);
  if (flags.deltas) {
    PrintDeltas(parsed, checked);
  } else if (flags.json) {
    PrintJson(parsed);
  } else {
    PrintText(parsed);
  }
  return 0;
}

}  // namespace

void AddParseCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<ParseFlags>();
  CLI::App* parse = app.add_subcommand(
      "parse",
      "Show the message that a model's text on standard input becomes: reasoning, content, "
      "tool calls");
  parse->add_option("--request", flags->request_file,
                    "A file with the chat request, for its tools and stop strings");
  parse
      ->add_option("--prompt-tail", flags->prompt_tail,
                   "How the prompt ended; the text starts as reasoning after <think>")
      ->capture_default_str();
  parse->add_option("--finish", flags->finish, "How the text ended: stop or length")
      ->check(CLI::IsMember({"stop", "length"}))
      ->capture_default_str();
  parse->add_flag("--deltas", flags->deltas,
                  "Print what a stream would carry, a line for each event");
  parse->add_flag(
      "--json", flags->json,
      "Read {\"request\", \"prompt_tail\", \"chunks\", \"engine_finish\"} and print one "
      "JSON object");
  parse->callback([flags, chosen] { *chosen = [flags] { return RunParse(*flags); }; });
}

}  // namespace quartet::cli
