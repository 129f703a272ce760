#include "tests/unit/worker/model_rank.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

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
    : ModelRank(options,
                MakeTestBackend(options.threads, options.limits, options.pools.slots,
                                options.batch_invariant),
                std::move(group)) {}

ModelRank::ModelRank(const ModelRankOptions& options, TestBackend on,
                     std::unique_ptr<Collectives> group)
    : config(ValueOrDie(ReadModelConfig(options.dir))),
      checkpoint(ValueOrDie(Checkpoint::Open(options.dir))),
      test_backend(std::move(on)),
      collectives(std::move(group)),
      backend(test_backend.backend.get()) {
  const int tp = collectives->size();
  const ModelWeights weights =
      ValueOrDie(ResolveWeights(*checkpoint, config, tp, collectives->rank()));
  pools = ValueOrDie(Pools::Create(config, tp, options.pools, *backend));
  model = ValueOrDie(Model::Create(config, ValueOrDie(LoadModelOps(config, weights, *backend, {})),
                                   *backend, *pools, *collectives, options.limits));
}

ops::Segment MakeSegment(int row_begin, int rows, int slot, int position,
                         const std::vector<int32_t>& pages) {
  return {.row_begin = row_begin, .rows = rows, .slot = slot, .position = position, .pages = pages};
}

}  // namespace quartet
