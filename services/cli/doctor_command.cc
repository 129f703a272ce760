#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_format.h"
#include "services/cli/commands.h"
#include "services/cli/machine.h"
#include "services/cli/terminal.h"

namespace quartet::cli {
namespace {

namespace fs = std::filesystem;

std::vector<Finding> Examine(const std::string& models) {
  std::vector<Finding> findings;
  findings.push_back(JudgeProcessor(ReadTextFile("/proc/cpuinfo")));
  findings.push_back(JudgeCores(static_cast<int>(std::thread::hardware_concurrency())));
  findings.push_back(JudgeMemory(ReadTextFile("/proc/meminfo")));
  findings.push_back(JudgeSharedMemory(MeasureFolder("/dev/shm")));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  findings.push_back(JudgeOpenFiles(limit.rlim_max));
  findings.push_back(JudgePort(8000, "HTTP", IsPortFree(8000)));
  findings.push_back(JudgePort(9000, "gRPC", IsPortFree(9000)));
  std::string driver = ReadTextFile("/proc/driver/nvidia/version");
  driver = driver.substr(0, driver.find('\n'));
  findings.push_back(JudgeGpus(FindNvidiaDevices("/sys/bus/pci/devices"), driver));
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  findings.push_back(LookForPrograms(self.parent_path().string()));
  findings.push_back(LookForModels(models));
  return findings;
}

int RunDoctor(const std::string& models) {
  const bool colour = WantsColour(STDOUT_FILENO);
  bool failed = false;
  for (const Finding& finding : Examine(models)) {
    std::string mark = Styled("ok  ", Style::kGreen, colour);
    if (finding.level == Finding::Level::kWarn) mark = Styled("warn", Style::kYellow, colour);
    if (finding.level == Finding::Level::kFail) mark = Styled("FAIL", Style::kRed, colour);
    failed = failed || finding.level == Finding::Level::kFail;
    std::cout << mark << "  " << absl::StrFormat("%-11s", finding.subject) << " "
              << Printable(finding.found) << "\n";
    if (!finding.help.empty()) {
      std::cout << std::string(18, ' ') << Styled(finding.help, Style::kDim, colour) << "\n";
    }
  }
  return failed ? 1 : 0;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Command* chosen) {
  auto models = std::make_shared<std::string>("models");
  CLI::App* doctor =
      app.add_subcommand("doctor", "Say what this machine has and lacks; exit code 1 on a failure");
  doctor->add_option("--models", *models, "A folder with checkpoints in it")->capture_default_str();
  doctor->callback([models, chosen] { *chosen = [models] { return RunDoctor(*models); }; });
}

}  // namespace quartet::cli
