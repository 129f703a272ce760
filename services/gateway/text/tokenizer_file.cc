#include "services/gateway/text/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/gateway/text/control_tokens.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/pretokenizer.h"
#include "services/gateway/text/utf8.h"
#include "services/gateway/text/value.h"

namespace quartet::text {
namespace {

// Ids index arrays; no known vocabulary comes near.
constexpr int64_t kTokenIdMax = (int64_t{1} << 24) - 1;

// The byte-level alphabet: printable Latin-1 characters stand for themselves, the other bytes for
// U+0100 and up.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    char32_t other = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      bytes_[printable ? static_cast<char32_t>(byte) : other++] = static_cast<int16_t>(byte);
    }
  }

  // The bytes that a symbol string stands for; nothing if it holds another character.
  std::optional<std::string> ToBytes(std::string_view symbols) const {
    std::string out;
    while (!symbols.empty()) {
      const Utf8Step step = NextUtf8(symbols);
      if (step.code_point >= bytes_.size() || bytes_[step.code_point] < 0) return std::nullopt;
      out.push_back(static_cast<char>(bytes_[step.code_point]));
      symbols.remove_prefix(step.bytes);
    }
    return out;
  }

 private:
  std::array<int16_t, 0x144> bytes_;
};

std::string Shown(const Value& value) {
  std::string out;
  if (!AppendJson(value, {}, &out).ok()) out = "nothing";
  if (out.size() > 200) out = out.substr(0, 200) + "...";
  return out;
}

class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) {}

  absl::StatusOr<TokenizerFile> Read(const Value& root) {
    if (!root.is_object()) return Error("the top level", root, "an object");
    for (const auto& step : {&Reader::CheckPipeline, &Reader::CheckModel, &Reader::ReadVocabulary,
                             &Reader::ReadMerges, &Reader::ReadAddedTokens}) {
      if (absl::Status status = (this->*step)(root); !status.ok()) return status;
    }
    return std::move(file_);
  }

 private:
  absl::Status Error(std::string_view field, const Value& found, std::string_view expected) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", std::string(field), " is ",
                                                   Shown(found), "; ", std::string(expected),
                                                   " is expected"));
  }

  absl::Status NeedAbsent(const Value& object, std::string_view key, std::string_view path) const {
    const Value value = object.Get(key);
    if (value.is_absent()) return absl::OkStatus();
    return Error(absl::StrCat(std::string(path), std::string(key)), value,
                 "null (nothing else is implemented)");
  }

  // A boolean that may be missing only if it is false.
  absl::Status NeedBool(const Value& object, std::string_view key, bool wanted,
                        std::string_view path) const {
    const Value value = object.Get(key);
    if (value.is_bool() ? value.boolean() == wanted : (value.is_absent() && !wanted)) {
      return absl::OkStatus();
    }
    return Error(
        absl::StrCat(std::string(path), std::string(key)), value,
        wanted ? "true (nothing else is implemented)" : "false (nothing else is implemented)");
  }

  absl::Status NeedText(const Value& object, std::string_view key, std::string_view wanted,
                        std::string_view path) const {
    const Value value = object.Get(key);
    if (value.is_string() && value.string() == wanted) return absl::OkStatus();
    return Error(absl::StrCat(std::string(path), std::string(key)), value,
                 absl::StrCat("\"", std::string(wanted), "\" (nothing else is implemented)"));
  }

  absl::Status CheckPipeline(const Value& root) {
    for (const char* key : {"truncation", "padding", "normalizer"}) {
      if (absl::Status s = NeedAbsent(root, key, ""); !s.ok()) return s;
    }
    const Value pre = root.Get("pre_tokenizer");
    if (absl::Status s = NeedText(pre, "type", "Sequence", "pre_tokenizer."); !s.ok()) return s;
    const Value steps = pre.Get("pretokenizers");
    if (!steps.is_list() || steps.list().size() != 2) {
      return Error("pre_tokenizer.pretokenizers", steps, "a list of Split and ByteLevel");
    }
    const Value& split = steps.list()[0];
    const std::string split_path = "pre_tokenizer.pretokenizers[0].";
    if (absl::Status s = NeedText(split, "type", "Split", split_path); !s.ok()) return s;
    if (absl::Status s =
            NeedText(split.Get("pattern"), "Regex", kPreTokenRegex, split_path + "pattern.");
        !s.ok()) {
      return s;
    }
    if (absl::Status s = NeedText(split, "behavior", "Isolated", split_path); !s.ok()) return s;
    if (absl::Status s = NeedBool(split, "invert", false, split_path); !s.ok()) return s;
    const Value& level = steps.list()[1];
    const std::string level_path = "pre_tokenizer.pretokenizers[1].";
    if (absl::Status s = NeedText(level, "type", "ByteLevel", level_path); !s.ok()) return s;
    if (absl::Status s = NeedBool(level, "add_prefix_space", false, level_path); !s.ok()) return s;
    // Where this field is missing the library's default is true.
    if (level.Get("use_regex").is_undefined()) {
      return Error(level_path + "use_regex", level.Get("use_regex"), "false");
    }
    if (absl::Status s = NeedBool(level, "use_regex", false, level_path); !s.ok()) return s;
    if (const Value post = root.Get("post_processor"); !post.is_absent()) {
      if (absl::Status s = NeedText(post, "type", "ByteLevel", "post_processor."); !s.ok())
        return s;
    }
    return NeedText(root.Get("decoder"), "type", "ByteLevel", "decoder.");
  }

  absl::Status CheckModel(const Value& root) {
    const Value model = root.Get("model");
    if (!model.is_object()) return Error("model", model, "an object");
    if (!model.Get("type").is_absent()) {
      if (absl::Status s = NeedText(model, "type", "BPE", "model."); !s.ok()) return s;
    }
    if (const Value dropout = model.Get("dropout");
        !(dropout.is_number() && dropout.number() == 0.0)) {
      if (absl::Status s = NeedAbsent(model, "dropout", "model."); !s.ok()) return s;
    }
    for (const char* key : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      // An empty prefix or suffix is the same as none.
      if (const Value value = model.Get(key); value.is_string() && value.string().empty()) continue;
      if (absl::Status s = NeedAbsent(model, key, "model."); !s.ok()) return s;
    }
    for (const char* key : {"fuse_unk", "byte_fallback"}) {
      if (absl::Status s = NeedBool(model, key, false, "model."); !s.ok()) return s;
    }
    const Value ignore = model.Get("ignore_merges");
    if (!ignore.is_absent() && !ignore.is_bool()) {
      return Error("model.ignore_merges", ignore, "true or false");
    }
    file_.ignore_merges = ignore.is_bool() && ignore.boolean();
    return absl::OkStatus();
  }

  std::optional<int32_t> TokenIdOf(const Value& value) const {
    if (!value.is_integer() || value.integer() < 0 || value.integer() > kTokenIdMax) {
      return std::nullopt;
    }
    return static_cast<int32_t>(value.integer());
  }

  absl::Status ReadVocabulary(const Value& root) {
    const Value vocab = root.Get("model").Get("vocab");
    if (!vocab.is_object()) return Error("model.vocab", vocab, "an object");
    for (const auto& [symbols, value] : vocab.entries()) {
      const std::string field = absl::StrCat("model.vocab[\"", symbols, "\"]");
      const std::optional<int32_t> id = TokenIdOf(value);
      if (!id) return Error(field, value, "an id from 0 to 16777215");
      if (!ids_seen_.try_emplace(*id, symbols).second) {
        return Error(field, value,
                     absl::StrCat("an id that \"", ids_seen_[*id], "\" does not have"));
      }
      const std::optional<std::string> bytes = alphabet_.ToBytes(symbols);
      if (!bytes || bytes->empty()) {
        // Some files list added tokens here too; their text need not be of the byte alphabet.
        continue;
      }
      file_.vocabulary[*bytes] = *id;
    }
    std::array<int32_t, 256> byte_ids;
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = file_.vocabulary.find(std::string(1, static_cast<char>(byte)));
      if (found == file_.vocabulary.end()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: model.vocab has no entry for byte 0x%02X; all 256 bytes are expected", name_,
            byte));
      }
      byte_ids[byte] = found->second;
    }
    file_.merges = BpeMerges(byte_ids);
    return absl::OkStatus();
  }

  absl::Status ReadMerges(const Value& root) {
    const Value merges = root.Get("model").Get("merges");
    if (!merges.is_list()) return Error("model.merges", merges, "a list");
    int32_t rank = 0;
    for (const Value& merge : merges.list()) {
      const std::string field = absl::StrCat("model.merges[", rank, "]");
      std::string left;
      std::string right;
      if (merge.is_list() && merge.list().size() == 2 && merge.list()[0].is_string() &&
          merge.list()[1].is_string()) {
        left = merge.list()[0].string();
        right = merge.list()[1].string();
      } else if (merge.is_string() && merge.string().find(' ') != std::string::npos) {
        const size_t space = merge.string().find(' ');
        left = merge.string().substr(0, space);
        right = merge.string().substr(space + 1);
      } else {
        return Error(field, merge, "[\"a\", \"b\"] or \"a b\"");
      }
      std::array<int32_t, 3> ids;
      size_t i = 0;
      for (const std::string& symbols : {left, right, left + right}) {
        const std::optional<std::string> bytes = alphabet_.ToBytes(symbols);
        const auto found = bytes ? file_.vocabulary.find(*bytes) : file_.vocabulary.end();
        if (found == file_.vocabulary.end()) {
          return Error(field, merge, absl::StrCat("an entry \"", symbols, "\" in model.vocab"));
        }
        ids[i++] = found->second;
      }
      file_.merges.Add(ids[0], ids[1], rank++, ids[2]);
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokens(const Value& root) {
    const Value added = root.Get("added_tokens");
    if (added.is_absent()) return absl::OkStatus();
    if (!added.is_list()) return Error("added_tokens", added, "a list");
    absl::flat_hash_map<int32_t, size_t> by_id;
    for (size_t i = 0; i < added.list().size(); ++i) {
      const Value& token = added.list()[i];
      const std::string path = absl::StrCat("added_tokens[", i, "].");
      const std::optional<int32_t> id = TokenIdOf(token.Get("id"));
      if (!id) return Error(path + "id", token.Get("id"), "an id from 0 to 16777215");
      const Value content = token.Get("content");
      if (!content.is_string() || content.string().empty()) {
        return Error(path + "content", content, "text");
      }
      if (HoldsMarkerCharacter(content.string())) {
        return Error(path + "content", content, "text without noncharacters U+FDD0..FDEF");
      }
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (absl::Status s = NeedBool(token, key, false, path); !s.ok()) return s;
      }
      if (const auto base = ids_seen_.find(*id);
          base != ids_seen_.end() && base->second != content.string()) {
        return Error(
            path + "id", token.Get("id"),
            absl::StrCat("an id that \"", base->second, "\" of model.vocab does not have"));
      }
      if (!by_id.try_emplace(*id, i).second) {
        return Error(path + "id", token.Get("id"), "an id that no other added token has");
      }
      const auto flag = [&](const char* key) {
        return token.Get(key).is_bool() && token.Get(key).boolean();
      };
      file_.added.push_back({*id, content.string(), flag("special"), flag("normalized")});
    }
    if (file_.added.size() > kMarkableTokensMax) {
      return absl::InvalidArgumentError(absl::StrCat(name_, ": added_tokens has ",
                                                     file_.added.size(), " entries; at most ",
                                                     kMarkableTokensMax, " are expected"));
    }
    std::sort(file_.added.begin(), file_.added.end(),
              [](const auto& a, const auto& b) { return a.id < b.id; });
    return absl::OkStatus();
  }

  std::string name_;
  ByteAlphabet alphabet_;
  absl::flat_hash_map<int32_t, std::string> ids_seen_;
  TokenizerFile file_;
};

}  // namespace

absl::StatusOr<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view name) {
  absl::StatusOr<Value> root = ParseJson(json);
  if (!root.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": ", std::string(root.status().message())));
  }
  return Reader(name).Read(*root);
}

}  // namespace quartet::text
