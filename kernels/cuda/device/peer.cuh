#ifndef QUARTET_KERNELS_CUDA_DEVICE_PEER_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_PEER_CUH_

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/peer_params.h"

#ifdef QUARTET_SIMT
#include <chrono>
#endif

// The device side of peer_params.h. A kernel of kPeerBlocks blocks makes one call, like this:
//
//   const PeerCall call = BeginPeerCall(group, block);   // all threads of the block
//   SendPacket(group, call, slot, packet);               // any number, each slot once, slot 0 too
//   ReceivePackets(group, call, slot, packets);          // waits
//
// PeerAllReduce is such a kernel's body, for ops that go on with the sum.

namespace quartet::cuda {

// Single accesses that other devices and the host see as they are, without order among them.
// sm_70 and up.
QUARTET_DEVICE void StoreSystem(Packet* to, const Packet& packet) {
#ifdef QUARTET_SIMT
  *to = packet;
#else
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(packet.words[0]),
               "l"(packet.words[1])
               : "memory");
#endif
}
QUARTET_DEVICE Packet LoadSystem(const Packet* from) {
#ifdef QUARTET_SIMT
  return *from;
#else
  Packet packet;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(packet.words[0]), "=l"(packet.words[1])
               : "l"(from)
               : "memory");
  return packet;
#endif
}
QUARTET_DEVICE void StoreSystem(uint32_t* to, uint32_t value) {
#ifdef QUARTET_SIMT
  *to = value;
#else
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#endif
}
QUARTET_DEVICE uint32_t LoadSystem(const uint32_t* from) {
#ifdef QUARTET_SIMT
  return *from;
#else
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#endif
}
QUARTET_DEVICE void FenceSystem() {
#ifndef QUARTET_SIMT
  __threadfence_system();
#endif
}

QUARTET_DEVICE uint64_t WallNanoseconds() {
#ifdef QUARTET_SIMT
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#else
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#endif
}
QUARTET_DEVICE void Nap([[maybe_unused]] uint32_t nanoseconds) {
#ifndef QUARTET_SIMT
  __nanosleep(nanoseconds);
#endif
}

struct PeerCall {
  uint32_t number;
  uint32_t tag;
  bool failed;  // the group is unusable: nothing may be sent or awaited
};

// Makes the group unusable. `error`: see PeerSignals; 0 where the host knows the reason.
QUARTET_DEVICE void FailPeerGroup(const PeerGroup& group, uint32_t call, uint32_t error) {
  if (atomicExch(&group.state->failed, 1u) != 0 || error == 0) return;
  StoreSystem(&group.signals->error_call, call);
  FenceSystem();
  StoreSystem(&group.signals->error, error);
}

inline constexpr uint32_t kForgetCalls = 1u << 23;

// Clears the area of the next call, so that no tag in it can come true again.
QUARTET_DEVICE void ForgetNextArea(const PeerGroup& group, uint32_t call) {
  Packet* area = group.inboxes[group.rank] + PeerArea(group, call + 1, 0);
  const int64_t packets = static_cast<int64_t>(group.size) * group.capacity;
  for (int64_t i = threadIdx.x; i < packets; i += blockDim.x) StoreSystem(area + i, Packet{});
  FenceSystem();
  __syncthreads();
}

// For all threads of `block` of kPeerBlocks. Everybody's slot 0 is sent by block 0, which clears
// before it sends.
QUARTET_DEVICE PeerCall BeginPeerCall(const PeerGroup& group, unsigned block) {
  PeerCall call;
  call.number = group.state->calls[block];
  call.tag = PeerTag(group.epoch, call.number);
  call.failed = group.state->failed != 0;
  __syncthreads();
  if (threadIdx.x == 0) group.state->calls[block] = call.number + 1;
  if (block == 0 && call.number % kForgetCalls <= 1) ForgetNextArea(group, call.number);
  return call;
}

QUARTET_DEVICE Packet MakePacket(const PeerCall& call, uint32_t low, uint32_t high) {
  const uint64_t tag = static_cast<uint64_t>(call.tag) << 32;
  return {{tag | low, tag | high}};
}
QUARTET_DEVICE uint32_t PacketData(const Packet& packet, int word) {
  return static_cast<uint32_t>(packet.words[word]);
}

// To all other ranks.
QUARTET_DEVICE void SendPacket(const PeerGroup& group, const PeerCall& call, int64_t slot,
                               const Packet& packet) {
  const int64_t at = PeerArea(group, call.number, group.rank) + slot;
#pragma unroll
  for (int r = 0; r < kMaxPeers; ++r) {
    if (r < group.size && r != group.rank) StoreSystem(group.inboxes[r] + at, packet);
  }
}

// Polls until the group fails or the wall time is over. A peer is usually a microsecond away;
// after some time it pays to leave the memory and the other ranks of this GPU alone.
class PeerWait {
 public:
  // After a poll that lacked `missing`, a set of ranks. False: give up.
  QUARTET_DEVICE bool Continue(const PeerGroup& group, const PeerCall& call, uint32_t missing) {
    if (++polls_ > kPollsBetweenLooks) Nap(kNapNanoseconds);
    if (polls_ % kPollsBetweenLooks != 0) return true;
    if (LoadSystem(&group.state->failed) != 0) return false;
    const uint64_t now = WallNanoseconds();
    if (polls_ == kPollsBetweenLooks) deadline_ = now + group.timeout_ns;
    if (now >= deadline_) {
      FailPeerGroup(group, call.number, static_cast<uint32_t>(__ffs(static_cast<int>(missing))));
      return false;
    }
    if (LoadSystem(&group.signals->abort) != 0) {
      FailPeerGroup(group, call.number, 0);
      return false;
    }
    return true;
  }

 private:
  static constexpr uint32_t kPollsBetweenLooks = 128;  // about 100 us
  static constexpr uint32_t kNapNanoseconds = 500;

  uint32_t polls_ = 0;
  uint64_t deadline_ = 0;
};

// What all other ranks sent for this slot, by rank; the own entry stays as it is. False: the group
// has failed.
QUARTET_DEVICE bool ReceivePackets(const PeerGroup& group, const PeerCall& call, int64_t slot,
                                   Packet (&packets)[kMaxPeers]) {
  const Packet* inbox = group.inboxes[group.rank] + PeerArea(group, call.number, 0) + slot;
  PeerWait wait;
  while (true) {
#pragma unroll
    for (int r = 0; r < kMaxPeers; ++r) {
      if (r < group.size && r != group.rank) {
        packets[r] = LoadSystem(inbox + static_cast<int64_t>(r) * group.capacity);
      }
    }
    uint32_t missing = 0;
#pragma unroll
    for (int r = 0; r < kMaxPeers; ++r) {
      if (r < group.size && r != group.rank &&
          (packets[r].words[0] >> 32 != call.tag || packets[r].words[1] >> 32 != call.tag)) {
        missing |= 1u << r;
      }
    }
    if (missing == 0) return true;
    if (!wait.Continue(group, call, missing)) return false;
  }
}

// ---- whole operations, by the threads of `block` of kPeerBlocks

// Two floats, the second 0 where there is none.
QUARTET_DEVICE float2 LoadPair(const float* data, int64_t slot, int64_t count) {
  if (2 * slot + 1 < count) return *reinterpret_cast<const float2*>(data + 2 * slot);
  return make_float2(data[2 * slot], 0.0f);
}

// Sums in the order of ranks. `partial` and `sum` are aligned to 8 bytes and may be the same.
QUARTET_DEVICE void PeerAllReduce(const PeerGroup& group, unsigned block, const float* partial,
                                  float* sum, int64_t count) {
  constexpr int64_t kStep = int64_t{kPeerBlocks} * kPeerThreads;
  const int64_t first = int64_t{block} * kPeerThreads + threadIdx.x;
  const int64_t slots = (count + 1) / 2;
  // Under way while the call's number is being read.
  const float2 early = first < slots ? LoadPair(partial, first, count) : make_float2(0.0f, 0.0f);
  const PeerCall call = BeginPeerCall(group, block);
  if (call.failed) return;
  for (int64_t slot = first; slot < slots; slot += kStep) {
    const float2 own = slot == first ? early : LoadPair(partial, slot, count);
    SendPacket(group, call, slot, MakePacket(call, __float_as_uint(own.x), __float_as_uint(own.y)));
  }
  for (int64_t slot = first; slot < slots; slot += kStep) {
    const float2 own = slot == first ? early : LoadPair(partial, slot, count);
    Packet packets[kMaxPeers];
    if (!ReceivePackets(group, call, slot, packets)) return;
    float2 total = own;
#pragma unroll
    for (int r = 0; r < kMaxPeers; ++r) {
      if (r >= group.size) continue;
      const float2 part = r == group.rank ? own
                                          : make_float2(__uint_as_float(PacketData(packets[r], 0)),
                                                        __uint_as_float(PacketData(packets[r], 1)));
      total = r == 0 ? part : make_float2(total.x + part.x, total.y + part.y);
    }
    if (2 * slot + 1 < count) {
      *reinterpret_cast<float2*>(sum + 2 * slot) = total;
    } else {
      sum[2 * slot] = total.x;
    }
  }
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_PEER_CUH_
