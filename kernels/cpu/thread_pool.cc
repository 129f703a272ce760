#include "kernels/cpu/thread_pool.h"

#include <algorithm>

namespace quartet::cpu {

ThreadPool::ThreadPool(int threads) {
  for (int part = 1; part < threads; ++part) {
    workers_.emplace_back([this, part] { Work(part); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Work(int part) {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    const absl::FunctionRef<void(int, int)>* task = task_;
    lock.unlock();
    (*task)(part, threads());
    lock.lock();
    if (--pending_ == 0) done_.notify_one();
  }
}

void ThreadPool::Run(absl::FunctionRef<void(int, int)> fn) {
  if (workers_.empty() || busy_.exchange(true, std::memory_order_acquire)) {
    fn(0, 1);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    task_ = &fn;
    pending_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  start_.notify_all();
  fn(0, threads());
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return pending_ == 0; });
  task_ = nullptr;
  lock.unlock();
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::For(size_t count, size_t grain, bool parallel,
                     absl::FunctionRef<void(size_t, size_t, int)> fn) {
  if (count == 0) return;
  const size_t grains = (count + grain - 1) / grain;
  if (!parallel || grains == 1 || workers_.empty()) {
    fn(0, count, 0);
    return;
  }
  Run([&](int part, int parts) {
    const size_t begin = std::min(count, grains * part / parts * grain);
    const size_t end = std::min(count, grains * (part + 1) / parts * grain);
    if (begin < end) fn(begin, end, part);
  });
}

}  // namespace quartet::cpu
