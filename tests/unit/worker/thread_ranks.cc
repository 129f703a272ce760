#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/model_rank.h"

namespace quartet {

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
      ModelRank rank(options, OpenSharedMemory(mine).value());
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace quartet
