#include "services/coordinator/core/sampling_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace quartet::coordinator {
namespace {

constexpr size_t kMaxLogitBias = 1024;
constexpr size_t kMaxIds = 1024;  // of any other list

std::string Num(uint64_t value) {
  return std::to_string(value);
}

bool Within(float value, float least, float most) {
  return value >= least && value <= most;  // false for NaN
}

std::string Wrong(const char* name, float value, const char* right) {
  return std::string(name) + " is " + std::to_string(value) + "; it must be " + right;
}

std::string IdError(const std::string& name, int32_t id, uint32_t vocab_size) {
  if (id >= 0 && static_cast<uint32_t>(id) < vocab_size) return "";
  return name + " contains " + std::to_string(id) + "; ids are 0 to " + Num(vocab_size - 1);
}

std::string IdsError(const std::string& name, const std::vector<int32_t>& ids,
                     uint32_t vocab_size) {
  if (ids.size() > kMaxIds) {
    return name + " has " + Num(ids.size()) + " entries; at most " + Num(kMaxIds);
  }
  for (const int32_t id : ids) {
    if (std::string error = IdError(name, id, vocab_size); !error.empty()) return error;
  }
  return "";
}

std::string NumberError(const Sampling& sampling) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    return Wrong("temperature", sampling.temperature, "0 or more");
  }
  if (!Within(sampling.top_p, 0, 1)) return Wrong("top_p", sampling.top_p, "in 0 to 1");
  if (!Within(sampling.min_p, 0, 1)) return Wrong("min_p", sampling.min_p, "in 0 to 1");
  if (sampling.top_k < 0) {
    return "top_k is " + std::to_string(sampling.top_k) + "; it must be 0 (off) or more";
  }
  if (!Within(sampling.presence_penalty, -2, 2)) {
    return Wrong("presence_penalty", sampling.presence_penalty, "in -2 to 2");
  }
  if (!Within(sampling.frequency_penalty, -2, 2)) {
    return Wrong("frequency_penalty", sampling.frequency_penalty, "in -2 to 2");
  }
  if (!std::isfinite(sampling.repetition_penalty) || sampling.repetition_penalty <= 0) {
    return Wrong("repetition_penalty", sampling.repetition_penalty, "above 0");
  }
  return "";
}

std::string BiasError(const Sampling& sampling, uint32_t vocab_size) {
  if (sampling.logit_bias.size() > kMaxLogitBias) {
    return "logit_bias has " + Num(sampling.logit_bias.size()) + " entries; at most " +
           Num(kMaxLogitBias);
  }
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (std::string error = IdError("logit_bias", id, vocab_size); !error.empty()) return error;
    if (!Within(bias, -100, 100)) return Wrong("logit_bias", bias, "in -100 to 100");
  }
  return "";
}

}  // namespace

std::string SamplingError(const Request& request, uint32_t vocab_size) {
  const Sampling& sampling = request.sampling;
  if (std::string error = NumberError(sampling); !error.empty()) return error;
  if (std::string error = BiasError(sampling, vocab_size); !error.empty()) return error;
  if (std::string error = IdsError("banned_ids", sampling.banned_ids, vocab_size); !error.empty()) {
    return error;
  }
  const uint32_t most = std::min(kMaxTopLogprobs, vocab_size);
  for (const uint32_t top : {request.top_logprobs, request.prompt_top_logprobs}) {
    if (top > most) return "top_logprobs is " + Num(top) + "; at most " + Num(most);
  }
  if (!request.thinking.has_value()) return "";
  if (request.thinking->end_ids.empty()) return "thinking.end_ids is empty; it needs at least one";
  if (request.thinking->begin_id != -1) {
    std::string error = IdError("thinking.begin_id", request.thinking->begin_id, vocab_size);
    if (!error.empty()) return error;
  }
  return IdsError("thinking.end_ids", request.thinking->end_ids, vocab_size);
}

}  // namespace quartet::coordinator
