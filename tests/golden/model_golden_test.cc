// The trunk of the miniature model against numbers made by transformers, at 1, 2 and 4 ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/weights.h"
#include "tests/golden/mini_model.h"
#include "tests/golden/recording_trace.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

const GoldenFile& Text() {
  static const GoldenFile* file = new GoldenFile(DataDir() + "/golden_text.safetensors");
  return *file;
}
const GoldenFile& Decode() {
  static const GoldenFile* file = new GoldenFile(DataDir() + "/golden_decode.safetensors");
  return *file;
}

// Remembers the largest difference seen and prints it at the end of a test.
class Worst {
 public:
  explicit Worst(std::string what) : what_(std::move(what)) {}
  ~Worst() { std::printf("  largest difference, %s: %.2e\n", what_.c_str(), worst_); }
  double Of(std::span<const float> got, std::span<const float> want) {
    const double diff = MaxDiff(got, want);
    worst_ = std::max(worst_, diff);
    return diff;
  }

 private:
  const std::string what_;
  double worst_ = 0;
};

void CheckSelection(RecordingTrace& trace, int layer, const std::vector<int32_t>& want,
                    int first_position) {
  const auto& got = trace.selected(layer);
  ASSERT_GE(got.size() * kTopkWidth, want.size());
  int compared = 0;
  // Of a long prompt the reference has the last rows.
  const size_t rows = want.size() / kTopkWidth;
  for (size_t i = 0; i < rows; ++i) {
    const size_t r = got.size() - rows + i;
    if (got[r].margin < kMinGap) continue;
    ++compared;
    EXPECT_EQ(Positions(got[r].pools, first_position + static_cast<int>(r), kKpool),
              Positions({want.data() + i * kTopkWidth, kTopkWidth}))
        << "layer " << layer << " row " << r << " gap " << got[r].margin;
  }
  EXPECT_GT(compared, static_cast<int>(rows) * 9 / 10);
}

void CheckRouter(ModelRank& rank, RecordingTrace& trace, const GoldenFile& golden,
                 const std::string& prefix, int layer) {
  const std::string name = absl::StrCat(prefix, ".L", layer, ".router_");
  const std::vector<int32_t> experts = golden.I32(name + "idx");
  const std::vector<float> weights = golden.F32(name + "w");
  const std::vector<float> logits = golden.F32(name + "logits");
  const std::vector<float> bias = CorrectionBias(*rank.checkpoint, layer);
  const auto& got = trace.routed(layer);
  const size_t top_k = rank.config.experts_per_token;
  const size_t count = rank.config.experts;
  ASSERT_EQ(got.size() * top_k, experts.size());
  for (size_t r = 0; r < got.size(); ++r) {
    EXPECT_LE(MaxDiff(got[r].logits, {logits.data() + r * count, count}), kTolerance);
    if (RouterGap({logits.data() + r * count, count}, bias, top_k) < kMinGap) continue;
    const std::set<int32_t> got_set(got[r].experts.begin(), got[r].experts.end());
    const std::set<int32_t> want_set(experts.begin() + r * top_k,
                                     experts.begin() + (r + 1) * top_k);
    EXPECT_EQ(got_set, want_set) << "layer " << layer << " row " << r;
    // Best first here means by score with bias, in the reference by weight: compare by expert.
    for (size_t j = 0; j < top_k; ++j) {
      const auto at = std::find(experts.begin() + r * top_k, experts.begin() + (r + 1) * top_k,
                                got[r].experts[j]);
      if (at == experts.begin() + (r + 1) * top_k) continue;
      EXPECT_NEAR(got[r].weights[j], weights[at - experts.begin()], kTolerance);
    }
  }
}

// The latents or pooled keys of one layer, [count, width].
std::vector<float> Paged(const ModelRank& rank, int layer, const std::vector<int32_t>& pages,
                         int count, bool pool_keys) {
  const ops::KvLayer kv = rank.pools->kv(layer);
  const int64_t per_page = pool_keys ? kTokensPerPage / kKpool : kTokensPerPage;
  const int64_t width = pool_keys ? rank.config.index_head_dim : rank.config.kv_lora_rank;
  std::vector<float> out;
  for (int i = 0; i < count; ++i) {
    const auto* row =
        reinterpret_cast<const float*>(kv.data + pages[i / per_page] * kv.page_stride +
                                       (pool_keys ? kv.pool_key_offset : kv.latent_offset)) +
        i % per_page * width;
    out.insert(out.end(), row, row + width);
  }
  return out;
}

// Compares this rank's heads of the KDA states in slot 0.
void CheckKdaStates(const ModelRank& rank, const std::string& when, Worst& worst) {
  constexpr int kHeads = 4;
  constexpr int kWidth = 32;
  const int tp = rank.collectives->size();
  const int heads = kHeads / tp;
  const int first_head = rank.collectives->rank() * heads;
  for (const int layer : kKdaLayers) {
    const std::string name = absl::StrCat("c.", when, ".L", layer);
    const ops::KdaState state = rank.pools->kda_state(layer);
    const std::vector<float> recurrent = Decode().F32(name + ".recurrent");
    const size_t matrix = kWidth * kWidth;
    EXPECT_LE(worst.Of({state.recurrent, heads * matrix},
                       {recurrent.data() + first_head * matrix, heads * matrix}),
              kStateTolerance)
        << name;
    // The reference keeps four columns, of which the newest three are ever needed.
    const std::vector<float> conv = Decode().F32(name + ".conv");
    std::vector<float> want;
    for (int column = 1; column < 4; ++column) {
      for (int part = 0; part < 3; ++part) {
        for (int c = 0; c < heads * kWidth; ++c) {
          const int channel = part * kHeads * kWidth + first_head * kWidth + c;
          want.push_back(conv[channel * 4 + column]);
        }
      }
    }
    EXPECT_LE(worst.Of({state.conv, want.size()}, want), kStateTolerance) << name;
  }
}

class ModelGoldenTest : public testing::TestWithParam<int> {};

TEST_P(ModelGoldenTest, TwelveTokens) {
  RunRanks(MiniModel(), GetParam(), [&](ModelRank& rank) {
    RecordingTrace trace;
    rank.model->set_trace(&trace);
    const std::vector<int32_t> ids = Text().I32("a.input_ids");
    const int rows = static_cast<int>(ids.size());
    const std::vector<int32_t> pages = {5};
    ASSERT_TRUE(rank.model->Trunk(ids, {{MakeSegment(0, rows, 0, 0, pages)}}).ok());
    const std::vector<float> logits = AllLogits(*rank.model, rank.model->activations().h, rows);
    if (rank.collectives->rank() != 0) return;

    Worst sublayers("inputs and outputs of sublayers");
    Worst streams("streams");
    Worst ends("logits and final hidden");
    EXPECT_LE(ends.Of(logits, Text().F32("a.logits")), kTolerance);
    EXPECT_LE(
        ends.Of(trace.values(kLayers - 1, TracePoint::kFinalHidden), Text().F32("a.final_hidden")),
        kTolerance);
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string name = absl::StrCat("a.L", layer, ".");
      EXPECT_LE(
          sublayers.Of(trace.values(layer, TracePoint::kAttnIn), Text().F32(name + "attn_in")),
          kTolerance)
          << name;
      EXPECT_LE(
          sublayers.Of(trace.values(layer, TracePoint::kAttnOut), Text().F32(name + "attn_out")),
          kTolerance)
          << name;
      EXPECT_LE(sublayers.Of(trace.values(layer, TracePoint::kMlpIn), Text().F32(name + "mlp_in")),
                kTolerance)
          << name;
      EXPECT_LE(
          sublayers.Of(trace.values(layer, TracePoint::kMlpOut), Text().F32(name + "mlp_out")),
          kTolerance)
          << name;
      EXPECT_LE(streams.Of(trace.values(layer, TracePoint::kStreams), Text().F32(name + "streams")),
                kTolerance)
          << name;
    }
    for (const int layer : kDsaLayers) {
      CheckSelection(trace, layer, Text().I32(absl::StrCat("a.L", layer, ".topk")), 0);
      EXPECT_LE(sublayers.Of(Paged(rank, layer, pages, rows, false),
                             Text().F32(absl::StrCat("a.L", layer, ".latent"))),
                kTolerance);
    }
    for (const int layer : kMoeLayers) CheckRouter(rank, trace, Text(), "a", layer);
  });
}

TEST_P(ModelGoldenTest, ThreeHundredTokens) {
  RunRanks(MiniModel(), GetParam(), [&](ModelRank& rank) {
    RecordingTrace trace;
    rank.model->set_trace(&trace);
    const std::vector<int32_t> ids = Text().I32("b.input_ids");
    const int rows = static_cast<int>(ids.size());
    const std::vector<int32_t> pages = {9, 2};
    ASSERT_TRUE(rank.model->Trunk(ids, {{MakeSegment(0, rows, 0, 0, pages)}}).ok());
    const std::vector<float> logits = AllLogits(*rank.model, rank.model->activations().h, rows);
    if (rank.collectives->rank() != 0) return;

    Worst streams("streams");
    Worst ends("logits and final hidden");
    const std::vector<int32_t> heads = Text().I32("b.logits_rows");
    EXPECT_LE(ends.Of(Pick(logits, heads, kVocab), Text().F32("b.logits")), kTolerance);
    EXPECT_LE(ends.Of(Pick(trace.values(kLayers - 1, TracePoint::kFinalHidden), heads, kHidden),
                      Text().F32("b.final_hidden")),
              kTolerance);
    const std::vector<int32_t> kept = Text().I32("b.rows");
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_LE(
          streams.Of(Pick(trace.values(layer, TracePoint::kStreams), kept, kStreams * kHidden),
                     Text().F32(absl::StrCat("b.L", layer, ".streams"))),
          kTolerance)
          << "layer " << layer;
    }
    for (const int layer : kDsaLayers) {
      CheckSelection(trace, layer, Text().I32(absl::StrCat("b.L", layer, ".topk")), 0);
    }
    for (const int layer : kMoeLayers) CheckRouter(rank, trace, Text(), "b", layer);
  });
}

TEST_P(ModelGoldenTest, PrefillThenDecode) {
  constexpr int kPrompt = 250;
  RunRanks(MiniModel(), GetParam(), [&](ModelRank& rank) {
    RecordingTrace trace;
    Model& model = *rank.model;
    const std::vector<int32_t> ids = Text().I32("b.input_ids");
    const std::vector<int32_t> pages = {3, 11};
    Worst states("KDA states of this rank");
    ASSERT_TRUE(model.Trunk({ids.data(), kPrompt}, {{MakeSegment(0, kPrompt, 0, 0, pages)}}).ok());
    std::vector<float> logits =
        AllLogits(model, model.activations().h + (kPrompt - 1) * kHidden, 1);
    CheckKdaStates(rank, "after250", states);
    model.set_trace(&trace);
    for (int p = kPrompt; p < static_cast<int>(ids.size()); ++p) {
      ASSERT_TRUE(model.Trunk({&ids[p], 1}, {{MakeSegment(0, 1, 0, p, pages)}}).ok());
      const std::vector<float> row = AllLogits(model, model.activations().h, 1);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    CheckKdaStates(rank, "after300", states);
    if (rank.collectives->rank() != 0) return;

    Worst ends("logits");
    Worst streams("streams");
    Worst caches("latents and pooled keys");
    EXPECT_LE(ends.Of(logits, Decode().F32("c.logits")), kTolerance);
    const std::vector<int32_t> kept = Decode().I32("c.stream_rows");
    for (const int layer : {0, 3, 8}) {
      EXPECT_LE(
          streams.Of(Pick(trace.values(layer, TracePoint::kStreams), kept, kStreams * kHidden),
                     Decode().F32(absl::StrCat("c.L", layer, ".streams"))),
          kTolerance)
          << "layer " << layer;
    }
    for (const int layer : kDsaLayers) {
      CheckSelection(trace, layer, Decode().I32(absl::StrCat("c.L", layer, ".topk")), kPrompt);
      EXPECT_LE(caches.Of(Pick(Paged(rank, layer, pages, 300, false), Decode().I32("c.latent_rows"),
                               rank.config.kv_lora_rank),
                          Decode().F32(absl::StrCat("c.after300.L", layer, ".latent"))),
                kTolerance);
      EXPECT_LE(caches.Of(Paged(rank, layer, pages, 75, true),
                          Decode().F32(absl::StrCat("c.after300.L", layer, ".pool_keys"))),
                kTolerance);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, ModelGoldenTest, testing::Values(1, 2, 4),
                         [](const auto& info) { return absl::StrCat("Tp", info.param); });

}  // namespace
}  // namespace quartet
