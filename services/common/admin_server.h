#ifndef QUARTET_SERVICES_COMMON_ADMIN_SERVER_H_
#define QUARTET_SERVICES_COMMON_ADMIN_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace quartet {

// What a process says about itself. Called on the admin server's thread; must be thread safe and
// must not block.
struct AdminHandlers {
  std::function<std::string()> metrics;           // Prometheus text
  std::function<std::string()> not_ready_reason;  // empty = ready
};

// GET /metrics, /livez, /readyz on a port of its own. Owns one thread, joined by the destructor.
class AdminServer {
 public:
  virtual ~AdminServer() = default;
  virtual std::string address() const = 0;  // host:port that was bound
};

// `listen` is host:port; port 0 takes a free one.
absl::StatusOr<std::unique_ptr<AdminServer>> StartAdminServer(const std::string& listen,
                                                              AdminHandlers handlers);

}  // namespace quartet

#endif  // QUARTET_SERVICES_COMMON_ADMIN_SERVER_H_
