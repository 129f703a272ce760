#include "services/cli/terminal.h"

#include <gtest/gtest.h>

namespace quartet::cli {
namespace {

TEST(Styled, AddsNothingWithoutColour) {
  EXPECT_EQ(Styled("text", Style::kRed, false), "text");
  EXPECT_EQ(Styled("text", Style::kPlain, true), "text");
  EXPECT_EQ(Styled("text", Style::kRed, true), "\x1b[31mtext\x1b[0m");
}

TEST(Printable, KeepsTextAndDropsWhatCouldSteerATerminal) {
  EXPECT_EQ(Printable("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(Printable("\x1b]0;title\x07x\r\x08\x7f"), "]0;titlex");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "31m"),
            "31m")
      << "the eight-bit form of the escape sequence's start";
  EXPECT_EQ(Printable("\xC2\xA9 漢 ü"), "\xC2\xA9 漢 ü");
}

}  // namespace
}  // namespace quartet::cli
