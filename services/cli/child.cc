#include "services/cli/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "boost/json.hpp"
#include "services/cli/terminal.h"

namespace quartet::cli {
namespace {

namespace json = boost::json;

constexpr size_t kKeptLines = 64;
constexpr size_t kLongestLine = 2048;
constexpr size_t kLongestStatusLine = 256 * 1024;
constexpr int kChildStatusFd = 3;
constexpr int kReadsAtOnce = 64;

void CloseFd(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

struct Pipe {
  int reader = -1;
  int writer = -1;
  ~Pipe() {
    CloseFd(&reader);
    CloseFd(&writer);
  }
  bool Open() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return false;
    reader = fds[0];
    writer = fds[1];
    return true;
  }
};

// In the child, between fork and exec: only calls that are safe there. Returns only on failure.
void BecomeProgram(char* const* argv, int status_fd, int output_fd, pid_t supervisor) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(1);  // It died before the line above could see it.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) return;
  if (dup2(output_fd, STDOUT_FILENO) < 0 || dup2(output_fd, STDERR_FILENO) < 0) return;
  if (status_fd == kChildStatusFd) {
    if (fcntl(status_fd, F_SETFD, 0) != 0) return;  // Drops close-on-exec.
  } else if (dup2(status_fd, kChildStatusFd) < 0) {
    return;
  }
  execv(argv[0], argv);
}

// What the child writes to its log is for machines; here people read it.
std::string ReadableLogLine(const std::string& line) {
  json::error_code error;
  const json::value value = json::parse(line, error);
  if (!error && value.is_object()) {
    const json::value* level = value.get_object().if_contains("level");
    const json::value* message = value.get_object().if_contains("message");
    if (level != nullptr && level->is_string() && message != nullptr && message->is_string()) {
      return Printable(
          absl::StrCat(level->get_string().c_str(), ": ", message->get_string().c_str()));
    }
  }
  return Printable(line);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Spawn(const ChildSpec& spec) {
  Pipe status;
  Pipe output;
  Pipe failure;  // Closed by a successful exec; carries errno otherwise.
  if (!status.Open() || !output.Open() || !failure.Open()) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  // The status pipe's writer must not be one of the descriptors that the child's 0..3 overwrite.
  const int status_writer = fcntl(status.writer, F_DUPFD_CLOEXEC, kChildStatusFd + 1);
  const int output_writer = fcntl(output.writer, F_DUPFD_CLOEXEC, kChildStatusFd + 1);
  const int failure_writer = fcntl(failure.writer, F_DUPFD_CLOEXEC, kChildStatusFd + 1);
  auto child = std::unique_ptr<Child>(new Child());
  child->title_ = spec.title;
  if (!spec.log_file.empty()) {
    child->log_fd_ =
        open(spec.log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (child->log_fd_ < 0) {
      child->exited_ = true;
      return absl::FailedPreconditionError(
          absl::StrCat("cannot write the log file ", spec.log_file, ": ", std::strerror(errno)));
    }
  }
  std::vector<std::string> arguments = spec.argv;
  arguments.push_back("--status-fd");
  arguments.push_back(absl::StrCat(kChildStatusFd));
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(argv.data(), status_writer, output_writer, supervisor);
    const int reason = errno;
    const ssize_t ignored = write(failure_writer, &reason, sizeof reason);
    static_cast<void>(ignored);
    _exit(127);
  }
  const int fork_error = errno;
  for (int fd : {status_writer, output_writer, failure_writer}) {
    if (fd >= 0) close(fd);
  }
  if (pid < 0) {
    child->exited_ = true;
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", spec.title, ": ", std::strerror(fork_error)));
  }
  child->pid_ = pid;
  CloseFd(&status.writer);
  CloseFd(&output.writer);
  CloseFd(&failure.writer);
  int reason = 0;
  ssize_t n = 0;
  do {
    n = read(failure.reader, &reason, sizeof reason);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof reason)) {
    return absl::NotFoundError(
        absl::StrCat("cannot start ", spec.title, ": ", spec.argv[0], ": ", std::strerror(reason)));
  }
  child->status_fd_ = std::exchange(status.reader, -1);
  child->output_fd_ = std::exchange(output.reader, -1);
  fcntl(child->status_fd_, F_SETFL, O_NONBLOCK);
  fcntl(child->output_fd_, F_SETFL, O_NONBLOCK);
  return child;
}

Child::~Child() {
  if (!exited_) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
    }
  }
  CloseFd(&status_fd_);
  CloseFd(&output_fd_);
  CloseFd(&log_fd_);
}

std::vector<StatusEvent> Child::ReadEvents() {
  std::vector<StatusEvent> events;
  std::array<char, 4096> buffer;
  while (status_fd_ >= 0) {
    const ssize_t n = read(status_fd_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      CloseFd(&status_fd_);
      break;
    }
    status_partial_.append(buffer.data(), static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end = status_partial_.find('\n'); end != std::string::npos;
         end = status_partial_.find('\n', begin)) {
      std::optional<StatusEvent> event =
          ParseStatusEvent(std::string_view(status_partial_).substr(begin, end - begin));
      if (event.has_value()) events.push_back(*std::move(event));
      begin = end + 1;
    }
    status_partial_.erase(0, begin);
    if (status_partial_.size() > kLongestStatusLine) status_partial_.clear();
  }
  return events;
}

void Child::ReadOutput() {
  std::array<char, 16384> buffer;
  // Bounded, so that a child that never stops writing cannot keep the supervisor from the others.
  for (int reads = 0; reads < kReadsAtOnce && output_fd_ >= 0; ++reads) {
    const ssize_t n = read(output_fd_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      CloseFd(&output_fd_);
      KeepLine();
      break;
    }
    TakeOutput({buffer.data(), static_cast<size_t>(n)});
  }
}

void Child::TakeOutput(std::string_view bytes) {
  if (log_fd_ >= 0) {
    // A full disk must not stop the cluster: the log is then incomplete.
    const ssize_t ignored = write(log_fd_, bytes.data(), bytes.size());
    static_cast<void>(ignored);
  }
  for (const char c : bytes) {
    if (c == '\n') {
      KeepLine();
    } else if (line_partial_.size() < kLongestLine) {
      line_partial_.push_back(c);
    }
  }
}

void Child::KeepLine() {
  if (!line_partial_.empty()) lines_.push_back(std::move(line_partial_));
  line_partial_.clear();
  if (lines_.size() > kKeptLines) lines_.pop_front();
}

void Child::Signal(int number) const {
  if (!exited_) kill(pid_, number);
}

bool Child::Reap() {
  if (exited_) return false;
  pid_t result = 0;
  do {
    result = waitpid(pid_, &wait_status_, WNOHANG);
  } while (result < 0 && errno == EINTR);
  if (result == 0) return false;
  exited_ = true;
  ReadOutput();
  return true;
}

bool Child::KilledBySignal() const {
  return WIFSIGNALED(wait_status_);
}

std::string Child::HowItEnded() const {
  if (WIFSIGNALED(wait_status_)) {
    const int number = WTERMSIG(wait_status_);
    return absl::StrCat("was killed by signal ", number, " (", strsignal(number), ")");
  }
  return absl::StrCat("exited with code ", WEXITSTATUS(wait_status_));
}

int Child::exit_code() const {
  return WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : -1;
}

std::vector<std::string> Child::LastLines(size_t most) const {
  std::vector<std::string> out;
  const size_t first = lines_.size() > most ? lines_.size() - most : 0;
  for (size_t i = first; i < lines_.size(); ++i) out.push_back(ReadableLogLine(lines_[i]));
  return out;
}

}  // namespace quartet::cli
