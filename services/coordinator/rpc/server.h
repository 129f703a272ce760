#ifndef QUARTET_SERVICES_COORDINATOR_RPC_SERVER_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/coordinator/rpc/engine.h"

namespace quartet::coordinator {

// The gRPC server for gateways (Engine) and workers (WorkerHub), both services on every address.
// Threads are gRPC's own; streams cost none.
class Server {
 public:
  virtual ~Server() = default;
  // What was bound, as given but with the port that was taken.
  virtual const std::vector<std::string>& addresses() const = 0;
  // Waits until no call is open: everybody, clients and workers, has read its end or is gone. False
  // if the time was over first. Call after the engine has ended them.
  virtual bool AwaitAnswered(absl::Duration limit) = 0;
  // Refuses new calls, gives open ones `grace` to end, then cuts them. Call after the engine's
  // Shutdown, before the engine is destroyed.
  virtual void Shutdown(absl::Duration grace) = 0;
};

// `listen`: host:port (0 = a free one) or unix:/path. `expose_metrics` gives the text for
// GetMetrics; thread safe. The engine outlives the server.
absl::StatusOr<std::unique_ptr<Server>> StartServer(const std::vector<std::string>& listen,
                                                    Engine* engine,
                                                    std::function<std::string()> expose_metrics);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_SERVER_H_
