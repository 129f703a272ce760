#ifndef QUARTET_SERVICES_CLI_MACHINE_H_
#define QUARTET_SERVICES_CLI_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::cli {

// One thing that `quartet doctor` looked at.
struct Finding {
  enum class Level { kOk, kWarn, kFail };
  Level level = Level::kOk;
  std::string subject;  // "processor"
  std::string found;    // what is there
  std::string help;     // what would help; empty when all is well
};

// The judgements, apart from how the numbers are got. All are pure.
Finding JudgeProcessor(std::string_view cpuinfo);  // the text of /proc/cpuinfo
Finding JudgeCores(int cores);
Finding JudgeMemory(std::string_view meminfo);  // the text of /proc/meminfo
struct FolderSpace {
  uint64_t free_bytes = 0;
  bool writable = false;
};
Finding JudgeSharedMemory(const std::optional<FolderSpace>& space);  // nothing = no /dev/shm
Finding JudgeOpenFiles(uint64_t hard_limit);  // programs raise the soft one themselves
Finding JudgePort(uint16_t port, const std::string& purpose, bool free);
// `driver` is the first line of /proc/driver/nvidia/version, empty without a driver;
// `pci_devices` are NVIDIA's display devices on the bus.
Finding JudgeGpus(const std::vector<std::string>& pci_devices, const std::string& driver);

// Of the whole machine, for cached prefixes in host memory when nobody says how much: what the
// flag's default promises, but no more than a quarter of what is available. `meminfo` as above.
double DefaultHostCacheGib(std::string_view meminfo);

// Look at this machine. They block for moments at most.
std::string ReadTextFile(const std::string& path);  // empty when it cannot be read
std::optional<FolderSpace> MeasureFolder(const std::string& folder);
bool IsPortFree(uint16_t port);
std::vector<std::string> FindNvidiaDevices(const std::string& pci_root);
Finding LookForPrograms(const std::string& folder);
// `models` is a folder with checkpoints in it.
Finding LookForModels(const std::string& models);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_MACHINE_H_
