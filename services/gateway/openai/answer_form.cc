#include "services/gateway/openai/answer_form.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using text::ContentForm;
using text::Value;

constexpr std::string_view kUnsupported = "unsupported_parameter";

// The tool's name, as the API has it or flat; empty if it has none.
std::string NameOf(const Value& tool) {
  const Value function = tool.Get("function");
  const Value name = function.is_object() ? function.Get("name") : tool.Get("name");
  return name.is_string() ? name.string() : "";
}

class ContentParser {
 public:
  ContentParser(Fields& fields, std::optional<ApiError>* error, AnswerFormFields* out)
      : fields_(fields), error_(error), out_(*out) {}

  void Parse() {
    ResponseFormat();
    if (const Value* outputs = fields_.Object("structured_outputs")) {
      const std::string prefix = "structured_outputs.";
      Fields inner(*outputs, prefix, error_);
      Forms(inner, prefix,
            {.json = "json", .regex = "regex", .choice = "choice", .object = "json_object"});
      Refuse(inner, {"grammar", "structural_tag"});
    }
    Forms(fields_, "", {.json = "guided_json", .regex = "guided_regex", .choice = "guided_choice"});
    Forms(fields_, "", {.json = "json_schema", .regex = "regex"});
    Refuse(fields_, {"guided_grammar", "grammar", "ebnf", "structural_tag"});
  }

 private:
  // Names of fields; empty: there is none.
  struct Names {
    std::string_view json;
    std::string_view regex;
    std::string_view choice;
    std::string_view object;
  };

  void Refuse(Fields& fields, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      const Value* value = fields.Get(name);
      if (value != nullptr && value->Truthy()) {
        fields.Fail(name,
                    "is not supported; a form can be given as a JSON schema, a regular expression "
                    "or a list of choices",
                    kUnsupported);
      }
    }
  }

  void Set(Fields& fields, const std::string& prefix, std::string_view name, ContentForm form) {
    if (fields.failed()) return;
    if (out_.content.has_value()) {
      fields.Fail(name, absl::StrCat("the answer has a form already, from ", out_.content_param));
      return;
    }
    out_.content = std::move(form);
    out_.content_param = absl::StrCat(prefix, std::string(name));
  }

  // An object, or one as text.
  void Schema(Fields& fields, const std::string& prefix, std::string_view name) {
    const Value* given = fields.Get(name);
    if (given == nullptr) return;
    Value schema = *given;
    if (given->is_string()) {
      absl::StatusOr<Value> parsed = text::ParseJson(given->string());
      if (!parsed.ok()) {
        fields.Fail(name, absl::StrCat("is a string that is not JSON: ",
                                       std::string(parsed.status().message())));
        return;
      }
      schema = *std::move(parsed);
    }
    if (!schema.is_object()) {
      fields.Fail(name, absl::StrCat("must be a JSON schema, an object, not ",
                                     std::string(schema.TypeName())));
      return;
    }
    Set(fields, prefix, name, {.json_schema = std::move(schema)});
  }

  void Choices(Fields& fields, const std::string& prefix, std::string_view name) {
    const Value* choices = fields.Get(name);
    if (choices == nullptr) return;
    const bool strings = choices->is_list() && !choices->list().empty() &&
                         std::ranges::all_of(choices->list(), &Value::is_string);
    if (!strings) {
      fields.Fail(name, "must be a list of strings, with at least one");
      return;
    }
    ContentForm form;
    for (const Value& choice : choices->list()) form.choices.push_back(choice.string());
    Set(fields, prefix, name, std::move(form));
  }

  void Forms(Fields& fields, const std::string& prefix, const Names& names) {
    Schema(fields, prefix, names.json);
    if (const auto regex = fields.String(names.regex); regex && !regex->empty()) {
      Set(fields, prefix, names.regex, {.regex = *regex});
    }
    if (!names.choice.empty()) Choices(fields, prefix, names.choice);
    if (!names.object.empty() && fields.Bool(names.object).value_or(false)) {
      Set(fields, prefix, names.object, {.json_object = true});
    }
  }

  void ResponseFormat() {
    const Value* format = fields_.Object("response_format");
    if (format == nullptr) return;
    const std::string prefix = "response_format.";
    Fields inner(*format, prefix, error_);
    const Value* type = format->Find("type");
    if (type == nullptr || !type->is_string()) {
      fields_.Fail("response_format", "must have a \"type\" that is a string");
    } else if (type->string() == "json_object") {
      Set(fields_, "", "response_format", {.json_object = true});
    } else if (type->string() == "json_schema") {
      const Value* holder = inner.Object("json_schema");
      if (holder == nullptr) {
        inner.Fail("json_schema", "is missing");
        return;
      }
      Fields schema(*holder, prefix + "json_schema.", error_);
      if (schema.Object("schema") == nullptr) schema.Fail("schema", "is missing");
      Schema(schema, prefix + "json_schema.", "schema");
    } else if (type->string() != "text") {
      fields_.Fail("response_format",
                   absl::StrCat("\"", type->string().substr(0, 40),
                                "\" is not supported; the type must be \"text\", \"json_object\" "
                                "or \"json_schema\""),
                   kUnsupported);
    }
  }

  Fields& fields_;
  std::optional<ApiError>* const error_;
  AnswerFormFields& out_;
};

// Names of tools that a choice speaks of must be among the request's.
bool CheckName(Fields& fields, std::string_view param, const std::string& name,
               const Value& tools) {
  const bool known = !name.empty() && std::ranges::any_of(tools.list(), [&](const Value& tool) {
    return NameOf(tool) == name;
  });
  if (known) return true;
  fields.Fail(param, name.empty() ? "must name a function"
                                  : absl::StrCat("'", name.substr(0, 100),
                                                 "' is not the name of one of the tools"));
  return false;
}

void ParseAllowedTools(Fields& fields, std::optional<ApiError>* error, const Value& choice,
                       text::ToolForm* form) {
  const Value* allowed = choice.Find("allowed_tools");
  if (allowed == nullptr || !allowed->is_object()) {
    fields.Fail("tool_choice.allowed_tools", "must be an object");
    return;
  }
  Fields inner(*allowed, "tool_choice.allowed_tools.", error);
  const std::string mode = inner.String("mode").value_or("auto");
  if (mode != "auto" && mode != "required") {
    inner.Fail("mode", "must be \"auto\" or \"required\"");
  }
  form->required = mode == "required";
  const Value* listed = inner.Get("tools");
  if (listed == nullptr || !listed->is_list() || listed->list().empty()) {
    inner.Fail("tools", "must be a list with at least one tool");
    return;
  }
  for (size_t i = 0; i < listed->list().size() && !fields.failed(); ++i) {
    const std::string name = NameOf(listed->list()[i]);
    if (CheckName(inner, absl::StrCat("tools[", i, "]"), name, form->tools)) {
      form->names.push_back(name);
    }
  }
}

}  // namespace

void ParseContentForm(Fields& fields, std::optional<ApiError>* error, AnswerFormFields* out) {
  ContentParser(fields, error, out).Parse();
}

void ParseToolForm(Fields& fields, std::optional<ApiError>* error, bool* no_tool_calls,
                   bool* parallel_tool_calls, AnswerFormFields* out) {
  *parallel_tool_calls = fields.Bool("parallel_tool_calls").value_or(true);
  const Value* tools = fields.Get("tools");
  if (tools && !tools->is_list()) {
    fields.Fail("tools", absl::StrCat("must be a list, not ", std::string(tools->TypeName())));
    return;
  }
  const bool any = tools && !tools->list().empty();
  text::ToolForm form;
  if (any) form.tools = *tools;
  form.parallel = *parallel_tool_calls;

  const Value* choice = fields.Get("tool_choice");
  const Value automatic = Value::String("auto");
  if (choice == nullptr) choice = &automatic;
  if (!choice->is_string() && !choice->is_object()) {
    fields.Fail("tool_choice", absl::StrCat("must be a string or an object, not ",
                                            std::string(choice->TypeName())));
    return;
  }
  const Value type = choice->Get("type");
  const std::string kind = choice->is_string() ? choice->string()
                           : type.is_string()  ? type.string()
                                               : "";
  const bool object = choice->is_object();
  *no_tool_calls = !object && kind == "none";
  if (*no_tool_calls) return;
  if (object ? kind != "function" && kind != "allowed_tools"
             : kind != "auto" && kind != "required") {
    fields.Fail("tool_choice",
                "must be \"none\", \"auto\", \"required\" or an object of type \"function\" or "
                "\"allowed_tools\"");
    return;
  }
  if (!any) {
    if (choice != &automatic) fields.Fail("tool_choice", "needs tools");
    return;
  }
  if (!object) {
    form.required = kind == "required";
  } else if (kind == "function") {
    form.required = true;
    const std::string name = NameOf(*choice);
    if (CheckName(fields, "tool_choice", name, form.tools)) form.names = {name};
    if (out->content.has_value()) {
      fields.Fail("tool_choice",
                  absl::StrCat("a named tool cannot be combined with ", out->content_param));
    }
  } else {
    ParseAllowedTools(fields, error, *choice, &form);
  }
  // Where calls are as free as text is, nothing has to be held to anything.
  if (!form.required && form.names.empty() && !out->content.has_value()) return;
  // A call that must come leaves no room for other content.
  if (form.required) out->content.reset();
  out->tools = std::move(form);
}

std::variant<std::string, ApiError> CompileAnswerForm(const AnswerFormFields& form,
                                                      bool opens_think,
                                                      const text::Tokenizer& tokenizer) {
  if (!form.constrained()) return std::string();
  const text::AnswerForm whole{
      .content = form.content, .tools = form.tools, .opens_think = opens_think};
  absl::StatusOr<grammar::Grammar> compiled = text::AnswerGrammar(whole, tokenizer);
  if (!compiled.ok()) {
    // Of two parts it is the content, unless that is fine alone.
    const bool of_content =
        form.content.has_value() &&
        (!form.tools.has_value() ||
         !text::AnswerGrammar({.content = form.content, .tools = std::nullopt}, tokenizer).ok());
    const std::string param = of_content ? form.content_param : "tools";
    return ApiError{.message = absl::StrCat(param, ": ", std::string(compiled.status().message())),
                    .param = param};
  }
  std::string bytes = compiled->Serialize();
  if (bytes.size() <= grammar::kGrammarBytesMax) return bytes;
  const std::string param = form.content.has_value() ? form.content_param : "tools";
  return ApiError{.message = absl::StrCat(param, ": its grammar takes ", bytes.size(),
                                          " bytes, at most ", grammar::kGrammarBytesMax),
                  .param = param};
}

}  // namespace quartet::gateway
