#ifndef QUARTET_SERVICES_CLI_TERMINAL_H_
#define QUARTET_SERVICES_CLI_TERMINAL_H_

#include <string>
#include <string_view>

namespace quartet::cli {

// Whether colour and lines rewritten in place are welcome on this descriptor: a terminal, TERM not
// "dumb", and NO_COLOR not set.
bool WantsColour(int fd);

enum class Style { kPlain, kDim, kBold, kGreen, kYellow, kRed };

// `text` in the style, or as it is when `colour` is false.
std::string Styled(std::string_view text, Style style, bool colour);

// Text from a model or a log, made harmless for a terminal: control characters other than line feed
// and tab are left out, so that it cannot move the cursor or change the title.
std::string Printable(std::string_view text);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_TERMINAL_H_
