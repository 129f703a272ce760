#ifndef QUARTET_SERVICES_COORDINATOR_RPC_BIDI_STREAM_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_BIDI_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quartet::coordinator {

// How many streams of a kind are alive, with a limit.
class StreamCount {
 public:
  explicit StreamCount(uint32_t limit) : limit_(limit) {}
  bool TryAdd() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (alive_ >= limit_) return false;
    ++alive_;
    return true;
  }
  void Remove() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--alive_ == 0) none_.notify_all();
  }
  bool AwaitNone(absl::Duration limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    return none_.wait_for(lock, absl::ToChronoMilliseconds(limit), [this] { return alive_ == 0; });
  }
  uint32_t limit() const { return limit_; }

 private:
  const uint32_t limit_;
  std::mutex mutex_;
  std::condition_variable none_;
  uint32_t alive_ = 0;
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
    std::lock_guard<std::mutex> lock(mutex_);
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
    std::lock_guard<std::mutex> lock(mutex_);
    if (!end_.has_value()) this->StartRead(message);
  }

  void Enqueue(Out message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (end_.has_value()) return;
    Append(std::move(message));
    Advance();
  }

  // The first end counts. With `drop`, what is queued is not written any more.
  void EndWith(grpc::Status status, bool drop) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (drop) Drop();
    if (!end_.has_value()) end_ = std::move(status);
    Advance();
  }

  // A last message and the end behind it, with nothing between them: whoever has read the message
  // may already have closed its half, and that must not become the end.
  void EndBehind(Out last, grpc::Status status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (end_.has_value()) return;
    end_ = std::move(status);
    Append(std::move(last));
    Advance();
  }

  size_t queued_bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }

  // Puts `next` into `last`, which is queued before it, if the two can be one message.
  virtual bool Merge(Out& last, const Out& next) { return false; }

 private:
  struct Entry {
    Out message;
    size_t bytes = 0;
  };

  // The rest only with mutex_ held.
  void Append(Out message) {
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
  }
  void Pop() {
    bytes_ -= queue_.front().bytes;
    queue_.pop_front();
  }
  void Drop() {
    while (queue_.size() > (writing_ ? 1u : 0u)) {
      bytes_ -= queue_.back().bytes;
      queue_.pop_back();
    }
  }
  void Advance() {
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
  mutable std::mutex mutex_;  // guards all below
  std::deque<Entry> queue_;
  size_t bytes_ = 0;
  bool writing_ = false;
  bool finished_ = false;
  std::optional<grpc::Status> end_;
};

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_BIDI_STREAM_H_
