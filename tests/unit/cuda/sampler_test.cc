// Sampling on CUDA, against the CPU's: the same token for every kind of parameters, however the
// vocabulary is split.

#include "kernels/cuda/sampler.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/row_sampler.h"
#include "kernels/cpu/sampler.h"
#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

// [rows, vocab] as an all-gather leaves it: rank by rank.
std::vector<float> SplitByRank(const std::vector<float>& logits, int rows, int ranks) {
  const size_t local = logits.size() / rows / ranks;
  std::vector<float> out(logits.size());
  for (int k = 0; k < ranks; ++k) {
    for (int r = 0; r < rows; ++r) {
      std::copy_n(logits.begin() + (r * ranks + k) * local, local,
                  out.begin() + (k * rows + r) * local);
    }
  }
  return out;
}

class SamplerOnCuda : public CudaOps {
 protected:
  // Draws on the device from logits [rows, vocab].
  std::vector<ops::SampleResult> Draw(const std::vector<float>& logits, int ranks,
                                      const std::vector<ops::SampleParams>& params) {
    const int rows = static_cast<int>(params.size());
    const auto data = Upload(SplitByRank(logits, rows, ranks));
    const ops::LogitsView view{data.as<float>(), rows, ranks,
                               static_cast<int64_t>(logits.size()) / rows / ranks};
    std::vector<ops::SampleResult> results(rows, {-7, NAN, true});
    MustOk(sampler_->Draw(view, params, results,
                          Workspace(sampler_->WorkspaceBytes(rows, view.vocab()))));
    return results;
  }
  std::vector<ops::SampleResult> Expected(const std::vector<float>& logits,
                                          const std::vector<ops::SampleParams>& params) const {
    const int rows = static_cast<int>(params.size());
    const int64_t vocab = static_cast<int64_t>(logits.size()) / rows;
    std::vector<ops::SampleResult> results(rows);
    MustOk(cpu::RowSampler().Draw({logits.data(), rows, 1, vocab}, params, results,
                                  Scratch(cpu::RowSampler().WorkspaceBytes(rows, vocab))));
    return results;
  }
  static void ExpectTheSameTop(const ops::SampleResult& got, const ops::SampleResult& expected) {
    for (int i = 0; i < ops::kMaxTopLogProbs; ++i) {
      EXPECT_EQ(got.top[i].token, expected.top[i].token) << "place " << i;
      EXPECT_NEAR(got.top[i].logprob, expected.top[i].logprob, 2e-5) << "place " << i;
    }
  }
  void ExpectTheCpusDraws(const std::vector<float>& logits, int ranks,
                          const std::vector<ops::SampleParams>& params) {
    ExpectTheSame(Draw(logits, ranks, params), Expected(logits, params), params);
  }
  static void ExpectTheSame(const std::vector<ops::SampleResult>& got,
                            const std::vector<ops::SampleResult>& expected,
                            const std::vector<ops::SampleParams>& params) {
    for (size_t r = 0; r < params.size(); ++r) {
      EXPECT_EQ(got[r].finite, expected[r].finite) << "row " << r;
      EXPECT_EQ(got[r].token, expected[r].token)
          << "row " << r << ", temperature " << params[r].temperature << ", top_k "
          << params[r].top_k << ", top_p " << params[r].top_p << ", min_p " << params[r].min_p;
      if (got[r].token == expected[r].token) {
        EXPECT_NEAR(got[r].logprob, expected[r].logprob,
                    1e-5 * std::max(1.0f, std::abs(expected[r].logprob)));
      }
      ExpectTheSameTop(got[r], expected[r]);
    }
  }

  const std::unique_ptr<cuda::RowSampler> sampler_ =
      Must(cuda::RowSampler::Make(*device_, {.max_rows = 64, .max_list_words = 256}));
};

// The oracle itself: what it draws from an all-gather's rows is what Sampler draws from whole ones.
TEST(RowSamplerOnCpu, GathersTheRanksSlices) {
  const int rows = 3, vocab = 40;
  const std::vector<float> logits = RandomFloats(rows * vocab, 2.0f, 8);
  const cpu::RowSampler sampler;
  for (const int ranks : {1, 2, 4}) {
    const std::vector<float> split = SplitByRank(logits, rows, ranks);
    const ops::LogitsView view{split.data(), rows, ranks, vocab / ranks};
    const Scratch scratch(sampler.WorkspaceBytes(rows, vocab));
    std::vector<ops::SampleParams> params(rows);
    params[1] = {.temperature = 1.0f, .seed = 3};
    params[2] = {.temperature = 1.0f, .top_k = 5, .seed = 4};
    std::vector<ops::SampleResult> results(rows);
    MustOk(sampler.Draw(view, params, results, scratch));
    const std::vector<ops::ScoreParams> targets = {{.target = 0}, {.target = 13}, {.target = 39}};
    std::vector<ops::SampleResult> scores(rows);
    MustOk(sampler.Score(view, targets, scores, scratch));
    for (int r = 0; r < rows; ++r) {
      const float* row = logits.data() + r * vocab;
      EXPECT_EQ(results[r].token, cpu::Sampler().Draw(row, vocab, params[r]).token);
      EXPECT_EQ(scores[r].logprob, cpu::Sampler().LogProb(row, vocab, targets[r].target));
    }
    EXPECT_EQ(sampler.Draw(view, std::span(params).first(2), results, scratch).code(),
              absl::StatusCode::kInvalidArgument);
    const std::vector<ops::ScoreParams> outside = {{0}, {13}, {vocab}};
    EXPECT_EQ(sampler.Score(view, outside, scores, scratch).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(SamplerOnCuda, GreedyTakesTheLargestAndTheLowerIdOnATie) {
  // Two chunks of the vocabulary; the tie crosses from one to the other.
  const int vocab = 3000;
  std::vector<float> logits = RandomFloats(vocab, 1.0f, 1);
  logits[2900] = logits[37] = logits[2100] = 50.0f;
  EXPECT_EQ(Draw(logits, 1, {{}})[0].token, 37);
  const std::vector<int32_t> banned = {37};
  EXPECT_EQ(Draw(logits, 2, {{.banned = banned}})[0].token, 2100);
  // Zeros of both signs are equal.
  const std::vector<float> zeros = {-1.0f, -0.0f, 0.0f, -0.0f};
  EXPECT_EQ(Draw(zeros, 4, {{}})[0].token, 1);
}

TEST_F(SamplerOnCuda, DraftsAreAcceptedOrRedrawnAsTheCpus) {
  std::mt19937 bits = Random(5);
  const std::vector<int32_t> banned = {0, 5, 17};
  int accepted = 0, rejected = 0;
  for (int round = 0; round < 40; ++round) {
    const int rows = 1 + static_cast<int>(bits() % 9);
    const int vocab = 4 * (15 + static_cast<int>(bits() % (round % 10 == 0 ? 1200 : 150)));
    const std::vector<float> logits = RandomFloats(static_cast<size_t>(rows) * vocab, 3.0f, bits());
    std::vector<ops::SampleParams> params(rows);
    for (int r = 0; r < rows; ++r) {
      ops::SampleParams& p = params[r];
      p.seed = bits() | uint64_t{bits()} << 32;
      p.choice = bits() % 4;
      p.position = bits() % 100'000;
      if (bits() % 6 != 0) p.temperature = 0.3f + 0.1f * static_cast<float>(bits() % 15);
      if (bits() % 3 == 0) p.top_k = 1 + static_cast<int32_t>(bits() % 40);
      if (bits() % 3 == 0) p.top_p = 0.01f * static_cast<float>(bits() % 101);
      if (bits() % 4 == 0) p.min_p = 0.01f * static_cast<float>(bits() % 130);
      if (bits() % 3 == 0) p.banned = banned;
      // None, anything, or what is likeliest.
      const float* row = logits.data() + static_cast<size_t>(r) * vocab;
      const uint32_t kind = bits() % 8;
      p.draft = kind == 0   ? -1
                : kind == 1 ? static_cast<int32_t>(bits() % (vocab + 3))
                            : static_cast<int32_t>(std::max_element(row, row + vocab) - row);
    }
    for (const ops::SampleParams& p : params) {
      if (p.temperature == 0 || p.draft < 0) continue;
      const auto r = static_cast<size_t>(&p - params.data());
      const bool same = cpu::Sampler().Draw(logits.data() + r * vocab, vocab, p).token == p.draft;
      ++(same ? accepted : rejected);
    }
    ExpectTheCpusDraws(logits, 1 << bits() % 3, params);
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(rejected, 20);
}

TEST_F(SamplerOnCuda, DrawsOfEveryKindAreTheCpus) {
  std::mt19937 bits = Random(3);
  const std::vector<int32_t> banned = {0, 5, 17, 40, 41};
  const auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(bits);
  };
  for (int round = 0; round < 60; ++round) {
    const int rows = 1 + static_cast<int>(bits() % 9);
    const int vocab = 4 * (15 + static_cast<int>(bits() % (round % 10 == 0 ? 1200 : 150)));
    const int ranks = 1 << bits() % 3;
    std::vector<float> logits = RandomFloats(static_cast<size_t>(rows) * vocab, 3.0f, bits());
    if (round % 3 == 0) {
      for (float& l : logits) l = std::round(l);  // many ties
    }
    if (round % 7 == 0) logits[bits() % logits.size()] = -INFINITY;
    std::vector<ops::SampleParams> params(rows);
    for (ops::SampleParams& p : params) {
      p.seed = bits() | uint64_t{bits()} << 32;
      p.choice = bits() % 4;
      p.position = bits() % 100'000;
      if (bits() % 5 != 0) p.temperature = uniform(0.0f, 2.0f);
      if (bits() % 2) p.top_k = static_cast<int32_t>(bits() % (vocab + 5));
      if (bits() % 2) p.top_p = uniform(0.0f, 1.0f);
      if (bits() % 4 == 0) p.min_p = uniform(0.0f, 1.2f);
      if (bits() % 2) {
        p.banned = banned;
        p.first_banned = vocab - 10;
      }
    }
    SCOPED_TRACE(absl::StrCat("round ", round, ", ", ranks, " ranks of ", vocab));
    ExpectTheCpusDraws(logits, ranks, params);
  }
}

TEST_F(SamplerOnCuda, HundredsOfSeedsDrawTheCpusTokens) {
  const int vocab = 400, rows = 50;
  const std::vector<float> row = RandomFloats(vocab, 2.0f, 4);
  std::vector<float> logits;
  for (int r = 0; r < rows; ++r) logits.insert(logits.end(), row.begin(), row.end());
  std::vector<ops::SampleParams> params(rows);
  for (uint64_t seed = 0; seed < 400; seed += rows) {
    for (int r = 0; r < rows; ++r) {
      params[r] = {.temperature = 1.0f, .seed = seed + r, .position = 9};
      if (r % 2) params[r].top_p = 0.9f;
    }
    ExpectTheCpusDraws(logits, 4, params);
  }
}

// A border of the kept set inside a run of equal logits keeps the lower ids.
TEST_F(SamplerOnCuda, CutsInsideTiesKeepTheLowerIds) {
  const int vocab = 2500;
  const std::vector<float> logits(vocab, 0.5f);
  std::vector<float> rows;
  std::vector<ops::SampleParams> params;
  for (const int keep : {1, 2, 255, 256, 257, 2047, 2048, 2049, 2499}) {
    for (uint32_t position = 0; position < 3; ++position) {
      params.push_back({.temperature = 1.0f, .top_k = keep, .position = position});
      rows.insert(rows.end(), logits.begin(), logits.end());
    }
  }
  ExpectTheCpusDraws(rows, 1, params);
  for (ops::SampleParams& p : params) {
    p.top_p = (p.top_k + 0.5f) / vocab;
    p.top_k = 0;
  }
  ExpectTheCpusDraws(rows, 1, params);
  // The second cut falls into the ties that the first one left.
  for (ops::SampleParams& p : params) {
    p.top_k = 2100;
    p.top_p = 0.7f;
  }
  ExpectTheCpusDraws(rows, 1, params);
}

TEST_F(SamplerOnCuda, BorderValuesOfParametersAreTheCpus) {
  const int vocab = 120;
  const std::vector<float> row = RandomFloats(vocab, 2.0f, 5);
  const std::vector<ops::SampleParams> params = {
      {.temperature = 1.0f, .top_p = 0.0f},
      {.temperature = 1.0f, .top_p = -1.0f},
      {.temperature = 1.0f, .top_p = 1.0f},
      {.temperature = 1e-6f, .top_p = 0.5f},
      {.temperature = 1.0f, .top_k = vocab},
      {.temperature = 1.0f, .top_k = vocab + 1},
      {.temperature = 1.0f, .top_k = -3},
      {.temperature = 1.0f, .top_k = 1},
      {.temperature = 1.0f, .min_p = 1.0f},
      {.temperature = 1.0f, .min_p = 2.0f},
      {.temperature = 100.0f, .min_p = 0.9f},
      {.temperature = 0.0f, .top_k = 5, .min_p = 0.5f},
      {.temperature = 1.0f, .top_p = 0.9f, .first_banned = 1}};
  std::vector<float> logits;
  for (size_t r = 0; r < params.size(); ++r) logits.insert(logits.end(), row.begin(), row.end());
  ExpectTheCpusDraws(logits, 2, params);
}

TEST_F(SamplerOnCuda, RowsThatAreNotFiniteSaySo) {
  const std::vector<int32_t> banned = {0};
  const std::vector<std::pair<std::vector<float>, ops::SampleParams>> cases = {
      {{1, NAN, 2, 3}, {}},
      {{1, 2, NAN, 0}, {.first_banned = 2}},  // also where the NaN itself is banned
      {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {}},
      {{1, INFINITY, 0, 0}, {}},
      {{1, 2, 3, 4}, {.first_banned = 1, .banned = banned}},
      {{-INFINITY, 3, -INFINITY, -INFINITY}, {}},  // this one can be drawn
  };
  for (const float temperature : {0.0f, 1.0f}) {
    for (const float top_p : {1.0f, 0.5f}) {
      std::vector<float> logits;
      std::vector<ops::SampleParams> params;
      for (auto [row, p] : cases) {
        p.temperature = temperature;
        p.top_p = top_p;
        logits.insert(logits.end(), row.begin(), row.end());
        params.push_back(p);
      }
      const auto results = Draw(logits, 1, params);
      for (size_t r = 0; r + 1 < results.size(); ++r) {
        EXPECT_FALSE(results[r].finite) << r;
        EXPECT_EQ(results[r].token, -1) << r;
      }
      EXPECT_TRUE(results.back().finite);
      EXPECT_EQ(results.back().token, 1);
      EXPECT_EQ(results.back().logprob, 0.0f);
    }
  }
}

TEST_F(SamplerOnCuda, LogProbsAreThoseOfTheRawRows) {
  const int rows = 5, vocab = 2600;
  const std::vector<float> logits = RandomFloats(rows * vocab, 4.0f, 6);
  const std::vector<ops::ScoreParams> targets = {{0, 3}, {17}, {2599, 20}, {1300, 1}, {2047}};
  std::vector<ops::SampleResult> expected(rows);
  MustOk(cpu::RowSampler().Score({logits.data(), rows, 1, vocab}, targets, expected,
                                 Scratch(cpu::RowSampler().WorkspaceBytes(rows, vocab))));
  for (const int ranks : {1, 2, 4}) {
    const auto data = Upload(SplitByRank(logits, rows, ranks));
    std::vector<ops::SampleResult> got(rows);
    MustOk(sampler_->Score({data.as<float>(), rows, ranks, vocab / ranks}, targets, got,
                           Workspace(sampler_->WorkspaceBytes(rows, vocab))));
    for (int r = 0; r < rows; ++r) {
      EXPECT_NEAR(got[r].logprob, expected[r].logprob, 1e-5);
      ExpectTheSameTop(got[r], expected[r]);
    }
  }
}

// A graph that has every pass serves rows that need few or none of them.
TEST_F(SamplerOnCuda, AGraphDrawsByWhateverWasStaged) {
  const int rows = 3, vocab = 300;
  const std::vector<float> logits = RandomFloats(rows * vocab, 2.0f, 7);
  const auto data = Upload(logits);
  const auto outcomes = Poisoned<cuda::SampleOutcome>(rows);
  const ops::LogitsView view{data.as<float>(), rows, 1, vocab};
  const ops::Workspace workspace = Workspace(sampler_->WorkspaceBytes(rows, vocab));
  const auto graph = Must(device_->Capture([&] {
    sampler_->Run(view, {true, true, true, true}, workspace, outcomes.as<cuda::SampleOutcome>());
  }));
  for (uint32_t position = 0; position < 20; ++position) {
    std::vector<ops::SampleParams> params(rows);
    params[1] = {.temperature = 0.9f, .position = position};
    params[2] = {.temperature = 0.9f, .top_p = 0.8f, .position = position};
    if (position % 2) params[0] = {.temperature = 1.0f, .top_k = 10, .position = position};
    MustOk(sampler_->Stage(params));
    device_->Replay(*graph);
    const auto got = Download<cuda::SampleOutcome>(outcomes, rows);
    const auto expected = Expected(logits, params);
    for (int r = 0; r < rows; ++r) EXPECT_EQ(got[r].token, expected[r].token) << position;
  }
}

// Bias, bans, masks, forced ids and penalties, with counts that were added up on the device.
TEST_F(SamplerOnCuda, AdjustedRowsDrawAsTheCpus) {
  std::mt19937 bits = Random(21);
  const std::vector<int32_t> banned = {0, 5, 17};
  for (int round = 0; round < 30; ++round) {
    const int rows = 1 + static_cast<int>(bits() % 6);
    const int vocab = 4 * (20 + static_cast<int>(bits() % (round % 10 == 0 ? 1200 : 200)));
    const std::vector<float> logits = RandomFloats(static_cast<size_t>(rows) * vocab, 3.0f, bits());
    const auto id = [&] { return static_cast<int32_t>(bits() % vocab); };
    const auto device_counts = Poisoned<uint32_t>(static_cast<size_t>(rows) * vocab);
    std::vector<uint32_t> counts(static_cast<size_t>(rows) * vocab, 99);
    std::vector<std::vector<ops::LogitBias>> bias(rows);
    std::vector<std::vector<uint32_t>> allowed(rows);
    std::vector<std::vector<int32_t>> uncounted(rows);
    std::vector<ops::SampleParams> params(rows);
    for (int r = 0; r < rows; ++r) {
      ops::SampleParams& p = params[r];
      p.seed = bits();
      p.position = bits() % 1000;
      if (bits() % 3 != 0) p.temperature = 0.3f + 0.1f * static_cast<float>(bits() % 15);
      if (bits() % 3 == 0) p.top_k = 1 + static_cast<int32_t>(bits() % 40);
      if (bits() % 3 == 0) p.top_p = 0.01f * static_cast<float>(bits() % 101);
      if (bits() % 3 == 0) p.banned = banned;
      if (bits() % 3 == 0) p.draft = id();
      if (bits() % 3 == 0) p.top = 1 + static_cast<int>(bits() % 20);
      for (int32_t at = 0; bits() % 2 == 0; at += 1 + static_cast<int32_t>(bits() % 9)) {
        bias[r].push_back({at, static_cast<float>(bits() % 200) - 99.0f});
      }
      p.bias = bias[r];
      if (bits() % 2 == 0) {
        for (int word = 0; word < (vocab + 31) / 32; ++word) allowed[r].push_back(bits());
        allowed[r][1] |= 1;
        if (p.bias.size() < 10) p.allowed = std::span(allowed[r]);
      }
      if (bits() % 8 == 0) p.forced = id();
      if (bits() % 2 == 0) p.repetition_penalty = 0.5f + 0.25f * static_cast<float>(bits() % 6);
      if (bits() % 2 == 0) p.presence_penalty = static_cast<float>(bits() % 5) - 2.0f;
      if (bits() % 2 == 0) p.frequency_penalty = 0.37f * static_cast<float>(bits() % 5);
      for (uint32_t n = bits() % 5; n > 0; --n) uncounted[r].push_back(id());
      p.uncounted = uncounted[r];
      const auto at = static_cast<size_t>(r) * vocab;
      sampler_->ClearCounts(device_counts.as<uint32_t>() + at, vocab);
      cpu::RowSampler().ClearCounts(counts.data() + at, vocab);
      for (const ops::TokenOrigin origin : {ops::TokenOrigin::kPrompt, ops::TokenOrigin::kOutput}) {
        std::vector<int32_t> said(bits() % 60);
        for (int32_t& token : said) token = static_cast<int32_t>(bits() % 40);
        MustOk(sampler_->AddCounts(device_counts.as<uint32_t>() + at, said, origin));
        MustOk(cpu::RowSampler().AddCounts(counts.data() + at, said, origin));
      }
    }
    ASSERT_EQ(Download<uint32_t>(device_counts, counts.size()), counts);
    std::vector<ops::SampleParams> on_host = params;
    for (int r = 0; r < rows; ++r) {
      params[r].counts = device_counts.as<uint32_t>() + static_cast<size_t>(r) * vocab;
      on_host[r].counts = counts.data() + static_cast<size_t>(r) * vocab;
    }
    SCOPED_TRACE(absl::StrCat("round ", round));
    const auto got = Draw(logits, 1 << bits() % 3, params);
    ExpectTheSame(got, Expected(logits, on_host), on_host);
  }
}

TEST_F(SamplerOnCuda, LimitsAreKept) {
  const std::vector<float> logits(4 * 65, 1.0f);
  const auto data = Upload(logits);
  std::vector<ops::SampleParams> params(65);
  std::vector<ops::SampleResult> results(65);
  EXPECT_EQ(sampler_->Draw({data.as<float>(), 65, 1, 4}, params, results, {}).code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<int32_t> banned(257);
  params.assign(1, {.banned = banned});
  results.resize(1);
  EXPECT_EQ(sampler_->Draw({data.as<float>(), 1, 1, 4}, params, results, {}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sampler_->Draw({data.as<float>(), 2, 1, 4}, params, results, {}).code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<int32_t> too_many(ops::kMaxUncounted + 1);
  const std::vector<uint32_t> two_words(2);
  const ops::LogitBias outside = {.id = 4};
  for (const ops::SampleParams& wrong :
       {ops::SampleParams{.bias = {&outside, 1}}, ops::SampleParams{.allowed = two_words},
        ops::SampleParams{.forced = 4}, ops::SampleParams{.uncounted = too_many},
        ops::SampleParams{.top = ops::kMaxTopLogProbs + 1}}) {
    EXPECT_EQ(sampler_->Draw({data.as<float>(), 1, 1, 4}, {&wrong, 1}, results, {}).code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (const ops::ScoreParams& wrong :
       {ops::ScoreParams{-1}, ops::ScoreParams{4}, ops::ScoreParams{0, 21}}) {
    EXPECT_EQ(sampler_->Score({data.as<float>(), 1, 1, 4}, {&wrong, 1}, results, {}).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(SamplerOnCuda, TheRealVocabularyDrawsTheCpusTokens) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "too large for the emulator";
  const int vocab = 154'880, rows = 8;
  const std::vector<int32_t> banned = {154'820, 154'827, 154'829};
  for (const int ranks : {1, 4}) {
    for (uint32_t seed = 0; seed < 3; ++seed) {
      const std::vector<float> logits =
          RandomFloats(static_cast<size_t>(rows) * vocab, 2.5f, 100 + seed);
      std::vector<ops::SampleParams> params(rows);
      for (int r = 1; r < rows; ++r) {
        params[r] = {.temperature = 0.3f * r, .seed = seed, .first_banned = 154'856};
        params[r].banned = banned;
      }
      params[3].top_p = 0.95f;
      params[4].top_k = 40;
      params[5].top_k = 1000;
      params[5].top_p = 0.9f;
      params[6].min_p = 0.05f;
      params[7].top_p = 0.999f;
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, seed ", seed));
      ExpectTheCpusDraws(logits, ranks, params);
    }
  }
}

}  // namespace
}  // namespace quartet::testing
