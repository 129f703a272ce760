#include "services/gateway/openai/openai_answer.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "services/gateway/http/sse.h"
#include "services/gateway/openai/answer.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/routing/gateway_core.h"

namespace quartet::gateway {
namespace {

// The two APIs differ in how a body is prepared and in what AnswerWriter makes of a style.
class OpenAiAnswer final : public ApiAnswer {
 public:
  using PrepareFunction = std::variant<Prepared, ApiError> (*)(std::string_view,
                                                               const PrepareContext&);
  OpenAiAnswer(std::string_view endpoint, std::string_view id_prefix, PrepareFunction prepare)
      : endpoint_(endpoint), id_prefix_(id_prefix), prepare_(prepare) {}

  std::string_view endpoint() const override { return endpoint_; }

  std::variant<GenerationPlan, HttpReply, ApiError> Prepare(
      std::string_view body, const PrepareContext& context) override {
    auto result = prepare_(body, context);
    if (auto* error = std::get_if<ApiError>(&result)) return std::move(*error);
    Prepared& prepared = std::get<Prepared>(result);
    style_ = prepared.style;
    echo_texts_ = std::move(prepared.echo_texts);
    prompt_ids_ = std::move(prepared.prompt_ids);
    writer_.emplace(AnswerHead{.id = RandomId(id_prefix_),
                               .created_unix_s = absl::ToUnixSeconds(absl::Now()),
                               .model = context.served_model_name,
                               .system_fingerprint = context.system_fingerprint},
                    style_, prepared.plan.choices.size());
    return std::move(prepared.plan);
  }

  bool streams() const override { return style_.stream; }
  HttpStreamHead StreamHead() const override { return SseHead(); }

  std::string Admit(uint32_t choice, const ChoiceUsage& usage) override {
    writer_->NoteUsage(choice, usage);
    if (!style_.stream || !writer_->NeedsFirstChunk()) return "";
    return SseData(
        writer_->FirstChunk(choice, choice < echo_texts_.size() ? &echo_texts_[choice] : nullptr,
                            choice < prompt_ids_.size() ? &prompt_ids_[choice] : nullptr));
  }

  std::string Take(const ChoiceUpdate& update) override {
    if (!style_.stream) {
      writer_->Collect(update);
      return "";
    }
    std::string events;
    for (const std::string& chunk : writer_->Chunks(update)) events += SseData(chunk);
    return events;
  }

  std::string Finish() override {
    if (!style_.stream) return writer_->Whole(echo_texts_, prompt_ids_);
    std::string events;
    if (style_.include_usage) events += SseData(writer_->UsageChunk());
    events += kSseDone;
    return events;
  }

  HttpReply ErrorReply(const ApiError& error) const override { return ApiErrorReply(error); }
  std::string ErrorEvents(const ApiError& error) override {
    return SseData(ApiErrorJson(error)) + std::string(kSseDone);
  }

  ChoiceUsage usage() const override { return writer_->TotalUsage(); }

 private:
  const std::string_view endpoint_;
  const std::string_view id_prefix_;
  const PrepareFunction prepare_;

  // Set by Prepare.
  AnswerStyle style_;
  std::vector<std::string> echo_texts_;
  std::vector<std::vector<int32_t>> prompt_ids_;
  std::optional<AnswerWriter> writer_;
};

}  // namespace

std::unique_ptr<ApiAnswer> MakeChatAnswer() {
  return std::make_unique<OpenAiAnswer>("chat", "chatcmpl-", &PrepareChat);
}

std::unique_ptr<ApiAnswer> MakeCompletionAnswer() {
  return std::make_unique<OpenAiAnswer>("completions", "cmpl-", &PrepareCompletion);
}

}  // namespace quartet::gateway
