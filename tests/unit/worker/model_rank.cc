#include "tests/unit/worker/model_rank.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

template <typename T>
T ValueOrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

ModelRank::ModelRank(const ModelRankOptions& options, std::unique_ptr<Collectives> group)
    : config(ValueOrDie(ReadModelConfig(options.dir))),
      checkpoint(ValueOrDie(Checkpoint::Open(options.dir))),
      collectives(std::move(group)),
      test_backend(MakeTestBackend(options.threads, options.limits, options.pools.slots,
                                   options.batch_invariant)),
      backend(test_backend.backend.get()) {
  const int tp = collectives->size();
  const ModelWeights weights =
      ValueOrDie(ResolveWeights(*checkpoint, config, tp, collectives->rank()));
  pools = ValueOrDie(Pools::Create(config, tp, options.pools, *backend));
  model = ValueOrDie(Model::Create(config, ValueOrDie(LoadModelOps(config, weights, *backend, {})),
                                   *backend, *pools, *collectives, options.limits));
}

void RunRanks(const ModelRankOptions& options, int tp,
              const std::function<void(ModelRank&)>& body) {
  static std::atomic<int> groups{0};
  if (tp == 1) {
    ModelRank rank(options, MakeSingleRank());
    body(rank);
    return;
  }
  SharedMemoryOptions shared;
  shared.name = absl::StrCat("quartet-test-", getpid(), "-", groups.fetch_add(1));
  shared.size = tp;
  std::vector<std::thread> threads;
  for (int r = 0; r < tp; ++r) {
    threads.emplace_back([&, r] {
      SharedMemoryOptions mine = shared;
      mine.rank = r;
      ModelRank rank(options, ValueOrDie(OpenSharedMemory(mine)));
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ops::Segment MakeSegment(int row_begin, int rows, int slot, int position,
                         const std::vector<int32_t>& pages) {
  return {.row_begin = row_begin, .rows = rows, .slot = slot, .position = position, .pages = pages};
}

}  // namespace quartet
