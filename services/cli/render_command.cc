#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/cli/commands.h"
#include "services/cli/request_input.h"
#include "services/cli/terminal.h"
#include "services/gateway/text/chat_prompt.h"
#include "services/gateway/text/default_template.h"
#include "services/gateway/text/files.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/model_text.h"

namespace quartet::cli {
namespace {

using gateway::ApiError;
using text::Value;

struct RenderFlags {
  std::string model;
  std::string chat_template;
  bool trust_content_tokens = false;
  bool json = false;
};

// A template and, with --model, a tokenizer.
struct Renderer {
  std::unique_ptr<const text::ModelText> model;
  std::unique_ptr<const text::ChatTemplate> own_template;  // without a model
  text::ControlTokenEscaper no_tokens{std::vector<text::AddedToken>()};

  const text::ChatTemplate& chat_template() const {
    return model ? *model->chat_template : *own_template;
  }
  const text::ControlTokenEscaper& escaper() const { return model ? model->escaper : no_tokens; }
};

absl::StatusOr<Renderer> LoadRenderer(const RenderFlags& flags) {
  Renderer renderer;
  if (!flags.model.empty()) {
    auto model = text::LoadModelText(flags.model, {.chat_template_file = flags.chat_template});
    if (!model.ok()) return model.status();
    renderer.model = *std::move(model);
    return renderer;
  }
  absl::StatusOr<std::string> source = std::string(text::DefaultChatTemplate());
  if (!flags.chat_template.empty()) {
    source = text::ReadSmallFile(flags.chat_template, size_t{4} << 20);
  }
  if (!source.ok()) return source.status();
  auto parsed = text::ChatTemplate::Parse(*source, "chat_template");
  if (!parsed.ok()) return parsed.status();
  renderer.own_template = *std::move(parsed);
  return renderer;
}

struct Rendered {
  std::string text;
  std::optional<std::vector<int32_t>> ids;
};

ApiError ToApiError(text::RequestError error) {
  return {.message = std::move(error.message),
          .param = std::move(error.param),
          .code = std::move(error.code)};
}

// A request, as a client sends it.
std::variant<Rendered, ApiError> RenderRequest(const Renderer& renderer, const Value& body,
                                               const RenderFlags& flags) {
  const text::ChatPromptOptions options{.trust_content_tokens = flags.trust_content_tokens};
  if (!renderer.model) {
    auto rendered = text::RenderChat(renderer.chat_template(), renderer.escaper(), body, options);
    if (auto* error = std::get_if<text::RequestError>(&rendered)) {
      return ToApiError(std::move(*error));
    }
    return Rendered{std::move(std::get<text::RenderedChat>(rendered).text), std::nullopt};
  }
  auto prompt = text::BuildChatPrompt(*renderer.model, body, options);
  if (auto* error = std::get_if<text::RequestError>(&prompt)) return ToApiError(std::move(*error));
  auto& built = std::get<text::ChatPrompt>(prompt);
  return Rendered{std::move(built.text), std::move(built.ids)};
}

// What a template is given: {"messages", "tools", "kwargs"}.
std::variant<Rendered, ApiError> RenderVariables(const Renderer& renderer, const Value& example) {
  Value::Entries variables =
      example.Get("kwargs").is_object() ? example.Get("kwargs").entries() : Value::Entries();
  for (const char* name : {"messages", "tools"}) {
    variables.emplace_back(name, example.Find(name) ? example.Get(name) : Value::None());
  }
  auto rendered = renderer.chat_template().Render(Value::MakeObject(std::move(variables)));
  if (!rendered.ok()) {
    return ApiError{.message = std::string(rendered.status().message()), .param = "messages"};
  }
  Rendered out{*std::move(rendered), std::nullopt};
  if (renderer.model) {
    auto ids = renderer.model->tokenizer->Encode(out.text);
    if (!ids.ok()) return ApiError{.message = std::string(ids.status().message())};
    out.ids = *std::move(ids);
  }
  return out;
}

void Print(const Rendered& rendered, bool json) {
  if (!json) {
    std::cout << Printable(rendered.text) << "\n";
    if (rendered.ids) {
      std::cout << "\n"
                << rendered.ids->size() << " ids: " << absl::StrJoin(*rendered.ids, " ") << "\n";
    }
    return;
  }
  std::string out = "{\"status\":200,\"text\":";
  text::AppendJsonString(rendered.text, &out);
  if (rendered.ids) absl::StrAppend(&out, ",\"ids\":[", absl::StrJoin(*rendered.ids, ","), "]");
  std::cout << out << "}\n";
}

int RunRender(const RenderFlags& flags) {
  const absl::StatusOr<Renderer> renderer = LoadRenderer(flags);
  if (!renderer.ok()) {
    std::cerr << "quartet: " << renderer.status().message() << "\n";
    return 2;
  }
  const auto input = ReadAll(std::cin);
  if (auto* error = std::get_if<ApiError>(&input)) return Refuse(*error, flags.json);
  const auto parsed = ParseObject(std::get<std::string>(input));
  if (auto* error = std::get_if<ApiError>(&parsed)) return Refuse(*error, flags.json);
  const Value& object = std::get<Value>(parsed);
  const Value* request = object.Find("request");
  const auto rendered = object.Find("kwargs")
                            ? RenderVariables(*renderer, object)
                            : RenderRequest(*renderer, request ? *request : object, flags);
  if (auto* error = std::get_if<ApiError>(&rendered)) return Refuse(*error, flags.json);
  Print(std::get<Rendered>(rendered), flags.json);
  return 0;
}

}  // namespace

void AddRenderCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App* render = app.add_subcommand(
      "render",
      "Show the prompt that a chat request on standard input becomes; exit code 1 if the gateway "
      "would refuse it");
  render->add_option(
      "--model", flags->model,
      "The checkpoint's folder: its template is used, and the prompt's ids are shown");
  render->add_option("--chat-template", flags->chat_template, "A template to use instead");
  render->add_flag("--trust-content-tokens", flags->trust_content_tokens,
                   "Take control tokens in clients' text for control tokens");
  render->add_flag("--json", flags->json,
                   "Print one JSON object: status, text and ids, or error. Read also are a test "
                   "case (its \"request\"), and what a template itself is given: messages, tools "
                   "and \"kwargs\"");
  render->callback([flags, chosen] { *chosen = [flags] { return RunRender(*flags); }; });
}

}  // namespace quartet::cli
