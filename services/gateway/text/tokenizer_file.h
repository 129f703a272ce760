// Reads tokenizer.json into plain data, refusing what the tokenizer does not implement.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TOKENIZER_FILE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TOKENIZER_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "services/gateway/text/bpe.h"

namespace quartet::text {

struct TokenizerFile {
  struct Added {
    int32_t id;
    std::string content;
    bool special;
    // Matched only in what the others leave.
    bool normalized;
  };
  // In order of their ids.
  std::vector<Added> added;
  // Bytes of each base token -> its id.
  absl::flat_hash_map<std::string, int32_t> vocabulary;
  BpeMerges merges;
  // Whether a pre-token that is itself an entry of the vocabulary is taken whole, without merging.
  bool ignore_merges = false;
};

// Errors are InvalidArgument and start with `name`.
absl::StatusOr<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view name);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TOKENIZER_FILE_H_
