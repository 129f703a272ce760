#include "services/gateway/text/normalise.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/json.h"

namespace quartet::text {
namespace {

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";

std::string Quoted(const Value& value) {
  std::string out;
  if (!AppendJson(value, {}, &out).ok()) return "nothing";
  if (out.size() > 200) return out.substr(0, 200) + "...";
  return out;
}

std::string TypeOf(const Value& part) {
  const Value type = part.Get("type");
  return type.is_string() ? type.string() : "";
}

bool HoldsMarkerDeep(const Value& value) {
  switch (value.type()) {
    case Value::Type::kString:
      return HoldsMarkerCharacter(value.string());
    case Value::Type::kList:
      return std::any_of(value.list().begin(), value.list().end(), HoldsMarkerDeep);
    case Value::Type::kObject:
      return std::any_of(value.entries().begin(), value.entries().end(), [](const auto& entry) {
        return HoldsMarkerCharacter(entry.first) || HoldsMarkerDeep(entry.second);
      });
    default:
      return false;
  }
}

// Reasoning inside content: what stands before the first closing tag, from the last opening tag on;
// the content is what follows the last closing tag.
bool SplitInlineReasoning(std::string* content, std::string* reasoning) {
  const size_t first = content->find(kThinkClose);
  if (first == std::string::npos) return false;
  std::string before = content->substr(0, first);
  if (const size_t open = before.rfind(kThinkOpen); open != std::string::npos) {
    before.erase(0, open + kThinkOpen.size());
  }
  *reasoning = std::move(before);
  content->erase(0, content->rfind(kThinkClose) + kThinkClose.size());
  return true;
}

}  // namespace

void RequestNormaliser::Fail(std::string_view param, std::string_view message) {
  if (!error_) error_ = RequestError{std::string(message), std::string(param), ""};
}

Value RequestNormaliser::Passed(const Value& value, std::string_view param) {
  if (options_.trust_content_tokens) return value;
  if (HoldsMarkerDeep(value)) {
    Fail(param, "text must not hold the noncharacters U+FDD0 to U+FDEF");
    return {};
  }
  return escaper_.EscapeDeep(value);
}

Value RequestNormaliser::Text(std::string_view text, std::string_view param) {
  return Passed(Value::String(std::string(text)), param);
}

Value RequestNormaliser::Messages(const Value& messages) {
  if (!messages.is_list() || messages.list().empty()) {
    Fail("messages", absl::StrCat("messages must be a list with at least one message, got ",
                                  messages.is_list() ? "an empty list" : Quoted(messages)));
    return {};
  }
  Value::List out;
  for (size_t i = 0; i < messages.list().size() && !failed(); ++i) {
    out.push_back(Message(messages.list()[i], absl::StrCat("messages[", i, "]")));
  }
  return Value::MakeList(std::move(out));
}

Value RequestNormaliser::Message(const Value& message, const std::string& path) {
  if (!message.is_object()) {
    Fail(path, absl::StrCat("a message must be an object, got ", Av(message.TypeName())));
    return {};
  }
  const Value given_role = message.Get("role");
  std::string role = given_role.is_string() ? given_role.string() : "";
  if (role == "developer") role = "system";
  if (role == "function") role = "tool";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    Fail(path + ".role",
         absl::StrCat("role must be system, developer, user, assistant or tool, got ",
                      Quoted(given_role)));
    return {};
  }

  Value::Entries out = {{"role", Value::String(role)}};
  const Value content = message.Get("content");
  const std::string content_path = path + ".content";
  std::string reasoning = role == "assistant" ? Reasoning(message, path) : "";
  if (!content.is_absent() && !content.is_string() && !content.is_list()) {
    Fail(content_path,
         absl::StrCat("content must be a string or a list of parts, got ", Av(content.TypeName())));
    return {};
  }
  if (role == "tool") {
    out.emplace_back("content", ToolContent(content, content_path));
  } else {
    std::string part_reasoning;
    std::string text = content.is_string() ? content.string() : "";
    if (content.is_list()) text = JoinParts(content, content_path, &part_reasoning);
    if (reasoning.empty()) reasoning = std::move(part_reasoning);
    // Where control tokens are trusted, the template sees the tags and does this itself.
    if (role == "assistant" && reasoning.empty() && !options_.trust_content_tokens) {
      SplitInlineReasoning(&text, &reasoning);
    }
    out.emplace_back("content", Text(text, content_path));
  }
  if (!reasoning.empty()) {
    out.emplace_back("reasoning_content", Text(reasoning, path + ".reasoning_content"));
  }

  const Value calls = message.Get("tool_calls");
  if (!calls.is_absent()) {
    if (role != "assistant") {
      Fail(path + ".tool_calls", "only an assistant's message can have tool_calls");
    } else if (Value made = ToolCalls(calls, path + ".tool_calls"); made.Truthy()) {
      out.emplace_back("tool_calls", std::move(made));
    }
  }
  for (const auto& [key, value] : message.entries()) {
    const bool handled = key == "role" || key == "content" || key == "tool_calls" ||
                         key == "reasoning_content" || key == "reasoning" ||
                         key == "reasoning_details";
    if (!handled && !value.is_none()) out.emplace_back(key, Passed(value, path + "." + key));
  }
  return Value::MakeObject(std::move(out));
}

std::string RequestNormaliser::Reasoning(const Value& message, const std::string& path) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const Value value = message.Get(key);
    if (value.is_absent()) continue;
    if (!value.is_string()) {
      Fail(path + "." + key, absl::StrCat(key, " must be a string, got ", Av(value.TypeName())));
      return "";
    }
    if (!value.string().empty()) return value.string();
  }
  std::string out;
  const Value details = message.Get("reasoning_details");
  if (details.is_absent()) return out;
  if (!details.is_list()) {
    Fail(path + ".reasoning_details", "reasoning_details must be a list");
    return out;
  }
  for (const Value& detail : details.list()) {
    if (const Value text = detail.Get("text"); text.is_string()) out += text.string();
  }
  return out;
}

std::string RequestNormaliser::JoinParts(const Value& parts, const std::string& path,
                                         std::string* reasoning) {
  std::string out;
  for (size_t i = 0; i < parts.list().size() && !failed(); ++i) {
    const Value& part = parts.list()[i];
    const std::string part_path = absl::StrCat(path, "[", i, "]");
    const std::string type = TypeOf(part);
    if (type == "image_url" || type == "input_image" || type == "image") {
      Fail(part_path, "images are not supported by this server yet");
    } else if (type == "video_url" || type == "video") {
      Fail(part_path, "videos are not supported by this server yet");
    } else if (type == "input_audio" || type == "audio") {
      Fail(part_path, "audio is not supported");
    } else if (type == "text" || type == "input_text" || type == "output_text" ||
               type == "refusal") {
      const char* field = type == "refusal" ? "refusal" : "text";
      const Value text = part.Get(field);
      if (text.is_string()) {
        out += text.string();
      } else {
        Fail(absl::StrCat(part_path, ".", field),
             absl::StrCat(field, " must be a string, got ", Quoted(text)));
      }
    } else if ((type == "thinking" || type == "reasoning") && reasoning != nullptr) {
      for (const char* field : {"thinking", "reasoning", "text"}) {
        if (const Value text = part.Get(field); text.is_string()) *reasoning += text.string();
      }
    } else if (type != "redacted_thinking") {
      Fail(part_path, absl::StrCat("a content part must have the type text or image_url, got ",
                                   Quoted(part.is_object() ? part.Get("type") : part)));
    }
  }
  return out;
}

Value RequestNormaliser::ToolContent(const Value& content, const std::string& path) {
  if (content.is_string()) return Text(content.string(), path);
  if (content.is_absent()) return Value::String("");
  const Value::List& parts = content.list();
  const auto is_reference = [](const Value& part) { return TypeOf(part) == "tool_reference"; };
  const auto is_output = [](const Value& part) {
    return part.is_object() && TypeOf(part).empty() && part.Find("output") != nullptr;
  };
  if (!parts.empty() && (std::all_of(parts.begin(), parts.end(), is_reference) ||
                         std::all_of(parts.begin(), parts.end(), is_output))) {
    return Passed(content, path);
  }
  return Text(JoinParts(content, path, nullptr), path);
}

Value RequestNormaliser::ToolCalls(const Value& calls, const std::string& path) {
  if (!calls.is_list()) {
    Fail(path, absl::StrCat("tool_calls must be a list, got ", Av(calls.TypeName())));
    return {};
  }
  Value::List out;
  for (size_t i = 0; i < calls.list().size() && !failed(); ++i) {
    const Value& call = calls.list()[i];
    const std::string call_path = absl::StrCat(path, "[", i, "]");
    const Value function = call.Get("function");
    if (!function.is_object()) {
      Fail(call_path + ".function",
           absl::StrCat("function must be an object with name and arguments, got ",
                        Quoted(function)));
      return {};
    }
    const Value name = function.Get("name");
    if (!name.is_string() || name.string().empty()) {
      Fail(call_path + ".function.name", absl::StrCat("name must be a string, got ", Quoted(name)));
      return {};
    }
    const std::string arguments_path = call_path + ".function.arguments";
    const Value arguments = Arguments(function.Get("arguments"), arguments_path);
    Value::Entries made = {
        {"type", Value::String("function")},
        {"function", Value::MakeObject({{"name", Text(name.string(), call_path + ".function.name")},
                                        {"arguments", Passed(arguments, arguments_path)}})}};
    if (const Value id = call.Get("id"); !id.is_absent()) {
      made.emplace_back("id", Passed(id, call_path + ".id"));
    }
    out.push_back(Value::MakeObject(std::move(made)));
  }
  return Value::MakeList(std::move(out));
}

Value RequestNormaliser::Arguments(const Value& arguments, const std::string& path) {
  if (arguments.is_object()) return arguments;
  if (arguments.is_absent() || (arguments.is_string() && arguments.string().empty())) {
    return Value::MakeObject({});
  }
  if (arguments.is_string()) {
    absl::StatusOr<Value> parsed = ParseJson(arguments.string());
    if (parsed.ok() && parsed->is_object()) return *std::move(parsed);
    if (!options_.lenient_tool_history) {
      const std::string why = parsed.ok() ? absl::StrCat("it is of type ", Av(parsed->TypeName()))
                                          : std::string(parsed.status().message());
      Fail(path, absl::StrCat("arguments must be the JSON text of an object: ", why));
    }
  } else if (!options_.lenient_tool_history) {
    Fail(path, absl::StrCat("arguments must be a string that holds a JSON object, got ",
                            Av(arguments.TypeName())));
  }
  return Value::MakeObject({});
}

Value RequestNormaliser::Tools(const Value& tools) {
  if (tools.is_absent()) return Value::None();
  if (!tools.is_list()) {
    Fail("tools", absl::StrCat("tools must be a list, got ", Av(tools.TypeName())));
    return Value::None();
  }
  if (tools.list().empty()) return Value::None();
  for (size_t i = 0; i < tools.list().size() && !failed(); ++i) {
    const Value& tool = tools.list()[i];
    const std::string path = absl::StrCat("tools[", i, "]");
    const Value type = tool.Get("type");
    if (!tool.is_object()) {
      Fail(path, absl::StrCat("a tool must be an object, got ", Av(tool.TypeName())));
    } else if (!type.is_absent() && !(type.is_string() && type.string() == "function")) {
      Fail(path + ".type",
           absl::StrCat("only tools of type function are supported, got ", Quoted(type)));
    } else {
      const bool nested = !tool.Get("function").is_absent();
      const Value name = nested ? tool.Get("function").Get("name") : tool.Get("name");
      if (!name.is_string() || name.string().empty()) {
        Fail(path + (nested ? ".function.name" : ".function"),
             absl::StrCat("a tool needs a function with a name, got ",
                          Quoted(nested ? name : tool.Get("function"))));
      }
    }
  }
  if (failed()) return Value::None();
  return Passed(tools, "tools");
}

}  // namespace quartet::text
