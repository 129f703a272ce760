#ifndef QUARTET_KERNELS_CUDA_PEER_PARAMS_H_
#define QUARTET_KERNELS_CUDA_PEER_PARAMS_H_

#include <cstdint>

// How ranks talk through each other's memory.
//
// Every rank has an inbox that all ranks can write. A message travels as packets of 16 bytes: two
// 64-bit words, each with 32 bits of data and a 32-bit tag that names the call. A 64-bit word is
// written and read whole, so whoever finds the call's tag has the call's data beside it: no flag,
// no fence, one trip over the link. The price is twice the bytes, which short messages do not feel.
//
// An inbox has an area for each sender and each parity of the call's number:
//   Packet inbox[parity: 2][sender: size][slot: capacity]
// Two parities suffice: every call moves at least one packet from each rank to each other, so a
// rank that sends call n + 2 has heard from all in call n + 1, whose kernels start only after those
// of call n have read everything.
//
// Tags hold 24 bits of the call's number, so a slot must not lie unread for 2^24 calls. Every 2^23
// calls a rank clears the area of the other parity before it sends: nobody can have written there
// yet for the next call, which waits for this one.

namespace quartet::cuda {

inline constexpr int kMaxPeers = 8;
// All kernels of a group have this grid, because each block counts the calls for itself.
inline constexpr unsigned kPeerBlocks = 32;
inline constexpr unsigned kPeerThreads = 256;

struct alignas(16) Packet {
  uint64_t words[2];  // data | tag << 32
};

// A rank's own, in its device memory.
struct PeerState {
  uint32_t calls[kPeerBlocks];  // made so far; the same for all blocks between kernels
  uint32_t failed;              // all further calls do nothing
};

// Between a rank's device and its host, in pinned memory.
struct PeerSignals {
  uint32_t abort;  // by the host: waiting kernels give up
  uint32_t error;  // by the device: 1 + the rank that did not send in time
  uint32_t error_call;
};

struct PeerGroup {
  Packet* inboxes[kMaxPeers];  // by rank, as this rank's device sees them
  PeerState* state;
  PeerSignals* signals;
  uint64_t timeout_ns;  // of one wait
  uint32_t capacity;    // packets of an area
  uint32_t epoch;       // 7 bits of it are in every tag
  int32_t rank;
  int32_t size;
};

constexpr uint32_t PeerTag(uint32_t epoch, uint32_t call) {
  return 0x80000000u | (epoch & 0x7Fu) << 24 | (call & 0xFFFFFFu);  // never 0: empty memory
}
constexpr int64_t PeerArea(const PeerGroup& group, uint32_t call, int sender) {
  return (static_cast<int64_t>(call & 1) * group.size + sender) * group.capacity;
}

struct PeerAllReduceParams {
  PeerGroup group;
  const float* partial;
  float* sum;     // may be `partial`
  int64_t count;  // at most 2 * capacity
};

struct PeerAllGatherParams {
  PeerGroup group;
  const uint8_t* local;
  uint8_t* all;   // of rank r: at all + r * stride
  int64_t bytes;  // of each rank, at most 8 * capacity
  int64_t stride;
};

struct PeerBarrierParams {
  PeerGroup group;
};

struct CollectiveMarkParams {
  uint32_t* counter;  // in pinned memory; one more
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_PEER_PARAMS_H_
