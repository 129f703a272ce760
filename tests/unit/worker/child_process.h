#ifndef QUARTET_TESTS_UNIT_WORKER_CHILD_PROCESS_H_
#define QUARTET_TESTS_UNIT_WORKER_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "services/common/status_channel.h"

namespace quartet {

// A program under test with a status channel on its descriptor 3 (give it "--status-fd 3") and its
// standard error in a file. Killed by the destructor if it still runs. One thread.
class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int number);
  // The exit code, or 128 + signal. Nothing if it has not ended by then.
  std::optional<int> AwaitExit(absl::Duration timeout = absl::Seconds(30));
  // The next status event of that kind; earlier ones are skipped. Nothing at the end of the channel
  // or after the timeout.
  std::optional<StatusEvent> AwaitEvent(StatusEvent::Kind kind,
                                        absl::Duration timeout = absl::Seconds(30));
  std::string StandardError() const;

 private:
  pid_t pid_ = -1;
  int pid_fd_ = -1;
  int status_fd_ = -1;
  std::string stderr_path_;
  std::string buffer_;
  std::optional<int> exit_code_;
};

}  // namespace quartet

#endif  // QUARTET_TESTS_UNIT_WORKER_CHILD_PROCESS_H_
