#include "kernels/cpu/sampler.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "kernels/cpu/philox.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::RandomFloats;

TEST(Philox, KnownAnswersOfThePublishedVectors) {
  // The kat_vectors of the Random123 distribution for philox4x32, 10 rounds.
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformNeverReachesItsEnds) {
  EXPECT_EQ(UniformOpen(0, 0), 0x1p-53);
  EXPECT_LT(UniformOpen(0xffffffff, 0xffffffff), 1.0);
  EXPECT_EQ(UniformOpen(0x80000000, 0), 0.5 + 0x1p-53);
}

// ---- the kept set, against sorting in double

std::set<int> BruteForce(const std::vector<float>& logits, const ops::SampleParams& p) {
  const double t = std::max(p.temperature, 0.01f);
  std::vector<int> ids;
  for (int i = 0; i < static_cast<int>(logits.size()); ++i) {
    if (p.first_banned > 0 && i >= p.first_banned) continue;
    if (std::find(p.banned.begin(), p.banned.end(), i) != p.banned.end()) continue;
    if (!std::isfinite(logits[i])) continue;
    ids.push_back(i);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const double top = logits[ids[0]];
  const auto mass = [&](int id) { return std::exp((logits[id] - top) / t); };
  if (p.top_k > 0 && p.top_k < static_cast<int>(ids.size())) ids.resize(p.top_k);
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    for (int id : ids) total += mass(id);
    size_t keep = 0;
    while (keep < ids.size()) {
      sum += mass(ids[keep++]);
      if (sum >= p.top_p * total) break;
    }
    ids.resize(keep);
  }
  if (p.min_p > 0) {
    double total = 0;
    for (int id : ids) total += mass(id);
    const double least = p.min_p * mass(ids[0]) / total;
    while (ids.size() > 1 && mass(ids.back()) / total < least) ids.pop_back();
  }
  return {ids.begin(), ids.end()};
}

std::set<int> KeptIds(const std::vector<float>& logits, const ops::SampleParams& p) {
  const KeptSet kept = FindKept(logits.data(), static_cast<int64_t>(logits.size()), p);
  std::set<int> ids;
  int64_t ties = 0;
  for (int i = 0; i < static_cast<int>(logits.size()); ++i) {
    if (p.first_banned > 0 && i >= p.first_banned) continue;
    if (std::find(p.banned.begin(), p.banned.end(), i) != p.banned.end()) continue;
    if (!std::isfinite(logits[i])) continue;
    const uint32_t key = LogitKey(logits[i]);
    if (key > kept.threshold || (key == kept.threshold && ties++ < kept.ties)) ids.insert(i);
  }
  return ids;
}

TEST(KeptSet, EqualsTheSortedCutsOnRandomRows) {
  std::mt19937 bits(3);
  const std::vector<int32_t> banned = {0, 5, 17};
  for (int round = 0; round < 3000; ++round) {
    const int vocab = 2 + static_cast<int>(bits() % 400);
    std::vector<float> logits = RandomFloats(vocab, 3.0f, bits());
    if (round % 3 == 0) {
      for (float& l : logits) l = std::round(l);  // many ties
    }
    if (round % 7 == 0) logits[bits() % vocab] = -INFINITY;
    ops::SampleParams p;
    p.temperature = std::uniform_real_distribution<float>(0.0f, 2.0f)(bits);
    if (bits() % 2) p.top_k = static_cast<int32_t>(bits() % (vocab + 5));
    if (bits() % 2) p.top_p = std::uniform_real_distribution<float>(0.0f, 1.0f)(bits);
    if (bits() % 2) p.min_p = std::uniform_real_distribution<float>(0.0f, 1.0f)(bits);
    if (vocab > 60 && bits() % 2) {
      p.banned = banned;
      p.first_banned = vocab - 10;
    }
    ASSERT_EQ(KeptIds(logits, p), BruteForce(logits, p))
        << "round " << round << " top_k " << p.top_k << " top_p " << p.top_p << " min_p "
        << p.min_p;
  }
}

TEST(KeptSet, TopPTakesTheSmallestSetThatReachesItsMass) {
  const std::vector<float> logits = {0, 0, 0, 0};
  ops::SampleParams p{.temperature = 1.0f, .top_p = 0.5f};
  EXPECT_EQ(KeptIds(logits, p), (std::set<int>{0, 1}));
  p.top_p = 0.51f;
  EXPECT_EQ(KeptIds(logits, p), (std::set<int>{0, 1, 2}));
  p.top_p = 0.0f;
  EXPECT_EQ(KeptIds(logits, p), (std::set<int>{0}));
}

TEST(KeptSet, EachCutSeesTheDistributionLeftByTheOneBefore) {
  // Four equal ids of mass 1/4 and a tail; after top_k = 4, top_p = 0.5 needs two, not more.
  std::vector<float> logits(100, 0.0f);
  ops::SampleParams p{.temperature = 1.0f, .top_p = 0.5f, .top_k = 4};
  EXPECT_EQ(KeptIds(logits, p), (std::set<int>{0, 1}));
}

TEST(KeptSet, MinPKeepsTheBestWhateverItAsks) {
  const std::vector<float> logits = {1, 2, 3, 3};
  ops::SampleParams p{.temperature = 1.0f, .min_p = 1.0f};
  EXPECT_EQ(KeptIds(logits, p), (std::set<int>{2, 3}));
  p.min_p = 2.0f;
  EXPECT_EQ(KeptIds(logits, p), (std::set<int>{2}));
}

// ---- drawing

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOnATie) {
  const Sampler sampler;
  const std::vector<float> logits = {1, 5, -2, 5, 4};
  EXPECT_EQ(sampler.Draw(logits.data(), 5, {}).token, 1);
  const std::vector<int32_t> banned = {1};
  EXPECT_EQ(sampler.Draw(logits.data(), 5, {.banned = banned}).token, 3);
  EXPECT_EQ(sampler.Draw(logits.data(), 5, {.first_banned = 1}).token, 0);
}

TEST(Sampler, LogProbIsThatOfTheRawRow) {
  const Sampler sampler;
  const std::vector<float> logits = RandomFloats(500, 4.0f, 5);
  double sum = 0;
  for (float l : logits) sum += std::exp(double{l});
  for (int32_t id : {0, 17, 499}) {
    EXPECT_NEAR(sampler.LogProb(logits.data(), 500, id), logits[id] - std::log(sum), 2e-6);
  }
  // Bans and temperature leave it alone.
  const auto result =
      sampler.Draw(logits.data(), 500, {.temperature = 2.0f, .seed = 4, .first_banned = 400});
  EXPECT_EQ(result.logprob, sampler.LogProb(logits.data(), 500, result.token));
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  const Sampler sampler;
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f, 1.5f};
  constexpr int kDraws = 40'000;
  for (float temperature : {1.0f, 0.5f, 2.0f}) {
    std::vector<int> seen(6);
    for (uint32_t position = 0; position < kDraws; ++position) {
      ++seen[sampler
                 .Draw(logits.data(), 6,
                       {.temperature = temperature, .seed = 77, .position = position})
                 .token];
    }
    double total = 0;
    for (float l : logits) total += std::exp(l / temperature);
    double chi2 = 0;
    for (int i = 0; i < 6; ++i) {
      const double expected = kDraws * std::exp(logits[i] / temperature) / total;
      chi2 += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    // 5 degrees of freedom: 20.5 is exceeded once in a thousand. The seed is fixed.
    EXPECT_LT(chi2, 20.5) << temperature;
  }
}

TEST(Sampler, CutsOnlyRemoveIdsFromTheSameDraw) {
  // The noise belongs to (seed, choice, position, id), so a draw that was in the kept set stays.
  const Sampler sampler;
  const std::vector<float> logits = RandomFloats(200, 2.0f, 6);
  for (uint32_t position = 0; position < 300; ++position) {
    ops::SampleParams p{.temperature = 1.0f, .seed = 5, .position = position};
    const int free = sampler.Draw(logits.data(), 200, p).token;
    p.top_k = 20;
    const int cut = sampler.Draw(logits.data(), 200, p).token;
    const std::set<int> kept = BruteForce(logits, p);
    EXPECT_TRUE(kept.count(cut));
    if (kept.count(free) != 0) {
      EXPECT_EQ(cut, free);
    }
  }
}

TEST(Sampler, SeedChoiceAndPositionEachChangeTheDrawAndNothingElseDoes) {
  const Sampler sampler;
  const std::vector<float> logits(1000, 0.0f);
  const ops::SampleParams base{.temperature = 1.0f, .seed = 1, .choice = 0, .position = 9};
  const auto draw = [&](ops::SampleParams p) { return sampler.Draw(logits.data(), 1000, p).token; };
  const int token = draw(base);
  EXPECT_EQ(draw(base), token);
  ops::SampleParams other = base;
  other.seed = 2;
  EXPECT_NE(draw(other), token);
  other = base;
  other.seed = 1 + (uint64_t{1} << 32);  // the upper half of the seed counts too
  EXPECT_NE(draw(other), token);
  other = base;
  other.choice = 1;
  EXPECT_NE(draw(other), token);
  other = base;
  other.position = 10;
  EXPECT_NE(draw(other), token);
  // Any other row drawn in between leaves no trace.
  const std::vector<float> noise = RandomFloats(1000, 1.0f, 8);
  sampler.Draw(noise.data(), 1000, other);
  EXPECT_EQ(draw(base), token);
}

TEST(Sampler, BannedIdsAreNeverDrawn) {
  const Sampler sampler;
  std::vector<float> logits(50, 0.0f);
  logits[7] = 30;
  logits[45] = 30;
  const std::vector<int32_t> banned = {7, 8};
  for (uint32_t position = 0; position < 500; ++position) {
    const auto result = sampler.Draw(
        logits.data(), 50,
        {.temperature = 1.5f, .position = position, .first_banned = 40, .banned = banned});
    ASSERT_TRUE(result.finite);
    EXPECT_TRUE(result.token < 40 && result.token != 7 && result.token != 8) << result.token;
  }
}

TEST(Sampler, RowsThatAreNotFiniteSaySo) {
  const Sampler sampler;
  const auto check = [&](std::vector<float> logits, ops::SampleParams p) {
    for (float temperature : {0.0f, 1.0f}) {
      p.temperature = temperature;
      const auto result = sampler.Draw(logits.data(), static_cast<int64_t>(logits.size()), p);
      EXPECT_FALSE(result.finite);
      EXPECT_EQ(result.token, -1);
    }
  };
  check({1, NAN, 2}, {});
  check({1, 2, NAN}, {.first_banned = 2});  // also where the NaN itself is banned
  check({-INFINITY, -INFINITY}, {});
  check({1, INFINITY}, {});
  const std::vector<int32_t> banned = {0};
  check({1, 2}, {.first_banned = 1, .banned = banned});
  const std::vector<float> partly = {-INFINITY, 3, -INFINITY};
  EXPECT_EQ(sampler.Draw(partly.data(), 3, {.temperature = 1.0f}).token, 1);
}

}  // namespace
}  // namespace quartet::cpu
