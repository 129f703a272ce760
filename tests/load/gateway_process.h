// The real gateway as a process of its own, so that its memory and its CPU time are its own too.
#ifndef QUARTET_TESTS_LOAD_GATEWAY_PROCESS_H_
#define QUARTET_TESTS_LOAD_GATEWAY_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/cli/child.h"

namespace quartet::load {

struct ProcessUsage {
  double resident_mb = 0;       // 1e6 bytes
  double resident_peak_mb = 0;  // since its start
  double cpu_s = 0;             // user and system
};

// How its threads, those that live, have waited for a processor that others had.
struct CoreWaits {
  double seconds = 0;
  uint64_t turns = 0;  // on a processor
};
// `process`: its id, or "self".
CoreWaits WaitsForCores(const std::string& process);

// All calls from the thread that started it.
class GatewayProcess {
 public:
  struct Options {
    std::string program;
    std::string model_dir;
    std::string coordinator;
    std::string log_file;  // empty = none
  };
  // Returns when the gateway says that it is ready.
  static absl::StatusOr<std::unique_ptr<GatewayProcess>> Start(const Options& options,
                                                               absl::Duration patience);

  const std::string& http_address() const { return http_address_; }
  // To be called often: a gateway whose log nobody reads stands still. Waits for `limit` at most.
  void ReadLog(absl::Duration limit);
  bool running() const { return child_->running(); }
  absl::StatusOr<ProcessUsage> Usage() const;
  CoreWaits Waits() const;
  // Asks it to end, waits, and fails if it ends otherwise than a gateway should.
  absl::Status Stop(absl::Duration patience);

 private:
  explicit GatewayProcess(std::unique_ptr<cli::Child> child) : child_(std::move(child)) {}
  absl::Status Ended() const;

  const std::unique_ptr<cli::Child> child_;
  std::string http_address_;
};

}  // namespace quartet::load

#endif  // QUARTET_TESTS_LOAD_GATEWAY_PROCESS_H_
