#include "services/grammar/char_set.h"

#include <algorithm>
#include <array>

namespace quartet::grammar {
namespace {

constexpr char32_t kLastChar = 0x10FFFF;
constexpr char32_t kBeforeSurrogates = 0xD7FF;
constexpr char32_t kBehindSurrogates = 0xE000;

// The last character that takes `index` + 1 bytes.
constexpr std::array<char32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLastChar};

std::vector<unsigned> Utf8(char32_t c, size_t length) {
  if (length == 1) return {c};
  std::vector<unsigned> bytes(length);
  for (size_t i = length - 1; i > 0; --i, c >>= 6) bytes[i] = 0x80 | (c & 0x3F);
  constexpr std::array<unsigned, 5> kLead = {0, 0, 0xC0, 0xE0, 0xF0};
  bytes[0] = kLead[length] | c;
  return bytes;
}

// `first` and `last` take `length` bytes each. Splits the range until, from some place on, every
// place may have all bytes between those of the two ends.
void SpellRange(char32_t first, char32_t last, size_t length, std::vector<Spelling>* out) {
  for (size_t tail = 1; tail < length; ++tail) {
    const char32_t mask = (char32_t{1} << (6 * tail)) - 1;
    if ((first & ~mask) == (last & ~mask)) break;  // they differ in the tail only
    if ((first & mask) != 0) {
      SpellRange(first, first | mask, length, out);
      SpellRange((first | mask) + 1, last, length, out);
      return;
    }
    if ((last & mask) != mask) {
      SpellRange(first, (last & ~mask) - 1, length, out);
      SpellRange(last & ~mask, last, length, out);
      return;
    }
  }
  const std::vector<unsigned> low = Utf8(first, length);
  const std::vector<unsigned> high = Utf8(last, length);
  Spelling spelling;
  for (size_t i = 0; i < length; ++i) spelling.push_back(Bytes(low[i], high[i]));
  out->push_back(std::move(spelling));
}

}  // namespace

ByteSet Bytes(unsigned first, unsigned last) {
  ByteSet set;
  for (unsigned b = first; b <= last; ++b) set.set(b);
  return set;
}

ByteSet BytesOf(std::string_view bytes) {
  ByteSet set;
  for (const char b : bytes) set.set(static_cast<unsigned char>(b));
  return set;
}

CharSet CharSet::All() {
  CharSet set;
  set.ranges_ = {{0, kBeforeSurrogates}, {kBehindSurrogates, kLastChar}};
  return set;
}

CharSet CharSet::Of(char32_t first, char32_t last) {
  CharSet set;
  last = std::min(last, kLastChar);
  if (first <= kBeforeSurrogates) {
    set.ranges_.push_back({first, std::min(last, kBeforeSurrogates)});
  }
  if (last >= kBehindSurrogates) set.ranges_.push_back({std::max(first, kBehindSurrogates), last});
  std::erase_if(set.ranges_, [](const Range& range) { return range.first > range.last; });
  return set;
}

bool CharSet::Contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](const Range& range) { return c >= range.first && c <= range.last; });
}

CharSet CharSet::operator|(const CharSet& other) const {
  std::vector<Range> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  std::sort(all.begin(), all.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  CharSet set;
  for (const Range& range : all) {
    if (!set.ranges_.empty() && range.first <= set.ranges_.back().last + 1) {
      set.ranges_.back().last = std::max(set.ranges_.back().last, range.last);
    } else {
      set.ranges_.push_back(range);
    }
  }
  return set;
}

CharSet CharSet::operator~() const {
  CharSet set;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) set = set | Of(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLastChar) set = set | Of(next, kLastChar);
  return set;
}

std::vector<Spelling> SpellUtf8(const CharSet& set) {
  std::vector<Spelling> spellings;
  for (const CharSet::Range& range : set.ranges()) {
    char32_t first = range.first;
    for (size_t length = 1; length <= kLastOfLength.size(); ++length) {
      const char32_t last = std::min(range.last, kLastOfLength[length - 1]);
      if (first > last) continue;
      SpellRange(first, last, length, &spellings);
      first = last + 1;
    }
  }
  return spellings;
}

}  // namespace quartet::grammar
