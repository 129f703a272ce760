#include "services/gateway/openai/logprobs.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/utf8.h"

namespace quartet::gateway {
namespace {

// What stands for minus infinity, which JSON cannot write.
constexpr float kLeast = -9999.0f;

void AppendLogprob(float logprob, std::string* out) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), std::max(logprob, kLeast)).ptr;
  out->append(digits, end);
}

void AppendText(const std::string& bytes, std::string* out) {
  text::AppendJsonString(text::ReplaceIllFormedUtf8(bytes), out);
}

// token, logprob and bytes, without braces.
void AppendEntry(const ScoredId& token, std::string* out) {
  *out += "\"token\":";
  AppendText(token.bytes, out);
  *out += ",\"logprob\":";
  AppendLogprob(token.logprob, out);
  *out += ",\"bytes\":[";
  for (size_t i = 0; i < token.bytes.size(); ++i) {
    absl::StrAppend(out, i ? "," : "", static_cast<unsigned char>(token.bytes[i]));
  }
  *out += ']';
}

template <typename Fn>
void AppendList(std::string_view name, std::span<const ScoredToken> tokens, Fn append,
                std::string* out) {
  absl::StrAppend(out, "\"", std::string(name), "\":[");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) *out += ',';
    append(tokens[i]);
  }
  *out += ']';
}

// The token itself and the likeliest ones, each text once: several ids may look the same.
void AppendTopByText(const ScoredToken& token, std::string* out) {
  std::vector<std::string> seen;
  const auto append = [&](const ScoredId& one) {
    std::string text = text::ReplaceIllFormedUtf8(one.bytes);
    if (std::ranges::find(seen, text) != seen.end()) return;
    if (!seen.empty()) *out += ',';
    text::AppendJsonString(text, out);
    *out += ':';
    AppendLogprob(one.logprob, out);
    seen.push_back(std::move(text));
  };
  *out += '{';
  for (const ScoredId& one : token.top) append(one);
  append(token);
  *out += '}';
}

}  // namespace

void AppendLogprobEntries(std::span<const ScoredToken> tokens, std::string* out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    *out += i ? ",{" : "{";
    AppendEntry(tokens[i], out);
    *out += ",\"top_logprobs\":[";
    for (size_t j = 0; j < tokens[i].top.size(); ++j) {
      *out += j ? ",{" : "{";
      AppendEntry(tokens[i].top[j], out);
      *out += '}';
    }
    *out += "]}";
  }
}

void AppendChatLogprobs(std::span<const ScoredToken> tokens, std::string* out) {
  *out += "{\"content\":[";
  AppendLogprobEntries(tokens, out);
  *out += "],\"refusal\":null}";
}

void AppendPromptLogprobs(std::span<const ScoredToken> tokens, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) *out += ',';
    if (tokens[i].first) {
      *out += "null";
      continue;
    }
    const auto append = [out](const ScoredId& one) {
      absl::StrAppend(out, "\"", one.id, "\":{\"logprob\":");
      AppendLogprob(one.logprob, out);
      *out += ",\"decoded_token\":";
      AppendText(one.bytes, out);
      *out += '}';
    };
    *out += '{';
    append(tokens[i]);
    for (const ScoredId& one : tokens[i].top) {
      if (one.id == tokens[i].id) continue;
      *out += ',';
      append(one);
    }
    *out += '}';
  }
  *out += ']';
}

void CompletionLogprobs::Append(std::span<const ScoredToken> tokens, std::string* out) {
  *out += '{';
  AppendList(
      "tokens", tokens, [out](const ScoredToken& token) { AppendText(token.bytes, out); }, out);
  *out += ',';
  AppendList(
      "token_logprobs", tokens,
      [out](const ScoredToken& token) {
        if (token.first) {
          *out += "null";
        } else {
          AppendLogprob(token.logprob, out);
        }
      },
      out);
  *out += ',';
  AppendList(
      "top_logprobs", tokens,
      [out](const ScoredToken& token) {
        if (token.first) {
          *out += "null";
        } else {
          AppendTopByText(token, out);
        }
      },
      out);
  *out += ',';
  AppendList(
      "text_offset", tokens,
      [&](const ScoredToken& token) {
        absl::StrAppend(out, offset_);
        if (!token.shown) return;
        std::string whole;
        characters_.Append(token.bytes, &whole);
        offset_ += text::CountCodePoints(whole);
      },
      out);
  *out += '}';
}

}  // namespace quartet::gateway
