#include "tests/support/simt/simt.h"

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace quartet::simt {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kGuardBytes = 4096;
constexpr unsigned char kGuard = 0xA5;
constexpr int kWarpLanes = 32;

std::map<std::string, Registered>& Table() {
  static std::map<std::string, Registered> table;
  return table;
}

[[noreturn]] void Die(const std::string& kernel, const std::string& what) {
  std::fprintf(stderr, "simt: kernel %s: %s\n", kernel.c_str(), what.c_str());
  std::abort();
}

enum class Wait { kNone, kWarp, kBlock };

struct Warp;

struct Thread {
  ThreadIndex index;
  int lane = 0;
  Warp* warp = nullptr;
  Wait wait = Wait::kNone;
  bool done = false;
  context::fiber fiber;
  context::fiber scheduler;
};

struct Warp {
  Thread* threads = nullptr;
  int count = 0;
  uint32_t live = 0;
  int parity = 0;  // which exchange area the next exchange uses
  alignas(16) unsigned char areas[2][kWarpLanes * kExchangeStride];
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  int count_sum = 0;
  int count_result = 0;
  const char* name = "";
};

thread_local Block* current_block = nullptr;
thread_local Thread* current = nullptr;

void Pause(Wait wait) {
  Thread* self = current;
  self->wait = wait;
  self->scheduler = std::move(self->scheduler).resume();
}

void RunThread(Thread& thread) {
  current = &thread;
  thread.wait = Wait::kNone;
  thread.fiber = std::move(thread.fiber).resume();
}

// Runs every lane until it waits or ends; releases the warp's own barriers until all lanes wait for
// the block or have ended.
void RunWarp(Block& block, Warp& warp) {
  while (true) {
    int at_warp = 0;
    int at_block = 0;
    for (int i = 0; i < warp.count; ++i) {
      Thread& thread = warp.threads[i];
      if (thread.done) continue;
      if (thread.wait == Wait::kNone) RunThread(thread);
      if (thread.done) {
        warp.live &= ~(1u << i);
        continue;
      }
      at_warp += thread.wait == Wait::kWarp;
      at_block += thread.wait == Wait::kBlock;
    }
    if (at_warp == 0) return;
    if (at_block != 0) {
      Die(block.name, "lanes of one warp wait at a warp operation and at a block barrier");
    }
    warp.parity ^= 1;
    for (int i = 0; i < warp.count; ++i) {
      if (!warp.threads[i].done) warp.threads[i].wait = Wait::kNone;
    }
  }
}

void RunBlock(Block& block) {
  while (true) {
    bool live = false;
    for (Warp& warp : block.warps) {
      RunWarp(block, warp);
      live |= warp.live != 0;
    }
    if (!live) return;
    // Every live thread waits for the block. CUDA lets ended threads count as arrived.
    block.count_result = block.count_sum;
    block.count_sum = 0;
    for (Thread& thread : block.threads) {
      if (!thread.done) thread.wait = Wait::kNone;
    }
  }
}

}  // namespace

bool Register(const char* name, int max_threads, size_t param_bytes, Body body) {
  if (!Table().emplace(name, Registered{max_threads, param_bytes, body}).second) {
    Die(name, "is defined twice");
  }
  return true;
}

const Registered* FindKernel(const char* name) {
  const auto it = Table().find(name);
  return it == Table().end() ? nullptr : &it->second;
}

void Run(const Registered& kernel, const char* name, Dim3 grid, unsigned threads,
         size_t shared_bytes, const void* params) {
  if (threads == 0 || threads > static_cast<unsigned>(kernel.max_threads)) {
    Die(name, "launched with " + std::to_string(threads) + " threads, its bound is " +
                  std::to_string(kernel.max_threads));
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
    Die(name, "launched with a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) +
                  " x " + std::to_string(grid.z));
  }
  static thread_local context::pooled_fixedsize_stack stacks(kStackBytes);
  Block block;
  block.name = name;
  block.shared.resize(shared_bytes + kGuardBytes + 16);
  block.threads.resize(threads);
  block.warps.resize((threads + kWarpLanes - 1) / kWarpLanes);
  current_block = &block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        // Poisoned, so that reading before writing shows as NaN.
        std::memset(block.shared.data(), 0xFF, block.shared.size());
        unsigned char* guard = DynamicShared() + shared_bytes;
        std::memset(guard, kGuard, kGuardBytes - 16);
        for (size_t w = 0; w < block.warps.size(); ++w) {
          Warp& warp = block.warps[w];
          warp.threads = &block.threads[w * kWarpLanes];
          warp.count = static_cast<int>(std::min<size_t>(kWarpLanes, threads - w * kWarpLanes));
          warp.live = warp.count == kWarpLanes ? 0xFFFFFFFFu : (1u << warp.count) - 1;
          warp.parity = 0;
          std::memset(warp.areas, 0, sizeof(warp.areas));
        }
        for (unsigned t = 0; t < threads; ++t) {
          Thread& thread = block.threads[t];
          thread.index = {{t, 0, 0}, {x, y, z}, {threads, 1, 1}, grid};
          thread.lane = static_cast<int>(t % kWarpLanes);
          thread.warp = &block.warps[t / kWarpLanes];
          thread.wait = Wait::kNone;
          thread.done = false;
          thread.fiber = context::fiber(std::allocator_arg, stacks,
                                        [&thread, &kernel, params](context::fiber&& scheduler) {
                                          thread.scheduler = std::move(scheduler);
                                          kernel.body(params);
                                          thread.done = true;
                                          return std::move(thread.scheduler);
                                        });
        }
        RunBlock(block);
        for (size_t i = 0; i < kGuardBytes - 16; ++i) {
          if (guard[i] != kGuard) {
            Die(name, "wrote beyond its " + std::to_string(shared_bytes) +
                          " bytes of dynamic shared memory, at byte " +
                          std::to_string(shared_bytes + i));
          }
        }
      }
    }
  }
  current = nullptr;
  current_block = nullptr;
}

const ThreadIndex& Index() {
  return current->index;
}

unsigned char* DynamicShared() {
  const auto at = reinterpret_cast<uintptr_t>(current_block->shared.data());
  return current_block->shared.data() + ((at + 15) / 16 * 16 - at);
}

void BlockBarrier() {
  Pause(Wait::kBlock);
}

int BlockBarrierCount(int predicate) {
  current_block->count_sum += predicate != 0;
  Pause(Wait::kBlock);
  return current_block->count_result;
}

void WarpBarrier() {
  Pause(Wait::kWarp);
}

const unsigned char* ExchangeWarp(const void* value, size_t bytes) {
  Warp& warp = *current->warp;
  unsigned char* area = warp.areas[warp.parity];
  std::memcpy(area + static_cast<size_t>(current->lane) * kExchangeStride, value, bytes);
  Pause(Wait::kWarp);
  return area;
}

int LaneIndex() {
  return current->lane;
}

uint32_t LiveLanes() {
  return current->warp->live;
}

namespace {

struct MmaOperands {
  uint32_t a[4];
  uint32_t b[2];
};

float Low(uint32_t pair) {
  return HalfBitsToFloat(static_cast<uint16_t>(pair));
}
float High(uint32_t pair) {
  return HalfBitsToFloat(static_cast<uint16_t>(pair >> 16));
}

}  // namespace

void MmaM16n8k16(float* d, const uint32_t* a, const uint32_t* b) {
  const MmaOperands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const unsigned char* all = ExchangeWarp(&mine, sizeof(mine));
  const int lane = LaneIndex();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i >> 1);
    const int col = 2 * (lane % 4) + (i & 1);
    float sum = 0.0f;
    for (int pair = 0; pair < 8; ++pair) {  // k = 2 pair and the one after it
      const auto from_a = FromLane<MmaOperands>(all, (row % 8) * 4 + pair % 4);
      const auto from_b = FromLane<MmaOperands>(all, col * 4 + pair % 4);
      const uint32_t x = from_a.a[row / 8 + 2 * (pair / 4)];
      const uint32_t w = from_b.b[pair / 4];
      sum += Low(x) * Low(w) + High(x) * High(w);
    }
    d[i] += sum;
  }
}

void MmaM8n8k4(float* d, const uint32_t* a, const uint32_t* b) {
  const MmaOperands mine = {{a[0], a[1], 0, 0}, {b[0], b[1]}};
  const unsigned char* all = ExchangeWarp(&mine, sizeof(mine));
  const int lane = LaneIndex();
  const int pair_base = lane & 0xC;
  const auto lane_of = [&](int index) { return pair_base + (index & 3) + 16 * (index >> 2); };
  for (int i = 0; i < 8; ++i) {
    const int row = (lane & 1) + 2 * (i >> 1 & 1) + 4 * (lane >> 4);
    const int col = 4 * (i >> 2 & 1) + (lane & 2) + (i & 1);
    const auto x = FromLane<MmaOperands>(all, lane_of(row));
    const auto w = FromLane<MmaOperands>(all, lane_of(col));
    for (int k = 0; k < 2; ++k) {
      d[i] += Low(x.a[k]) * Low(w.b[k]) + High(x.a[k]) * High(w.b[k]);
    }
  }
}

float HalfBitsToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t FloatToHalfBits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // 65520 and more
  if (magnitude < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

}  // namespace quartet::simt
