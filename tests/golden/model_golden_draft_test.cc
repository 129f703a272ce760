// The draft (MTP) layer of the miniature model against a float64 reference, at 1, 2 and 4 ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "tests/golden/draft_chain.h"
#include "tests/golden/mini_model.h"
#include "tests/golden/recording_trace.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

const GoldenFile& Mtp() {
  static const GoldenFile* file = new GoldenFile(DataDir() + "/golden_mtp.safetensors");
  return *file;
}

class DraftGoldenTest : public testing::TestWithParam<int> {};

TEST_P(DraftGoldenTest, DraftsOfBothPrompts) {
  for (const std::string prompt : {"p12", "p300"}) {
    RunRanks(MiniModel(), GetParam(), [&](ModelRank& rank) {
      const std::string prefix = absl::StrCat("e.", prompt, ".");
      Model& model = *rank.model;
      const std::vector<int32_t> ids = Mtp().I32(prefix + "input_ids");
      const int rows = static_cast<int>(ids.size());
      const std::vector<int32_t> pages = PageRange(0, 2);
      ASSERT_TRUE(model.Trunk(ids, {{MakeSegment(0, rows, 0, 0, pages)}}).ok());
      const std::vector<float> hidden(model.activations().h,
                                      model.activations().h + rows * kHidden);
      const std::vector<float> last_logits =
          AllLogits(model, hidden.data() + (rows - 1) * kHidden, 1);
      std::vector<int32_t> next(ids.begin() + 1, ids.end());
      next.push_back(Argmax(last_logits));
      EXPECT_EQ(next.back(), Mtp().I32(prefix + "trunk_next")[0]);

      RecordingTrace trace;
      model.set_trace(&trace);
      const DraftChain recompute = DraftThree(rank, next, hidden, 0, pages, false);
      const std::vector<RecordingTrace::SelectedRow> selected = trace.selected(kLayers);
      const DraftChain share = DraftThree(rank, next, hidden, 1, PageRange(2, 2), true);
      if (rank.collectives->rank() != 0) return;

      const std::vector<int32_t> kept = Mtp().I32(prefix + "hidden_rows");
      EXPECT_LE(MaxDiff(Pick(hidden, kept, kHidden), Mtp().F32(prefix + "trunk_hidden_postnorm")),
                kTolerance);
      EXPECT_LE(MaxDiff(Pick(recompute.prefill_hidden, kept, kHidden),
                        Mtp().F32(prefix + "prefill_hidden")),
                kTolerance);
      EXPECT_EQ(recompute.prefill_hidden, share.prefill_hidden);
      EXPECT_LE(
          MaxDiff({recompute.logits.data(), kVocab}, Mtp().F32(prefix + "prefill_logits_last")),
          kTolerance);
      double worst = 0;
      for (const bool shared : {false, true}) {
        const DraftChain& got = shared ? share : recompute;
        const std::string name = absl::StrCat(prefix, shared ? "share" : "recompute", ".draft_");
        EXPECT_EQ(got.tokens, Mtp().I32(name + "tokens")) << name;
        const double logits = MaxDiff(got.logits, Mtp().F32(name + "logits"));
        const double rows_diff = MaxDiff(got.hidden, Mtp().F32(name + "hidden"));
        EXPECT_LE(logits, kTolerance) << name;
        EXPECT_LE(rows_diff, kTolerance) << name;
        worst = std::max({worst, logits, rows_diff});
      }
      std::printf("  largest difference, %s drafts: %.2e\n", prompt.c_str(), worst);

      // The list of the last prompt row, and those of the two rows chained behind it.
      const std::vector<int32_t> want = Mtp().I32(prefix + "recompute.draft_topk");
      ASSERT_EQ(selected.size(), ids.size() + 2);
      for (int step = 0; step < 3; ++step) {
        const int position = rows - 1 + step;
        if (selected[position].margin < kMinGap) continue;
        EXPECT_EQ(Positions(selected[position].pools, position, kKpool),
                  Positions({want.data() + step * kTopkWidth, kTopkWidth}))
            << prefix << " step " << step;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, DraftGoldenTest, testing::Values(1, 2, 4),
                         [](const auto& info) { return absl::StrCat("Tp", info.param); });

}  // namespace
}  // namespace quartet
