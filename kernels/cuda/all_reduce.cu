#include "kernels/cuda/device/peer.cuh"

namespace quartet::cuda {

QUARTET_KERNEL(peer_all_reduce, kPeerThreads, 1, PeerAllReduceParams) {
  PeerAllReduce(p.group, blockIdx.x, p.partial, p.sum, p.count);
}

// 4 bytes of a message at any address and of any length.
QUARTET_DEVICE uint32_t LoadBytes(const uint8_t* data, int64_t at, int64_t bytes) {
  if (at >= bytes) return 0;
  if (at + 4 <= bytes && reinterpret_cast<uintptr_t>(data + at) % 4 == 0) {
    return *reinterpret_cast<const uint32_t*>(data + at);
  }
  uint32_t word = 0;
  for (int i = 0; i < 4 && at + i < bytes; ++i) word |= uint32_t{data[at + i]} << (8 * i);
  return word;
}
QUARTET_DEVICE void StoreBytes(uint8_t* data, int64_t at, int64_t bytes, uint32_t word) {
  if (at + 4 <= bytes && reinterpret_cast<uintptr_t>(data + at) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(data + at) = word;
    return;
  }
  for (int i = 0; i < 4 && at + i < bytes; ++i) {
    data[at + i] = static_cast<uint8_t>(word >> (8 * i));
  }
}
QUARTET_DEVICE void StorePacket(const PeerAllGatherParams& p, int rank, int64_t slot, uint32_t low,
                                uint32_t high) {
  uint8_t* to = p.all + rank * p.stride;
  StoreBytes(to, 8 * slot, p.bytes, low);
  StoreBytes(to, 8 * slot + 4, p.bytes, high);
}

QUARTET_KERNEL(peer_all_gather, kPeerThreads, 1, PeerAllGatherParams) {
  const PeerCall call = BeginPeerCall(p.group, blockIdx.x);
  if (call.failed) return;
  constexpr int64_t kStep = int64_t{kPeerBlocks} * kPeerThreads;
  const int64_t first = int64_t{blockIdx.x} * kPeerThreads + threadIdx.x;
  const int64_t slots = (p.bytes + 7) / 8;
  for (int64_t slot = first; slot < slots; slot += kStep) {
    const uint32_t low = LoadBytes(p.local, 8 * slot, p.bytes);
    const uint32_t high = LoadBytes(p.local, 8 * slot + 4, p.bytes);
    SendPacket(p.group, call, slot, MakePacket(call, low, high));
    StorePacket(p, p.group.rank, slot, low, high);
  }
  for (int64_t slot = first; slot < slots; slot += kStep) {
    Packet packets[kMaxPeers];
    if (!ReceivePackets(p.group, call, slot, packets)) return;
#pragma unroll
    for (int r = 0; r < kMaxPeers; ++r) {
      if (r < p.group.size && r != p.group.rank) {
        StorePacket(p, r, slot, PacketData(packets[r], 0), PacketData(packets[r], 1));
      }
    }
  }
}

// What the ranks' streams did before is seen by all that they do after.
QUARTET_KERNEL(peer_barrier, kPeerThreads, 1, PeerBarrierParams) {
  const PeerCall call = BeginPeerCall(p.group, blockIdx.x);
  if (call.failed || blockIdx.x != 0 || threadIdx.x != 0) return;
  FenceSystem();
  SendPacket(p.group, call, 0, MakePacket(call, 0, 0));
  Packet packets[kMaxPeers];
  if (ReceivePackets(p.group, call, 0, packets)) FenceSystem();
}

// Tells the host how far the stream has come.
QUARTET_KERNEL(collective_mark, 32, 1, CollectiveMarkParams) {
  if (threadIdx.x == 0) StoreSystem(p.counter, LoadSystem(p.counter) + 1);
}

}  // namespace quartet::cuda
