#ifndef QUARTET_TESTS_UNIT_CLI_PROGRAM_H_
#define QUARTET_TESTS_UNIT_CLI_PROGRAM_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace quartet::cli {

// What a program left behind.
struct Outcome {
  int exit_code = -1;  // 128 + number when a signal ended it
  std::string out;
  std::string err;
};

// A program run by a test, with pipes for its three streams. Kills what still runs at its end.
class Program {
 public:
  Program(const std::vector<std::string>& argv, const std::map<std::string, std::string>& env,
          const std::string& input = "");
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Reads standard output until `text` was there; false when the program ended before.
  bool WaitForOutput(const std::string& text);
  // Reads standard error until `text` was there.
  bool WaitForError(const std::string& text);
  void Signal(int number) const;
  // Reads the rest and waits for the end.
  Outcome Finish();
  const std::string& out() const { return out_; }

 private:
  // Takes in what comes next on either stream; false when both are closed.
  bool ReadSome();

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

// A folder of its own, removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string ReadWholeFile(const std::string& path);

}  // namespace quartet::cli

#endif  // QUARTET_TESTS_UNIT_CLI_PROGRAM_H_
