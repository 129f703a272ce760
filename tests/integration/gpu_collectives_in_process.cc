#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/cuda/peer_transport.h"
#include "tests/integration/gpu_collectives.h"

namespace quartet {
namespace {

constexpr int64_t kIterationsOfLaunch = 50000;

}  // namespace

absl::Status RunInProcess(int ranks, int64_t iterations) {
  absl::StatusOr<std::unique_ptr<cuda::Device>> opened = OpenStressDevice(0);
  if (!opened.ok()) return opened.status();
  cuda::Device& device = **opened;
  const uint32_t max_count = *std::max_element(kStressCounts.begin(), kStressCounts.end());
  cuda::PeerOptions options = {.size = ranks, .epoch = 5, .message_bytes = max_count * 4};
  // Soon the numbers in the tags begin anew, and the areas are cleared.
  options.first_call = (1u << 24) - 1000;

  std::vector<cuda::Buffer> inboxes;
  std::array<void*, cuda::kMaxPeers> addresses{};
  for (int r = 0; r < ranks; ++r) {
    absl::StatusOr<cuda::Buffer> inbox =
        device.Allocate(cuda::PeerTransport::InboxBytes(options), "inbox");
    if (!inbox.ok()) return inbox.status();
    device.Fill(inbox->data(), 0, inbox->bytes());
    addresses[r] = inbox->data();
    inboxes.push_back(*std::move(inbox));
  }
  std::vector<std::unique_ptr<cuda::PeerTransport>> transports;
  std::vector<cuda::PeerGroup> groups;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    absl::StatusOr<std::unique_ptr<cuda::PeerTransport>> transport =
        cuda::PeerTransport::Create(device, options, addresses);
    if (!transport.ok()) return transport.status();
    groups.push_back((*transport)->group());
    transports.push_back(*std::move(transport));
  }

  absl::StatusOr<const cuda::Kernel*> kernel = device.Find("peer_stress");
  if (!kernel.ok()) return kernel.status();
  absl::StatusOr<cuda::Buffer> memory[4] = {
      device.Allocate(groups.size() * sizeof(cuda::PeerGroup), "groups"),
      device.Allocate(size_t{max_count} * ranks * sizeof(float), "data"),
      device.Allocate(ranks * sizeof(uint32_t), "arrived"),
      device.Allocate(sizeof(cuda::StressReport), "report")};
  for (const auto& buffer : memory) {
    if (!buffer.ok()) return buffer.status();
  }
  if (absl::Status s = device.CopyIn(memory[0]->data(), groups.data(), memory[0]->bytes());
      !s.ok()) {
    return s;
  }
  device.Fill(memory[3]->data(), 0, memory[3]->bytes());
  cuda::PeerStressParams params = {.groups = memory[0]->as<const cuda::PeerGroup>(),
                                   .data = memory[1]->as<float>(),
                                   .arrived = memory[2]->as<uint32_t>(),
                                   .report = memory[3]->as<cuda::StressReport>(),
                                   .max_count = max_count};
  std::copy(kStressCounts.begin(), kStressCounts.end(), params.counts);

  double ms = 0;
  for (int64_t done = 0; done < iterations; done += kIterationsOfLaunch) {
    params.first_iteration = static_cast<uint32_t>(done);
    params.iterations = static_cast<uint32_t>(std::min(kIterationsOfLaunch, iterations - done));
    device.Fill(memory[2]->data(), 0, memory[2]->bytes());
    absl::StatusOr<double> took = device.Milliseconds([&] {
      device.Launch(*kernel,
                    {.grid_x = static_cast<unsigned>(ranks) * cuda::kPeerBlocks,
                     .threads = cuda::kPeerThreads},
                    params);
    });
    if (!took.ok()) return took.status();
    ms += *took;
    for (const auto& transport : transports) {
      if (absl::Status s = transport->Check(); !s.ok()) return s;
    }
  }
  cuda::StressReport report;
  if (absl::Status s = device.CopyOut(&report, memory[3]->data(), sizeof(report)); !s.ok()) {
    return s;
  }
  std::printf("%d ranks in one kernel, %lld iterations of %.2f us\n", ranks,
              static_cast<long long>(iterations), 1000 * ms / static_cast<double>(iterations));
  return PrintReport("all ranks", report) ? absl::OkStatus()
                                          : absl::DataLossError("wrong sums were found");
}

}  // namespace quartet
