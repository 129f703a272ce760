#include "shard_worker/collectives/cuda_start.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "shard_worker/collectives/descriptor_exchange.h"

namespace quartet {
namespace {

constexpr size_t kShortestBytes = 16 * 1024;  // one row of the model
constexpr size_t kLongestBytes = 256 * 1024;
constexpr size_t kBandwidthBytes = 16 << 20;

using cuda::Device;
using cuda::PeerMemory;
using cuda::PeerTransport;
using cuda::ShareForm;

cuda::PeerOptions PeerOptionsOf(const CudaCollectivesOptions& options) {
  return {.rank = options.rendezvous.rank,
          .size = options.rendezvous.size,
          .epoch = options.rendezvous.epoch,
          .message_bytes = std::max<size_t>(options.one_shot_bytes / 16 * 16, 16),
          .wait_timeout = options.wait_timeout};
}

absl::StatusOr<bool> AnyGpuTwice(Device& device, Collectives& group) {
  std::array<char, 64> own{};
  device.info().uuid.copy(own.data(), own.size() - 1);
  std::vector<std::array<char, 64>> all(group.size());
  if (absl::Status s = group.AllGather(own.data(), own.size(), all.data()); !s.ok()) return s;
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

// Own memory, not yet seen by others, holds zeros: no call's tag.
absl::StatusOr<PeerMemory> MakeInbox(Device& device, ShareForm form, size_t bytes) {
  absl::StatusOr<PeerMemory> own = PeerMemory::Allocate(form, bytes);
  if (!own.ok()) return own.status();
  device.Fill(own->data(), 0, bytes);
  if (absl::Status s = device.Synchronize(); !s.ok()) return s;
  return own;
}

absl::StatusOr<std::vector<PeerMemory>> ShareByDescriptor(Device& device, Collectives& group,
                                                          const CudaCollectivesOptions& options,
                                                          size_t bytes) {
  if (!options.allow_descriptors) return absl::FailedPreconditionError("not allowed");
  absl::StatusOr<PeerMemory> own = MakeInbox(device, ShareForm::kDescriptor, bytes);
  absl::StatusOr<int> exported = own.ok() ? own->Descriptor() : own.status();
  const FileDescriptor descriptor(exported.ok() ? *exported : -1);
  if (absl::Status s = Agree(group, exported.status()); !s.ok()) return s;
  const absl::StatusOr<std::vector<FileDescriptor>> descriptors =
      ExchangeDescriptors(group, descriptor.get(),
                          {.folder = options.rendezvous.folder,
                           .name = options.rendezvous.name,
                           .epoch = options.rendezvous.epoch,
                           .timeout = options.rendezvous.open_timeout});
  if (!descriptors.ok()) return descriptors.status();
  std::vector<PeerMemory> inboxes(group.size());
  absl::Status opened;
  for (int r = 0; r < group.size() && opened.ok(); ++r) {
    if (r == group.rank()) continue;
    absl::StatusOr<PeerMemory> peer = PeerMemory::Open((*descriptors)[r].get(), bytes);
    opened = peer.status();
    if (peer.ok()) inboxes[r] = *std::move(peer);
  }
  if (absl::Status s = Agree(group, opened); !s.ok()) return s;
  inboxes[group.rank()] = *std::move(own);
  return inboxes;
}

absl::StatusOr<std::vector<PeerMemory>> ShareByIpc(Device& device, Collectives& group,
                                                   size_t bytes) {
  absl::StatusOr<PeerMemory> own = MakeInbox(device, ShareForm::kIpc, bytes);
  const absl::StatusOr<cuda::IpcHandle> handle = own.ok() ? own->Handle() : own.status();
  if (absl::Status s = Agree(group, handle.status()); !s.ok()) return s;
  std::vector<cuda::IpcHandle> handles(group.size());
  if (absl::Status s = group.AllGather(handle->data(), handle->size(), handles.data()); !s.ok()) {
    return s;
  }
  std::vector<PeerMemory> inboxes(group.size());
  absl::Status opened;
  for (int r = 0; r < group.size() && opened.ok(); ++r) {
    if (r == group.rank()) continue;
    absl::StatusOr<PeerMemory> peer = PeerMemory::Open(handles[r]);
    opened = peer.status();
    if (peer.ok()) inboxes[r] = *std::move(peer);
  }
  if (absl::Status s = Agree(group, opened); !s.ok()) return s;
  inboxes[group.rank()] = *std::move(own);
  return inboxes;
}

absl::Status ConnectPeers(Device& device, Collectives& group, const CudaCollectivesOptions& options,
                          GpuLinks& links) {
  const cuda::PeerOptions peer_options = PeerOptionsOf(options);
  const size_t bytes = PeerTransport::InboxBytes(peer_options);
  std::string form = "file descriptors";
  absl::StatusOr<std::vector<PeerMemory>> inboxes =
      ShareByDescriptor(device, group, options, bytes);
  if (!inboxes.ok()) {
    form = "CUDA IPC";
    const std::string first(inboxes.status().message());
    inboxes = ShareByIpc(device, group, bytes);
    if (!inboxes.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "by file descriptors: ", first, "; by CUDA IPC: ", inboxes.status().message()));
    }
  }
  std::array<void*, cuda::kMaxPeers> addresses{};
  for (int r = 0; r < group.size(); ++r) addresses[r] = (*inboxes)[r].data();
  absl::StatusOr<std::unique_ptr<PeerTransport>> peer =
      PeerTransport::Create(device, peer_options, addresses);
  if (absl::Status s = Agree(group, peer.status()); !s.ok()) return s;
  links.inboxes = *std::move(inboxes);
  links.peer = *std::move(peer);
  links.peer_form = form;
  return absl::OkStatus();
}

bool IsSwitchedOff(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "0") != 0;
}

absl::Status ConnectNccl(Device& device, Collectives& group, const CudaCollectivesOptions& options,
                         GpuLinks& links) {
  if (links.one_gpu) {
    return absl::FailedPreconditionError("NCCL does not take several ranks on one GPU");
  }
  absl::Status local;
  if (IsSwitchedOff("NCCL_P2P_DISABLE") && IsSwitchedOff("NCCL_SHM_DISABLE")) {
    local = absl::FailedPreconditionError(
        "NCCL_P2P_DISABLE and NCCL_SHM_DISABLE are set, which leaves NCCL only sockets");
  }
  const absl::StatusOr<std::string> version = cuda::NcclVersion();
  if (local.ok()) local = version.status();
  cuda::NcclId id{};
  if (local.ok() && group.rank() == 0) {
    absl::StatusOr<cuda::NcclId> made = cuda::MakeNcclId();
    local = made.status();
    if (made.ok()) id = *made;
  }
  if (absl::Status s = Agree(group, local); !s.ok()) return s;
  std::vector<cuda::NcclId> ids(group.size());
  if (absl::Status s = group.AllGather(id.data(), id.size(), ids.data()); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<cuda::NcclCommunicator>> joined = cuda::NcclCommunicator::Join(
      device, ids[0], group.rank(), group.size(), options.rendezvous.open_timeout);
  if (absl::Status s = Agree(group, joined.status()); !s.ok()) return s;
  links.nccl = *std::move(joined);
  links.nccl_form = *version;
  return absl::OkStatus();
}

// An all-reduce of a known sum.
absl::Status CheckKnownSum(Device& device, Collectives& group, size_t count,
                           AllReduceFunction all_reduce) {
  const auto value = [](int factor, size_t i) {
    return static_cast<float>(factor * (1 + i % 1021));
  };
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value(group.rank() + 1, i);
  const size_t bytes = count * sizeof(float);
  absl::StatusOr<cuda::Buffer> data = device.Allocate(bytes, "the known sum");
  if (!data.ok()) return data.status();
  if (absl::Status s = device.CopyIn(data->data(), values.data(), bytes); !s.ok()) return s;
  if (absl::Status s = group.Barrier(); !s.ok()) return s;
  absl::Status status = all_reduce(data->as<float>(), count);
  const absl::Status copied = device.CopyOut(values.data(), data->data(), bytes);
  if (status.ok()) status = copied;
  const int factor = group.size() * (group.size() + 1) / 2;
  for (size_t i = 0; i < count && status.ok(); ++i) {
    if (values[i] != value(factor, i)) {
      status = absl::InternalError(absl::StrCat("a known sum of ", count, " values is ", values[i],
                                                " at ", i, ", expected ", value(factor, i)));
    }
  }
  return Agree(group, status);
}

// Microseconds of both ways; 0 where there is no such way.
struct Times {
  size_t bytes;
  double peer_us = 0;
  double nccl_us = 0;
};

absl::StatusOr<std::vector<Times>> MeasureWays(Device& device, Collectives& group,
                                               const GpuLinks& links, const GpuWays& ways) {
  const int calls = links.one_gpu ? 4 : 100;
  std::vector<Times> all;
  for (size_t bytes = kShortestBytes; bytes <= kLongestBytes; bytes *= 2) {
    Times times = {.bytes = bytes};
    if (links.peer != nullptr) {
      const auto us = MeasureAllReduce(device, group, bytes, calls, ways.by_peers);
      if (!us.ok()) return us.status();
      times.peer_us = *us;
    }
    if (links.nccl != nullptr) {
      const auto us = MeasureAllReduce(device, group, bytes, calls, ways.by_nccl);
      if (!us.ok()) return us.status();
      times.nccl_us = *us;
    }
    all.push_back(times);
  }
  return all;
}

// GB/s over a link of NCCL's ring: each carries 2 (n - 1) / n times the message.
absl::StatusOr<double> MeasureNcclGbs(Device& device, Collectives& group,
                                      AllReduceFunction by_nccl) {
  const absl::StatusOr<double> us = MeasureAllReduce(device, group, kBandwidthBytes, 4, by_nccl);
  if (!us.ok()) return us.status();
  return 2.0 * (group.size() - 1) / group.size() * kBandwidthBytes / *us / 1e3;
}

std::string Describe(const std::vector<Times>& measured, double Times::*us) {
  std::string text = "all-reduce of";
  for (const Times& times : measured) {
    absl::StrAppendFormat(&text, "%s %d KiB in %.1f us", &times == &measured.front() ? "" : ",",
                          times.bytes / 1024, times.*us);
  }
  return text;
}

std::string WhyNot(const std::string& form) {
  return form.empty() ? "not asked for" : form;
}

}  // namespace

absl::Status Agree(Collectives& group, const absl::Status& mine) {
  struct Vote {
    int32_t ok;
    char message[508];
  };
  Vote own = {.ok = mine.ok()};
  mine.message().copy(own.message, sizeof(own.message) - 1);
  std::vector<Vote> votes(group.size());
  if (absl::Status s = group.AllGather(&own, sizeof(own), votes.data()); !s.ok()) return s;
  for (int r = 0; r < group.size(); ++r) {
    if (votes[r].ok == 0) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, ": ", votes[r].message));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GpuLinks> ConnectGpus(Device& device, Collectives& group,
                                     const CudaCollectivesOptions& options) {
  GpuLinks links;
  const absl::StatusOr<bool> one_gpu = AnyGpuTwice(device, group);
  if (!one_gpu.ok()) return one_gpu.status();
  links.one_gpu = *one_gpu;
  absl::Status peer, nccl;
  if (options.form != CollectiveForm::kNccl) {
    peer = ConnectPeers(device, group, options, links);
    if (!peer.ok()) links.peer_form = std::string(peer.message());
  }
  if (options.form == CollectiveForm::kNccl ||
      (options.form == CollectiveForm::kAuto && group.size() > 1)) {
    nccl = ConnectNccl(device, group, options, links);
    if (!nccl.ok()) links.nccl_form = std::string(nccl.message());
  }
  if (links.peer == nullptr && links.nccl == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no way between the GPUs of the group. Peer memory: ",
                     peer.ok() ? "not asked for" : peer.message(),
                     ". NCCL: ", nccl.ok() ? "not asked for" : nccl.message()));
  }
  return links;
}

absl::Status CheckSums(Device& device, Collectives& group, const GpuLinks& links,
                       const CudaCollectivesOptions& options, const GpuWays& ways) {
  for (const size_t bytes : {sizeof(float), kShortestBytes, options.one_shot_bytes + 1024}) {
    const size_t count = bytes / sizeof(float);
    if (links.peer != nullptr) {
      if (absl::Status s = CheckKnownSum(device, group, count, ways.by_peers); !s.ok()) return s;
    }
    if (links.nccl != nullptr) {
      if (absl::Status s = CheckKnownSum(device, group, count, ways.by_nccl); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> MeasureAllReduce(Device& device, Collectives& group, size_t bytes, int calls,
                                        AllReduceFunction all_reduce) {
  absl::StatusOr<cuda::Buffer> data = device.Allocate(bytes, "measuring the collectives");
  if (!data.ok()) return data.status();
  device.Fill(data->data(), 0, bytes);
  absl::Status status;
  const absl::StatusOr<std::unique_ptr<cuda::Graph>> graph = device.Capture([&] {
    for (int i = 0; i < calls && status.ok(); ++i) {
      status = all_reduce(data->as<float>(), bytes / sizeof(float));
    }
  });
  if (status.ok()) status = graph.status();
  if (absl::Status s = Agree(group, status); !s.ok()) return s;
  double best_ms = 0;
  for (int replay = 0; replay < 4; ++replay) {
    if (absl::Status s = group.Barrier(); !s.ok()) return s;
    const absl::StatusOr<double> ms = device.Milliseconds([&] { device.Replay(**graph); });
    if (!ms.ok()) return ms.status();
    if (replay == 1 || (replay > 1 && *ms < best_ms)) best_ms = *ms;
  }
  const double own_us = best_ms * 1000 / calls;
  std::vector<double> all_us(group.size());
  if (absl::Status s = group.AllGather(&own_us, sizeof(own_us), all_us.data()); !s.ok()) return s;
  return *std::max_element(all_us.begin(), all_us.end());
}

absl::StatusOr<GpuChoice> Choose(Device& device, Collectives& group, const GpuLinks& links,
                                 const CudaCollectivesOptions& options, const GpuWays& ways) {
  GpuChoice choice;
  std::string& text = choice.description;
  text = absl::StrCat("collectives of ", group.size(), " GPUs, epoch ", options.rendezvous.epoch,
                      ": ");
  if (group.size() == 1 && links.nccl == nullptr) {
    text += "nothing to do";
    return choice;
  }
  const absl::StatusOr<std::vector<Times>> measured = MeasureWays(device, group, links, ways);
  if (!measured.ok()) return measured.status();
  if (links.peer != nullptr) {
    for (const Times& times : *measured) {
      if (links.nccl != nullptr && times.peer_us > times.nccl_us) break;
      choice.one_shot_bytes = std::min(times.bytes, options.one_shot_bytes);
    }
    absl::StrAppend(&text, "peer memory (", links.peer_form,
                    links.one_gpu ? ", ranks take turns on one GPU" : "", ") up to ",
                    choice.one_shot_bytes / 1024, " KiB at once, ",
                    Describe(*measured, &Times::peer_us));
  } else {
    absl::StrAppend(&text, "no peer memory (", WhyNot(links.peer_form), ")");
  }
  if (links.nccl == nullptr) {
    absl::StrAppend(&text, "; no NCCL (", WhyNot(links.nccl_form), ")");
    return choice;
  }
  const absl::StatusOr<double> gbs = MeasureNcclGbs(device, group, ways.by_nccl);
  if (!gbs.ok()) return gbs.status();
  if (group.size() > 1 && *gbs < options.nccl_gbs_min) {
    return absl::FailedPreconditionError(
        absl::StrFormat("NCCL moves %.1f GB/s between GPUs of this machine, as over sockets; "
                        "expected %.1f or more (is /dev/shm too small, or a NCCL_* variable set?)",
                        *gbs, options.nccl_gbs_min));
  }
  absl::StrAppend(&text, "; ", links.nccl_form, " ", Describe(*measured, &Times::nccl_us),
                  absl::StrFormat(", 16 MiB at %.0f GB/s a link", *gbs));
  return choice;
}

}  // namespace quartet
