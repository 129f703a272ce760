#include "services/gateway/text/detokenizer.h"

#include "services/gateway/text/utf8.h"

namespace quartet::text {

void Utf8Assembler::Append(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_ + std::string(bytes);
    bytes = joined;
  }
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    if (step.kind == Utf8Step::Kind::kCharacter) {
      out->append(bytes.substr(0, step.bytes));
    } else {
      AppendUtf8(kReplacementCharacter, out);
    }
    bytes.remove_prefix(step.bytes);
  }
  pending_ = std::string(bytes);
}

void Utf8Assembler::Flush(std::string* out) {
  if (!pending_.empty()) AppendUtf8(kReplacementCharacter, out);
  pending_.clear();
}

Detokenizer::Detokenizer(const Tokenizer* tokenizer, Options options)
    : tokenizer_(tokenizer), options_(options) {}

std::string Detokenizer::Append(int32_t id) {
  std::string out;
  if (options_.skip_special_tokens && tokenizer_->IsSpecial(id)) return out;
  assembler_.Append(tokenizer_->TokenBytes(id), &out);
  return out;
}

std::string Detokenizer::Flush() {
  std::string out;
  assembler_.Flush(&out);
  return out;
}

std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   Detokenizer::Options options) {
  Detokenizer stream(&tokenizer, options);
  std::string out;
  for (const int32_t id : ids) out += stream.Append(id);
  out += stream.Flush();
  return out;
}

}  // namespace quartet::text
