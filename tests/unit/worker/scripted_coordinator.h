#ifndef QUARTET_TESTS_UNIT_WORKER_SCRIPTED_COORDINATOR_H_
#define QUARTET_TESTS_UNIT_WORKER_SCRIPTED_COORDINATOR_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "proto/quartet/v1/worker.pb.h"

namespace quartet {

// One attached worker, as the coordinator sees it. Any thread.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  virtual void Send(const v1::ToWorker& message) = 0;
  // The worker's next message; nothing when the stream is over or after the timeout.
  virtual std::optional<v1::FromWorker> Next(absl::Duration timeout = absl::Seconds(30)) = 0;
  // The next message that is not progress of loading.
  std::optional<v1::FromWorker> NextButProgress() {
    while (true) {
      std::optional<v1::FromWorker> message = Next();
      if (!message || !message->has_progress()) return message;
    }
  }
  // Breaks the stream from this side.
  virtual void Cut() = 0;
};

// A coordinator that speaks the worker protocol over a real socket and does nothing by itself: a
// test reads what workers say and tells them what to do.
class ScriptedCoordinator {
 public:
  static std::unique_ptr<ScriptedCoordinator> Start();
  virtual ~ScriptedCoordinator() = default;
  virtual std::string address() const = 0;
  // The next worker that attaches; null after the timeout. Owned by the coordinator.
  virtual WorkerStream* AwaitWorker(absl::Duration timeout = absl::Seconds(30)) = 0;
};

}  // namespace quartet

#endif  // QUARTET_TESTS_UNIT_WORKER_SCRIPTED_COORDINATOR_H_
