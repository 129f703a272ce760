#include "services/cli/terminal.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace quartet::cli {

bool WantsColour(int fd) {
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return isatty(fd) == 1 && !dumb && std::getenv("NO_COLOR") == nullptr;
}

std::string Styled(std::string_view text, Style style, bool colour) {
  const char* code = nullptr;
  switch (style) {
    case Style::kPlain:
      break;
    case Style::kDim:
      code = "\x1b[2m";
      break;
    case Style::kBold:
      code = "\x1b[1m";
      break;
    case Style::kGreen:
      code = "\x1b[32m";
      break;
    case Style::kYellow:
      code = "\x1b[33m";
      break;
    case Style::kRed:
      code = "\x1b[31m";
      break;
  }
  if (!colour || code == nullptr) return std::string(text);
  return absl::StrCat(code, std::string(text), "\x1b[0m");
}

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) continue;
    // U+0080 to U+009F, the eight-bit control characters: C2 80 to C2 9F.
    if (byte == 0xC2 && i + 1 < text.size()) {
      const auto next = static_cast<unsigned char>(text[i + 1]);
      if (next >= 0x80 && next <= 0x9F) {
        ++i;
        continue;
      }
    }
    out.push_back(text[i]);
  }
  return out;
}

}  // namespace quartet::cli
