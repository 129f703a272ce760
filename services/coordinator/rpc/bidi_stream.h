#ifndef QUARTET_SERVICES_COORDINATOR_RPC_BIDI_STREAM_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_BIDI_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace quartet::coordinator {

// How many streams of a kind are alive, with a limit.
class StreamCount {
 public:
  explicit StreamCount(uint32_t limit) : limit_(limit) {}
  bool TryAdd() {
    absl::MutexLock lock(&mutex_);
    if (alive_ >= limit_) return false;
    ++alive_;
    return true;
  }
  void Remove() {
    absl::MutexLock lock(&mutex_);
    --alive_;
  }
  bool AwaitNone(absl::Duration limit) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &StreamCount::None), limit);
  }
  uint32_t limit() const { return limit_; }

 private:
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return alive_ == 0; }
  const uint32_t limit_;
  absl::Mutex mutex_;
  uint32_t alive_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The writing half of a bidirectional stream and its end: a queue of messages, one write at a time,
// then the status. Owns itself until gRPC is done with it; events may hold it longer. Reactions run
// on gRPC's threads, the protected calls on any thread.
template <typename In, typename Out>
class BidiStream : public grpc::ServerBidiReactor<In, Out> {
 public:
  // `count` is told when the stream is gone.
  explicit BidiStream(std::shared_ptr<StreamCount> count) : count_(std::move(count)) {}
  ~BidiStream() override { count_->Remove(); }

  void OnWriteDone(bool ok) final {
    absl::MutexLock lock(&mutex_);
    Pop();
    writing_ = false;
    if (!ok) Drop();
    Advance();
  }

  void OnDone() final {
    self_.reset();  // may delete this
  }

 protected:
  // Keeps the stream alive until OnDone. Call once, right after construction.
  void KeepAlive(std::shared_ptr<BidiStream> self) { self_ = std::move(self); }

  // Starts to read the next message unless the stream has ended. The lock keeps the end, after
  // which gRPC must not be called, out of the middle of this.
  void ReadInto(In* message) {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) this->StartRead(message);
  }

  void Enqueue(Out message) {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    const size_t bytes = message.ByteSizeLong();
    // The front may be with the transport and must not change.
    if (queue_.size() > (writing_ ? 1u : 0u) && Merge(queue_.back().message, message)) {
      bytes_ -= queue_.back().bytes;
      queue_.back().bytes = queue_.back().message.ByteSizeLong();
      bytes_ += queue_.back().bytes;
    } else {
      queue_.push_back({std::move(message), bytes});
      bytes_ += bytes;
    }
    Advance();
  }

  // The first end counts. With `drop`, what is queued is not written any more.
  void EndWith(grpc::Status status, bool drop) {
    absl::MutexLock lock(&mutex_);
    if (drop) Drop();
    if (!end_.has_value()) end_ = std::move(status);
    Advance();
  }

  size_t queued_bytes() const {
    absl::MutexLock lock(&mutex_);
    return bytes_;
  }

  // Puts `next` into `last`, which is queued before it, if the two can be one message.
  virtual bool Merge(Out& last, const Out& next) { return false; }

 private:
  struct Entry {
    Out message;
    size_t bytes = 0;
  };

  void Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bytes_ -= queue_.front().bytes;
    queue_.pop_front();
  }
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (queue_.size() > (writing_ ? 1u : 0u)) {
      bytes_ -= queue_.back().bytes;
      queue_.pop_back();
    }
  }
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      this->StartWrite(&queue_.front().message);
    } else if (end_.has_value()) {
      finished_ = true;
      this->Finish(*end_);
    }
  }

  const std::shared_ptr<StreamCount> count_;
  std::shared_ptr<BidiStream> self_;
  mutable absl::Mutex mutex_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
};

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_BIDI_STREAM_H_
