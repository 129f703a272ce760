#ifndef QUARTET_KERNELS_CPU_THREAD_POOL_H_
#define QUARTET_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace quartet::cpu {

// Fork and join over a fixed number of threads, the caller among them. A call allocates nothing.
// Waiting threads block at once: several ranks share a machine's cores, so a spinning helper would
// take time from somebody else's work.
//
// Work is cut statically. No op's result depends on the cut, so the pool is free to run everything
// on the caller: it does so when it is already busy (a nested call, or a second caller).
class ThreadPool {
 public:
  // `threads` counts the caller; values below 1 mean 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(part, parts) for every part of 0 .. parts - 1 and returns when all are done. parts is
  // threads(), or 1 when the pool was busy.
  void Run(absl::FunctionRef<void(int, int)> fn);

  // Cuts [0, count) into contiguous ranges whose inner boundaries are multiples of `grain`, and
  // calls fn(begin, end, part) for each that is not empty. Runs on the caller alone where
  // `parallel` is false. `part` is below threads() and belongs to one running call at a time.
  void For(size_t count, size_t grain, bool parallel,
           absl::FunctionRef<void(size_t, size_t, int)> fn);

 private:
  void Work(int part);

  std::atomic<bool> busy_{false};  // a caller's work is in the workers' hands
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  uint64_t generation_ = 0;                                  // guarded by mutex_
  int pending_ = 0;                                          // guarded by mutex_
  bool stop_ = false;                                        // guarded by mutex_
  const absl::FunctionRef<void(int, int)>* task_ = nullptr;  // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_THREAD_POOL_H_
