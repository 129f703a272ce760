#include "services/cli/machine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "boost/json.hpp"
#include "services/gateway/http/open_files.h"

namespace quartet::cli {
namespace {

namespace fs = std::filesystem;
using Level = Finding::Level;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGiB = 1024.0 * kMiB;
// The demo model on four workers fits well below the first; the second leaves room for a build.
constexpr double kLeastMemory = 1 * kGiB;
constexpr double kGoodMemory = 2 * kGiB;
// Docker's default for /dev/shm is 64 MiB, which is enough for small models only.
constexpr double kLeastShared = 16 * kMiB;
constexpr double kGoodShared = 128 * kMiB;
constexpr uint64_t kLeastFiles = gateway::kDefaultConnections + gateway::kOtherOpenFiles;

// The value of "name : value" in a /proc file; the first one.
std::string FieldOf(std::string_view text, std::string_view name) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos) {
      const std::string key(absl::StripAsciiWhitespace(std::string(line.substr(0, colon))));
      if (key == name) {
        return std::string(absl::StripAsciiWhitespace(std::string(line.substr(colon + 1))));
      }
    }
    begin = end + 1;
  }
  return "";
}

bool HasWord(const std::string& words, std::string_view word) {
  std::istringstream in(words);
  std::string each;
  while (in >> each) {
    if (each == word) return true;
  }
  return false;
}

bool KibOf(std::string_view meminfo, std::string_view name, double* value) {
  std::string text = FieldOf(meminfo, name);
  text = text.substr(0, text.find(' '));
  return absl::SimpleAtod(text, value);
}

}  // namespace

Finding JudgeProcessor(std::string_view cpuinfo) {
  Finding finding{Level::kOk, "processor", FieldOf(cpuinfo, "model name"), ""};
  if (finding.found.empty()) finding.found = "unknown model";
  const std::string flags = FieldOf(cpuinfo, "flags");
  std::vector<std::string> found;
  for (const char* name : {"avx2", "fma", "f16c", "avx512f"}) {
    if (HasWord(flags, name)) found.emplace_back(name);
  }
  if (!found.empty()) absl::StrAppend(&finding.found, " (", absl::StrJoin(found, " "), ")");
  if (!HasWord(flags, "avx2")) {
    finding.level = Level::kWarn;
    finding.help = "it works, but slowly: a processor with AVX2 is several times faster";
  }
  return finding;
}

Finding JudgeCores(int cores) {
  Finding finding{Level::kOk, "cores", absl::StrCat(cores), ""};
  if (cores < 2) {
    finding.level = Level::kWarn;
    finding.help = "the shard workers take turns on one core; two or more would be better";
  }
  return finding;
}

Finding JudgeMemory(std::string_view meminfo) {
  Finding finding{Level::kOk, "memory", "", ""};
  double available_kib = 0;
  double total_kib = 0;
  if (!KibOf(meminfo, "MemAvailable", &available_kib) || !KibOf(meminfo, "MemTotal", &total_kib)) {
    return {Level::kWarn, "memory", "unknown", "/proc/meminfo could not be read"};
  }
  const double available = available_kib * 1024;
  finding.found = absl::StrFormat("%.1f GiB, %.1f GiB of it available", total_kib * 1024 / kGiB,
                                  available / kGiB);
  if (available < kLeastMemory) {
    finding.level = Level::kFail;
    finding.help = "the demo model needs about 1 GiB; end other programs";
  } else if (available < kGoodMemory) {
    finding.level = Level::kWarn;
    finding.help = "enough for the demo model; building wants 2 GiB";
  }
  return finding;
}

double DefaultHostCacheGib(std::string_view meminfo) {
  constexpr double kWanted = 32;
  double available_kib = 0;
  if (!KibOf(meminfo, "MemAvailable", &available_kib)) return 0;
  return std::min(kWanted, available_kib * 1024 / kGiB / 4);
}

Finding JudgeSharedMemory(const std::optional<FolderSpace>& space) {
  if (!space.has_value()) {
    return {Level::kFail, "/dev/shm", "missing",
            "the workers of one machine exchange data there: mount -t tmpfs tmpfs /dev/shm"};
  }
  const auto free_bytes = static_cast<double>(space->free_bytes);
  Finding finding{Level::kOk, "/dev/shm", absl::StrFormat("%.0f MiB free", free_bytes / kMiB), ""};
  if (!space->writable) {
    finding.level = Level::kFail;
    finding.found += ", not writable";
    finding.help = "this user must be able to write there: chmod 1777 /dev/shm";
  } else if (free_bytes < kLeastShared) {
    finding.level = Level::kFail;
    finding.help = "remove what fills it, or mount it larger (docker run --shm-size=1g)";
  } else if (free_bytes < kGoodShared) {
    finding.level = Level::kWarn;
    finding.help = "enough for the demo model; larger ones want more (docker run --shm-size=1g)";
  }
  return finding;
}

Finding JudgeOpenFiles(uint64_t hard_limit) {
  Finding finding{Level::kOk, "open files",
                  hard_limit == RLIM_INFINITY ? "no limit" : absl::StrCat("at most ", hard_limit),
                  ""};
  if (hard_limit < kLeastFiles) {
    finding.level = Level::kFail;
    finding.help = absl::StrCat("each client takes one, and the gateway asks for ", kLeastFiles,
                                ": raise the hard limit (ulimit -Hn, or docker run --ulimit "
                                "nofile=4096), or QUARTET_HTTP_CONNECTIONS takes fewer clients");
  }
  return finding;
}

Finding JudgePort(uint16_t port, const std::string& purpose, bool free) {
  Finding finding{Level::kOk, absl::StrCat("port ", port), absl::StrCat("free (", purpose, ")"),
                  ""};
  if (!free) {
    finding.level = Level::kWarn;
    finding.found = absl::StrCat("in use (", purpose, ")");
    finding.help =
        absl::StrCat("`ss -ltnp sport = :", port,
                     "` shows by whom; quartet serve --listen-http and --listen-grpc take another");
  }
  return finding;
}

Finding JudgeGpus(const std::vector<std::string>& pci_devices, const std::string& driver) {
  if (pci_devices.empty() && driver.empty()) {
    return {Level::kOk, "GPUs", "none; --device cpu is what works here", ""};
  }
  Finding finding{
      Level::kOk, "GPUs",
      absl::StrCat(pci_devices.size(), " from NVIDIA (", absl::StrJoin(pci_devices, ", "), ")"),
      ""};
  if (driver.empty()) {
    finding.level = Level::kWarn;
    finding.help = "no driver is loaded; --device cpu works all the same";
  } else {
    absl::StrAppend(&finding.found, "; ", driver);
  }
  return finding;
}

std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<FolderSpace> MeasureFolder(const std::string& folder) {
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  return FolderSpace{static_cast<uint64_t>(info.f_bavail) * info.f_frsize,
                     access(folder.c_str(), W_OK | X_OK) == 0};
}

bool IsPortFree(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr generic{};
  static_assert(sizeof generic == sizeof address);
  std::copy_n(reinterpret_cast<const char*>(&address), sizeof address,
              reinterpret_cast<char*>(&generic));
  const bool free = bind(fd, &generic, sizeof generic) == 0 && listen(fd, 1) == 0;
  close(fd);
  return free;
}

std::vector<std::string> FindNvidiaDevices(const std::string& pci_root) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(pci_root, error), end; !error && it != end; it.increment(error)) {
    const std::string vendor = ReadTextFile((it->path() / "vendor").string());
    const std::string device_class = ReadTextFile((it->path() / "class").string());
    // 0x03....: display controllers, among them compute cards without a display.
    if (vendor.rfind("0x10de", 0) == 0 && device_class.rfind("0x03", 0) == 0) {
      found.push_back(it->path().filename().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

Finding LookForPrograms(const std::string& folder) {
  std::vector<std::string> missing;
  for (const char* name : {"quartet-gateway", "quartet-coordinator", "quartet-shard-worker"}) {
    if (access((fs::path(folder) / name).c_str(), X_OK) != 0) missing.emplace_back(name);
  }
  if (missing.empty()) return {Level::kOk, "programs", absl::StrCat("all in ", folder), ""};
  return {Level::kFail, "programs",
          absl::StrCat(absl::StrJoin(missing, ", "), " missing in ", folder),
          "build them all: scripts/quickstart.sh, or ninja in the build folder"};
}

namespace {

// Beside a configuration alone, which describes a shape, there is nothing to serve.
bool HasWeights(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "model.safetensors", error) ||
         fs::exists(folder / "model.safetensors.index.json", error);
}

}  // namespace

Finding LookForModels(const std::string& models) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(models, error), end; !error && it != end; it.increment(error)) {
    const std::string config = ReadTextFile((it->path() / "config.json").string());
    boost::json::error_code failed;
    const boost::json::value value = boost::json::parse(config, failed);
    if (failed || !value.is_object()) continue;
    const boost::json::value* type = value.get_object().if_contains("model_type");
    if (type == nullptr || !type->is_string() || !HasWeights(it->path())) continue;
    found.push_back(
        absl::StrCat(it->path().filename().string(), " (", type->get_string().c_str(), ")"));
  }
  std::sort(found.begin(), found.end());
  if (!found.empty()) return {Level::kOk, "models", absl::StrJoin(found, ", "), ""};
  return {Level::kWarn, "models", absl::StrCat("no checkpoint in ", models),
          "run this from the checkout, or name the folder with --models; any checkpoint's folder "
          "can be served with --model"};
}

}  // namespace quartet::cli
