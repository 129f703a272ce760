// Between the messages of quartet.v1.Inference and what the gateway works with.
#ifndef QUARTET_SERVICES_GATEWAY_GRPC_CONVERT_H_
#define QUARTET_SERVICES_GATEWAY_GRPC_CONVERT_H_

#include <variant>
#include <vector>

#include "proto/quartet/v1/inference.pb.h"
#include "services/gateway/openai/prepare.h"

namespace quartet::gateway {

// Checks, renders and encodes, by the same rules as the HTTP end. Pure; belongs on the text pool.
std::variant<Prepared, ApiError> PrepareGenerate(const v1::GenerateRequest& request,
                                                 const PrepareContext& context);

// The first message of a choice, where the ids of its prompt are asked for.
v1::GenerateResponse PromptIds(uint32_t choice, const std::vector<int32_t>& ids);

// The messages that carry an update: one for each run of text of one kind, the last with the
// finish.
std::vector<v1::GenerateResponse> ToResponses(const ChoiceUpdate& update, const AnswerStyle& style);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_GRPC_CONVERT_H_
