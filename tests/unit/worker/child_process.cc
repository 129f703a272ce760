#include "tests/unit/worker/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/time/clock.h"

extern char** environ;

namespace quartet {
namespace {

constexpr int kStatusFd = 3;

// True when `fd` can be read (or has ended) before the deadline.
bool AwaitReadable(int fd, absl::Time deadline) {
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
    const int found = poll(&entry, 1, static_cast<int>(left > 0 ? left : 0));
    if (found > 0) return true;
    if (found == 0) return false;
  }
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  char name[] = "/tmp/quartet-test-stderr-XXXXXX";
  const int error_fd = mkstemp(name);
  stderr_path_ = name;
  int pipe_fds[2];
  if (error_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0) std::abort();
  status_fd_ = pipe_fds[0];

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, error_fd, STDERR_FILENO);
  // dup2 onto itself would keep close-on-exec; the spawn call clears it for that case.
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], kStatusFd);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int error = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(error_fd);
  close(pipe_fds[1]);
  if (error != 0) {
    std::fprintf(stderr, "cannot start %s\n", argv[0]);
    std::abort();
  }
  pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

ChildProcess::~ChildProcess() {
  if (!exit_code_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(status_fd_);
  close(pid_fd_);
  unlink(stderr_path_.c_str());
}

void ChildProcess::Signal(int number) {
  if (!exit_code_) kill(pid_, number);
}

std::optional<int> ChildProcess::AwaitExit(absl::Duration timeout) {
  if (exit_code_) return exit_code_;
  if (!AwaitReadable(pid_fd_, absl::Now() + timeout)) return std::nullopt;
  int status = 0;
  waitpid(pid_, &status, 0);
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::optional<StatusEvent> ChildProcess::AwaitEvent(StatusEvent::Kind kind,
                                                    absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    for (size_t end = buffer_.find('\n'); end != std::string::npos; end = buffer_.find('\n')) {
      const std::optional<StatusEvent> event =
          ParseStatusEvent(std::string_view(buffer_).substr(0, end));
      buffer_.erase(0, end + 1);
      if (event && event->kind == kind) return event;
    }
    if (!AwaitReadable(status_fd_, deadline)) return std::nullopt;
    char bytes[4096];
    const ssize_t count = read(status_fd_, bytes, sizeof(bytes));
    if (count <= 0) return std::nullopt;
    buffer_.append(bytes, count);
  }
}

std::string ChildProcess::StandardError() const {
  std::ostringstream text;
  text << std::ifstream(stderr_path_).rdbuf();
  return text.str();
}

}  // namespace quartet
