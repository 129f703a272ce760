// The demo checkpoint with windows of drafts: the reference's greedy texts token for token, and as
// many drafts accepted as the reference's own chains allow.

#include <array>
#include <cmath>
#include <cstdio>

#include "tests/golden/demo_model.h"

namespace quartet {
namespace {

// By place in the window.
struct Acceptance {
  std::array<int, kDemoDrafts> reached{};
  std::array<int, kDemoDrafts> accepted{};

  // A window behind token `at` of a text of `length`, of whose drafts `good` were right.
  void Count(int at, int length, int drafts, int good) {
    for (int i = 0; i < drafts && at + 1 + i < length && i <= good; ++i) {
      ++reached[i];
      accepted[i] += i < good;
    }
  }
  double Rate(int place) const {
    return reached[place] == 0 ? 0 : static_cast<double>(accepted[place]) / reached[place];
  }
};

// What speculation would accept of the reference's chains.
void CountReference(const DemoCase& c, int drafts, Acceptance& out) {
  const int length = static_cast<int>(c.output.size());
  for (int at = 0; at + 1 < length;) {
    int good = 0;
    while (good < drafts && at + 1 + good < length &&
           c.drafts[at][good] == c.output[at + 1 + good]) {
      ++good;
    }
    out.Count(at, length, drafts, good);
    at += good + 1;
  }
}

struct Setting {
  const char* name;
  int drafts;
  double spoiled = 0;
  int tp = 1;
  size_t longest_prompt = 256;  // of the cases that are run
};

class DemoSpeculationTest : public testing::TestWithParam<Setting> {};

TEST_P(DemoSpeculationTest, TextsAreTheReferencesAndSoIsTheAcceptance) {
  const Setting& setting = GetParam();
  std::vector<DemoCase> cases = DemoTextCases("prompts.json");
  std::erase_if(cases, [&](const DemoCase& c) { return c.input.size() > setting.longest_prompt; });
  ASSERT_GE(cases.size(), 8u);
  Acceptance ours, reference;
  for (const DemoCase& c : cases) CountReference(c, setting.drafts, reference);
  ModelRankOptions options = DemoModel("quartet-demo-exl3");
  options.threads = setting.tp == 1 ? 2 : 1;
  int steps = 0;
  int tokens = 0;
  std::vector<std::vector<uint64_t>> hashes(setting.tp);
  RunRanks(options, setting.tp, [&](ModelRank& rank) {
    const int number = rank.collectives->rank();
    DemoDriver driver(rank, {.rate = setting.spoiled});
    for (const DemoCase& c : cases) {
      driver.Open();
      v1::Row row;
      for (size_t begin = 0; begin < c.input.size(); begin += kDemoBatchedTokens) {
        if (begin > 0) driver.Step(row);
        const size_t end = std::min(c.input.size(), begin + kDemoBatchedTokens);
        row = driver.NextRow({c.input.begin() + begin, c.input.begin() + end});
        row.set_draft(true);
        row.set_mtp_next(end < c.input.size() ? c.input[end] : 0);
      }
      row.set_sample(true);
      row.set_draft_chain(setting.drafts);
      std::vector<int32_t> output;
      // Ranks other than 0 see no tokens; all take as many steps.
      for (int at = 0; at < static_cast<int>(c.output.size());) {
        const v1::RowResult result = driver.Step(row);
        const int drawn = driver.tokens_drawn();
        if (number == 0) {
          output.insert(output.end(), result.tokens().begin(), result.tokens().end());
          if (at > 0) {
            ++steps;
            ours.Count(at - 1, static_cast<int>(c.output.size()), setting.drafts, drawn - 1);
          }
        }
        at += drawn;
        row = driver.NextWindow(setting.drafts);
      }
      driver.Close();
      if (number != 0) continue;
      output.resize(c.output.size());  // the last window may go on behind the end
      EXPECT_EQ(output, c.output) << c.name;
      tokens += static_cast<int>(output.size());
    }
    hashes[number] = driver.agreement_hashes();
  });
  for (const std::vector<uint64_t>& h : hashes) EXPECT_EQ(h, hashes[0]);
  std::printf("  %zu texts, %d tokens in %d windows\n", cases.size(), tokens, steps);
  for (int place = 0; place < setting.drafts; ++place) {
    std::printf("  draft %d: %.4f of %d accepted, reference %.4f\n", place + 1, ours.Rate(place),
                ours.reached[place], reference.Rate(place));
    if (setting.spoiled > 0) {
      EXPECT_LT(ours.Rate(place), reference.Rate(place));
    } else {
      EXPECT_NEAR(ours.Rate(place), reference.Rate(place), 0.01);
      EXPECT_GT(ours.accepted[place], 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, DemoSpeculationTest,
    testing::Values(Setting{.name = "ThreeDrafts", .drafts = 3, .longest_prompt = 4096},
                    Setting{.name = "OneDraft", .drafts = 1},
                    Setting{.name = "TwoDrafts", .drafts = 2},
                    Setting{.name = "ThreeSpoiledHalf", .drafts = 3, .spoiled = 0.5},
                    Setting{.name = "TwoDraftsTp2", .drafts = 2, .tp = 2}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quartet
