#ifndef QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_CLIENTS_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_CLIENTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/rpc/constraints.h"
#include "services/coordinator/rpc/engine_metrics.h"
#include "services/coordinator/rpc/engine_options.h"
#include "services/coordinator/rpc/links.h"
#include "services/coordinator/rpc/recorded_core.h"
#include "services/coordinator/rpc/unit_keys.h"

namespace quartet::coordinator {

// The calls whose requests are open: what the core says to a request goes to its call, what a call
// is good for (does it read?) goes to the core. Belongs to the engine's thread.
class EngineClients {
 public:
  // `metrics` and `constraints` outlive it.
  EngineClients(const EngineOptions& options, EngineMetrics* metrics, Constraints* constraints);

  // `units`: the names of its prompt's units, if it uses the prefix cache.
  void Add(uint64_t request, std::string request_id, std::shared_ptr<ClientStream> stream,
           std::optional<UnitChain> units);
  // Nothing if the request of this call has ended.
  std::optional<uint64_t> RequestOf(const ClientStream& stream) const;
  // The client says that it does not read, or does again.
  void AskPause(const ClientStream& stream, bool paused);
  // The call ends with this status.
  void Cancel(RecordedCore& core, uint64_t request, absl::Status status);

  // Takes the core's outputs and passes them on; an answer that leaves its grammar ends its call.
  // Before the next plan, so that the core knows the
  // names of what it may publish. `stopping`: requests fail because the coordinator ends.
  void Deliver(RecordedCore& core, TimeUs now, bool stopping);
  // A client that asked for it, or that leaves much unread, gets no rows until that has changed; it
  // is cancelled when that takes too long.
  void PauseSlow(RecordedCore& core);
  bool has_full_buffers() const { return full_buffers_; }

 private:
  struct Client {
    std::shared_ptr<ClientStream> stream;
    std::string request_id;
    std::optional<UnitChain> units;  // with the prefix cache
    bool pause_asked = false;        // by the client
    bool buffer_full = false;
    std::optional<absl::Time> paused_since;
    absl::Status cancel_status = absl::CancelledError("the request was cancelled");
  };

  void Pass(const Output& output, Client& client, bool stopping);
  void NameAnswer(RecordedCore& core, const Output& output, Client& client);
  void End(uint64_t request, absl::Status status);
  void Forget(uint64_t request);

  const size_t stream_buffer_bytes_;
  const uint32_t slow_client_timeout_ms_;
  EngineMetrics* const metrics_;
  Constraints* const constraints_;
  absl::flat_hash_map<uint64_t, Client> clients_;    // by request
  absl::flat_hash_map<uint64_t, uint64_t> streams_;  // stream -> request
  bool full_buffers_ = false;                        // of some client
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_CLIENTS_H_
