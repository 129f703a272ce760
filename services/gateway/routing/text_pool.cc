#include "services/gateway/routing/text_pool.h"

#include <algorithm>
#include <utility>

namespace quartet::gateway {

TextPool::TextPool(int threads, Limits limits) : limits_(limits) {
  for (int i = 0; i < std::max(1, threads); ++i) threads_.emplace_back([this] { Work(); });
}

TextPool::~TextPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool TextPool::Post(size_t bytes, std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    // A single job of any size that the server accepts must get through an empty queue.
    if (jobs_.size() >= limits_.jobs_max || (!jobs_.empty() && bytes_ + bytes > limits_.bytes_max))
      return false;
    jobs_.push_back({bytes, std::move(job)});
    bytes_ += bytes;
  }
  wake_.notify_one();
  return true;
}

void TextPool::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    bytes_ -= job.bytes;
    lock.unlock();
    job.run();
    job.run = nullptr;
    lock.lock();
  }
}

}  // namespace quartet::gateway
