#include "services/gateway/text/model_text.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/default_template.h"
#include "services/gateway/text/files.h"

namespace quartet::text {
namespace {

constexpr size_t kTemplateBytesMax = size_t{4} << 20;
constexpr size_t kConfigBytesMax = size_t{64} << 20;

struct TemplateSource {
  std::string text;
  std::string origin;  // for logs and errors that concern the whole file
  std::string name;    // short, for messages that may reach clients
};

absl::StatusOr<TemplateSource> FromFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kTemplateBytesMax);
  if (!text.ok()) return text.status();
  return TemplateSource{*std::move(text), path, std::filesystem::path(path).filename().string()};
}

// The built-in template. To a tokenizer of another family its tags would be ordinary text, and the
// model would be asked in a form that it has never seen.
absl::StatusOr<TemplateSource> BuiltIn(const std::string& model_dir, const Tokenizer& tokenizer) {
  for (const char* tag : {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
                          "<|observation|>", "<think>", "</think>"}) {
    const std::optional<int32_t> id = tokenizer.TokenId(tag);
    if (id && tokenizer.IsAdded(*id)) continue;
    return absl::NotFoundError(absl::StrCat(
        model_dir,
        "/chat_template.jinja: no such file, tokenizer_config.json has no chat_template, and the "
        "built-in template writes the token ",
        tag,
        ", which tokenizer.json does not have; add the file or name one with "
        "--chat-template FILE"));
  }
  return TemplateSource{std::string(DefaultChatTemplate()), "the built-in template", "built-in"};
}

// The template inside tokenizer_config.json, where older checkpoints have it.
absl::StatusOr<TemplateSource> FromTokenizerConfig(const std::string& model_dir,
                                                   const Tokenizer& tokenizer) {
  const std::string path = model_dir + "/tokenizer_config.json";
  absl::StatusOr<Value> config = ReadJsonObjectFile(path, kConfigBytesMax);
  if (absl::IsNotFound(config.status())) return BuiltIn(model_dir, tokenizer);
  if (!config.ok()) return config.status();
  Value found = config->Get("chat_template");
  if (found.is_absent()) return BuiltIn(model_dir, tokenizer);
  if (found.is_list()) {
    for (const Value& item : Value::List(found.list())) {
      const Value name = item.Get("name");
      if (name.is_string() && name.string() == "default") found = item.Get("template");
    }
  }
  if (!found.is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": chat_template must be a string, or a list of {name, template} with a \"default\""));
  }
  return TemplateSource{found.string(), path + " (chat_template)", "chat_template"};
}

absl::StatusOr<TemplateSource> FindTemplate(const std::string& model_dir,
                                            const Tokenizer& tokenizer,
                                            const ModelTextOptions& options) {
  if (!options.chat_template_file.empty()) return FromFile(options.chat_template_file);
  absl::StatusOr<TemplateSource> file = FromFile(model_dir + "/chat_template.jinja");
  if (!absl::IsNotFound(file.status())) return file;
  return FromTokenizerConfig(model_dir, tokenizer);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ModelText>> LoadModelText(const std::string& model_dir,
                                                               const ModelTextOptions& options) {
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer =
      Tokenizer::Load(model_dir + "/tokenizer.json");
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<GenerationDefaults> defaults = LoadGenerationDefaults(model_dir, **tokenizer);
  if (!defaults.ok()) return defaults.status();
  absl::StatusOr<TemplateSource> source = FindTemplate(model_dir, **tokenizer, options);
  if (!source.ok()) return source.status();
  absl::StatusOr<std::unique_ptr<const ChatTemplate>> chat_template =
      ChatTemplate::Parse(source->text, source->name);
  if (!chat_template.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source->origin, ": cannot be used as a chat template: ", chat_template.status().message()));
  }
  ControlTokenEscaper escaper((*tokenizer)->added_tokens());
  std::vector<int32_t> turn_ids;
  for (const AddedToken& token : (*tokenizer)->added_tokens()) {
    if (token.content == "<|user|>" || token.content == "<|assistant|>" ||
        token.content == "<|observation|>") {
      turn_ids.push_back(token.id);
    }
  }
  return std::make_unique<const ModelText>(ModelText{*std::move(tokenizer), std::move(escaper),
                                                     *std::move(chat_template), source->origin,
                                                     *std::move(defaults), std::move(turn_ids)});
}

}  // namespace quartet::text
