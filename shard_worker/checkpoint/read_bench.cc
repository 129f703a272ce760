#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/disk_timing.h"
#include "shard_worker/checkpoint/read_ahead.h"

// How fast a checkpoint's bytes come from the disk: as the loading workers of one host read them,
// and as a plain sequential reader that goes past the page cache does, in turns. The page cache is
// dropped before each turn, which only root may do.

namespace quartet {
namespace {

constexpr int64_t kStagingBytes = int64_t{1} << 20;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A consumer that copies every byte once from the mapped files, as staging to a device does.
absl::Status ReadAsWorker(const std::vector<ReadPart>& parts, const ReadAheadOptions& options) {
  ReadAhead reader(parts, options, MakeFileSource());
  std::vector<std::byte> staging(kStagingBytes);
  for (size_t part = 0; part <= parts.size(); ++part) {
    if (absl::Status status = reader.Finished(part); !status.ok()) return status;
    if (part == parts.size()) break;
    for (const ReadRun& run : parts[part]) {
      for (int64_t at = 0; at < run.bytes; at += kStagingBytes) {
        std::memcpy(staging.data(), run.mapped + at,
                    static_cast<size_t>(std::min(kStagingBytes, run.bytes - at)));
      }
    }
  }
  return absl::OkStatus();
}

// All ranks at the same time.
absl::StatusOr<DiskTurn> ReadAsWorkers(const std::vector<std::vector<ReadPart>>& ranks,
                                       const ReadAheadOptions& options) {
  std::vector<absl::Status> results(ranks.size());
  std::vector<std::thread> threads;
  const int64_t disk_bytes = DiskBytes();
  const double begin = Now();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = ReadAsWorker(ranks[rank], options); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) {
    if (!result.ok()) return result;
  }
  return DiskTurn{DiskBytes() - disk_bytes, Now() - begin};
}

struct Flags {
  std::string model;
  int tp = 1;
  int turns = 3;
  int64_t request_mib = ReadAheadOptions().request_bytes >> 20;
  ReadAheadOptions options;
};

absl::Status Run(Flags flags) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(flags.model);
  if (!config.ok()) return config.status();
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(flags.model);
  if (!checkpoint.ok()) return checkpoint.status();
  std::vector<std::vector<ReadPart>> ranks;
  int64_t wanted = 0;
  for (int rank = 0; rank < flags.tp; ++rank) {
    const absl::StatusOr<ModelWeights> weights =
        ResolveWeights(**checkpoint, *config, flags.tp, rank);
    if (!weights.ok()) return weights.status();
    ranks.push_back(ListReadRuns(*weights));
    for (const ReadPart& part : ranks.back()) {
      for (const ReadRun& run : part) wanted += run.bytes;
    }
  }
  std::printf("%d ranks want %.1f MiB in all, gaps included\n", flags.tp,
              static_cast<double>(wanted) / (1 << 20));
  const std::set<std::string> files = FilesOf(**checkpoint);
  flags.options.request_bytes = flags.request_mib << 20;

  double worker_rate = 0;
  double direct_rate = 0;
  bool dropped = true;
  for (int i = 0; i < flags.turns; ++i) {
    dropped = DropCaches(ranks) && dropped;
    const absl::StatusOr<DiskTurn> worker = ReadAsWorkers(ranks, flags.options);
    if (!worker.ok()) return worker.status();
    PrintTurn("read ahead", *worker);
    dropped = DropCaches(ranks) && dropped;
    const absl::StatusOr<DiskTurn> direct = ReadDirect(files);
    if (!direct.ok()) return direct.status();
    PrintTurn("O_DIRECT", *direct);
    worker_rate = std::max(worker_rate, worker->rate());
    direct_rate = std::max(direct_rate, direct->rate());
  }
  std::printf(
      "best of %d: read ahead %.1f MB/s with %d threads of %d MiB, O_DIRECT %.1f MB/s: %.0f %%\n",
      flags.turns, worker_rate, flags.options.threads, static_cast<int>(flags.request_mib),
      direct_rate, 100 * worker_rate / direct_rate);
  if (!dropped) {
    std::printf("the page cache could not be dropped (root may): read ahead came from memory\n");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  CLI::App app("Measures how fast a checkpoint is read from the disk", "quartet-read-bench");
  quartet::Flags flags;
  app.add_option("--model", flags.model, "folder of the checkpoint")->required();
  app.add_option("--tensor-parallel-size", flags.tp, "ranks, which all read at the same time")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--threads", flags.options.threads, "that read ahead")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--request-mib", flags.request_mib, "size of one read")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_flag("--drop-behind", flags.options.drop_behind,
               "give back what was copied, as workers do where memory is short");
  app.add_option("--turns", flags.turns, "of each")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = quartet::Run(flags);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
