// Stands in for the gateway, the coordinator and the shard worker when `quartet serve` is tested.
// The name it is called by says which it is; the environment says what it does:
//   FAKE_FOLDER            where it leaves "<role>.<pid>" with its arguments, and "order"
//   FAKE_<ROLE>            its script; FAKE_SHARD_WORKER_FIRST is for one of the workers
// A script is a list of steps, apart by semicolons:
//   listening NAME ADDRESS, progress DONE TOTAL STAGE, ready, error TEXT, log TEXT
//   exit CODE, die (SIGKILL), wait (for SIGTERM; notes its role in "order"), hang (for ever)
#include <fcntl.h>
#include <unistd.h>

#include <cctype>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "services/common/process.h"
#include "services/common/status_channel.h"

namespace {

std::string Environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

// True for one process only.
bool IsFirst(const std::string& folder) {
  const int fd = open((folder + "/first").c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

std::string RestOf(std::istringstream& in) {
  std::string rest;
  std::getline(in >> std::ws, rest);
  return rest;
}

}  // namespace

int main(int argc, char** argv) {
  quartet::BlockShutdownSignals();
  const std::string role =
      std::filesystem::path(argv[0]).filename().string().substr(sizeof("quartet-") - 1);
  const std::string folder = Environment("FAKE_FOLDER");
  int status_fd = -1;
  {
    std::ofstream arguments(folder + "/" + role + "." + std::to_string(getpid()));
    for (int i = 1; i < argc; ++i) {
      arguments << argv[i] << "\n";
      if (std::string(argv[i]) == "--die-with-parent") quartet::DieWithParent();
      if (std::string(argv[i]) == "--status-fd" && i + 1 < argc) status_fd = std::atoi(argv[i + 1]);
    }
  }
  const quartet::StatusChannel status(status_fd);
  std::string variable = "FAKE_";
  for (const char c : role) {
    variable.push_back(c == '-' ? '_' : static_cast<char>(std::toupper(c)));
  }
  const std::string first = Environment(variable + "_FIRST");
  std::istringstream script(!first.empty() && IsFirst(folder) ? first : Environment(variable));
  std::string step;
  while (std::getline(script, step, ';')) {
    std::istringstream words(step);
    std::string verb;
    words >> verb;
    if (verb == "listening") {
      std::string name;
      std::string address;
      words >> name >> address;
      status.Listening(name, address);
    } else if (verb == "progress") {
      int64_t done = 0;
      int64_t total = 0;
      words >> done >> total;
      status.Progress(RestOf(words), done, total);
    } else if (verb == "ready") {
      status.Ready();
    } else if (verb == "error") {
      status.Error(RestOf(words));
    } else if (verb == "log") {
      std::cerr << RestOf(words) << "\n";
    } else if (verb == "exit") {
      int code = 0;
      words >> code;
      return code;
    } else if (verb == "die") {
      raise(SIGKILL);
    } else if (verb == "wait") {
      quartet::WaitForShutdown();
      std::ofstream(folder + "/order", std::ios::app) << role + "\n";
      return 0;
    } else if (verb == "hang") {
      while (true) pause();
    }
  }
  return 0;
}
