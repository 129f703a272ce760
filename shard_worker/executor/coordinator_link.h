#ifndef QUARTET_SHARD_WORKER_EXECUTOR_COORDINATOR_LINK_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_COORDINATOR_LINK_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/quartet/v1/worker.pb.h"

namespace quartet {

// A worker's stream to its coordinator. Owns one reader thread that answers Ping by itself, so that
// a worker in the middle of a long step still shows that it lives, and queues everything else in
// order.
class CoordinatorLink {
 public:
  // Ends the stream if it still runs, and joins the reader.
  virtual ~CoordinatorLink() = default;

  // Any thread. False once the stream is over; the message is lost then.
  virtual bool Send(const v1::FromWorker& message) = 0;

  // The next message; waits for it. Nothing once the stream is over and the queue is empty. One
  // thread.
  virtual std::optional<v1::ToWorker> Next() = 0;

  // Why the stream is over; empty while it runs. Any thread.
  virtual std::string end_reason() const = 0;

  // Says that no more messages follow, gives the coordinator up to `grace` to take what was sent,
  // then ends the stream. Any thread.
  virtual void Close(absl::Duration grace) = 0;
};

struct DialOptions {
  std::string address;  // host:port or unix:/path
  absl::Duration patience = absl::Seconds(60);
  // Asked between attempts; true gives up.
  std::function<bool()> stop;
  // Called once on the reader thread, before anything waits in Next: an Abort came (its reason), or
  // the stream ended. Must not call into the link.
  std::function<void(const std::string& reason)> on_end;
};

// Connects and opens the stream, trying again with growing pauses. UNAVAILABLE after `patience`,
// CANCELLED by `stop`.
absl::StatusOr<std::unique_ptr<CoordinatorLink>> DialCoordinator(const DialOptions& options);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_COORDINATOR_LINK_H_
