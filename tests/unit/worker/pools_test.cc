#include "shard_worker/memory/pools.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/host_memory.h"

namespace quartet {
namespace {

ModelConfig Config(const std::string& dir) {
  return ReadModelConfig(QUARTET_SOURCE_DIR + dir).value();
}

TEST(HostMemoryTest, IsZeroAndAligned) {
  const ops::Memory memory = cpu::AllocateHostMemory(1000, "test").value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % ops::kMemoryAlignment, 0u);
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
}

TEST(HostMemoryTest, TooMuchIsAnErrorThatNamesTheUse) {
  const absl::Status status = cpu::AllocateHostMemory(size_t{1} << 62, "pages").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(std::string(status.message()).find("pages"), std::string::npos);
}

TEST(HostMemoryTest, CutterMeasuresWhatItCuts) {
  ops::MemoryCutter measure;
  EXPECT_EQ(measure.Take<float>(3), nullptr);
  measure.Take<int32_t>(17);
  const ops::Memory memory = cpu::AllocateHostMemory(measure.used(), "test").value();
  ops::MemoryCutter cutter(memory.data());
  const auto* a = reinterpret_cast<std::byte*>(cutter.Take<float>(3));
  const auto* b = reinterpret_cast<std::byte*>(cutter.Take<int32_t>(17));
  EXPECT_EQ(a, memory.data());
  EXPECT_EQ(b, memory.data() + 64);
  EXPECT_EQ(cutter.used(), measure.used());
}

TEST(PoolsTest, SizesAreThoseOfTheMemoryPlan) {
  const auto backend = cpu::MakeCpuBackend({});
  for (const std::string dir : {"/tests/data/model", "/models/quartet-demo-exl3"}) {
    const ModelConfig config = Config(dir);
    for (const int tp : {1, 2, 4}) {
      for (const KvDtype dtype : {KvDtype::kFp32, KvDtype::kFp16, KvDtype::kFp8E4m3}) {
        const auto pools =
            Pools::Create(config, tp,
                          {.slots = 2, .pages = 3, .draft_tokens = 3, .kv_dtype = dtype}, *backend)
                .value();
        EXPECT_EQ(pools->slot_bytes(), StateSlotBytes(config, tp, 3));
        EXPECT_EQ(pools->page_bytes(), PageBytes(config, dtype));
        EXPECT_EQ(pools->snapshot_bytes(), SnapshotBytes(config, tp));
      }
    }
  }
}

// Writes a different value into every part of every slot and page: no part may lie in another.
TEST(PoolsTest, PartsDoNotOverlap) {
  const ModelConfig config = Config("/tests/data/model");
  const auto backend = cpu::MakeCpuBackend({});
  constexpr int kSlots = 2;
  constexpr int kPages = 3;
  const auto pools =
      Pools::Create(
          config, 2,
          {.slots = kSlots, .pages = kPages, .draft_tokens = 3, .kv_dtype = KvDtype::kFp32},
          *backend)
          .value();
  std::set<const void*> seen;
  size_t floats = 0;
  const auto mark = [&](float* data, int64_t count) {
    for (int64_t i = 0; i < count; ++i) EXPECT_TRUE(seen.insert(data + i).second);
    floats += count;
    std::fill(data, data + count, 1.0f);
  };
  for (int slot = 0; slot < kSlots; ++slot) {
    mark(const_cast<float*>(pools->hidden(slot)), config.hidden);
  }
  for (int layer = 0; layer <= config.layers; ++layer) {
    const bool kda = layer < config.layers && config.attention[layer] == AttentionKind::kKda;
    for (int slot = 0; slot < kSlots; ++slot) {
      if (kda) {
        const ops::KdaState state = pools->kda_state(layer);
        mark(state.recurrent + slot * state.recurrent_slot_stride, pools->recurrent_floats());
        mark(state.conv + slot * state.conv_slot_stride, pools->conv_floats());
        const ops::KdaWindow& window = state.window;
        EXPECT_EQ(window.rows, 8);
        const int64_t heads = config.kda_heads / 2;
        const int64_t row = heads * config.kda_head_dim;
        mark(window.conv + slot * window.slot_stride, 8 * 3 * row);
        mark(window.k + slot * window.slot_stride, 8 * row);
        mark(window.v + slot * window.slot_stride, 8 * row);
        mark(window.g + slot * window.slot_stride, 8 * row);
        mark(window.beta + slot * window.slot_stride, 8 * heads);
      } else {
        const ops::OpenPool open = pools->open_pool(layer);
        EXPECT_EQ(open.ring_rows, 8);
        mark(open.data + slot * open.slot_stride, open.ring_rows * 2 * config.index_head_dim);
      }
    }
    if (kda) continue;
    const ops::KvLayer kv = pools->kv(layer);
    for (int page = 0; page < kPages; ++page) {
      std::byte* base = kv.data + page * kv.page_stride;
      mark(reinterpret_cast<float*>(base + kv.latent_offset), kTokensPerPage * config.kv_lora_rank);
      mark(reinterpret_cast<float*>(base + kv.pool_key_offset),
           kTokensPerPage / config.index_kpool * config.index_head_dim);
    }
  }
  EXPECT_EQ(floats * sizeof(float),
            static_cast<size_t>(kSlots * pools->slot_bytes() + kPages * pools->page_bytes()));
}

TEST(PoolsTest, ASnapshotIsWhatASlotWasWithItsHiddenRow) {
  const ModelConfig config = Config("/tests/data/model");
  const auto backend = cpu::MakeCpuBackend({});
  const auto pools =
      Pools::Create(config, 1, {.slots = 2, .pages = 1, .snapshots = 2}, *backend).value();
  const ops::KdaState state = pools->kda_state(8);
  state.recurrent[5] = 3;
  state.conv[7] = 4;
  state.window.k[0] = 5;
  std::vector<float> hidden(config.hidden, 6);
  pools->KeepHidden(0, hidden.data());
  pools->Export(0, 1);
  state.recurrent[5] = state.conv[7] = 0;
  hidden.assign(config.hidden, 0);
  pools->KeepHidden(0, hidden.data());
  pools->Restore(1, 1);
  EXPECT_EQ(state.recurrent[state.recurrent_slot_stride + 5], 3);
  EXPECT_EQ(state.conv[state.conv_slot_stride + 7], 4);
  EXPECT_EQ(pools->hidden(1)[config.hidden - 1], 6);
  EXPECT_EQ(state.window.k[state.window.slot_stride], 0) << "no part of a snapshot";
}

TEST(PoolsTest, NeedAtLeastOneOfEach) {
  const ModelConfig config = Config("/tests/data/model");
  const auto backend = cpu::MakeCpuBackend({});
  EXPECT_FALSE(Pools::Create(config, 1, {.slots = 0, .pages = 1}, *backend).ok());
  EXPECT_FALSE(Pools::Create(config, 1, {.slots = 1, .pages = 0}, *backend).ok());
}

}  // namespace
}  // namespace quartet
