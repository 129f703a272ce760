#include "services/gateway/anthropic/request.h"

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/fields.h"

namespace quartet::gateway {
namespace {

using text::Value;

constexpr std::string_view kUnsupported = "unsupported_parameter";
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

// Blocks that carry something which is not text. They must not be dropped without a word.
std::string_view WhatItCarries(std::string_view type) {
  if (type == "image") return "images are";
  if (type == "document" || type == "container_upload") return "documents are";
  if (type == "search_result") return "search results are";
  return "";
}

class Translator {
 public:
  Translator(const Value& body, MessagesUse use)
      : body_(body), use_(use), fields_(body, "", &error_) {}

  std::variant<MessagesRequest, ApiError> Run() {
    Names();
    Limits();
    System();
    Messages();
    ToolsAndChoice();
    Thinking();
    OutputConfig();
    for (std::string_view name : {"mcp_servers", "container"}) {
      if (const Value* value = fields_.Get(name); value && value->Truthy()) {
        fields_.Fail(name, "is not supported", kUnsupported);
      }
    }
    if (error_) return *std::move(error_);
    return std::move(out_);
  }

 private:
  // Where the two APIs have different names for a thing.
  void Names() {
    out_.chat.Rename("stop", "stop_sequences");
    out_.chat.Rename("reasoning_effort", "output_config.effort");
    out_.chat.Rename("response_format", "output_config.format");
    out_.chat.Rename("parallel_tool_calls", "tool_choice.disable_parallel_tool_use");
    out_.chat.Rename("user", "metadata.user_id");
  }

  void Fail(const std::string& path, std::string_view message, std::string_view code = "") {
    fields_.Fail(path, message, code);
  }

  void Limits() {
    for (std::string_view name : {"model", "top_p", "top_k"}) out_.chat.Set(name, body_.Get(name));
    const auto max_tokens = fields_.Integer("max_tokens", 1, kInt32Max);
    if (max_tokens) {
      out_.chat.Set("max_tokens", Value::Integer(*max_tokens));
    } else if (use_ == MessagesUse::kAnswer) {
      Fail("max_tokens", "is missing");
    }
    if (fields_.Number("temperature", 0, 1)) {
      out_.chat.Set("temperature", body_.Get("temperature"));
    }
    if (const Value* stop = fields_.Get("stop_sequences")) {
      if (stop->is_list()) {
        out_.chat.Set("stop", *stop);
      } else {
        Fail("stop_sequences",
             absl::StrCat("must be a list of strings, not ", std::string(stop->TypeName())));
      }
    }
    out_.stream = fields_.Bool("stream").value_or(false);
    if (const Value* metadata = fields_.Object("metadata")) {
      out_.chat.Set("user", metadata->Get("user_id"));
    }
  }

  void System() {
    const Value* system = fields_.Get("system");
    if (!system || !system->Truthy()) return;
    Value content = *system;
    if (system->is_list()) {
      content = TextParts(*system, "system");
    } else if (!system->is_string()) {
      Fail("system", absl::StrCat("must be a string or a list of text blocks, not ",
                                  std::string(system->TypeName())));
    }
    out_.chat.AddMessage({{"role", Value::String("system")}, {"content", content}}, "system");
  }

  // A list of blocks that can only be text.
  Value TextParts(const Value& blocks, const std::string& path) {
    Value::List parts;
    ForEachBlock(blocks, path,
                 [&](const std::string& type, const Value& block, const std::string& block_path) {
                   if (type == "text") {
                     AddText(block, block_path, &parts);
                   } else {
                     FailBlock(type, block_path, "text");
                   }
                 });
    return Value::MakeList(std::move(parts));
  }

  // Calls `take(type, block, path)` for each block of a list until something is wrong.
  template <typename Take>
  void ForEachBlock(const Value& blocks, const std::string& path, Take take) {
    for (size_t i = 0; i < blocks.list().size() && !error_; ++i) {
      const Value& block = blocks.list()[i];
      const std::string block_path = absl::StrCat(path, "[", i, "]");
      take(TypeOf(block, block_path), block, block_path);
    }
  }

  std::string TypeOf(const Value& block, const std::string& path) {
    const Value type = block.Get("type");
    if (!type.is_string()) {
      Fail(path, "a content block must be an object with a \"type\" that is a string");
      return "";
    }
    return type.string();
  }

  void FailBlock(const std::string& type, const std::string& path, std::string_view wanted) {
    if (const std::string_view what = WhatItCarries(type); !what.empty()) {
      Fail(path, absl::StrCat(std::string(what), " not supported by this server; send text only"),
           kUnsupported);
    } else {
      Fail(path, absl::StrCat("a block of type \"", type.substr(0, 40),
                              "\" cannot stand here; possible are ", std::string(wanted)));
    }
  }

  void AddText(const Value& block, const std::string& path, Value::List* parts) {
    const Value text = block.Get("text");
    if (!text.is_string()) {
      Fail(path + ".text", absl::StrCat("must be a string, not ", std::string(text.TypeName())));
      return;
    }
    parts->push_back(Value::MakeObject({{"type", Value::String("text")}, {"text", text}}));
  }

  void Messages() {
    const Value* messages = fields_.Get("messages");
    if (!messages || !messages->is_list() || messages->list().empty()) {
      Fail("messages", "must be a list with at least one message");
      return;
    }
    for (size_t i = 0; i < messages->list().size() && !error_; ++i) {
      const Value& message = messages->list()[i];
      const std::string path = absl::StrCat("messages[", i, "]");
      const Value role = message.Get("role");
      const Value content = message.Get("content");
      const std::string name = role.is_string() ? role.string() : "";
      if (name != "user" && name != "assistant" && name != "system") {
        Fail(path + ".role", "must be \"user\", \"assistant\" or \"system\"");
      } else if (content.is_string()) {
        out_.chat.AddMessage({{"role", role}, {"content", content}}, path);
      } else if (!content.is_list()) {
        Fail(path + ".content", absl::StrCat("must be a string or a list of blocks, not ",
                                             std::string(content.TypeName())));
      } else if (name == "user") {
        User(content, path);
      } else if (name == "assistant") {
        Assistant(content, path);
      } else {
        Value parts = TextParts(content, path + ".content");
        out_.chat.AddMessage({{"role", role}, {"content", std::move(parts)}}, path);
      }
    }
    if (!error_ && out_.chat.last_message().Get("role").string() == "assistant") {
      out_.chat.Set("continue_final_message", Value::Bool(true));
    }
  }

  void User(const Value& content, const std::string& path) {
    Value::List parts;
    bool results = false;
    ForEachBlock(content, path + ".content",
                 [&](const std::string& type, const Value& block, const std::string& block_path) {
                   if (type == "text") {
                     AddText(block, block_path, &parts);
                   } else if (type == "tool_result") {
                     results = true;
                     ToolResult(block, block_path);
                   } else {
                     FailBlock(type, block_path, "text and tool_result");
                   }
                 });
    if (results && parts.empty()) return;
    out_.chat.AddMessage(
        {{"role", Value::String("user")}, {"content", Value::MakeList(std::move(parts))}}, path);
  }

  void ToolResult(const Value& block, const std::string& path) {
    const Value id = block.Get("tool_use_id");
    if (!id.is_string()) {
      Fail(path + ".tool_use_id", "must be a string: the id of the tool_use block");
    }
    const Value content = block.Get("content");
    Value::List parts;
    bool references = false;
    if (content.is_string()) {
      parts.push_back(Value::MakeObject({{"type", Value::String("text")}, {"text", content}}));
    } else if (content.is_list()) {
      ForEachBlock(
          content, path + ".content",
          [&](const std::string& type, const Value& part, const std::string& part_path) {
            if (type == "text") {
              AddText(part, part_path, &parts);
            } else if (type == "tool_reference") {
              references = true;
              const Value name = part.Get("tool_name");
              if (!name.is_string()) {
                Fail(part_path + ".tool_name", "must be a tool's name");
              }
              parts.push_back(Value::MakeObject({{"type", part.Get("type")}, {"name", name}}));
            } else {
              FailBlock(type, part_path, "text and tool_reference");
            }
          });
    } else if (!content.is_absent()) {
      Fail(path + ".content", absl::StrCat("must be a string or a list of blocks, not ",
                                           std::string(content.TypeName())));
    }
    const Value is_error = block.Get("is_error");
    if (!is_error.is_absent() && !is_error.is_bool()) {
      Fail(path + ".is_error", "must be true or false");
    } else if (is_error.Truthy() && !references) {
      parts.insert(parts.begin(), Value::MakeObject({{"type", Value::String("text")},
                                                     {"text", Value::String("Error: ")}}));
    }
    out_.chat.AddMessage({{"role", Value::String("tool")},
                          {"tool_call_id", id},
                          {"content", Value::MakeList(std::move(parts))}},
                         path);
  }

  void Assistant(const Value& content, const std::string& path) {
    Value::List parts;
    Value::List calls;
    std::string reasoning;
    ForEachBlock(content, path + ".content",
                 [&](const std::string& type, const Value& block, const std::string& block_path) {
                   if (type == "text") {
                     AddText(block, block_path, &parts);
                   } else if (type == "thinking") {
                     const Value thinking = block.Get("thinking");
                     if (thinking.is_string()) {
                       reasoning += thinking.string();
                     } else {
                       Fail(block_path + ".thinking", "must be a string");
                     }
                   } else if (type == "tool_use") {
                     calls.push_back(ToolUse(block, block_path));
                   } else if (type != "redacted_thinking") {
                     FailBlock(type, block_path, "text, thinking, redacted_thinking and tool_use");
                   }
                 });
    Value::Entries message = {{"role", Value::String("assistant")},
                              {"content", Value::MakeList(std::move(parts))}};
    if (!reasoning.empty()) {
      message.emplace_back("reasoning_content", Value::String(std::move(reasoning)));
    }
    if (!calls.empty()) message.emplace_back("tool_calls", Value::MakeList(std::move(calls)));
    out_.chat.AddMessage(std::move(message), path);
  }

  Value ToolUse(const Value& block, const std::string& path) {
    if (!block.Get("id").is_string()) Fail(path + ".id", "must be a string");
    if (!block.Get("name").is_string()) Fail(path + ".name", "must be a string");
    if (!block.Get("input").is_object()) Fail(path + ".input", "must be an object");
    return Value::MakeObject(
        {{"id", block.Get("id")},
         {"type", Value::String("function")},
         {"function",
          Value::MakeObject({{"name", block.Get("name")}, {"arguments", block.Get("input")}})}});
  }

  void ToolsAndChoice() {
    if (const Value* tools = fields_.Get("tools")) {
      if (!tools->is_list()) {
        Fail("tools", absl::StrCat("must be a list, not ", std::string(tools->TypeName())));
        return;
      }
      Value::List functions;
      for (size_t i = 0; i < tools->list().size() && !error_; ++i) {
        functions.push_back(Tool(tools->list()[i], absl::StrCat("tools[", i, "]")));
      }
      out_.chat.Set("tools", Value::MakeList(std::move(functions)));
    }
    const Value* choice = fields_.Object("tool_choice");
    if (!choice) return;
    Fields inner(*choice, "tool_choice.", &error_);
    const std::string type = inner.String("type").value_or("");
    if (type == "auto" || type == "none") {
      out_.chat.Set("tool_choice", Value::String(type));
    } else if (type == "any") {
      out_.chat.Set("tool_choice", Value::String("required"));
    } else if (type == "tool") {
      const std::string name = inner.String("name").value_or("");
      if (name.empty()) inner.Fail("name", "must be the name of a tool");
      out_.chat.Set(
          "tool_choice",
          Value::MakeObject({{"type", Value::String("function")},
                             {"function", Value::MakeObject({{"name", Value::String(name)}})}}));
    } else {
      inner.Fail("type", "must be \"auto\", \"any\", \"tool\" or \"none\"");
    }
    if (inner.Bool("disable_parallel_tool_use").value_or(false)) {
      out_.chat.Set("parallel_tool_calls", Value::Bool(false));
    }
  }

  Value Tool(const Value& tool, const std::string& path) {
    if (!tool.is_object()) {
      Fail(path, absl::StrCat("must be an object, not ", std::string(tool.TypeName())));
      return {};
    }
    const Value type = tool.Get("type");
    if (!type.is_absent() && !(type.is_string() && type.string() == "custom")) {
      Fail(path + ".type",
           "only tools of the client's own, of type \"custom\" or without a type, are supported",
           kUnsupported);
    }
    const Value name = tool.Get("name");
    if (!name.is_string() || name.string().empty()) Fail(path + ".name", "must be a tool's name");
    if (!tool.Get("input_schema").is_object()) Fail(path + ".input_schema", "must be an object");
    Value::Entries function = {{"name", name}};
    for (const char* key : {"description", "input_schema", "defer_loading", "strict"}) {
      const Value value = tool.Get(key);
      if (value.is_absent()) continue;
      function.emplace_back(std::string_view(key) == "input_schema" ? "parameters" : key, value);
    }
    return Value::MakeObject({{"type", Value::String("function")},
                              {"function", Value::MakeObject(std::move(function))}});
  }

  void Thinking() {
    const Value* thinking = fields_.Object("thinking");
    if (!thinking) return;
    Fields inner(*thinking, "thinking.", &error_);
    const std::string type = inner.String("type").value_or("");
    if (type == "disabled") {
      out_.thinking = ThinkingDisplay::kHidden;
    } else if (type == "enabled") {
      if (!inner.Integer("budget_tokens", 1, kInt32Max)) inner.Fail("budget_tokens", "is missing");
    } else if (type != "adaptive") {
      inner.Fail("type", "must be \"enabled\", \"adaptive\" or \"disabled\"");
    }
    const std::string display = inner.String("display").value_or("summarized");
    if (display == "omitted" && type != "disabled") {
      out_.thinking = ThinkingDisplay::kOmitted;
    } else if (display != "omitted" && display != "summarized") {
      inner.Fail("display", "must be \"summarized\" or \"omitted\"");
    }
    out_.chat.Set("thinking", *thinking);
  }

  void OutputConfig() {
    const Value* config = fields_.Object("output_config");
    if (!config) return;
    Fields inner(*config, "output_config.", &error_);
    if (const auto effort = inner.String("effort")) {
      out_.chat.Set("reasoning_effort", Value::String(*effort));
    }
    const Value* format = inner.Object("format");
    if (!format) return;
    const Value type = format->Get("type");
    const Value schema = format->Get("schema");
    if (!type.is_string() || type.string() != "json_schema") {
      inner.Fail("format.type", "must be \"json_schema\"");
    } else if (!schema.is_object()) {
      inner.Fail("format.schema", "must be an object");
    }
    out_.chat.Set(
        "response_format",
        Value::MakeObject({{"type", Value::String("json_schema")},
                           {"json_schema", Value::MakeObject({{"name", Value::String("output")},
                                                              {"schema", schema}})}}));
  }

  const Value& body_;
  const MessagesUse use_;
  std::optional<ApiError> error_;
  Fields fields_;
  MessagesRequest out_;
};

}  // namespace

std::variant<MessagesRequest, ApiError> TranslateMessages(const Value& body, MessagesUse use) {
  if (!body.is_object()) {
    return ApiError{.message = absl::StrCat("the body must be a JSON object, not ",
                                            std::string(body.TypeName()))};
  }
  return Translator(body, use).Run();
}

}  // namespace quartet::gateway
