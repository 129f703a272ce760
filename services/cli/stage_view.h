#ifndef QUARTET_SERVICES_CLI_STAGE_VIEW_H_
#define QUARTET_SERVICES_CLI_STAGE_VIEW_H_

#include <map>
#include <ostream>
#include <string>
#include <utility>

namespace quartet::cli {

// The start of a cluster as people see it: a line for each stage that is done, and how far the
// running one is. On a terminal (`live`) that is one line, rewritten in place; elsewhere a line
// every five seconds. Not thread safe.
class StageView {
 public:
  StageView(std::ostream& out, bool live, bool colour) : out_(out), live_(live), colour_(colour) {}

  // `fraction` in 0..1, or negative when it is not known. `seconds` since the start.
  void Progress(const std::string& who, const std::string& stage, double fraction, double seconds);
  // A stage that is over. Says it only once for the same `who` and `stage`.
  void Done(const std::string& who, const std::string& stage, double seconds);
  // A line of its own, below all others so far.
  void Line(const std::string& text);

  static constexpr double kSecondsBetweenLines = 5;

 private:
  void EraseLive();
  std::string Row(const std::string& who, const std::string& stage, const std::string& percent,
                  double seconds) const;

  std::ostream& out_;
  const bool live_;
  const bool colour_;
  bool line_is_open_ = false;
  double next_line_at_ = kSecondsBetweenLines;  // For output that is not live.
  std::map<std::pair<std::string, std::string>, bool> done_;
};

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_STAGE_VIEW_H_
