#ifndef QUARTET_TESTS_UNIT_WORKER_MODEL_RANK_H_
#define QUARTET_TESTS_UNIT_WORKER_MODEL_RANK_H_

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/backend.h"
#include "shard_worker/checkpoint/safetensors.h"
#include "shard_worker/checkpoint/weights.h"
#include "shard_worker/collectives/collectives.h"
#include "shard_worker/memory/pools.h"
#include "shard_worker/model/model.h"
#include "tests/unit/worker/test_backend.h"

namespace quartet {

struct ModelRankOptions {
  std::string dir;
  int rank = 0;
  int threads = 1;
  PoolOptions pools = {.slots = 4, .pages = 64, .draft_tokens = 3, .kv_dtype = KvDtype::kFp32};
  StepLimits limits = {.max_rows = 512, .max_context = 4096};
  bool batch_invariant = false;
};

// One rank of a model in this process, with everything that it needs. Ends the test program with a
// message if the checkpoint cannot be loaded.
struct ModelRank {
  ModelRank(const ModelRankOptions& options, std::unique_ptr<Collectives> group);
  // With a group that was opened on the backend's device.
  ModelRank(const ModelRankOptions& options, TestBackend on, std::unique_ptr<Collectives> group);

  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  TestBackend test_backend;
  std::unique_ptr<Collectives> collectives;
  ops::Backend* backend;  // of test_backend
  std::unique_ptr<Pools> pools;
  std::unique_ptr<Model> model;

  // What stands in the backend's memory.
  template <typename T>
  std::vector<T> Fetch(const T* data, size_t count) const {
    std::vector<T> out(count);
    if (!backend->CopyOut(out.data(), data, count * sizeof(T)).ok()) std::abort();
    return out;
  }
};

// Runs `body` for every rank of a group of `tp` and returns when all have returned. Each has a
// thread of its own, with shared-memory collectives between them (thread_ranks.cc). On a GPU each
// is a process of its own, with the collectives of shard workers; then a test may call this once,
// and sees nothing of what a body leaves behind but its failures (process_ranks.cc).
void RunRanks(const ModelRankOptions& options, int tp, const std::function<void(ModelRank&)>& body);

// A segment whose sequence owns `pages`.
ops::Segment MakeSegment(int row_begin, int rows, int slot, int position,
                         const std::vector<int32_t>& pages);

}  // namespace quartet

#endif  // QUARTET_TESTS_UNIT_WORKER_MODEL_RANK_H_
