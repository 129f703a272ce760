#ifndef QUARTET_TESTS_SUPPORT_SCRIPTED_WORKER_H_
#define QUARTET_TESTS_SUPPORT_SCRIPTED_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/quartet/v1/worker.pb.h"
#include "tests/support/hash_chain.h"

namespace quartet::testing {

// A shard worker for tests: speaks the worker protocol over real gRPC, with the hash-chain model in
// place of weights. Owns one thread, on which the hooks run.
class ScriptedWorker {
 public:
  struct Options {
    std::string coordinator;  // address
    std::string device_uuid = "cpu-scripted";
    int32_t previous_rank = -1;
    std::string checkpoint_digest = "digest";
    std::string model_name = "hash-chain";
    uint32_t vocab_size = 1000;
    uint32_t max_position_embeddings = 8192;
    std::vector<uint32_t> tensor_parallel_sizes = {1, 2, 4};
    uint32_t page_tokens = 256;
    // The figures of every offer; a slot is 1 MiB, a page 1 KiB.
    uint64_t budget_bytes = uint64_t{1} << 30;
    uint64_t snapshot_bytes = 0;  // 0 = keeps none
    uint64_t host_cache_bytes = 0;
    uint64_t disk_cache_bytes = 0;
    uint64_t weight_bytes = 1 << 20;
    uint32_t num_mtp_layers = 0;  // 0 = it makes no drafts
    TokenRule rule;               // empty: HashChainRule(vocab_size)

    std::function<void(const v1::Welcome&)> before_ready;  // may block
    std::function<void(const v1::StepPlan&)> before_step;  // may block
    std::function<void(v1::StepResult*)> edit_result;
    std::function<void(const v1::ToWorker&)> on_message;  // everything that arrives
  };

  enum class State {
    kDialing,
    kSpare,
    kWelcomed,
    kReady,
    kRefused,
    kAborted,
    kGone,  // the stream ended for another reason
  };

  explicit ScriptedWorker(Options options);
  // Ends the stream if it is open.
  ~ScriptedWorker();

  // Cuts the stream as the end of the process would. Thread safe.
  void Kill();
  // Ends by itself with a Failure. Thread safe.
  void Fail(const std::string& message, bool bad_checkpoint);

  // False if the time was over first. States that the worker passed through count.
  bool WaitFor(State state, absl::Duration limit = absl::Seconds(20)) const;
  State state() const;
  uint32_t rank() const;
  v1::Welcome welcome() const;
  // Of Refused or Abort.
  std::string reason() const;
  // Empty as long as the coordinator kept the protocol.
  std::string violation() const;
  uint64_t steps() const;
  size_t open_sequences() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_SCRIPTED_WORKER_H_
