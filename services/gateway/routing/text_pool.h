// The threads that parse, render and tokenise.
#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_TEXT_POOL_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_TEXT_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quartet::gateway {

// A fixed number of threads and a queue with two limits. Thread safe. A job that was taken is
// always run, also by the destructor.
class TextPool {
 public:
  struct Limits {
    size_t jobs_max = 256;
    size_t bytes_max = size_t{512} << 20;
  };
  explicit TextPool(int threads) : TextPool(threads, Limits{}) {}
  TextPool(int threads, Limits limits);
  ~TextPool();

  // False if the queue is full; then the job is not run. `bytes` is what the job keeps in memory
  // while it waits.
  bool Post(size_t bytes, std::function<void()> job);

 private:
  struct Job {
    size_t bytes;
    std::function<void()> run;
  };
  void Work();

  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  size_t bytes_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_TEXT_POOL_H_
