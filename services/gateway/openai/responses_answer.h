// Answers in the form of POST /v1/responses.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_ANSWER_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_ANSWER_H_

#include <memory>

#include "services/gateway/exchange/api_answer.h"

namespace quartet::gateway {

std::unique_ptr<ApiAnswer> MakeResponsesAnswer();

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_ANSWER_H_
