// What an API makes of a request and of its answer; the seam between APIs and the way that all
// requests go.
#ifndef QUARTET_SERVICES_GATEWAY_EXCHANGE_API_ANSWER_H_
#define QUARTET_SERVICES_GATEWAY_EXCHANGE_API_ANSWER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "absl/time/time.h"
#include "services/gateway/exchange/api_error.h"
#include "services/gateway/http/http_call.h"
#include "services/gateway/routing/generation.h"
#include "services/gateway/text/model_text.h"

namespace quartet::gateway {

// What a request is prepared with.
struct PrepareContext {
  const text::ModelText* model = nullptr;
  std::string served_model_name;
  std::string system_fingerprint;  // of the checkpoint
  uint32_t max_model_len = 0;      // tokens of prompt and output together
  bool trust_content_tokens = false;
  bool share_cache_between_keys = false;
  bool any_model = false;  // requests may name any
  bool stop_in_reasoning = false;
  bool nonempty_content = false;
  std::string authorization;      // the header of that name
  absl::Duration total_deadline;  // zero = none
};

// One request's answer in the form of one API. Prepare comes first; then, if it gave a plan, Admit,
// Take and Finish as the generation tells, which may break off anywhere. Used by one thread at a
// time, but ErrorReply, which any thread may call at any time.
//
// Of a stream Admit, Take and Finish return the bytes that are to be sent now, often none. Of a
// whole answer Admit and Take return nothing and Finish the body.
class ApiAnswer {
 public:
  virtual ~ApiAnswer() = default;

  // The name of this kind of request in metrics.
  virtual std::string_view endpoint() const = 0;
  // The response header that tells the request's id.
  virtual std::string_view request_id_header() const { return "X-Request-Id"; }

  // From the body to a plan, or to the whole answer if nothing is to be generated. Everything that
  // costs time; belongs on the text pool. The plan's request_id is what the client gave, often
  // empty.
  virtual std::variant<GenerationPlan, HttpReply, ApiError> Prepare(
      std::string_view body, const PrepareContext& context) = 0;

  // Whether the answer is a stream; known after Prepare.
  virtual bool streams() const = 0;
  virtual HttpStreamHead StreamHead() const = 0;

  virtual std::string Admit(uint32_t choice, const ChoiceUsage& usage) = 0;
  virtual std::string Take(const ChoiceUpdate& update) = 0;
  virtual std::string Finish() = 0;

  // An error before anything was sent, and one in mid-stream: the stream's last bytes.
  virtual HttpReply ErrorReply(const ApiError& error) const = 0;
  virtual std::string ErrorEvents(const ApiError& error) = 0;

  // Of all choices so far.
  virtual ChoiceUsage usage() const = 0;
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_EXCHANGE_API_ANSWER_H_
