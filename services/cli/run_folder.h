#ifndef QUARTET_SERVICES_CLI_RUN_FOLDER_H_
#define QUARTET_SERVICES_CLI_RUN_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace quartet::cli {

// The private folders of one `quartet serve`: `path` for the coordinator's socket, `segments` (in
// shared memory) for the workers' segment. Both are removed by the destructor. A lock in `path`,
// held for life, tells a later start which folders belong to a run that was killed; it removes
// those.
class RunFolder {
 public:
  // `temp_root` is where `path` is made, `segment_root` where `segments` is made. Errors name the
  // folder.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Create(const std::string& temp_root,
                                                           const std::string& segment_root);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  const std::string& segments() const { return segments_; }

 private:
  RunFolder(std::string path, std::string segments, int lock_fd);

  std::string path_;
  std::string segments_;
  int lock_fd_;
};

// Removes the folders of runs in the same two places whose lock nobody holds. Returns how many.
int RemoveStaleRunFolders(const std::string& temp_root, const std::string& segment_root);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_RUN_FOLDER_H_
