#include "tests/unit/cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace quartet::cli {

Program::Program(const std::vector<std::string>& argv,
                 const std::map<std::string, std::string>& env, const std::string& input) {
  int in[2];
  int out[2];
  int err[2];
  EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  std::vector<std::string> arguments = argv;
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  // The tests' inputs fit the pipe, so this cannot block.
  EXPECT_EQ(write(in[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
  close(in[1]);
}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) close(out_fd_);
  if (err_fd_ >= 0) close(err_fd_);
}

bool Program::ReadSome() {
  std::array<pollfd, 2> fds = {pollfd{out_fd_, POLLIN, 0}, pollfd{err_fd_, POLLIN, 0}};
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  if (poll(fds.data(), fds.size(), -1) < 0) return true;
  std::array<char, 4096> buffer;
  const auto take = [&buffer](const pollfd& ready, int* fd, std::string* text) {
    if (*fd < 0 || ready.revents == 0) return;
    const ssize_t n = read(*fd, buffer.data(), buffer.size());
    if (n > 0) {
      text->append(buffer.data(), static_cast<size_t>(n));
    } else {
      close(*fd);
      *fd = -1;
    }
  };
  take(fds[0], &out_fd_, &out_);
  take(fds[1], &err_fd_, &err_);
  return true;
}

bool Program::WaitForOutput(const std::string& text) {
  while (out_.find(text) == std::string::npos) {
    if (!ReadSome()) return false;
  }
  return true;
}

bool Program::WaitForError(const std::string& text) {
  while (err_.find(text) == std::string::npos) {
    if (!ReadSome()) return false;
  }
  return true;
}

void Program::Signal(int number) const {
  kill(pid_, number);
}

Outcome Program::Finish() {
  while (ReadSome()) {
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out_, err_};
}

TempFolder::TempFolder() {
  path_ = (std::filesystem::temp_directory_path() / "quartet-test-XXXXXX").string();
  EXPECT_NE(mkdtemp(path_.data()), nullptr);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace quartet::cli
