// Sets of characters, and how their members are spelled in bytes.
#ifndef QUARTET_SERVICES_GRAMMAR_CHAR_SET_H_
#define QUARTET_SERVICES_GRAMMAR_CHAR_SET_H_

#include <bitset>
#include <string_view>
#include <vector>

namespace quartet::grammar {

using ByteSet = std::bitset<256>;

// One way to spell a unit of text: the bytes that may stand at each of its places.
using Spelling = std::vector<ByteSet>;

// The bytes of `first`..`last`.
ByteSet Bytes(unsigned first, unsigned last);
// The bytes that stand in `bytes`.
ByteSet BytesOf(std::string_view bytes);

// A set of Unicode scalar values (no surrogates), kept as sorted, disjoint, non-adjacent ranges.
class CharSet {
 public:
  struct Range {
    char32_t first;
    char32_t last;
    bool operator==(const Range&) const = default;
  };

  static CharSet All();
  static CharSet Of(char32_t first, char32_t last);
  static CharSet Of(char32_t c) { return Of(c, c); }

  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool Contains(char32_t c) const;
  bool operator==(const CharSet&) const = default;

  CharSet operator|(const CharSet& other) const;
  CharSet operator&(const CharSet& other) const { return ~(~*this | ~other); }
  // All scalar values that are not in this.
  CharSet operator~() const;

 private:
  std::vector<Range> ranges_;
};

// The spellings of the members in UTF-8. No spelling is the beginning of another.
std::vector<Spelling> SpellUtf8(const CharSet& set);

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_CHAR_SET_H_
