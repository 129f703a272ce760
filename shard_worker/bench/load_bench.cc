// How fast a checkpoint gets from the disk into a GPU's memory, read and prepared as a worker of
// rank 0 of 1 does it, beside a plain sequential reader of the same files that goes past the page
// cache. The page cache is dropped before each turn, which only root may do.
//   tools/full_size_headers.py FOLDER --layers 10 --fill
//   quartet-load-bench --model FOLDER

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/cuda_backend.h"
#include "shard_worker/checkpoint/disk_timing.h"
#include "shard_worker/checkpoint/read_ahead.h"
#include "shard_worker/model/model.h"

namespace quartet {
namespace {

using bench::CheckOk;

// What loading may cost beside reading: the worker reaches at least this much of O_DIRECT.
constexpr double kLeastShare = 0.8;

struct Options {
  std::string model;
  int turns = 2;
  bool drop_behind = false;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        config_(CheckOk(ReadModelConfig(options.model))),
        checkpoint_(CheckOk(Checkpoint::Open(options.model))),
        weights_(CheckOk(ResolveWeights(*checkpoint_, config_, 1, 0))),
        files_(FilesOf(*checkpoint_)) {}

  bool Run() {
    double load_rate = 0;
    double direct_rate = 0;
    for (int i = 0; i < options_.turns; ++i) {
      Drop();
      const DiskTurn direct = CheckOk(ReadDirect(files_));
      PrintTurn("O_DIRECT", direct);
      Drop();
      const DiskTurn load = Load();
      PrintTurn("load", load);
      load_rate = std::max(load_rate, load.rate());
      direct_rate = std::max(direct_rate, direct.rate());
    }
    std::printf("best of %d: load %.1f MB/s, O_DIRECT %.1f MB/s: %.0f %% (at least %.0f %%)\n",
                options_.turns, load_rate, direct_rate, 100 * load_rate / direct_rate,
                100 * kLeastShare);
    if (!dropped_) std::printf("the page cache could not be dropped: the figures say nothing\n");
    return dropped_ && load_rate >= kLeastShare * direct_rate;
  }

 private:
  void Drop() { dropped_ = DropCaches({ListReadRuns(weights_)}) && dropped_; }

  DiskTurn Load() {
    const auto backend = CheckOk(
        cuda::MakeCudaBackend(*device_, {.max_rows = 512, .max_segments = 4, .max_pages = 64}));
    ReadAheadOptions read_options;
    read_options.drop_behind = options_.drop_behind;
    const int64_t disk_bytes = DiskBytes();
    const auto begin = std::chrono::steady_clock::now();
    ReadAhead reader(ListReadRuns(weights_), read_options, MakeFileSource());
    size_t parts_done = 0;
    const ModelOps ops = CheckOk(LoadModelOps(config_, weights_, *backend, [&](const LoadStep&) {
      return reader.Finished(parts_done++);
    }));
    CheckOk(device_->Synchronize());
    return {
        .bytes = DiskBytes() - disk_bytes,
        .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
  }

  const Options options_;
  const ModelConfig config_;
  const std::unique_ptr<Checkpoint> checkpoint_;
  const ModelWeights weights_;
  const std::set<std::string> files_;
  const std::unique_ptr<cuda::Device> device_ = bench::OpenBenchDevice();
  bool dropped_ = true;
};

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  CLI::App app("Loads a checkpoint from the disk to a GPU", "quartet-load-bench");
  quartet::Options options;
  app.add_option("--model", options.model, "folder of the checkpoint")->required();
  app.add_option("--turns", options.turns, "of each")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag("--drop-behind", options.drop_behind,
               "give back what was copied, as workers do where memory is short");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return quartet::Bench(options).Run() ? 0 : 1;
}
