#include "services/gateway/openai/responses_answer.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/gateway/http/sse.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/openai/responses_request.h"
#include "services/gateway/openai/responses_writer.h"
#include "services/gateway/routing/gateway_core.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using text::Value;

// The fields of a response that repeat its request, and the sampling that was chosen.
std::string Repeated(const Value::Entries& entries, const Sampling& sampling) {
  std::string out =
      absl::StrCat(",\"temperature\":", sampling.temperature, ",\"top_p\":", sampling.top_p);
  for (const auto& [name, value] : entries) {
    absl::StrAppend(&out, ",\"", name, "\":");
    // Values that come from JSON can be written as JSON.
    if (!text::AppendJson(value, {.spaces = false}, &out).ok()) out += "null";
  }
  return out;
}

class ResponsesAnswer final : public ApiAnswer {
 public:
  std::string_view endpoint() const override { return "responses"; }

  std::variant<GenerationPlan, HttpReply, ApiError> Prepare(
      std::string_view body, const PrepareContext& context) override {
    auto parsed = ParseBody(body);
    if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
    auto read = TranslateResponses(std::get<Value>(parsed));
    if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
    const ResponsesRequest& request = std::get<ResponsesRequest>(read);
    auto prepared = PrepareTranslated(request.chat, context);
    if (auto* error = std::get_if<ApiError>(&prepared)) return std::move(*error);
    GenerationPlan& plan = std::get<Prepared>(prepared).plan;
    stream_ = request.stream;
    writer_.emplace(ResponseHead{.id = RandomId("resp_"),
                                 .created_unix_s = absl::ToUnixSeconds(absl::Now()),
                                 .model = context.served_model_name,
                                 .repeated = Repeated(request.repeated, plan.sampling)},
                    stream_);
    return std::move(plan);
  }

  bool streams() const override { return stream_; }
  HttpStreamHead StreamHead() const override { return SseHead(); }

  std::string Admit(uint32_t, const ChoiceUsage& usage) override { return writer_->Start(usage); }
  std::string Take(const ChoiceUpdate& update) override { return writer_->Take(update); }
  std::string Finish() override { return stream_ ? writer_->End() : writer_->Whole(); }

  HttpReply ErrorReply(const ApiError& error) const override { return ApiErrorReply(error); }
  std::string ErrorEvents(const ApiError& error) override { return writer_->Failed(error); }

  ChoiceUsage usage() const override { return writer_->usage(); }

 private:
  bool stream_ = false;
  std::optional<ResponsesWriter> writer_;  // set by Prepare
};

}  // namespace

std::unique_ptr<ApiAnswer> MakeResponsesAnswer() {
  return std::make_unique<ResponsesAnswer>();
}

}  // namespace quartet::gateway
