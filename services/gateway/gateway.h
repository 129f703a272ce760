// The whole gateway process as one object, so that tests can run it too.
#ifndef QUARTET_SERVICES_GATEWAY_GATEWAY_H_
#define QUARTET_SERVICES_GATEWAY_GATEWAY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/common/status_channel.h"
#include "services/gateway/access/api_keys.h"
#include "services/gateway/http/http_server.h"
#include "services/gateway/routing/engine_client.h"

namespace quartet::gateway {

struct GatewayConfig {
  std::string coordinator;  // address of the coordinator
  std::string model_dir;
  std::string chat_template_file;  // empty: the model's own
  std::string served_model_name;   // empty: the folder's name
  std::string listen_grpc;         // empty: no gRPC
  std::string listen_admin;        // empty: no admin port
  bool trust_content_tokens = false;
  bool share_cache_between_keys = false;
  bool any_model_name = false;
  bool stop_in_reasoning = false;
  bool nonempty_content = false;
  bool otel_metrics = false;
  std::string api_key_file;  // empty: anybody may ask
  KeyLimits key_limits;      // of keys whose line in the file says nothing else
  absl::Duration key_file_interval = absl::Seconds(2);  // between looks at the file
  int text_threads = 2;
  absl::Duration poll_interval = absl::Milliseconds(500);
  HttpServerOptions http;  // `listen` and limits; the hooks are set by the gateway
};

// Serves until it is destroyed. Ports are open at once; requests are refused with 503 until the
// model's text files are loaded and the coordinator is ready.
class Gateway {
 public:
  virtual ~Gateway() = default;
  virtual std::string http_address() const = 0;
  virtual std::string grpc_address() const = 0;   // empty without gRPC
  virtual std::string admin_address() const = 0;  // empty without an admin port
  // Reads the model folder. To be called once; until then the gateway is not ready. Blocks.
  virtual absl::Status LoadModel() = 0;
  // Why it is not ready; empty if it is.
  virtual std::string NotReadyReason() const = 0;
  // Refuses new requests, lets open ones finish for `patience`, ends the rest with an error, and
  // waits up to `farewell` for the answers to leave. Blocks.
  virtual void Drain(absl::Duration patience, absl::Duration farewell) = 0;
};

// Opens the ports and begins to look for the coordinator. `status` may be null; it must outlive the
// gateway.
absl::StatusOr<std::unique_ptr<Gateway>> StartGateway(const GatewayConfig& config,
                                                      const StatusChannel* status);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_GATEWAY_H_
