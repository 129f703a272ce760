#include "services/cli/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace quartet::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "quartet-run-";
constexpr const char* kLockName = "lock";
constexpr size_t kLongestSocketName = sizeof("/coordinator.sock");

absl::Status FolderError(std::string_view what, const std::string& folder) {
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(what), " ", folder, ": ", std::strerror(errno)));
}

void RemoveTree(const std::string& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

// Takes the lock of the run folder without waiting; -1 when another process has it, or when there
// is none. The caller closes the descriptor, which releases the lock.
int TryLock(const std::string& folder, int flags) {
  const std::string name = absl::StrCat(folder, "/", kLockName);
  const int fd = open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Create(const std::string& temp_root,
                                                             const std::string& segment_root) {
  std::string path = absl::StrCat(temp_root, "/", std::string(kPrefix), "XXXXXX");
  if (path.size() + kLongestSocketName > sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the temporary folder ", temp_root, " has too long a name for a Unix socket (",
        sizeof(sockaddr_un::sun_path) - 1, " bytes in all); set TMPDIR to a shorter one"));
  }
  if (mkdtemp(path.data()) == nullptr) return FolderError("cannot make a folder in", temp_root);
  const int lock_fd = TryLock(path, O_CREAT);
  if (lock_fd < 0) {
    const absl::Status status = FolderError("cannot lock", path);
    RemoveTree(path);
    return status;
  }
  std::string segments =
      absl::StrCat(segment_root, "/", fs::path(path).filename().string(), "-segments");
  if (mkdir(segments.c_str(), 0700) != 0) {
    const absl::Status status = FolderError("cannot make the folder", segments);
    RemoveTree(path);
    close(lock_fd);
    return status;
  }
  return std::unique_ptr<RunFolder>(new RunFolder(std::move(path), std::move(segments), lock_fd));
}

RunFolder::RunFolder(std::string path, std::string segments, int lock_fd)
    : path_(std::move(path)), segments_(std::move(segments)), lock_fd_(lock_fd) {}

RunFolder::~RunFolder() {
  RemoveTree(segments_);
  RemoveTree(path_);
  close(lock_fd_);
}

int RemoveStaleRunFolders(const std::string& temp_root, const std::string& segment_root) {
  int removed = 0;
  std::error_code error;
  for (fs::directory_iterator it(temp_root, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string folder = it->path().string();
    if (!absl::StartsWith(name, {kPrefix.data(), kPrefix.size()})) continue;
    struct stat info {};
    if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    if (info.st_uid != geteuid()) continue;
    const int lock_fd = TryLock(folder, 0);
    if (lock_fd < 0) continue;
    RemoveTree(absl::StrCat(segment_root, "/", name, "-segments"));
    RemoveTree(folder);
    close(lock_fd);
    ++removed;
  }
  return removed;
}

}  // namespace quartet::cli
