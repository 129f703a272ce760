#include "services/grammar/char_set.h"

#include <gtest/gtest.h>

#include <string>

#include "services/gateway/text/utf8.h"
#include "services/grammar/text_automaton.h"

namespace quartet::grammar {
namespace {

std::string Utf8(char32_t c) {
  std::string text;
  text::AppendUtf8(c, &text);
  return text;
}

// The number of units of `text`, or -1 if the automaton does not take it whole.
int Units(const TextAutomaton& automaton, const std::string& text) {
  uint16_t state = 0;
  int units = 0;
  for (const char byte : text) {
    state = automaton.Next(state, static_cast<uint8_t>(byte));
    if (state == TextAutomaton::kDead) return -1;
    if (automaton.IsBoundary(state)) ++units;
  }
  return automaton.IsBoundary(state) ? units : -1;
}

TEST(CharSet, ComplementAndUnionLeaveOutSurrogates) {
  EXPECT_EQ(~CharSet(), CharSet::All());
  EXPECT_EQ(~CharSet::All(), CharSet());
  const CharSet set = CharSet::Of('a', 'f') | CharSet::Of('g') | CharSet::Of(0xD700, 0xE010);
  ASSERT_EQ(set.ranges().size(), 3U);
  EXPECT_EQ(set.ranges()[0], (CharSet::Range{'a', 'g'}));
  EXPECT_FALSE(set.Contains(0xD800));
  EXPECT_TRUE(set.Contains(0xE000));
  EXPECT_EQ(~~set, set);
  EXPECT_EQ(CharSet::Of(0xD800, 0xDFFF), CharSet());
}

TEST(CharSet, SpellingsAreExactlyThoseOfTheMembers) {
  const CharSet set = CharSet::Of('x') | CharSet::Of(0x7E, 0x85) | CharSet::Of(0x7FA, 0x901) |
                      CharSet::Of(0xFFF0, 0x10401) | CharSet::Of(0x10FFFE, 0x10FFFF);
  const TextAutomaton automaton = TextAutomaton::OfUnits(SpellUtf8(set));
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    ASSERT_EQ(Units(automaton, Utf8(c)), set.Contains(c) ? 1 : -1) << static_cast<uint32_t>(c);
  }
}

TEST(CharSet, IllFormedBytesAreNoSpelling) {
  const TextAutomaton automaton = TextAutomaton::OfUnits(SpellUtf8(CharSet::All()));
  for (const char* text : {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                           "\xF8\x88\x80\x80\x80", "\xE2\x82"}) {
    EXPECT_EQ(Units(automaton, text), -1);
  }
  EXPECT_EQ(Units(automaton, "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), 4);
}

TEST(TextAutomaton, WithoutKnowsEveryBeginningOfTheTextsThatItLeavesOut) {
  const TextAutomaton automaton =
      TextAutomaton::Without({"</a>", "<b>"}, TextAutomaton::Unit::kCharacter);
  EXPECT_EQ(Units(automaton, "</a <b"), 6);
  EXPECT_EQ(Units(automaton, "<</a"), 4);
  EXPECT_EQ(Units(automaton, "x</a>"), -1);
  EXPECT_EQ(Units(automaton, "<<b>"), -1);
  EXPECT_EQ(Units(automaton, "<\xE2\x82\xAC</"), 4);
  EXPECT_EQ(Units(automaton, "\xE2\x82"), -1);
  const TextAutomaton bytes = TextAutomaton::Without({"</a>"}, TextAutomaton::Unit::kByte);
  EXPECT_EQ(Units(bytes, "\xE2\xFF"), 2);
}

TEST(TextAutomaton, ComesBackFromItsBytes) {
  const TextAutomaton automaton = TextAutomaton::Without({"</a>"}, TextAutomaton::Unit::kCharacter);
  const auto parsed = TextAutomaton::Parse(automaton.key());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->key(), automaton.key());
  EXPECT_EQ(Units(*parsed, "</a\xE2\x82\xAC"), 4);
  EXPECT_FALSE(TextAutomaton::Parse(automaton.key() + "x").ok());
  EXPECT_FALSE(TextAutomaton::Parse(automaton.key().substr(1)).ok());
  EXPECT_FALSE(TextAutomaton::Parse("").ok());
}

}  // namespace
}  // namespace quartet::grammar
