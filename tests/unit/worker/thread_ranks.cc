#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/model_rank.h"

namespace quartet {
namespace {

std::unique_ptr<Collectives> Join(const SharedMemoryOptions& options) {
  absl::StatusOr<std::unique_ptr<Collectives>> group = OpenSharedMemory(options);
  if (!group.ok()) {
    std::fprintf(stderr, "%s\n", group.status().ToString().c_str());
    std::abort();
  }
  return *std::move(group);
}

}  // namespace

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
      ModelRank rank(options, Join(mine));
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace quartet
