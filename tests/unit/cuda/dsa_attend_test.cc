// SparseMla against the CPU.

#include <numeric>

#include "tests/unit/cuda/dsa_support.h"

namespace quartet::testing {
namespace {

struct Place {
  int position;
  int rows;
};

class SparseMlaOnCuda : public CudaOps {
 protected:
  // A selection as the indexer could make it: everything, or random pools.
  static void Select(const DsaShape& s, int position, std::mt19937& bits, int32_t* pools,
                     int32_t* count) {
    const int candidates = (position + 1) / s.kpool;
    std::vector<int32_t> all(candidates);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), bits);
    *count = std::min(candidates, s.topk);
    std::sort(all.begin(), all.begin() + *count);
    std::copy_n(all.begin(), *count, pools);
  }

  // Prepares the op of this shape on both sides.
  void Prepare(const DsaShape& s) {
    shape_ = s;
    const DsaWeights weights(s);
    oracle_ = Must(cpu_->PrepareSparseMla(weights.mla(), weights.indexer()));
    op_ = Must(cuda_->PrepareSparseMla(weights.mla(), weights.indexer()));
  }

  // Rows at `places` of one sequence each; with `sampled` > 0 only so many rows of the result are
  // computed on the CPU.
  void Compare(ops::KvDType dtype, const std::vector<Place>& places, uint32_t seed,
               int sampled = 0) {
    const DsaShape& s = shape_;
    int rows = 0;
    int context = 0;
    for (const Place& place : places) {
      rows += place.rows;
      context = std::max(context, place.position + place.rows);
    }
    TwinPages kv(*device_, s, dtype, static_cast<int>(places.size()), context);
    std::vector<ops::Segment> segments;
    std::vector<int32_t> pools(rows * s.topk, -1), counts(rows);
    std::mt19937 bits = Random(seed);
    int row = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const int sequence = static_cast<int>(i);
      kv.FillRandom(sequence, places[i].position + places[i].rows, seed + 10 * i);
      segments.push_back({row, places[i].rows, sequence, places[i].position, kv.pages(sequence)});
      for (int t = 0; t < places[i].rows; ++t, ++row) {
        Select(s, places[i].position + t, bits, &pools[row * s.topk], &counts[row]);
      }
    }
    // Logits of about one.
    const auto latents = RandomFloats(rows * s.q_rank, 1.0f, seed + 5);
    const std::vector<float> ours = RunCuda(latents, pools, counts, {}, segments, kv);

    std::vector<int> chosen(rows);
    std::iota(chosen.begin(), chosen.end(), 0);
    if (sampled > 0) {
      std::shuffle(chosen.begin(), chosen.end(), bits);
      chosen.resize(sampled);
      std::sort(chosen.begin(), chosen.end());
    }
    SCOPED_TRACE(NameOf(dtype) + ", " + std::to_string(s.heads) + " heads, " +
                 std::to_string(rows) + " rows");
    for (int r : chosen) {
      const ops::Segment& of = *std::find_if(segments.begin(), segments.end(), [&](const auto& g) {
        return r < g.row_begin + g.rows;
      });
      const std::vector<ops::Segment> one = {
          {0, 1, of.slot, of.position + r - of.row_begin, of.pages}};
      const auto expected = RunCpu({&latents[r * s.q_rank], &latents[r * s.q_rank] + s.q_rank},
                                   &pools[r * s.topk], &counts[r], nullptr, one, kv);
      EXPECT_LT(RelativeL2(std::span(&ours[r * s.hidden], s.hidden), expected), 2e-3)
          << "row " << r << " at " << one[0].position;
    }
  }

  std::vector<float> RunCuda(const std::vector<float>& latents, const std::vector<int32_t>& pools,
                             const std::vector<int32_t>& counts, const std::vector<int32_t>& tails,
                             const std::vector<ops::Segment>& segments, const TwinPages& kv) {
    const int rows = static_cast<int>(counts.size());
    const auto dlatents = Upload(latents);
    const auto dpools = Upload(pools);
    const auto dcounts = Upload(counts);
    const auto dtails = Upload(tails);
    const auto dy = Poisoned<float>(rows * shape_.hidden);
    Must(cuda_->BeginStep({}, segments));
    op_->Run({dlatents.as<float>(), nullptr},
             {dpools.as<int32_t>(), dcounts.as<int32_t>(), nullptr,
              tails.empty() ? nullptr : dtails.as<int32_t>()},
             segments, rows, kv.device(), dy.as<float>(),
             Workspace(op_->WorkspaceBytes(rows, 1 << 16)));
    return Download<float>(dy, rows * shape_.hidden);
  }

  // One row.
  std::vector<float> RunCpu(std::vector<float> latent, int32_t* pools, int32_t* counts,
                            const int32_t* tails, const std::vector<ops::Segment>& one,
                            const TwinPages& kv) {
    std::vector<float> y(shape_.hidden);
    oracle_->Run({latent.data(), nullptr}, {pools, counts, nullptr, tails}, one, 1, kv.host(),
                 y.data(), Scratch(oracle_->WorkspaceBytes(1, 1 << 16)));
    return y;
  }

  static constexpr ops::KvDType kForms[] = {ops::KvDType::kF32, ops::KvDType::kF16,
                                            ops::KvDType::kF8E4M3};

 private:
  DsaShape shape_{};
  std::unique_ptr<ops::SparseMla> oracle_, op_;
};

// All heads of 64 in one block, as in prefill, where the emulator has the shared memory.
constexpr DsaShape kManyHeads = {.heads = 64,
                                 .nope = 16,
                                 .v = 16,
                                 .rank = 96,
                                 .hidden = 64,
                                 .q_rank = 32,
                                 .index_heads = 4,
                                 .index_dim = 32,
                                 .kpool = 4,
                                 .topk = 40,
                                 .page_tokens = 64};

TEST_F(SparseMlaOnCuda, OneRowIsSplitOverBlocks) {
  const std::vector<std::pair<DsaShape, int>> cases = {{kMini, 250}, {kDemo, 700}, {kOdd, 77}};
  for (const auto& [shape, position] : cases) {
    Prepare(shape);
    for (ops::KvDType dtype : kForms) Compare(dtype, {{position, 1}}, 1);
  }
}

TEST_F(SparseMlaOnCuda, RowsOfSeveralSequences) {
  Prepare(kMini);
  for (ops::KvDType dtype : kForms) Compare(dtype, {{120, 3}, {31, 2}}, 4);
  Prepare(kOdd);
  for (ops::KvDType dtype : kForms) Compare(dtype, {{20, 1}, {61, 6}}, 5);
  Prepare(kDemo);
  for (ops::KvDType dtype : kForms) Compare(dtype, {{400, 1}, {259, 1}, {5, 2}}, 6);
}

TEST_F(SparseMlaOnCuda, ManyRows) {
  Prepare(kMini);
  Compare(ops::KvDType::kF8E4M3, {{40, 30}}, 7);
  Prepare(kOdd);
  Compare(ops::KvDType::kF16, {{0, 11}, {33, 8}}, 8);
  Prepare(kManyHeads);
  for (ops::KvDType dtype : kForms) {
    Compare(dtype, {{160, 5}, {300, 1}}, 9);
    Compare(dtype, {{190, 4}}, 10);
  }
}

TEST_F(SparseMlaOnCuda, TheFirstPositionsHaveATailOnly) {
  for (const DsaShape& shape : {kMini, kManyHeads}) {
    Prepare(shape);
    for (ops::KvDType dtype : kForms) {
      Compare(dtype, {{0, 1}}, 10);
      Compare(dtype, {{0, 6}}, 11);
    }
  }
}

TEST_F(SparseMlaOnCuda, AllThatIsVisibleUpToTheLimit) {
  // 16 pools and a tail of 3: up to 67 tokens are attended to in full.
  Prepare(kMini);
  for (int position : {3, 62, 63, 64, 66, 67}) {
    Compare(ops::KvDType::kF8E4M3, {{position, 1}}, 20 + position);
  }
}

TEST_F(SparseMlaOnCuda, AListThatALaterStepReusesKeepsItsTail) {
  // Row at position 10 with the list and the tail of position 6: it sees 0..6 and nothing newer.
  const DsaShape s = kMini;
  Prepare(s);
  TwinPages kv(*device_, s, ops::KvDType::kF16, 1, 11);
  kv.FillRandom(0, 11, 30);
  const auto latent = RandomFloats(s.q_rank, 1.0f, 31);
  std::vector<int32_t> pools(s.topk), counts = {1}, tails = {6};
  const std::vector<ops::Segment> at10 = {{0, 1, 0, 10, kv.pages(0)}};
  const auto ours = RunCuda(latent, pools, counts, tails, at10, kv);
  EXPECT_LT(RelativeL2(ours, RunCpu(latent, pools.data(), counts.data(), tails.data(), at10, kv)),
            2e-3);
}

TEST_F(SparseMlaOnCuda, TheSameStepGivesTheSameBits) {
  const DsaShape s = kDemo;
  Prepare(s);
  TwinPages kv(*device_, s, ops::KvDType::kF8E4M3, 1, 500);
  kv.FillRandom(0, 500, 40);
  const auto latent = RandomFloats(s.q_rank, 1.0f, 41);
  std::vector<int32_t> pools(s.topk), counts(1);
  std::mt19937 bits = Random(42);
  Select(s, 498, bits, pools.data(), counts.data());
  const std::vector<ops::Segment> one = {{0, 1, 0, 498, kv.pages(0)}};
  EXPECT_TRUE(SameBits(RunCuda(latent, pools, counts, {}, one, kv),
                       RunCuda(latent, pools, counts, {}, one, kv)));
}

TEST_F(SparseMlaOnCuda, TheRealShape) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "takes a GPU";
  Prepare(kReal);
  for (ops::KvDType dtype : kForms) {
    Compare(dtype, {{39'999, 1}}, 50);
    Compare(dtype, {{2'047, 2}}, 51);
    Compare(dtype, {{7'047, 4}}, 55, 2);
    Compare(dtype, {{9'000, 7}, {0, 1}}, 52, 3);
    Compare(dtype, {{5'000, 60}, {100, 4}}, 53, 4);
    Compare(dtype, {{1'900, 290}}, 54, 6);
  }
  DsaShape quarter = kReal;
  quarter.heads = 16;
  Prepare(quarter);
  for (int rows : {1, 2, 8, 33, 1'200}) {
    Compare(ops::KvDType::kF8E4M3, {{10'000, rows}}, 60 + rows, std::min(rows, 4));
  }
}

}  // namespace
}  // namespace quartet::testing
