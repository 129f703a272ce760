#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "services/common/log.h"
#include "services/common/process.h"
#include "services/common/status_channel.h"
#include "shard_worker/executor/shard_worker.h"

namespace {

// How long a stopped worker may take to leave by itself. Nothing it holds outlives it, so after
// that it simply ends.
constexpr std::chrono::seconds kStopGrace{3};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One rank of a Quartet cluster: holds a slice of the weights and executes plans",
               "quartet-shard-worker");
  quartet::ShardWorkerOptions options;
  options.listen_admin = "127.0.0.1:0";
  std::string log_level = "info";
  std::string kv_dtype = "fp16";
  std::string spoil_drafts;
  bool die_with_parent = false;
  app.add_option("--coordinator", options.coordinator, "HOST:PORT or unix:/path")
      ->envname("QUARTET_COORDINATOR")
      ->required();
  app.add_option("--model", options.model_dir, "folder of the checkpoint")
      ->envname("QUARTET_MODEL")
      ->required();
  app.add_option("--device", options.device.device, "cpu or cuda")
      ->envname("QUARTET_DEVICE")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--gpu", options.device.gpu,
                 "number of this worker on its host, from 0: it takes that GPU, modulo their count")
      ->envname("QUARTET_GPU")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  app.add_option("--gpu-image", options.device.gpu_image,
                 "native, or sm_70 to run those kernels on any card (for tests)")
      ->envname("QUARTET_GPU_IMAGE")
      ->check(CLI::IsMember({"native", "sm_70"}))
      ->capture_default_str();
  app.add_option("--collectives", options.device.collectives,
                 "how GPUs talk: auto, peer (memory) or nccl, to test one form")
      ->envname("QUARTET_COLLECTIVES")
      ->check(CLI::IsMember({"auto", "peer", "nccl"}))
      ->capture_default_str();
  app.add_flag("--batch-invariant", options.device.batch_invariant,
               "a token's bits do not depend on what else a step computes (slow on a GPU; on a CPU "
               "always so)")
      ->envname("QUARTET_BATCH_INVARIANT");
  app.add_flag(
         "--synthetic-weights", options.synthetic_weights,
         "random weights of the shape that config.json describes, to measure speed and memory")
      ->envname("QUARTET_SYNTHETIC_WEIGHTS");
  app.add_option("--threads", options.threads, "compute threads; 0 = max(1, cores / TP)")
      ->envname("QUARTET_THREADS")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--kv-dtype", kv_dtype, "fp32, fp16 or fp8_e4m3")
      ->envname("QUARTET_KV_DTYPE")
      ->capture_default_str();
  app.add_option("--memory-gib", options.memory_gib,
                 "memory of this rank; 0 = half of the RAM, or 92 % of the GPU, divided by those "
                 "that share it")
      ->envname("QUARTET_MEMORY_GIB")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--host-cache-gib", options.host_cache_gib,
                 "host memory of this rank for cached prefixes that leave the device; 0 = none")
      ->envname("QUARTET_HOST_CACHE_GIB")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--disk-cache-dir", options.disk_cache_dir,
                 "folder for cached prefixes that outlive the process; each rank has its own files")
      ->envname("QUARTET_DISK_CACHE_DIR");
  app.add_option("--disk-cache-gib", options.disk_cache_gib,
                 "what this rank may keep there; needs --host-cache-gib; 0 = none")
      ->envname("QUARTET_DISK_CACHE_GIB")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option(
         "--corrupt-copies", options.corrupt_copies,
         "for tests: flip a bit in each of so many objects that move to host memory; 0 = none")
      ->envname("QUARTET_CORRUPT_COPIES")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--listen-admin", options.listen_admin,
                 "HOST:PORT of /metrics, /livez, /readyz; port 0 takes a free one")
      ->envname("QUARTET_LISTEN_ADMIN")
      ->capture_default_str();
  app.add_option(
         "--spoil-drafts", spoil_drafts,
         "for tests: RATE or RATE@PLACE, the share of drafts that are made wrong, and which "
         "of a chain (from 1); text must not change by it")
      ->envname("QUARTET_SPOIL_DRAFTS");
  app.add_option("--log-level", log_level, "debug, info, warning or error")
      ->envname("QUARTET_LOG_LEVEL")
      ->capture_default_str();
  app.add_option("--status-fd", options.status_fd, "where the supervisor reads events; -1 = none")
      ->envname("QUARTET_STATUS_FD")
      ->capture_default_str();
  app.add_flag("--die-with-parent", die_with_parent, "end when the parent process does")
      ->envname("QUARTET_DIE_WITH_PARENT");
  CLI11_PARSE(app, argc, argv);

  if (die_with_parent) quartet::DieWithParent();
  quartet::BlockShutdownSignals();
  if (!quartet::InitLogging("shard-worker", log_level)) {
    std::fprintf(stderr, "--log-level is %s, expected debug, info, warning or error\n",
                 log_level.c_str());
    return 1;
  }
  const auto refuse = [&](const absl::Status& status) {
    quartet::LogError(std::string(status.message()));
    quartet::StatusChannel(options.status_fd).Error(std::string(status.message()));
    return 1;
  };
  const absl::StatusOr<quartet::KvDtype> parsed = quartet::ParseKvDtype(kv_dtype);
  if (!parsed.ok()) return refuse(parsed.status());
  options.kv_dtype = *parsed;
  if (!spoil_drafts.empty()) {
    const auto spoiler = quartet::DraftSpoiler::Parse(spoil_drafts);
    if (!spoiler.ok()) return refuse(spoiler.status());
    options.spoiler = *spoiler;
  }

  quartet::ShardWorker worker(options);
  std::promise<int> exit_code;
  std::future<int> exited = exit_code.get_future();
  std::thread compute([&] {
    exit_code.set_value(worker.Run().ok() ? 0 : 1);
    quartet::RequestShutdown();
  });
  const int signal = quartet::WaitForShutdown();
  if (signal != 0) {
    std::thread stopper([&] { worker.Stop(); });
    if (exited.wait_for(kStopGrace) != std::future_status::ready) std::_Exit(0);
    stopper.join();
  }
  compute.join();
  return exited.get();
}
