#include "services/gateway/text/control_tokens.h"

#include <memory>
#include <utility>

#include "services/gateway/text/token_trie.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

constexpr char32_t kMarkerStart = 0xFDD0;
constexpr char32_t kDigitFirst = 0xFDD1;
constexpr size_t kDigits = 31;
constexpr size_t kCharacterBytes = 3;  // each of U+FDD0..U+FDEF
constexpr size_t kMarkerBytes = 4 * kCharacterBytes;
// The first two bytes of U+FDD0..U+FDEF; the third is 0x90..0xAF.
constexpr std::string_view kMarkerPrefix = "\xEF\xB7";

// The digit at the start of `text`, or -1. U+FDD0 itself is no digit.
int DigitAt(std::string_view text) {
  if (text.size() < kCharacterBytes || text.substr(0, 2) != kMarkerPrefix) return -1;
  const int digit = static_cast<unsigned char>(text[2]) - 0x91;
  return digit >= 0 && digit < static_cast<int>(kDigits) ? digit : -1;
}

std::string Marker(size_t index) {
  std::string out;
  AppendUtf8(kMarkerStart, &out);
  AppendUtf8(kDigitFirst + static_cast<char32_t>(index / (kDigits * kDigits)), &out);
  AppendUtf8(kDigitFirst + static_cast<char32_t>(index / kDigits % kDigits), &out);
  AppendUtf8(kDigitFirst + static_cast<char32_t>(index % kDigits), &out);
  return out;
}

}  // namespace

bool HoldsMarkerCharacter(std::string_view text) {
  for (size_t at = text.find(kMarkerPrefix); at != std::string_view::npos;
       at = text.find(kMarkerPrefix, at + 1)) {
    if (at + 2 < text.size()) {
      const unsigned char last = static_cast<unsigned char>(text[at + 2]);
      if (last >= 0x90 && last <= 0xAF) return true;
    }
  }
  return false;
}

struct ControlTokenEscaper::Impl {
  TokenTrie trie;
  std::vector<std::string> contents;
  std::vector<std::string> markers;
};

ControlTokenEscaper::ControlTokenEscaper(const std::vector<AddedToken>& tokens) {
  auto impl = std::make_unique<Impl>();
  for (const AddedToken& token : tokens) {
    const size_t index = impl->contents.size();
    if (index >= kMarkableTokensMax) break;
    impl->trie.Add(token.content, static_cast<int32_t>(index));
    impl->contents.push_back(token.content);
    impl->markers.push_back(Marker(index));
  }
  impl_ = std::move(impl);
}

ControlTokenEscaper::~ControlTokenEscaper() = default;
ControlTokenEscaper::ControlTokenEscaper(ControlTokenEscaper&&) noexcept = default;
ControlTokenEscaper& ControlTokenEscaper::operator=(ControlTokenEscaper&&) noexcept = default;

std::string ControlTokenEscaper::Escape(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (true) {
    size_t at = 0;
    const TokenTrie::Match match = impl_->trie.FindFirst(text, &at);
    out.append(text.substr(0, at));
    if (match.bytes == 0) return out;
    out.append(impl_->markers[match.value]);
    text.remove_prefix(at + match.bytes);
  }
}

Value ControlTokenEscaper::EscapeDeep(const Value& value) const {
  switch (value.type()) {
    case Value::Type::kString:
      return Value::String(Escape(value.string()));
    case Value::Type::kList: {
      Value::List items;
      items.reserve(value.list().size());
      for (const Value& item : value.list()) items.push_back(EscapeDeep(item));
      return Value::MakeList(std::move(items));
    }
    case Value::Type::kObject: {
      Value::Entries entries;
      entries.reserve(value.entries().size());
      for (const auto& [key, item] : value.entries()) {
        entries.emplace_back(Escape(key), EscapeDeep(item));
      }
      return Value::MakeObject(std::move(entries));
    }
    default:
      return value;
  }
}

std::string ControlTokenEscaper::Unescape(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  size_t copied = 0;
  for (size_t at = text.find(kMarkerPrefix); at != std::string_view::npos;) {
    size_t index = 0;
    bool whole = static_cast<unsigned char>(text.substr(at).size() > 2 ? text[at + 2] : 0) == 0x90;
    for (size_t i = 1; whole && i <= 3; ++i) {
      const size_t place = at + i * kCharacterBytes;
      const int digit = place < text.size() ? DigitAt(text.substr(place)) : -1;
      whole = digit >= 0;
      index = index * kDigits + static_cast<size_t>(digit < 0 ? 0 : digit);
    }
    if (whole && index < impl_->contents.size()) {
      out.append(text.substr(copied, at - copied));
      out.append(impl_->contents[index]);
      copied = at + kMarkerBytes;
      at = text.find(kMarkerPrefix, copied);
    } else {
      at = text.find(kMarkerPrefix, at + 1);
    }
  }
  out.append(text.substr(copied));
  return out;
}

}  // namespace quartet::text
