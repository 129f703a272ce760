#include "services/coordinator/rpc/segment_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace quartet::coordinator {

std::string SegmentPrefix(std::string_view engine) {
  std::string name(engine);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return !std::isalnum(c) && c != '.' && c != '_'; }, '_');
  // File names end at 255 bytes; the tail of an address says more than its head.
  constexpr size_t kMaxName = 128;
  if (name.size() > kMaxName) name = name.substr(name.size() - kMaxName);
  return absl::StrCat("quartet-", name, "-");
}

absl::Status PrepareSegmentFolder(const std::string& folder, const std::string& prefix) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder, error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--segment-folder ", folder, " is not a folder and cannot be made one: ", error.message()));
  }
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!absl::StartsWith(name, prefix)) continue;
    const std::string epoch = name.substr(prefix.size());
    if (epoch.empty() ||
        !std::all_of(epoch.begin(), epoch.end(), [](unsigned char c) { return std::isdigit(c); })) {
      continue;
    }
    std::error_code gone;  // somebody else may have removed it
    fs::remove(entry->path(), gone);
  }
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("--segment-folder ", folder, " cannot be read: ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace quartet::coordinator
