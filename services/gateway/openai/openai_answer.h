// Answers in the form of POST /v1/chat/completions and POST /v1/completions.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_OPENAI_ANSWER_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_OPENAI_ANSWER_H_

#include <memory>

#include "services/gateway/exchange/api_answer.h"

namespace quartet::gateway {

std::unique_ptr<ApiAnswer> MakeChatAnswer();
std::unique_ptr<ApiAnswer> MakeCompletionAnswer();

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_OPENAI_ANSWER_H_
