#include "services/gateway/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/control_tokens.h"
#include "services/gateway/text/files.h"
#include "services/gateway/text/pretokenizer.h"
#include "services/gateway/text/token_trie.h"
#include "services/gateway/text/tokenizer_file.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

// The largest known files have 20 to 35 MB.
constexpr size_t kTokenizerFileBytesMax = size_t{256} << 20;
constexpr size_t kTextBytesMax = size_t{1} << 30;

std::vector<AddedToken> PublicView(const std::vector<TokenizerFile::Added>& added) {
  std::vector<AddedToken> out;
  for (const TokenizerFile::Added& token : added) {
    out.push_back({token.id, token.content, token.special});
  }
  return out;
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerFile file)
      : file_(std::move(file)), added_(PublicView(file_.added)), escaper_(added_) {
    for (const auto& [bytes, id] : file_.vocabulary) At(id).bytes = bytes;
    for (const TokenizerFile::Added& token : file_.added) {
      Token& slot = At(token.id);
      slot.bytes = token.content;
      slot.added = true;
      slot.special = token.special;
      (token.normalized ? second_ : first_).Add(token.content, token.id);
      added_ids_.try_emplace(token.content, token.id);
    }
  }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              EncodeOptions options) const override {
    std::string replaced;
    if (absl::Status status = Prepare(&text, &replaced); !status.ok()) return status;
    std::vector<int32_t> ids;
    if (options.match_added_tokens) {
      SplitAt(first_, text, &ids, [&](std::string_view rest) {
        SplitAt(second_, rest, &ids, [&](std::string_view plain) { EncodePlain(plain, &ids); });
      });
    } else {
      EncodePlain(text, &ids);
    }
    return ids;
  }

  absl::StatusOr<std::vector<int32_t>> EncodeRendered(std::string_view text) const override {
    std::string replaced;
    if (absl::Status status = Prepare(&text, &replaced); !status.ok()) return status;
    std::vector<int32_t> ids;
    const auto plain_text = [&](std::string_view plain) {
      if (HoldsMarkerCharacter(plain)) {
        EncodePlain(escaper_.Unescape(plain), &ids);
      } else {
        EncodePlain(plain, &ids);
      }
    };
    SplitAt(first_, text, &ids,
            [&](std::string_view rest) { SplitAt(second_, rest, &ids, plain_text); });
    return ids;
  }

  std::string_view TokenBytes(int32_t id) const override {
    const Token* token = Get(id);
    return token == nullptr ? std::string_view() : std::string_view(token->bytes);
  }
  bool IsAdded(int32_t id) const override { return Get(id) != nullptr && Get(id)->added; }
  bool IsSpecial(int32_t id) const override { return Get(id) != nullptr && Get(id)->special; }
  bool HasToken(int32_t id) const override { return Get(id) != nullptr && !Get(id)->bytes.empty(); }

  std::optional<int32_t> TokenId(std::string_view text) const override {
    if (const auto found = added_ids_.find(Av(text)); found != added_ids_.end())
      return found->second;
    const auto found = file_.vocabulary.find(Av(text));
    if (found == file_.vocabulary.end()) return std::nullopt;
    return found->second;
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  const std::vector<AddedToken>& added_tokens() const override { return added_; }

 private:
  struct Token {
    std::string bytes;
    bool added = false;
    bool special = false;
  };

  Token& At(int32_t id) {
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    return tokens_[static_cast<size_t>(id)];
  }

  const Token* Get(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
    return &tokens_[static_cast<size_t>(id)];
  }

  static absl::Status Prepare(std::string_view* text, std::string* replaced) {
    if (text->size() > kTextBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the text has ", text->size(), " bytes; at most ", kTextBytesMax, " can be encoded"));
    }
    if (!IsValidUtf8(*text)) {
      *replaced = ReplaceIllFormedUtf8(*text);
      *text = *replaced;
    }
    return absl::OkStatus();
  }

  // Appends the ids of the tokens of `trie` in `text`, and calls `between` for each piece that is
  // none.
  template <typename Between>
  static void SplitAt(const TokenTrie& trie, std::string_view text, std::vector<int32_t>* ids,
                      const Between& between) {
    while (!text.empty()) {
      size_t at = 0;
      const TokenTrie::Match match = trie.FindFirst(text, &at);
      if (at > 0) between(text.substr(0, at));
      if (match.bytes == 0) return;
      ids->push_back(match.value);
      text.remove_prefix(at + match.bytes);
    }
  }

  void EncodePlain(std::string_view text, std::vector<int32_t>* ids) const {
    while (!text.empty()) {
      const size_t bytes = NextPreToken(text);
      EncodePreToken(text.substr(0, bytes), ids);
      text.remove_prefix(bytes);
    }
  }

  void EncodePreToken(std::string_view bytes, std::vector<int32_t>* ids) const {
    if (file_.ignore_merges) {
      if (const auto whole = file_.vocabulary.find(Av(bytes)); whole != file_.vocabulary.end()) {
        ids->push_back(whole->second);
        return;
      }
    }
    file_.merges.Encode(bytes, ids);
  }

  TokenizerFile file_;
  std::vector<AddedToken> added_;
  ControlTokenEscaper escaper_;
  std::vector<Token> tokens_;  // by id
  TokenTrie first_;            // added tokens that are matched on the raw text
  TokenTrie second_;           // added tokens that are matched in what is left
  absl::flat_hash_map<std::string, int32_t> added_ids_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromJson(std::string_view json,
                                                                     std::string_view name) {
  absl::StatusOr<TokenizerFile> file = ParseTokenizerFile(json, name);
  if (!file.ok()) return file.status();
  return std::make_unique<const BpeTokenizer>(*std::move(file));
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Load(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kTokenizerFileBytesMax);
  if (!text.ok()) return text.status();
  return FromJson(*text, path);
}

}  // namespace quartet::text
