#ifndef QUARTET_SERVICES_COORDINATOR_RPC_LINKS_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/quartet/v1/engine.pb.h"
#include "proto/quartet/v1/worker.pb.h"
#include "services/grammar/constraint.h"

// What the engine thread and the streams of the gRPC server know of each other. Streams turn
// callbacks into events; the engine answers through these two interfaces.

namespace quartet::coordinator {

// One open Generate call. All calls are thread safe, never block, and do nothing once the call has
// ended.
class ClientStream {
 public:
  virtual ~ClientStream() = default;
  virtual uint64_t id() const = 0;
  // Queues an event; consecutive tokens are merged while the client is slower than the engine.
  virtual void Send(v1::EngineEvent event) = 0;
  // Ends the call with this status once everything queued before is written.
  virtual void End(const absl::Status& status) = 0;
  // Send and End in one: a client that closes its half as soon as it has read the last event finds
  // this end and not its own.
  virtual void EndAfter(v1::EngineEvent last, const absl::Status& status) = 0;
  // Queued and not yet taken by the transport.
  virtual size_t buffered_bytes() const = 0;
  // What the client said last about its reader; lets the next PauseEvent in.
  virtual bool TakePaused() = 0;
};

// One attached worker. As above. What is queued is bounded by the protocol: two plans at a time.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  virtual uint64_t id() const = 0;
  virtual void Send(v1::ToWorker message) = 0;
  virtual void End(const absl::Status& status) = 0;
  virtual void EndAfter(v1::ToWorker last, const absl::Status& status) = 0;
  // Lets the next message in. A stream has at most one message in the engine's queue.
  virtual void ReadNext() = 0;
};

// Events hold their stream: as the number of streams that exist is limited and each has a few
// events at most, so is the number of events.
struct SubmitEvent {
  std::shared_ptr<ClientStream> stream;
  v1::Submit submit;
  // With a grammar: what holds the answer to it, or why nothing can.
  std::optional<absl::StatusOr<grammar::Constraint>> constraint;
};
struct TruncateEvent {
  std::shared_ptr<ClientStream> stream;
  uint32_t n_tokens = 0;
};
// The client's reader is slow, or has caught up. A stream has at most one of these in the queue.
struct PauseEvent {
  std::shared_ptr<ClientStream> stream;
};
struct ClientGoneEvent {
  std::shared_ptr<ClientStream> stream;
};
struct WorkerMessageEvent {
  std::shared_ptr<WorkerStream> stream;
  v1::FromWorker message;
};
struct WorkerGoneEvent {
  std::shared_ptr<WorkerStream> stream;
  std::string why;
};
struct DumpFlightEvent {};
struct ShutdownEvent {};

using Event = std::variant<SubmitEvent, TruncateEvent, PauseEvent, ClientGoneEvent,
                           WorkerMessageEvent, WorkerGoneEvent, DumpFlightEvent, ShutdownEvent>;

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_LINKS_H_
