#include "kernels/cuda/sampler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quartet::cuda {
namespace {

constexpr float kMinTemperature = 0.01f;
constexpr size_t kCountedTokens = 16384;  // of one copy to the device

static_assert(kSampleTop == ops::kMaxTopLogProbs);
static_assert(kSampleUncounted == ops::kMaxUncounted);

// Whether the draw needs the set of kept ids before it begins.
bool NeedsKept(const ops::SampleParams& p) {
  return p.temperature > 0.0f && (p.top_k > 0 || p.top_p < 1.0f || p.min_p > 0.0f || p.draft >= 0);
}

size_t ListWords(const ops::SampleParams& p) {
  return p.banned.size() + 2 * p.bias.size() + p.allowed.size();
}

// The row without its lists.
SampleRow MakeRow(const ops::SampleParams& p) {
  SampleRow row = {};
  row.over_temperature =
      p.temperature > 0.0f ? 1.0 / double{std::max(p.temperature, kMinTemperature)} : 0.0;
  row.top_p = p.top_p;
  // A min_p above 1 would cut even the best; it keeps that one, as top_k = 1 does.
  row.top_k = p.min_p > 1.0f ? 1 : std::max(p.top_k, 0);
  row.log_min_p = p.min_p > 0.0f && p.min_p <= 1.0f ? std::log(double{p.min_p})
                                                    : -std::numeric_limits<double>::infinity();
  row.key[0] = static_cast<uint32_t>(p.seed);
  row.key[1] = static_cast<uint32_t>(p.seed >> 32);
  row.choice = p.choice;
  row.position = p.position;
  row.first_banned = p.first_banned > 0 ? p.first_banned : std::numeric_limits<int32_t>::max();
  row.target = -1;
  row.draft = p.temperature > 0.0f ? p.draft : -1;
  row.counts = p.counts;
  row.allowed_begin = -1;
  row.forced = p.forced;
  row.penalises = p.penalises();
  row.repetition_penalty = p.repetition_penalty;
  row.presence_penalty = p.presence_penalty;
  row.frequency_penalty = p.frequency_penalty;
  row.uncounted_count = static_cast<int32_t>(p.uncounted.size());
  std::copy(p.uncounted.begin(), p.uncounted.end(), row.uncounted);
  row.top = p.top;
  return row;
}

// Puts the row's lists behind the words that are there.
void AppendLists(const ops::SampleParams& p, uint32_t* lists, int32_t* words, SampleRow& row) {
  row.banned_begin = *words;
  row.banned_count = static_cast<int32_t>(p.banned.size());
  for (const int32_t id : p.banned) lists[(*words)++] = static_cast<uint32_t>(id);
  row.bias_begin = *words;
  row.bias_count = static_cast<int32_t>(p.bias.size());
  for (const ops::LogitBias& bias : p.bias) {
    lists[(*words)++] = static_cast<uint32_t>(bias.id);
    lists[(*words)++] = std::bit_cast<uint32_t>(bias.value);
  }
  if (p.allowed.empty()) return;
  row.allowed_begin = *words;
  std::copy(p.allowed.begin(), p.allowed.end(), lists + *words);
  *words += static_cast<int32_t>(p.allowed.size());
}

// Only what was asked for, and only of rows that are finite.
void KeepTop(int top, ops::SampleResult& result) {
  const int kept = result.finite ? top : 0;
  for (int i = kept; i < ops::kMaxTopLogProbs; ++i) result.top[i] = {};
}

}  // namespace

SamplePasses SamplePasses::Of(std::span<const ops::SampleParams> params) {
  SamplePasses passes;
  for (const ops::SampleParams& p : params) {
    passes.top |= p.top > 0;
    if (!NeedsKept(p)) continue;
    passes.draw = true;
    passes.top_k |= p.top_k > 0 || p.min_p > 1.0f;
    passes.top_p |= p.top_p < 1.0f;
  }
  return passes;
}

absl::StatusOr<std::unique_ptr<RowSampler>> RowSampler::Make(Device& device,
                                                             const SamplerLimits& limits) {
  std::unique_ptr<RowSampler> sampler(new RowSampler(device, limits));
  const auto find = [&](const char* name, const Kernel*& to) -> absl::Status {
    absl::StatusOr<const Kernel*> kernel = device.Find(name);
    if (kernel.ok()) to = *kernel;
    return kernel.status();
  };
  if (absl::Status s = find("sample_scan", sampler->scan_); !s.ok()) return s;
  if (absl::Status s = find("sample_cut", sampler->cut_); !s.ok()) return s;
  if (absl::Status s = find("sample_draw", sampler->draw_); !s.ok()) return s;
  if (absl::Status s = find("sample_top", sampler->top_); !s.ok()) return s;
  if (absl::Status s = find("sample_count", sampler->count_); !s.ok()) return s;
  const auto allocate = [&](size_t bytes, Buffer& to) -> absl::Status {
    absl::StatusOr<Buffer> buffer = device.Allocate(bytes, "sampler");
    if (buffer.ok()) to = *std::move(buffer);
    return buffer.status();
  };
  const size_t rows = limits.max_rows;
  const size_t staging = sampler->RowBytes() + rows * limits.max_list_words * sizeof(uint32_t);
  if (absl::Status s = allocate(staging, sampler->staged_); !s.ok()) return s;
  if (absl::Status s = allocate(rows * sizeof(uint32_t), sampler->tickets_); !s.ok()) return s;
  if (absl::Status s = allocate(rows * sizeof(SampleOutcome), sampler->outcomes_); !s.ok()) {
    return s;
  }
  if (absl::Status s = allocate(rows * kSampleTop * sizeof(SampleTop), sampler->tops_); !s.ok()) {
    return s;
  }
  if (absl::Status s = allocate(kCountedTokens * sizeof(int32_t), sampler->counted_); !s.ok()) {
    return s;
  }
  device.Fill(sampler->tickets_.data(), 0, sampler->tickets_.bytes());
  for (std::byte*& ring : sampler->ring_) {
    absl::StatusOr<void*> pinned = device.AllocatePinned(staging, "staging of the sampler");
    if (!pinned.ok()) return pinned.status();
    ring = static_cast<std::byte*>(*pinned);
  }
  return sampler;
}

absl::Status RowSampler::CheckRows(const ops::LogitsView& logits, size_t in, size_t out) const {
  const size_t rows = static_cast<size_t>(logits.rows);
  if (in == rows && out == rows && logits.rows <= limits_.max_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(rows, " rows of logits (", limits_.max_rows,
                                                 " is the limit) with ", in,
                                                 " parameters and room for ", out, " results"));
}

std::byte* RowSampler::NextStaging() const {
  std::byte* staging = ring_[next_];
  next_ = (next_ + 1) % kRing;
  return staging;
}

// Cuts the workspace. The pieces that not all rows need come last.
SampleParamsCommon RowSampler::Cut(const ops::LogitsView& logits, ops::Workspace workspace,
                                   SampleOutcome* outcomes) const {
  const int64_t rows = logits.rows;
  WorkspaceCutter cutter(workspace.data);
  SampleParamsCommon p = {};
  p.logits = logits.data;
  p.row_count = logits.rows;
  p.local = static_cast<int32_t>(logits.local);
  p.vocab = static_cast<int32_t>(logits.vocab());
  p.rows = staged_.as<SampleRow>();
  p.lists = reinterpret_cast<const uint32_t*>(staged_.as<std::byte>() + RowBytes());
  p.tickets = tickets_.as<uint32_t>();
  p.chunks = cutter.Take<SampleChunkSums>(rows * CeilDiv(p.vocab, kSampleChunk));
  p.states = cutter.Take<SampleState>(rows);
  p.keys = cutter.Take<uint32_t>(rows * p.vocab);
  p.bin_counts = cutter.Take<uint32_t>(rows * kSampleBins);
  p.bin_masses = cutter.Take<unsigned long long>(rows * kSampleBins);
  p.chunk_tops = cutter.Take<SampleTop>(rows * CeilDiv(p.vocab, kSampleChunk) * kSampleTop);
  p.tops = tops_.as<SampleTop>();
  p.outcomes = outcomes;
  assert(cutter.used() <= workspace.bytes);
  return p;
}

size_t RowSampler::WorkspaceBytes(int max_rows, int64_t vocab) const {
  const int64_t rows = max_rows;
  WorkspaceCutter cutter;
  cutter.Take<SampleChunkSums>(rows * CeilDiv(vocab, kSampleChunk));
  cutter.Take<SampleState>(rows);
  cutter.Take<uint32_t>(rows * vocab);
  cutter.Take<uint32_t>(rows * kSampleBins);
  cutter.Take<unsigned long long>(rows * kSampleBins);
  cutter.Take<SampleTop>(rows * CeilDiv(vocab, kSampleChunk) * kSampleTop);
  return cutter.used();
}

absl::Status RowSampler::Stage(std::span<const ops::SampleParams> params) const {
  if (params.size() > static_cast<size_t>(limits_.max_rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat(params.size(), " rows to draw; ", limits_.max_rows, " is the limit"));
  }
  for (const ops::SampleParams& p : params) {
    if (ListWords(p) > static_cast<size_t>(limits_.max_list_words)) {
      return absl::InvalidArgumentError(absl::StrCat(
          p.banned.size(), " banned ids, ", p.bias.size(), " biases and a mask of ",
          p.allowed.size(), " words in one row; ", limits_.max_list_words, " words are the limit"));
    }
  }
  std::byte* staging = NextStaging();
  auto* rows = reinterpret_cast<SampleRow*>(staging);
  auto* lists = reinterpret_cast<uint32_t*>(staging + RowBytes());
  int32_t words = 0;
  for (size_t r = 0; r < params.size(); ++r) {
    rows[r] = MakeRow(params[r]);
    AppendLists(params[r], lists, &words, rows[r]);
  }
  // Everything up to the last word in one copy.
  device_.CopyInAsync(staged_.data(), staging, RowBytes() + words * sizeof(uint32_t));
  return absl::OkStatus();
}

void RowSampler::RunCut(const SampleParamsCommon& common, const LaunchShape& shape,
                        bool by_mass) const {
  struct Bits {
    int shift, count;
  };
  constexpr std::array<Bits, 3> kPasses = {{{21, 11}, {10, 11}, {0, 10}}};
  for (size_t i = 0; i < kPasses.size(); ++i) {
    device_.Launch(cut_, shape,
                   SampleCutParams{.common = common,
                                   .by_mass = by_mass,
                                   .shift = kPasses[i].shift,
                                   .bits = kPasses[i].count,
                                   .first = i == 0,
                                   .last = i + 1 == kPasses.size()});
  }
}

void RowSampler::Run(const ops::LogitsView& logits, SamplePasses passes, ops::Workspace workspace,
                     SampleOutcome* outcomes) const {
  if (logits.rows == 0) return;
  const SampleParamsCommon common = Cut(logits, workspace, outcomes);
  const LaunchShape shape = {.grid_x = CeilDiv(common.vocab, kSampleChunk),
                             .grid_y = static_cast<unsigned>(logits.rows),
                             .threads = kSampleThreads};
  device_.Launch(scan_, shape, common);
  if (passes.top_k) RunCut(common, shape, false);
  if (passes.top_p) RunCut(common, shape, true);
  if (passes.draw) device_.Launch(draw_, shape, common);
  if (passes.top) device_.Launch(top_, shape, common);
}

absl::Status RowSampler::ReadResults(bool top, std::span<ops::SampleResult> results) const {
  std::vector<SampleOutcome> outcomes(results.size());
  if (absl::Status s = device_.CopyOut(outcomes.data(), outcomes_.data(),
                                       outcomes.size() * sizeof(SampleOutcome));
      !s.ok()) {
    return s;
  }
  for (size_t r = 0; r < results.size(); ++r) {
    results[r] = {.token = outcomes[r].token,
                  .logprob = outcomes[r].logprob,
                  .finite = outcomes[r].finite != 0};
  }
  if (!top) return absl::OkStatus();
  std::vector<SampleTop> likeliest(results.size() * kSampleTop);
  if (absl::Status s =
          device_.CopyOut(likeliest.data(), tops_.data(), likeliest.size() * sizeof(SampleTop));
      !s.ok()) {
    return s;
  }
  for (size_t r = 0; r < results.size(); ++r) {
    for (int i = 0; i < kSampleTop; ++i) {
      const SampleTop& one = likeliest[r * kSampleTop + i];
      results[r].top[i] = {.token = one.id, .logprob = one.value};
    }
  }
  return absl::OkStatus();
}

absl::Status RowSampler::Draw(const ops::LogitsView& logits,
                              std::span<const ops::SampleParams> params,
                              std::span<ops::SampleResult> results,
                              ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, params.size(), results.size()); !s.ok()) return s;
  for (const ops::SampleParams& p : params) {
    if (absl::Status s = ops::CheckSampleParams(p, logits.vocab()); !s.ok()) return s;
  }
  if (absl::Status s = Stage(params); !s.ok()) return s;
  const SamplePasses passes = SamplePasses::Of(params);
  Run(logits, passes, workspace, outcomes_.as<SampleOutcome>());
  if (absl::Status s = ReadResults(passes.top, results); !s.ok()) return s;
  for (size_t r = 0; r < results.size(); ++r) KeepTop(params[r].top, results[r]);
  return absl::OkStatus();
}

absl::Status RowSampler::Score(const ops::LogitsView& logits,
                               std::span<const ops::ScoreParams> params,
                               std::span<ops::SampleResult> results,
                               ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, params.size(), results.size()); !s.ok()) return s;
  SamplePasses passes;
  for (const ops::ScoreParams& p : params) {
    if (absl::Status s = ops::CheckScoreParams(p, logits.vocab()); !s.ok()) return s;
    passes.top |= p.top > 0;
  }
  auto* rows = reinterpret_cast<SampleRow*>(NextStaging());
  for (size_t r = 0; r < params.size(); ++r) {
    rows[r] = MakeRow({.top = params[r].top});
    rows[r].target = params[r].target;
  }
  device_.CopyInAsync(staged_.data(), rows, params.size() * sizeof(SampleRow));
  Run(logits, passes, workspace, outcomes_.as<SampleOutcome>());
  if (absl::Status s = ReadResults(passes.top, results); !s.ok()) return s;
  for (size_t r = 0; r < results.size(); ++r) KeepTop(params[r].top, results[r]);
  return absl::OkStatus();
}

void RowSampler::ClearCounts(uint32_t* counts, int64_t vocab) const {
  device_.Fill(counts, 0, static_cast<size_t>(vocab) * sizeof(uint32_t));
}

absl::Status RowSampler::AddCounts(uint32_t* counts, std::span<const int32_t> tokens,
                                   ops::TokenOrigin origin) const {
  for (size_t begin = 0; begin < tokens.size(); begin += kCountedTokens) {
    const auto piece = tokens.subspan(begin, std::min(kCountedTokens, tokens.size() - begin));
    if (absl::Status s = device_.CopyIn(counted_.data(), piece.data(), piece.size_bytes());
        !s.ok()) {
      return s;
    }
    device_.Launch(count_,
                   {.grid_x = static_cast<unsigned>(CeilDiv(piece.size(), kCountThreads)),
                    .threads = kCountThreads},
                   SampleCountParams{.counts = counts,
                                     .tokens = counted_.as<int32_t>(),
                                     .n_tokens = static_cast<int32_t>(piece.size()),
                                     .prompt = origin == ops::TokenOrigin::kPrompt});
  }
  return absl::OkStatus();
}

}  // namespace quartet::cuda
