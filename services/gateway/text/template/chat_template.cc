#include "services/gateway/text/template/chat_template.h"

#include <utility>

#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/template/interpreter.h"
#include "services/gateway/text/template/parser.h"

namespace quartet::text {
namespace {

class ParsedTemplate final : public ChatTemplate {
 public:
  explicit ParsedTemplate(std::unique_ptr<const TemplateTree> tree) : tree_(std::move(tree)) {}

  absl::StatusOr<std::string> Render(const Value& variables,
                                     const TemplateLimits& limits) const override {
    return RunTemplate(*tree_, variables, limits);
  }

  bool Mentions(std::string_view name) const override {
    const auto symbol = tree_->symbol_ids.find(Av(name));
    return symbol != tree_->symbol_ids.end() && tree_->read[static_cast<size_t>(symbol->second)];
  }

 private:
  const std::unique_ptr<const TemplateTree> tree_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Parse(std::string_view source,
                                                                        std::string_view name) {
  absl::StatusOr<std::unique_ptr<const TemplateTree>> tree = ParseTemplate(source, name);
  if (!tree.ok()) return tree.status();
  return std::make_unique<const ParsedTemplate>(*std::move(tree));
}

}  // namespace quartet::text
