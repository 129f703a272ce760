// The public gRPC service quartet.v1.Inference, with reflection and the standard health service.
#ifndef QUARTET_SERVICES_GATEWAY_GRPC_GRPC_SERVER_H_
#define QUARTET_SERVICES_GATEWAY_GRPC_GRPC_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/gateway/routing/gateway_core.h"

namespace quartet::gateway {

// Thread safe. `core` must outlive it.
class GrpcServer {
 public:
  virtual ~GrpcServer() = default;  // as Shutdown without grace
  virtual std::string address() const = 0;
  // What the health service answers.
  virtual void SetServing(bool serving) = 0;
  // Takes no new calls, cancels those that are left after `grace`, and returns when all have ended.
  virtual void Shutdown(absl::Duration grace) = 0;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> StartGrpcServer(const std::string& listen,
                                                            GatewayCore* core);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_GRPC_GRPC_SERVER_H_
