// Drafts tested by rejection: the tokens have the distribution that they have without drafts.

#include <array>
#include <cmath>

#include "kernels/cpu/sampler.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::RandomFloats;

constexpr int kDraws = 200'000;

// Probabilities of a row after its cuts, from the kept set in double.
std::vector<double> Distribution(const std::vector<float>& logits, const ops::SampleParams& p) {
  const KeptSet kept = FindKept(logits.data(), static_cast<int64_t>(logits.size()), p);
  std::vector<double> out(logits.size());
  double total = 0;
  int64_t ties = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (p.first_banned > 0 && id >= static_cast<size_t>(p.first_banned)) continue;
    const uint32_t key = LogitKey(logits[id]);
    if (key < kept.threshold || (key == kept.threshold && ties++ >= kept.ties)) continue;
    out[id] = std::exp(logits[id] / double{std::max(p.temperature, 0.01f)});
    total += out[id];
  }
  for (double& value : out) value /= total;
  return out;
}

// Of counts against probabilities, over the cells that can be reached; others must be empty.
double ChiSquare(const std::vector<int>& seen, const std::vector<double>& p, int draws) {
  double chi2 = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(seen[i], 0) << "cell " << i;
      continue;
    }
    chi2 += (seen[i] - draws * p[i]) * (seen[i] - draws * p[i]) / (draws * p[i]);
  }
  return chi2;
}

TEST(SamplerDraft, ADraftDoesNotChangeTheDistributionAndIsAcceptedWithItsProbability) {
  const Sampler sampler;
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f, 1.5f};
  const ops::SampleParams settings[] = {
      {.temperature = 1.0f, .seed = 11},
      {.temperature = 0.7f, .top_p = 0.8f, .seed = 12},
      {.temperature = 1.3f, .top_k = 4, .min_p = 0.2f, .seed = 13},
      {.temperature = 1.0f, .seed = 14, .first_banned = 5},
  };
  for (const ops::SampleParams& setting : settings) {
    const std::vector<double> p = Distribution(logits, setting);
    // The likeliest, and one that some of the cuts take away.
    for (const int32_t draft : {2, 3}) {
      std::vector<int> seen(6);
      ops::SampleParams params = setting;
      params.draft = draft;
      for (uint32_t position = 0; position < kDraws; ++position) {
        params.position = position;
        ++seen[sampler.Draw(logits.data(), 6, params).token];
      }
      // At most 5 degrees of freedom: 20.5 is exceeded once in a thousand. The seeds are fixed.
      EXPECT_LT(ChiSquare(seen, p, kDraws), 20.5) << "seed " << setting.seed << " draft " << draft;
      // The token is the draft exactly where it is accepted.
      const double deviation = std::sqrt(kDraws * p[draft] * (1 - p[draft]));
      EXPECT_NEAR(seen[draft], kDraws * p[draft], 4 * deviation + 1e-9);
    }
  }
}

// A language of four tokens whose next-token logits depend on the last token, and a drafter that
// holds another view of it.
TEST(SamplerDraft, WindowsOfDraftsKeepTheJointDistributionOfWhatFollows) {
  constexpr int kVocab = 4;
  const std::array<std::vector<float>, kVocab> target = {
      std::vector<float>{0.3f, 1.0f, -0.5f, 0.0f},
      {1.2f, 0.0f, 0.4f, -1.0f},
      {-0.2f, 0.6f, 0.1f, 0.9f},
      {0.0f, 0.0f, 0.7f, 0.2f}};
  constexpr std::array<int32_t, kVocab> drafter = {1, 0, 0, 2};
  const Sampler sampler;
  std::vector<double> p(kVocab * kVocab * kVocab);
  std::array<std::vector<double>, kVocab> next;
  for (int t = 0; t < kVocab; ++t) next[t] = Distribution(target[t], {.temperature = 1.0f});
  for (int a = 0; a < kVocab; ++a) {
    for (int b = 0; b < kVocab; ++b) {
      for (int c = 0; c < kVocab; ++c)
        p[(a * 4 + b) * 4 + c] = next[0][a] * next[a][b] * next[b][c];
    }
  }
  for (const int window : {0, 1, 3}) {
    std::vector<int> seen(p.size());
    int steps = 0;
    for (int sequence = 0; sequence < kDraws; ++sequence) {
      std::vector<int32_t> text = {0};
      while (text.size() < 4) {
        ++steps;
        std::vector<int32_t> rows = {text.back()};
        for (int i = 0; i < window; ++i) rows.push_back(drafter[rows.back()]);
        for (int i = 0; i <= window; ++i) {
          const int32_t draft = i < window ? rows[i + 1] : -1;
          const int32_t token = sampler
                                    .Draw(target[rows[i]].data(), kVocab,
                                          {.temperature = 1.0f,
                                           .seed = static_cast<uint64_t>(sequence),
                                           .position = static_cast<uint32_t>(text.size()),
                                           .draft = draft})
                                    .token;
          text.push_back(token);
          if (token != draft) break;
        }
      }
      ++seen[(text[1] * 4 + text[2]) * 4 + text[3]];
    }
    // 63 degrees of freedom: 103.4 is exceeded once in a thousand.
    EXPECT_LT(ChiSquare(seen, p, kDraws), 103.4) << "window of " << window;
    // Drafts save steps, or they were not tested at all.
    EXPECT_LT(steps, (window > 0 ? 2.6 : 3.1) * kDraws);
  }
}

TEST(SamplerDraft, ADraftThatIsNotKeptIsNeverTaken) {
  const Sampler sampler;
  const std::vector<float> logits = {5, 4, 3, 2, 1, -INFINITY};
  const std::vector<int32_t> banned = {1};
  for (uint32_t position = 0; position < 300; ++position) {
    const auto draw = [&](ops::SampleParams p, int32_t draft) {
      p.temperature = 2.0f;
      p.position = position;
      const int32_t without = sampler.Draw(logits.data(), 6, p).token;
      p.draft = draft;
      // Nothing was taken out of the kept set, so that the draw is the one without a draft.
      EXPECT_EQ(sampler.Draw(logits.data(), 6, p).token, without);
      EXPECT_NE(without, draft);
    };
    draw({.banned = banned}, 1);
    draw({.first_banned = 4}, 4);
    draw({.top_k = 3}, 3);
    draw({}, 5);
    draw({}, 77);
  }
}

TEST(SamplerDraft, TheOnlyIdThatIsKeptIsAlwaysAccepted) {
  const Sampler sampler;
  const std::vector<float> logits = RandomFloats(50, 1.0f, 3);
  const auto best =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (uint32_t position = 0; position < 200; ++position) {
    const ops::SampleParams p{.temperature = 1.0f, .top_k = 1, .position = position, .draft = best};
    EXPECT_EQ(sampler.Draw(logits.data(), 50, p).token, best);
  }
}

TEST(SamplerDraft, GreedyRowsTakeTheLargestWhateverTheDraft) {
  const Sampler sampler;
  const std::vector<float> logits = {1, 3, 2};
  for (const int32_t draft : {-1, 0, 1, 2}) {
    EXPECT_EQ(sampler.Draw(logits.data(), 3, {.draft = draft}).token, 1);
  }
}

TEST(SamplerDraft, TheTestUsesANumberOfItsOwn) {
  // If the acceptance used the noise of the draw, a draft would be accepted exactly where it is
  // drawn anyway.
  const Sampler sampler;
  const std::vector<float> logits(4, 0.0f);
  int both = 0;
  for (uint32_t position = 0; position < 4000; ++position) {
    ops::SampleParams p{.temperature = 1.0f, .seed = 9, .position = position};
    const int32_t drawn = sampler.Draw(logits.data(), 4, p).token;
    p.draft = 2;
    both += drawn == 2 && sampler.Draw(logits.data(), 4, p).token == 2;
  }
  EXPECT_NEAR(both, 4000 / 16, 60);  // four deviations
}

}  // namespace
}  // namespace quartet::cpu
