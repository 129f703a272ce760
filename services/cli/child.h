#ifndef QUARTET_SERVICES_CLI_CHILD_H_
#define QUARTET_SERVICES_CLI_CHILD_H_

#include <sys/types.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/common/status_channel.h"

namespace quartet::cli {

struct ChildSpec {
  std::string title;              // for people: "shard worker 2 of 4"
  std::vector<std::string> argv;  // argv[0] is the program's path; --status-fd is added
  std::string log_file;           // empty = none; gets every line that the child writes
};

// One supervised process: its status pipe, and its standard output and error as one stream of
// lines. All calls from the thread that spawned it (the kernel ties the child's life to that
// thread). The destructor kills and reaps a child that still runs.
class Child {
 public:
  // Starts the program in a process group of its own (Ctrl-C at a terminal reaches only the
  // supervisor), with standard input closed. Fails when the program cannot be executed.
  static absl::StatusOr<std::unique_ptr<Child>> Spawn(const ChildSpec& spec);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& title() const { return title_; }
  pid_t pid() const { return pid_; }
  bool running() const { return !exited_; }
  // Non-blocking descriptors for poll(); -1 when the other end is closed.
  int status_fd() const { return status_fd_; }
  int output_fd() const { return output_fd_; }

  // Reads what is there. Lines that are no events are dropped.
  std::vector<StatusEvent> ReadEvents();
  void ReadOutput();

  void Signal(int number) const;
  // Reaps the child if it has ended; true once, when it did so just now. Reads its last output.
  bool Reap();
  // True if a signal ended it, also one that came from outside. Only after Reap() said true.
  bool KilledBySignal() const;
  // "exited with code 1" or "was killed by signal 9 (Killed)". Only after Reap() said true.
  std::string HowItEnded() const;
  // The wait status's exit code; -1 when a signal ended it.
  int exit_code() const;
  // The last lines it wrote, oldest first, as text for people (JSON log lines are unpacked).
  std::vector<std::string> LastLines(size_t most) const;

 private:
  Child() = default;
  void TakeOutput(std::string_view bytes);
  void KeepLine();

  std::string title_;
  pid_t pid_ = -1;
  int status_fd_ = -1;
  int output_fd_ = -1;
  int log_fd_ = -1;
  bool exited_ = false;
  int wait_status_ = 0;
  std::string status_partial_;
  std::string line_partial_;
  std::deque<std::string> lines_;
};

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_CHILD_H_
