#include "services/grammar/vocabulary.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/grammar/byte_codec.h"

namespace quartet::grammar {

absl::StatusOr<Vocabulary> Vocabulary::Create(std::vector<TokenText> tokens,
                                              std::vector<int32_t> end_ids) {
  if (tokens.empty() || tokens.size() > kTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary: ", tokens.size(),
                                                   " tokens, at least 1 and at most ", kTokensMax));
  }
  Vocabulary vocabulary;
  vocabulary.tokens_ = std::move(tokens);
  std::sort(end_ids.begin(), end_ids.end());
  end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
  for (const int32_t id : end_ids) {
    if (!vocabulary.Has(id)) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary: end token ", id, " is not among ",
                                                     vocabulary.size(), " tokens"));
    }
  }
  vocabulary.end_ids_ = std::move(end_ids);
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    const TokenText& token = vocabulary.token(id);
    if (token.bytes.size() > kTokenBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary: token ", id, " takes ",
                                                     token.bytes.size(), " bytes, at most ",
                                                     kTokenBytesMax));
    }
    const bool added =
        token.kind == TokenText::Kind::kMarker || token.kind == TokenText::Kind::kSpecial;
    if (added && !vocabulary.IsEnd(id)) vocabulary.added_ids_.push_back(id);
    if (token.kind == TokenText::Kind::kText) {
      vocabulary.token_bytes_max_ = std::max(vocabulary.token_bytes_max_, token.bytes.size());
    }
  }
  if (vocabulary.added_ids_.size() > kAddedMax) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary: ", vocabulary.added_ids_.size(),
                                                   " added tokens, at most ", kAddedMax));
  }
  vocabulary.BuildTree();
  return vocabulary;
}

bool Vocabulary::IsEnd(int32_t id) const {
  return std::binary_search(end_ids_.begin(), end_ids_.end(), id);
}

std::optional<int32_t> Vocabulary::AddedId(std::string_view text) const {
  for (const int32_t id : added_ids_) {
    if (token(id).bytes == text) return id;
  }
  return std::nullopt;
}

uint32_t Vocabulary::Child(uint32_t node, uint8_t byte) const {
  const uint32_t first = first_child_[node];
  if (children_[node] == 0) return 0;
  const void* found = std::memchr(&bytes_[first], byte, children_[node]);
  return found == nullptr
             ? 0
             : static_cast<uint32_t>(static_cast<const uint8_t*>(found) - bytes_.data());
}

void Vocabulary::BuildTree() {
  std::vector<int32_t> order;
  for (int32_t id = 0; id < static_cast<int32_t>(size()); ++id) {
    if (token(id).kind == TokenText::Kind::kText && !token(id).bytes.empty() && !IsEnd(id)) {
      order.push_back(id);
    }
  }
  std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    return std::pair(std::string_view(token(a).bytes), a) <
           std::pair(std::string_view(token(b).bytes), b);
  });
  next_id_.assign(size(), -1);
  const auto add_node = [this](uint8_t byte, uint32_t parent) {
    bytes_.push_back(byte);
    parent_.push_back(parent);
    first_child_.push_back(0);
    children_.push_back(0);
    first_id_.push_back(-1);
  };
  add_node(0, 0);
  // The tokens order[begin..end) are equal up to `depth`, where `node` is.
  struct Range {
    uint32_t node;
    size_t begin;
    size_t end;
    size_t depth;
  };
  std::vector<Range> open = {{0, 0, order.size(), 0}};
  std::vector<Range> below;
  while (!open.empty()) {
    Range range = open.back();
    open.pop_back();
    int32_t* link = &first_id_[range.node];
    for (; range.begin < range.end && token(order[range.begin]).bytes.size() == range.depth;
         ++range.begin) {
      *link = order[range.begin];
      link = &next_id_[static_cast<size_t>(*link)];
    }
    below.clear();
    first_child_[range.node] = static_cast<uint32_t>(bytes_.size());
    while (range.begin < range.end) {
      const char byte = token(order[range.begin]).bytes[range.depth];
      size_t end = range.begin + 1;
      while (end < range.end && token(order[end]).bytes[range.depth] == byte) ++end;
      below.push_back({static_cast<uint32_t>(bytes_.size()), range.begin, end, range.depth + 1});
      add_node(static_cast<uint8_t>(byte), range.node);
      range.begin = end;
    }
    children_[range.node] = static_cast<uint16_t>(below.size());
    // The first child is looked at next, so that what is walked together lies together.
    open.insert(open.end(), below.rbegin(), below.rend());
  }
  SortNodes();
}

void Vocabulary::SortNodes() {
  for (size_t node = 1; node < nodes(); ++node) ++by_byte_end_[bytes_[node] + 1u];
  for (size_t byte = 0; byte < 256; ++byte) by_byte_end_[byte + 1] += by_byte_end_[byte];
  by_byte_.resize(nodes() - 1);
  std::array<size_t, 257> at = by_byte_end_;
  for (uint32_t node = 1; node < nodes(); ++node) by_byte_[at[bytes_[node]]++] = node;
}

std::string Vocabulary::Serialize() const {
  ByteWriter writer;
  writer.Number(size());
  for (const TokenText& token : tokens_) {
    writer.Byte(static_cast<uint8_t>(token.kind));
    writer.String(token.bytes);
  }
  writer.Number(end_ids_.size());
  for (const int32_t id : end_ids_) writer.Number(static_cast<uint64_t>(id));
  return writer.Take();
}

absl::StatusOr<Vocabulary> Vocabulary::Parse(std::string_view bytes) {
  ByteReader reader(bytes);
  std::vector<TokenText> tokens;
  const size_t size = reader.Number(kTokensMax);
  for (size_t i = 0; i < size && reader.ok(); ++i) {
    TokenText token;
    const uint8_t kind = reader.Byte();
    if (kind > static_cast<uint8_t>(TokenText::Kind::kSpecial)) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary: token ", i, " is of kind ",
                                                     static_cast<int>(kind), ", at most ",
                                                     static_cast<int>(TokenText::Kind::kSpecial)));
    }
    token.kind = static_cast<TokenText::Kind>(kind);
    token.bytes = std::string(reader.String());
    tokens.push_back(std::move(token));
  }
  std::vector<int32_t> end_ids;
  const size_t ends = reader.Number(kTokensMax);
  for (size_t i = 0; i < ends && reader.ok(); ++i) {
    end_ids.push_back(static_cast<int32_t>(reader.Number(kTokensMax)));
  }
  if (!reader.ok() || !reader.AtEnd()) {
    return absl::InvalidArgumentError(
        "vocabulary: cut short, followed by more, or with a number "
        "out of range");
  }
  return Create(std::move(tokens), std::move(end_ids));
}

}  // namespace quartet::grammar
