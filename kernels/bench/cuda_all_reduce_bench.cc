// Microseconds of an all-reduce between GPUs, one process a rank:
//
//   cuda_all_reduce_bench [RANKS]     one GPU a rank; 2 without a number

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/bench/cuda_timing.h"
#include "shard_worker/collectives/cuda_collectives.h"
#include "shard_worker/collectives/cuda_start.h"

namespace quartet::bench {
namespace {

constexpr size_t kKib = 1024;
constexpr int kCallsOfGraph = 200;

SharedMemoryOptions Rendezvous(const std::string& name, int rank, int size) {
  SharedMemoryOptions options;
  options.name = name;
  options.rank = rank;
  options.size = size;
  return options;
}

std::unique_ptr<CudaCollectives> Open(cuda::Device& device, CollectiveForm form,
                                      const SharedMemoryOptions& rendezvous) {
  CudaCollectivesOptions options;
  options.rendezvous = rendezvous;
  options.form = form;
  options.nccl_gbs_min = 0;
  absl::StatusOr<std::unique_ptr<CudaCollectives>> group = OpenCudaCollectives(device, options);
  if (!group.ok()) {
    if (rendezvous.rank == 0) std::printf("%s\n", group.status().ToString().c_str());
    return nullptr;
  }
  if (rendezvous.rank == 0) std::printf("%s\n", (*group)->description().c_str());
  return *std::move(group);
}

void RunRank(const std::string& name, int rank, int size) {
  const std::unique_ptr<cuda::Device> device = OpenBenchDevice(rank);
  const auto processes = CheckOk(OpenSharedMemory(Rendezvous(name, rank, size)));
  const auto peer = Open(*device, CollectiveForm::kPeer, Rendezvous(name + "_peer", rank, size));
  const auto nccl = Open(*device, CollectiveForm::kNccl, Rendezvous(name + "_nccl", rank, size));
  if (rank == 0) {
    std::printf("%s, %s kernels, %d ranks, graphs of %d all-reduces\n", device->info().name.c_str(),
                device->info().image.c_str(), size, kCallsOfGraph);
    std::printf("%9s %16s %9s\n", "KiB", "peer memory, us", "NCCL, us");
  }
  const auto measure = [&](const std::unique_ptr<CudaCollectives>& group, size_t kib) {
    if (group == nullptr) return 0.0;
    const int calls = kib <= 1024 ? kCallsOfGraph : 10;
    return CheckOk(MeasureAllReduce(
        *device, *processes, kib * kKib, calls,
        [&](float* data, size_t count) { return group->AllReduceSum(data, count); }));
  };
  for (const size_t kib : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 16384}) {
    const double peer_us = measure(peer, kib);
    const double nccl_us = measure(nccl, kib);
    if (rank == 0) std::printf("%9zu %16.2f %9.2f\n", kib, peer_us, nccl_us);
  }
  std::fflush(stdout);
}

int Run(int size) {
  const std::string name = "quartet_all_reduce_bench_" + std::to_string(getpid());
  std::vector<pid_t> children;
  // Nothing of CUDA has run in this process.
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      RunRank(name, rank, size);
      _exit(0);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace quartet::bench

int main(int argc, char** argv) {
  return quartet::bench::Run(argc > 1 ? std::atoi(argv[1]) : 2);
}
