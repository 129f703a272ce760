// Collectives between GPUs under stress, one process a rank:
//
//   gpu_collectives --ranks 2 --iterations 1000000            one GPU a rank
//   gpu_collectives --ranks 2 --iterations 2000 --one-device  ranks take turns on GPU 0
//   gpu_collectives --ranks 4 --iterations 1000000 --in-process
//   gpu_collectives --ranks 2 --fault kill|stop|abort         one rank fails, the others must say
//   so
//
// Every value names its rank, iteration and index, so that one that is wrong, late or of another
// place is found. Ends with 0 if all was right.

#include "tests/integration/gpu_collectives.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/cuda/driver_device.h"
#include "shard_worker/collectives/cuda_collectives.h"

namespace quartet {
namespace {

constexpr uint64_t kFirstEpoch = 11;
constexpr absl::Duration kWait = absl::Seconds(3);
constexpr absl::Duration kGrace = absl::Seconds(4);
constexpr absl::Duration kStart = absl::Seconds(30);

struct Settings {
  int ranks = 2;
  int64_t iterations = 10000;
  bool one_device = false;
  bool in_process = false;
  bool ipc = false;
  double nccl_gbs_min = CudaCollectivesOptions().nccl_gbs_min;
  std::string form = "auto";
  std::string fault;  // "", "kill", "stop", "abort"
  uint32_t delay_ns = 20000;
  std::string folder = "/dev/shm";
  std::string name;
  int news_fd = -1;  // a rank with a fault ahead writes a byte when it runs, and one at the error
};

// A rank's memory and the graph of one turn over all message lengths.
class StressRank {
 public:
  StressRank(cuda::Device& device, CudaCollectives& group, const Settings& settings)
      : device_(device),
        group_(group),
        // NCCL sums in an order of its own.
        values_(settings.form == "peer" ? cuda::StressValues::kAnyFloat
                                        : cuda::StressValues::kInteger),
        delay_ns_(settings.delay_ns) {}

  absl::Status Prepare() {
    for (const auto& [name, kernel] :
         {std::pair{"stress_fill", &fill_}, std::pair{"stress_check", &check_},
          std::pair{"collective_mark", &mark_}}) {
      absl::StatusOr<const cuda::Kernel*> found = device_.Find(name);
      if (!found.ok()) return found.status();
      *kernel = *found;
    }
    const size_t bytes = size_t{32768} * sizeof(float);
    for (const auto& [buffer, size] :
         {std::pair{&data_, bytes}, std::pair{&all_, bytes * group_.size()},
          std::pair{&report_, sizeof(cuda::StressReport)}, std::pair{&iteration_, size_t{4}}}) {
      absl::StatusOr<cuda::Buffer> made = device_.Allocate(size, "stress");
      if (!made.ok()) return made.status();
      *buffer = *std::move(made);
      device_.Fill(buffer->data(), 0, size);
    }
    absl::StatusOr<std::unique_ptr<cuda::Graph>> graph = device_.Capture([&] {
      for (const uint32_t count : kStressCounts) AddIteration(count);
    });
    if (!graph.ok()) return graph.status();
    graph_ = *std::move(graph);
    return enqueued_;
  }

  // kStressCounts.size() iterations.
  void Turn() { device_.Replay(*graph_); }

  absl::StatusOr<cuda::StressReport> Report() {
    cuda::StressReport report;
    if (absl::Status s = device_.CopyOut(&report, report_.data(), sizeof(report)); !s.ok()) {
      return s;
    }
    return report;
  }

 private:
  static constexpr cuda::LaunchShape kShape = {.grid_x = 16, .threads = 256};

  void AddIteration(uint32_t count) {
    const auto keep = [&](const absl::Status& s) {
      if (enqueued_.ok()) enqueued_ = s;
    };
    Fill(count);
    keep(group_.AllReduceSum(data_.as<float>(), count));
    Check(data_.as<float>(), count, false);
    Fill(count);
    keep(group_.AllGather(data_.data(), count * sizeof(float), all_.data()));
    Check(all_.as<float>(), count, true);
    if (count == 1) keep(group_.Barrier());
    device_.Launch(mark_, {.threads = 32}, cuda::CollectiveMarkParams{iteration_.as<uint32_t>()});
  }
  void Fill(uint32_t count) {
    device_.Launch(fill_, kShape,
                   cuda::StressFillParams{.data = data_.as<float>(),
                                          .count = count,
                                          .iteration = iteration_.as<uint32_t>(),
                                          .rank = static_cast<uint32_t>(group_.rank()),
                                          .delay_ns = delay_ns_,
                                          .values = values_});
  }
  void Check(const float* data, uint32_t count, bool gathered) {
    device_.Launch(check_, kShape,
                   cuda::StressCheckParams{.data = data,
                                           .count = count,
                                           .iteration = iteration_.as<uint32_t>(),
                                           .report = report_.as<cuda::StressReport>(),
                                           .size = static_cast<uint32_t>(group_.size()),
                                           .gathered = gathered,
                                           .values = values_});
  }

  cuda::Device& device_;
  CudaCollectives& group_;
  const cuda::StressValues values_;
  const uint32_t delay_ns_;
  const cuda::Kernel* fill_ = nullptr;
  const cuda::Kernel* check_ = nullptr;
  const cuda::Kernel* mark_ = nullptr;
  cuda::Buffer data_, all_, report_, iteration_;
  std::unique_ptr<cuda::Graph> graph_;
  absl::Status enqueued_;
};

CudaCollectivesOptions GroupOptions(const Settings& settings, int rank, uint64_t epoch) {
  CudaCollectivesOptions options;
  options.rendezvous.folder = settings.folder;
  options.rendezvous.name = settings.name + "_" + std::to_string(epoch);
  options.rendezvous.epoch = epoch;
  options.rendezvous.rank = rank;
  options.rendezvous.size = settings.ranks;
  options.wait_timeout = kWait;
  options.allow_descriptors = !settings.ipc;
  options.nccl_gbs_min = settings.nccl_gbs_min;
  options.form = ParseCollectiveForm(settings.form).value();
  return options;
}

// Until all iterations are done or something fails. With a fault: until it is noticed.
absl::Status RunTurns(const Settings& settings, cuda::Device& device, CudaCollectives& group,
                      StressRank& rank) {
  std::mt19937 random(static_cast<unsigned>(group.rank()));
  const absl::Time begin = absl::Now();
  const int64_t turns = (settings.iterations + 7) / 8;
  for (int64_t turn = 0; turn < turns || !settings.fault.empty(); ++turn) {
    if (random() % 256 == 0) absl::SleepFor(absl::Microseconds(random() % 3000));
    rank.Turn();
    if (turn % 16 != 15 && turn + 1 != turns) continue;
    if (absl::Status s = device.Synchronize(); !s.ok()) return s;
    if (absl::Status s = group.Check(); !s.ok()) return s;
    if (settings.fault == "abort" && group.rank() == group.size() - 1 &&
        absl::Now() - begin > absl::Seconds(1)) {
      group.Abort("the test wants it");
    }
  }
  return group.Check();
}

void Tell(const Settings& settings) {
  const char byte = 0;
  if (write(settings.news_fd, &byte, 1) != 1) std::_Exit(1);
}

absl::Status RunEpoch(const Settings& settings, cuda::Device& device, int index, uint64_t epoch) {
  const absl::Time begin = absl::Now();
  absl::StatusOr<std::unique_ptr<CudaCollectives>> group =
      OpenCudaCollectives(device, GroupOptions(settings, index, epoch));
  if (!group.ok()) return group.status();
  if (index == 0) {
    std::printf("%s [start took %s]\n", (*group)->description().c_str(),
                absl::FormatDuration(absl::Now() - begin).c_str());
  }
  StressRank rank(device, **group, settings);
  if (absl::Status s = rank.Prepare(); !s.ok()) return s;
  if (!settings.fault.empty()) Tell(settings);
  const absl::Time first = absl::Now();
  if (absl::Status s = RunTurns(settings, device, **group, rank); !s.ok()) return s;
  const double us = absl::ToDoubleMicroseconds(absl::Now() - first);
  const absl::StatusOr<cuda::StressReport> report = rank.Report();
  if (!report.ok()) return report.status();
  if (index == 0) {
    std::printf("%lld iterations of an all-reduce and an all-gather, %.1f us each\n",
                static_cast<long long>(settings.iterations),
                us / static_cast<double>(settings.iterations));
  }
  return PrintReport("rank " + std::to_string(index), *report)
             ? absl::OkStatus()
             : absl::DataLossError("wrong values were found");
}

int RunRank(Settings settings, int index, uint64_t epoch) {
  absl::StatusOr<std::unique_ptr<cuda::Device>> device =
      OpenStressDevice(settings.one_device ? 0 : index);
  absl::Status status = device.status();
  if (status.ok()) status = RunEpoch(settings, **device, index, epoch);
  if (!status.ok()) std::printf("rank %d: %s\n", index, status.ToString().c_str());
  if (settings.fault.empty() || !device.ok()) return status.ok() ? 0 : 1;
  if (status.ok()) return 1;
  Tell(settings);
  settings.fault = "";
  status = RunEpoch(settings, **device, index, epoch + 1);
  if (!status.ok()) std::printf("rank %d: %s\n", index, status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

// Nothing of CUDA runs in the process that forks.
pid_t StartRank(const Settings& settings, int index, uint64_t epoch) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int code = RunRank(settings, index, epoch);
  std::fflush(stdout);
  _exit(code);
}

// `count` bytes of news before the deadline.
bool AwaitNews(int fd, int count, absl::Time deadline) {
  for (; count > 0; --count) {
    pollfd request = {.fd = fd, .events = POLLIN, .revents = 0};
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    char byte = 0;
    if (poll(&request, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) != 1 ||
        read(fd, &byte, 1) != 1) {
      return false;
    }
  }
  return true;
}

// Whether all children end well before the deadline. Those that have not ended then are killed.
bool AwaitSuccess(std::vector<pid_t> children, absl::Time deadline) {
  bool good = true;
  while (!children.empty()) {
    std::erase_if(children, [&](pid_t child) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) != child) return false;
      good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
      return true;
    });
    if (absl::Now() > deadline) {
      for (const pid_t child : children) kill(child, SIGKILL);
      good = false;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return good;
}

// Strikes the last rank; then its place is taken.
bool RunFault(const Settings& settings, int news, std::vector<pid_t>& children) {
  if (!AwaitNews(news, settings.ranks, absl::Now() + kStart)) return false;
  absl::SleepFor(absl::Seconds(1));
  const pid_t victim = children.back();
  const bool lost = settings.fault != "abort";
  const absl::Time begin = absl::Now();
  if (lost) kill(victim, settings.fault == "kill" ? SIGKILL : SIGSTOP);
  const bool noticed = AwaitNews(news, settings.ranks - (lost ? 1 : 0), begin + kWait + kGrace);
  std::printf("%s of rank %d: %s after %s\n", settings.fault.c_str(), settings.ranks - 1,
              noticed ? "all others have reported it" : "NOT noticed by all others",
              absl::FormatDuration(absl::Now() - begin).c_str());
  std::fflush(stdout);
  if (!lost) return noticed;
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
  Settings next = settings;
  next.fault = "";
  children.back() = StartRank(next, settings.ranks - 1, kFirstEpoch + 1);
  return noticed;
}

bool RunProcesses(Settings settings) {
  settings.name = "quartet_gpu_collectives_" + std::to_string(getpid());
  int news[2];
  if (pipe(news) != 0) return false;
  settings.news_fd = news[1];
  std::vector<pid_t> children;
  for (int r = 0; r < settings.ranks; ++r) {
    children.push_back(StartRank(settings, r, kFirstEpoch));
  }
  if (settings.fault.empty()) return AwaitSuccess(children, absl::InfiniteFuture());
  const bool good = RunFault(settings, news[0], children);
  return AwaitSuccess(children, absl::Now() + kStart) && good;
}

}  // namespace

absl::StatusOr<std::unique_ptr<cuda::Device>> OpenStressDevice(int ordinal) {
  cuda::DriverOptions options;
  options.ordinal = ordinal;
  if (const char* image = std::getenv("QUARTET_GPU_IMAGE")) options.image = image;
  return cuda::OpenDevice(options);
}

bool PrintReport(const std::string& who, const cuda::StressReport& report) {
  std::printf("%s: %llu values checked, %llu wrong\n", who.c_str(), report.checked, report.wrong);
  if (report.wrong > 0) {
    std::printf("  first: rank %u, iteration %u, index %u: %.9g, expected %.9g\n", report.rank,
                report.iteration, report.index, report.found, report.expected);
  }
  return report.wrong == 0 && report.checked > 0;
}

}  // namespace quartet

int main(int argc, char** argv) {
  quartet::Settings settings;
  CLI::App app("Collectives between GPUs under stress");
  app.add_option("--ranks", settings.ranks, "Ranks of the group")->check(CLI::Range(1, 8));
  app.add_option("--iterations", settings.iterations, "All-reduces that are checked");
  app.add_flag("--one-device", settings.one_device, "All ranks on GPU 0");
  app.add_flag("--in-process", settings.in_process, "All ranks in one kernel on GPU 0");
  app.add_flag("--ipc", settings.ipc, "Share memory by CUDA IPC");
  app.add_option("--form", settings.form, "How the ranks talk")
      ->check(CLI::IsMember({"auto", "peer", "nccl"}));
  app.add_option("--fault", settings.fault, "What happens to the last rank after a second")
      ->check(CLI::IsMember({"kill", "stop", "abort"}));
  app.add_option("--nccl-gbs-min", settings.nccl_gbs_min, "NCCL that is slower is refused");
  app.add_option("--delay-ns", settings.delay_ns, "Longest delay of a rank before an operation");
  app.add_option("--folder", settings.folder, "Where the ranks meet");
  CLI11_PARSE(app, argc, argv);
  if (settings.in_process) {
    const absl::Status status = quartet::RunInProcess(settings.ranks, settings.iterations);
    if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  return quartet::RunProcesses(settings) ? 0 : 1;
}
