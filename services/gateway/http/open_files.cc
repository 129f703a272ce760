#include "services/gateway/http/open_files.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace quartet::gateway {

absl::Status AllowOpenFiles(size_t files) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InternalError(
        absl::StrCat("the limit of open files cannot be read: ", std::strerror(errno)));
  }
  if (limit.rlim_cur >= files) return absl::OkStatus();
  if (limit.rlim_max < files) {
    return absl::ResourceExhaustedError(absl::StrCat("the limit of open files is ", limit.rlim_max,
                                                     " (ulimit -Hn); ", files,
                                                     " are needed, most of them for connections"));
  }
  limit.rlim_cur = files;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InternalError(absl::StrCat("the limit of open files cannot be raised to ", files,
                                            ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace quartet::gateway
