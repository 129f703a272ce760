#include "tests/load/token_feed.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quartet::load {
namespace {

constexpr std::string_view kNamePrefix = "stream-";

bool IsPlainWord(std::string_view bytes) {
  return bytes.size() >= 2 && bytes.front() == ' ' &&
         std::all_of(bytes.begin() + 1, bytes.end(),
                     [](char c) { return absl::ascii_islower(static_cast<unsigned char>(c)); });
}

}  // namespace

std::vector<Word> PlainWords(const text::Tokenizer& tokenizer) {
  std::vector<Word> words;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (!tokenizer.IsAdded(id) && IsPlainWord(bytes)) words.push_back({id, std::string(bytes)});
  }
  return words;
}

std::string RequestName(size_t stream) {
  return absl::StrCat(std::string(kNamePrefix), stream);
}

std::optional<size_t> StreamOfName(std::string_view name) {
  size_t stream = 0;
  if (!name.starts_with(kNamePrefix) ||
      !absl::SimpleAtoi(std::string(name.substr(kNamePrefix.size())), &stream)) {
    return std::nullopt;
  }
  return stream;
}

TokenFeed::TokenFeed(std::vector<Word> words, const std::vector<uint32_t>& tokens)
    : words_(std::move(words)),
      tokens_(tokens),
      first_(tokens.size()),
      said_(std::accumulate(tokens.begin(), tokens.end(), size_t{0})) {
  std::exclusive_scan(tokens.begin(), tokens.end(), first_.begin(), size_t{0});
}

}  // namespace quartet::load
