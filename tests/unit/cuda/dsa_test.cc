// DsaProject and the three ops as a layer runs them, against the CPU.

#include "tests/unit/cuda/dsa_support.h"

namespace quartet::testing {
namespace {

constexpr int kRingRows = 8;

struct Piece {
  int sequence;
  int rows;
};

// A layer on both sides, with the caches of two sequences in slots 2 and 0.
class DsaOnCuda : public CudaOps {
 protected:
  static constexpr int kSlots[2] = {2, 0};

  // Unequal to every value that a test expects.
  static std::vector<float> RingAtFirst(const DsaShape& s) {
    return std::vector<float>(3 * SlotStride(s), -7777.0f);
  }
  static int64_t SlotStride(const DsaShape& s) { return kRingRows * 2 * s.index_dim + 16; }

  std::vector<ops::Segment> Segments(const TwinPages& kv, const std::vector<Piece>& step,
                                     std::vector<int>& positions) {
    std::vector<ops::Segment> segments;
    int row = 0;
    for (const Piece& piece : step) {
      segments.push_back({row, piece.rows, kSlots[piece.sequence], positions[piece.sequence],
                          kv.pages(piece.sequence)});
      row += piece.rows;
      positions[piece.sequence] += piece.rows;
    }
    return segments;
  }

  static int RowsOf(const std::vector<ops::Segment>& segments) {
    return segments.back().row_begin + segments.back().rows;
  }
};

// Stored latents, made of 16-bit inputs on one side. An E4M3 value that lies near the middle of two
// codes may round either way, by one code; up to 1.1 % did.
void ExpectSameLatents(const std::vector<float>& got, const std::vector<float>& expected,
                       ops::KvDType dtype) {
  if (dtype != ops::KvDType::kF8E4M3) {
    EXPECT_LT(RelativeL2(got, expected), 2e-3);
    return;
  }
  ASSERT_EQ(got.size(), expected.size());
  constexpr float kSmallestStep = 1.0f / 512;
  size_t different = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    different += got[i] != expected[i];
    const float step = std::max(std::fabs(got[i]), std::fabs(expected[i])) / 8 + kSmallestStep;
    ASSERT_LE(std::fabs(got[i] - expected[i]), step) << i;
  }
  EXPECT_LE(different, 3 + 2 * got.size() / 100);
}

class DsaProjectForms : public DsaOnCuda, public ::testing::WithParamInterface<ops::KvDType> {
 protected:
  // Runs the steps on both sides and compares everything after each.
  void Follow(const DsaShape& s, const std::vector<std::vector<Piece>>& steps) {
    const DsaWeights weights(s);
    const auto oracle = Must(cpu_->PrepareDsaProject(weights.mla(), weights.indexer()));
    const auto op = Must(cuda_->PrepareDsaProject(weights.mla(), weights.indexer()));
    TwinPages kv(*device_, s, GetParam(), 2, 256);
    std::vector<float> ring = RingAtFirst(s);
    const cuda::Buffer device_ring = Upload(ring);
    std::vector<int> positions = {0, 0};
    uint32_t seed = 100;
    for (const auto& step : steps) {
      const auto segments = Segments(kv, step, positions);
      const int rows = RowsOf(segments);
      const auto x = RandomFloats(rows * s.hidden, 1.0f, ++seed);
      std::vector<float> latent(rows * s.q_rank), index_w(rows * s.index_heads);
      oracle->Run(x.data(), segments, rows, kv.host(), {ring.data(), SlotStride(s), kRingRows},
                  {latent.data(), index_w.data()}, Scratch(oracle->WorkspaceBytes(rows)));
      const auto dx = Upload(x);
      const auto dlatent = Poisoned<float>(latent.size());
      const auto diw = Poisoned<float>(index_w.size());
      Must(cuda_->BeginStep({}, segments));
      op->Run(dx.as<float>(), segments, rows, kv.device(),
              {device_ring.as<float>(), SlotStride(s), kRingRows},
              {dlatent.as<float>(), diw.as<float>()}, Workspace(op->WorkspaceBytes(rows)));
      SCOPED_TRACE(NameOf(GetParam()) + " at " + std::to_string(positions[0]) + ", " +
                   std::to_string(positions[1]));
      EXPECT_LT(RelativeL2(Download<float>(dlatent, latent.size()), latent), 2e-3);
      EXPECT_LT(RelativeL2(Download<float>(diw, index_w.size()), index_w), 1e-5);
      EXPECT_LT(RelativeL2(Download<float>(device_ring, ring.size()), ring), 2e-3);
      ExpectSameCaches(kv, positions);
    }
  }

  void ExpectSameCaches(const TwinPages& kv, const std::vector<int>& positions) {
    const TwinPages::Snapshot now(kv);
    for (int sequence = 0; sequence < 2; ++sequence) {
      if (positions[sequence] == 0) continue;
      SCOPED_TRACE(sequence);
      ExpectSameLatents(kv.Latents(now.layer(), sequence, positions[sequence]),
                        kv.Latents(kv.host(), sequence, positions[sequence]), GetParam());
      if (positions[sequence] < 4) continue;
      EXPECT_LT(RelativeL2(kv.PoolKeys(now.layer(), sequence, positions[sequence]),
                           kv.PoolKeys(kv.host(), sequence, positions[sequence])),
                2e-3);
    }
    EXPECT_EQ(kv.StrayBytes(now, positions), 0u);
  }
};

TEST_P(DsaProjectForms, AppendsInPiecesOfAnyLength) {
  const std::vector<std::vector<Piece>> steps = {
      {{0, 5}, {1, 9}}, {{1, 3}, {0, 1}}, {{0, 4}, {1, 1}},  {{1, 9}, {0, 3}},
      {{0, 1}},         {{1, 1}, {0, 1}}, {{0, 17}, {1, 4}}, {{1, 8}, {0, 7}}};
  Follow(kMini, steps);
  Follow(kOdd, steps);
  if (!TestDeviceIsEmulated()) Follow(kReal, steps);
}

TEST_P(DsaProjectForms, ALongPieceLeavesTheNewestRowsInTheRing) {
  Follow(kOdd, {{{0, 2}, {1, 3}}, {{1, 41}, {0, 22}}, {{0, 1}, {1, 2}}, {{1, 2}}});
}

INSTANTIATE_TEST_SUITE_P(Stored, DsaProjectForms,
                         ::testing::Values(ops::KvDType::kF32, ops::KvDType::kF16,
                                           ops::KvDType::kF8E4M3),
                         [](const auto& info) { return NameOf(info.param); });

TEST_F(DsaOnCuda, LatentsTooLargeForTheStoredFormAreCounted) {
  const DsaShape s = kMini;
  const DsaWeights weights(s);
  ops::MlaWeights mla = weights.mla();
  const std::vector<float> huge(s.rank, 1e4f);
  mla.kv_a_norm = {VectorF32(huge), 1e-5f};
  const auto op = Must(cuda_->PrepareDsaProject(mla, weights.indexer()));
  TwinPages kv(*device_, s, ops::KvDType::kF8E4M3, 1, 16);
  const std::vector<ops::Segment> segments = {{0, 2, 0, 0, kv.pages(0)}};
  const auto x = Upload(RandomFloats(2 * s.hidden, 1.0f, 5));
  const auto ring = Poisoned<float>(SlotStride(s));
  const auto latent = Poisoned<float>(2 * s.q_rank);
  const auto index_w = Poisoned<float>(2 * s.index_heads);
  EXPECT_EQ(cuda_->saturation_counts().e4m3, 0u);
  Must(cuda_->BeginStep({}, segments));
  op->Run(x.as<float>(), segments, 2, kv.device(), {ring.as<float>(), 0, kRingRows},
          {latent.as<float>(), index_w.as<float>()}, Workspace(op->WorkspaceBytes(2)));
  EXPECT_GT(cuda_->saturation_counts().e4m3, 100u);
  const TwinPages::Snapshot now(kv);
  for (float v : kv.Latents(now.layer(), 0, 2)) EXPECT_LE(std::abs(v), 448.0f);
}

// Decoding as it runs: one graph of all three ops, the selection forked, recorded once, replayed
// for one position after the other of another sequence than the one it was recorded for.
TEST_F(DsaOnCuda, AGraphOfALayerHoldsForEveryLaterStep) {
  const DsaShape s = kOdd;  // 9 pools are kept of up to 16
  const DsaWeights weights(s);
  const auto project = Must(cpu_->PrepareDsaProject(weights.mla(), weights.indexer()));
  const auto select = Must(cpu_->PrepareIndexerSelect(weights.indexer()));
  const auto attend = Must(cpu_->PrepareSparseMla(weights.mla(), weights.indexer()));
  const auto device_project = Must(cuda_->PrepareDsaProject(weights.mla(), weights.indexer()));
  const auto device_select = Must(cuda_->PrepareIndexerSelect(weights.indexer()));
  const auto device_attend = Must(cuda_->PrepareSparseMla(weights.mla(), weights.indexer()));
  constexpr int kTokens = 64;
  TwinPages kv(*device_, s, ops::KvDType::kF32, 2, kTokens);
  std::vector<float> ring = RingAtFirst(s);
  const auto dring = Upload(ring);

  const auto dx = Poisoned<float>(s.hidden);
  const auto dlatent = Poisoned<float>(s.q_rank);
  const auto diw = Poisoned<float>(s.index_heads);
  const auto dpools = Poisoned<int32_t>(s.topk);
  const auto dcounts = Poisoned<int32_t>(1);
  const auto dmargins = Poisoned<float>(1);
  const auto dy = Poisoned<float>(s.hidden);
  const ops::DsaQueries dqueries = {dlatent.as<float>(), diw.as<float>()};
  const ops::Selection dselection = {dpools.as<int32_t>(), dcounts.as<int32_t>(),
                                     dmargins.as<float>(), nullptr};
  const auto workspace = Workspace(
      std::max(device_project->WorkspaceBytes(1), device_attend->WorkspaceBytes(1, kTokens)));
  const size_t forked_bytes = device_select->WorkspaceBytes(1, kTokens);
  const auto forked_memory = Poisoned<std::byte>(forked_bytes);
  const ops::Workspace forked = {forked_memory.as<std::byte>(), forked_bytes};
  const std::vector<ops::Segment> recorded = {{0, 1, kSlots[0], 0, kv.pages(0)}};
  const auto graph = Must(device_->Capture([&] {
    device_project->Run(dx.as<float>(), recorded, 1, kv.device(),
                        {dring.as<float>(), SlotStride(s), kRingRows}, dqueries, workspace);
    cuda_->Fork([&] { device_select->Run(dqueries, recorded, kv.device(), dselection, forked); });
    device_attend->Run(dqueries, dselection, recorded, 1, kv.device(), dy.as<float>(), workspace);
  }));

  std::vector<float> latent(s.q_rank), index_w(s.index_heads), y(s.hidden), margins(1);
  std::vector<int32_t> pools(s.topk), counts(1);
  int clear = 0;
  for (int position = 0; position < kTokens; ++position) {
    const std::vector<ops::Segment> segments = {{0, 1, kSlots[1], position, kv.pages(1)}};
    const auto x = RandomFloats(s.hidden, 1.0f, 500 + position);
    const ops::DsaQueries queries = {latent.data(), index_w.data()};
    const ops::Selection selection = {pools.data(), counts.data(), margins.data(), nullptr};
    project->Run(x.data(), segments, 1, kv.host(), {ring.data(), SlotStride(s), kRingRows}, queries,
                 Scratch(project->WorkspaceBytes(1)));
    select->Run(queries, segments, kv.host(), selection,
                Scratch(select->WorkspaceBytes(1, kTokens)));
    attend->Run(queries, selection, segments, 1, kv.host(), y.data(),
                Scratch(attend->WorkspaceBytes(1, kTokens)));
    MustOk(device_->CopyIn(dx.data(), x.data(), x.size() * sizeof(float)));
    Must(cuda_->BeginStep({}, segments));
    device_->Replay(*graph);
    ASSERT_EQ(Download<int32_t>(dcounts, 1), counts) << position;
    if (margins[0] < 0.02f) continue;  // a close decision may fall either way
    ++clear;
    EXPECT_EQ(Download<int32_t>(dpools, counts[0]),
              std::vector<int32_t>(pools.begin(), pools.begin() + counts[0]))
        << position;
    EXPECT_LT(RelativeL2(Download<float>(dy, y.size()), y), 3e-3) << position;
  }
  EXPECT_GT(clear, 45);
}

}  // namespace
}  // namespace quartet::testing
