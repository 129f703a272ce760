#include "services/cli/stage_view.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/cli/terminal.h"

namespace quartet::cli {

std::string StageView::Row(const std::string& who, const std::string& stage,
                           const std::string& percent, double seconds) const {
  return absl::StrFormat("  %-14s %-28s %5s %8.1f s", who, Printable(stage), percent, seconds);
}

void StageView::EraseLive() {
  if (line_is_open_) out_ << "\r\x1b[K";
  line_is_open_ = false;
}

void StageView::Progress(const std::string& who, const std::string& stage, double fraction,
                         double seconds) {
  const auto key = std::make_pair(who, stage);
  if (done_.count(key) != 0) return;
  const double known = std::clamp(fraction, 0.0, 1.0);
  const std::string percent =
      fraction < 0 ? "..." : absl::StrCat(static_cast<int>(std::floor(known * 100)), " %");
  if (live_) {
    EraseLive();
    out_ << Styled(Row(who, stage, percent, seconds), Style::kDim, colour_) << std::flush;
    line_is_open_ = true;
    return;
  }
  if (seconds < next_line_at_) return;
  next_line_at_ = seconds + kSecondsBetweenLines;
  out_ << Row(who, stage, percent, seconds) << "\n" << std::flush;
}

void StageView::Done(const std::string& who, const std::string& stage, double seconds) {
  if (!done_.emplace(std::make_pair(who, stage), true).second) return;
  EraseLive();
  out_ << Row(who, stage, Styled(" done", Style::kGreen, colour_), seconds) << "\n" << std::flush;
}

void StageView::Line(const std::string& text) {
  EraseLive();
  out_ << text << "\n" << std::flush;
}

}  // namespace quartet::cli
