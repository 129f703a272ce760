#include "services/gateway/openai/responses_request.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/fields.h"

namespace quartet::gateway {
namespace {

using text::Value;

constexpr std::string_view kUnsupported = "unsupported_parameter";
constexpr int64_t kTopLogprobsMax = 20;

// Fields that chat requests have under the same names: OpenAI's, and those by which this server
// goes beyond them.
constexpr const char* kSameFields[] = {"model",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "seed",
                                       "user",
                                       "service_tier",
                                       "parallel_tool_calls",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "logit_bias",
                                       "stop",
                                       "stop_token_ids",
                                       "min_tokens",
                                       "ignore_eos",
                                       "thinking_token_budget",
                                       "chat_template_kwargs",
                                       "request_id",
                                       "cache_salt",
                                       "cache_read_only",
                                       "priority",
                                       "ttft_deadline_ms"};

Value Text(std::string_view text) {
  return Value::String(std::string(text));
}

// The entries of `object` that are there, of those named.
Value::Entries Some(const Value& object, std::initializer_list<const char*> names) {
  Value::Entries entries;
  for (const char* name : names) {
    if (const Value value = object.Get(name); !value.is_absent()) entries.emplace_back(name, value);
  }
  return entries;
}

class Translator {
 public:
  explicit Translator(const Value& body) : body_(body), fields_(body, "", &error_) {}

  std::variant<ResponsesRequest, ApiError> Run() {
    out_.stream = fields_.Bool("stream").value_or(false);
    RefuseWhatNeedsAStore();
    SameFields();
    Logprobs();
    Input();
    Tools();
    ToolChoice();
    Reasoning();
    Format();
    if (error_) return *std::move(error_);
    return std::move(out_);
  }

 private:
  void Fail(const std::string& path, std::string_view message, std::string_view code = "") {
    fields_.Fail(path, message, code);
  }

  void Repeat(const char* name, Value otherwise) {
    const Value* value = fields_.Get(name);
    out_.repeated.emplace_back(name, value ? *value : std::move(otherwise));
  }

  void RefuseWhatNeedsAStore() {
    fields_.Bool("store");
    for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
      if (fields_.Get(name)) {
        Fail(name, "is not supported: responses are not stored; send the whole input",
             kUnsupported);
      }
    }
    if (fields_.Bool("background").value_or(false)) {
      Fail("background", "only false is supported", kUnsupported);
    }
    if (fields_.String("truncation").value_or("disabled") != "disabled") {
      Fail("truncation", "only \"disabled\" is supported", kUnsupported);
    }
  }

  // What else might be included is of tools that are not here, or encrypted reasoning: it is there
  // as text.
  void Logprobs() {
    const std::optional<int64_t> top = fields_.Integer("top_logprobs", 0, kTopLogprobsMax);
    bool wanted = top.value_or(0) > 0;
    const Value* include = fields_.Get("include");
    if (include && !include->is_list()) Fail("include", "must be a list of strings");
    for (size_t i = 0; include && include->is_list() && i < include->list().size(); ++i) {
      const Value& item = include->list()[i];
      if (!item.is_string()) Fail(absl::StrCat("include[", i, "]"), "must be a string");
      wanted = wanted || (item.is_string() && item.string() == "message.output_text.logprobs");
    }
    if (wanted) {
      out_.chat.Set("logprobs", Value::Bool(true));
      out_.chat.Set("top_logprobs", Value::Integer(top.value_or(0)));
    }
    Repeat("top_logprobs", Value::Integer(0));
  }

  void SameFields() {
    for (const char* name : kSameFields) out_.chat.Set(name, body_.Get(name));
    out_.chat.Set("max_tokens", body_.Get("max_output_tokens"));
    out_.chat.Rename("max_tokens", "max_output_tokens");
    out_.chat.Rename("reasoning_effort", "reasoning.effort");
    out_.chat.Rename("response_format", "text.format");
    out_.chat.Rename("messages", "input");
    fields_.Object("metadata");
    Repeat("instructions", Value::None());
    Repeat("max_output_tokens", Value::None());
    Repeat("metadata", Value::MakeObject({}));
    Repeat("parallel_tool_calls", Value::Bool(true));
    Repeat("reasoning", Value::MakeObject({}));
    Repeat("text", Value::MakeObject({{"format", Value::MakeObject({{"type", Text("text")}})}}));
    Repeat("tools", Value::MakeList({}));
    Repeat("tool_choice", Text("auto"));
    Repeat("user", Value::None());
  }

  void Input() {
    if (const auto instructions = fields_.String("instructions")) {
      out_.chat.AddMessage({{"role", Text("system")}, {"content", Text(*instructions)}},
                           "instructions");
    }
    const Value* input = fields_.Get("input");
    if (!input) {
      Fail("input", "is missing");
    } else if (input->is_string()) {
      out_.chat.AddMessage({{"role", Text("user")}, {"content", *input}}, "input");
    } else if (!input->is_list() || input->list().empty()) {
      Fail("input", "must be a string or a list with at least one item");
    } else {
      for (size_t i = 0; i < input->list().size() && !error_; ++i) {
        Item(input->list()[i], absl::StrCat("input[", i, "]"));
      }
      EndTurn();
    }
  }

  void Item(const Value& item, const std::string& path) {
    const Value type = item.Get("type");
    const std::string kind = type.is_string()                                   ? type.string()
                             : type.is_absent() && item.Get("role").is_string() ? "message"
                                                                                : "";
    if (kind == "message") {
      Message(item, path);
    } else if (kind == "reasoning") {
      BeginTurn(path);
      AddReasoning(item, path);
    } else if (kind == "function_call") {
      BeginTurn(path);
      AddCall(item, path);
    } else if (kind == "function_call_output") {
      EndTurn();
      CallOutput(item, path);
    } else if (kind == "item_reference") {
      Fail(path, "items cannot be referred to: responses are not stored; send the item itself",
           kUnsupported);
    } else if (kind.empty()) {
      Fail(path, "must be an item: an object with a \"type\"");
    } else {
      Fail(path + ".type",
           absl::StrCat("items of type \"", kind.substr(0, 40), "\" are not supported"),
           kUnsupported);
    }
  }

  void Message(const Value& item, const std::string& path) {
    const Value role = item.Get("role");
    const std::string name = role.is_string() ? role.string() : "";
    if (name != "user" && name != "assistant" && name != "system" && name != "developer") {
      Fail(path + ".role", "must be \"user\", \"assistant\", \"system\" or \"developer\"");
      return;
    }
    const Value content = item.Get("content");
    Value parts = Parts(content, path + ".content");
    if (name != "assistant") {
      EndTurn();
      out_.chat.AddMessage({{"role", role}, {"content", std::move(parts)}}, path);
      return;
    }
    BeginTurn(path);
    if (parts.is_string()) {
      parts =
          Value::MakeList({Value::MakeObject({{"type", Text("output_text")}, {"text", parts}})});
    }
    if (!parts.is_list()) return;
    for (const Value& part : parts.list()) turn_->parts.push_back(part);
  }

  // A string or a list of parts, which the chat request's checks go through.
  Value Parts(const Value& content, const std::string& path) {
    if (!content.is_string() && !content.is_list()) {
      Fail(path, absl::StrCat("must be a string or a list of parts, not ",
                              std::string(content.TypeName())));
      return {};
    }
    for (size_t i = 0; content.is_list() && i < content.list().size(); ++i) {
      const Value type = content.list()[i].Get("type");
      if (type.is_string() && type.string() == "input_file") {
        Fail(absl::StrCat(path, "[", i, "]"),
             "files are not supported by this server; send text only", kUnsupported);
      }
    }
    return content;
  }

  void AddReasoning(const Value& item, const std::string& path) {
    const Value content = item.Get("content");
    if (content.is_absent()) return;  // only a summary, or encrypted by somebody else
    if (!content.is_list()) {
      Fail(path + ".content", "must be a list of parts of type \"reasoning_text\"");
      return;
    }
    for (size_t i = 0; i < content.list().size(); ++i) {
      const Value text = content.list()[i].Get("text");
      if (text.is_string()) {
        turn_->reasoning += text.string();
      } else {
        Fail(absl::StrCat(path, ".content[", i, "].text"), "must be a string");
      }
    }
  }

  void AddCall(const Value& item, const std::string& path) {
    for (const char* name : {"call_id", "name", "arguments"}) {
      if (!item.Get(name).is_string()) Fail(absl::StrCat(path, ".", name), "must be a string");
    }
    turn_->calls.push_back(
        Value::MakeObject({{"id", item.Get("call_id")},
                           {"type", Text("function")},
                           {"function", Value::MakeObject(Some(item, {"name", "arguments"}))}}));
  }

  void CallOutput(const Value& item, const std::string& path) {
    if (!item.Get("call_id").is_string()) Fail(path + ".call_id", "must be a string");
    out_.chat.AddMessage({{"role", Text("tool")},
                          {"tool_call_id", item.Get("call_id")},
                          {"content", Parts(item.Get("output"), path + ".output")}},
                         path);
  }

  void BeginTurn(const std::string& path) {
    if (!turn_) turn_.emplace(Turn{.origin = path});
  }

  void EndTurn() {
    if (!turn_) return;
    Value::Entries message = {{"role", Text("assistant")},
                              {"content", Value::MakeList(std::move(turn_->parts))}};
    if (!turn_->reasoning.empty()) {
      message.emplace_back("reasoning_content", Value::String(std::move(turn_->reasoning)));
    }
    if (!turn_->calls.empty()) {
      message.emplace_back("tool_calls", Value::MakeList(std::move(turn_->calls)));
    }
    out_.chat.AddMessage(std::move(message), std::move(turn_->origin));
    turn_.reset();
  }

  void Tools() {
    const Value* tools = fields_.Get("tools");
    if (!tools) return;
    if (!tools->is_list()) {
      Fail("tools", absl::StrCat("must be a list, not ", std::string(tools->TypeName())));
      return;
    }
    Value::List functions;
    for (size_t i = 0; i < tools->list().size() && !error_; ++i) {
      const Value& tool = tools->list()[i];
      const std::string path = absl::StrCat("tools[", i, "]");
      const Value type = tool.Get("type");
      if (!type.is_string() || type.string() != "function") {
        Fail(path + ".type", "only tools of type \"function\" are supported", kUnsupported);
      } else if (!tool.Get("name").is_string() || tool.Get("name").string().empty()) {
        Fail(path + ".name", "must be the function's name");
      }
      functions.push_back(Value::MakeObject(
          {{"type", Text("function")},
           {"function", Value::MakeObject(Some(tool, {"name", "description", "parameters",
                                                      "defer_loading", "strict"}))}}));
    }
    out_.chat.Set("tools", Value::MakeList(std::move(functions)));
  }

  static Value Named(const Value& function) {
    return Value::MakeObject(
        {{"type", Text("function")}, {"function", Value::MakeObject(Some(function, {"name"}))}});
  }

  void ToolChoice() {
    const Value* choice = fields_.Get("tool_choice");
    if (!choice) return;
    const Value type = choice->Get("type");
    const std::string kind = type.is_string() ? type.string() : "";
    if (choice->is_string()) {
      out_.chat.Set("tool_choice", *choice);
    } else if (kind == "function") {
      out_.chat.Set("tool_choice", Named(*choice));
    } else if (kind == "allowed_tools" && choice->Get("tools").is_list()) {
      const Value mode = choice->Get("mode");
      Value::List allowed;
      for (const Value& tool : choice->Get("tools").list()) allowed.push_back(Named(tool));
      out_.chat.Set(
          "tool_choice",
          Value::MakeObject({{"type", type},
                             {"allowed_tools",
                              Value::MakeObject({{"mode", mode.is_string() ? mode : Text("auto")},
                                                 {"tools", Value::MakeList(allowed)}})}}));
    } else {
      Fail("tool_choice",
           "must be \"none\", \"auto\", \"required\" or an object of type \"function\" or "
           "\"allowed_tools\"");
    }
  }

  void Reasoning() {
    const Value* reasoning = fields_.Object("reasoning");
    if (!reasoning) return;
    Fields inner(*reasoning, "reasoning.", &error_);
    if (const auto effort = inner.String("effort")) {
      out_.chat.Set("reasoning_effort", Text(*effort));
    }
  }

  void Format() {
    const Value* text = fields_.Object("text");
    if (!text) return;
    Fields inner(*text, "text.", &error_);
    const Value* format = inner.Object("format");
    if (!format) return;
    const Value type = format->Get("type");
    if (!type.is_string()) {
      inner.Fail("format.type", "must be \"text\", \"json_object\" or \"json_schema\"");
    } else if (type.string() == "json_schema") {
      out_.chat.Set(
          "response_format",
          Value::MakeObject(
              {{"type", type},
               {"json_schema",
                Value::MakeObject(Some(*format, {"name", "description", "schema", "strict"}))}}));
    } else {
      out_.chat.Set("response_format", Value::MakeObject({{"type", type}}));
    }
  }

  // What the model wrote in one turn.
  struct Turn {
    std::string origin;
    Value::List parts;
    Value::List calls;
    std::string reasoning;
  };

  const Value& body_;
  std::optional<ApiError> error_;
  Fields fields_;
  ResponsesRequest out_;
  std::optional<Turn> turn_;  // of the items so far, if they end in one
};

}  // namespace

std::variant<ResponsesRequest, ApiError> TranslateResponses(const Value& body) {
  if (!body.is_object()) {
    return ApiError{.message = absl::StrCat("the body must be a JSON object, not ",
                                            std::string(body.TypeName()))};
  }
  return Translator(body).Run();
}

}  // namespace quartet::gateway
