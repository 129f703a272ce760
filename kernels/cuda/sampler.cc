#include "kernels/cuda/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quartet::cuda {
namespace {

constexpr float kMinTemperature = 0.01f;

// Whether the draw needs the set of kept ids before it begins.
bool NeedsKept(const ops::SampleParams& p) {
  return p.temperature > 0.0f && (p.top_k > 0 || p.top_p < 1.0f || p.min_p > 0.0f || p.draft >= 0);
}

SampleRow MakeRow(const ops::SampleParams& p, size_t banned_begin) {
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
  row.banned_begin = static_cast<int32_t>(banned_begin);
  row.banned_count = static_cast<int32_t>(p.banned.size());
  row.target = -1;
  row.draft = p.temperature > 0.0f ? p.draft : -1;
  return row;
}

}  // namespace

SamplePasses SamplePasses::Of(std::span<const ops::SampleParams> params) {
  SamplePasses passes;
  for (const ops::SampleParams& p : params) {
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
  const auto allocate = [&](size_t bytes, Buffer& to) -> absl::Status {
    absl::StatusOr<Buffer> buffer = device.Allocate(bytes, "sampler");
    if (buffer.ok()) to = *std::move(buffer);
    return buffer.status();
  };
  const size_t rows = limits.max_rows;
  const size_t staging = sampler->RowBytes() + rows * limits.max_banned * sizeof(int32_t);
  if (absl::Status s = allocate(staging, sampler->staged_); !s.ok()) return s;
  if (absl::Status s = allocate(rows * sizeof(uint32_t), sampler->tickets_); !s.ok()) return s;
  if (absl::Status s = allocate(rows * sizeof(SampleOutcome), sampler->outcomes_); !s.ok()) {
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

// Cuts the workspace. The pieces that only cut rows need come last.
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
  p.banned = reinterpret_cast<const int32_t*>(staged_.as<std::byte>() + RowBytes());
  p.tickets = tickets_.as<uint32_t>();
  p.chunks = cutter.Take<SampleChunkSums>(rows * CeilDiv(p.vocab, kSampleChunk));
  p.states = cutter.Take<SampleState>(rows);
  p.keys = cutter.Take<uint32_t>(rows * p.vocab);
  p.bin_counts = cutter.Take<uint32_t>(rows * kSampleBins);
  p.bin_masses = cutter.Take<unsigned long long>(rows * kSampleBins);
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
  return cutter.used();
}

absl::Status RowSampler::Stage(std::span<const ops::SampleParams> params) const {
  if (params.size() > static_cast<size_t>(limits_.max_rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat(params.size(), " rows to draw; ", limits_.max_rows, " is the limit"));
  }
  for (const ops::SampleParams& p : params) {
    if (p.banned.size() > static_cast<size_t>(limits_.max_banned)) {
      return absl::InvalidArgumentError(absl::StrCat(p.banned.size(), " banned ids in one row; ",
                                                     limits_.max_banned, " is the limit"));
    }
  }
  std::byte* staging = NextStaging();
  auto* rows = reinterpret_cast<SampleRow*>(staging);
  auto* banned = reinterpret_cast<int32_t*>(staging + RowBytes());
  size_t begin = 0;
  for (size_t r = 0; r < params.size(); ++r) {
    rows[r] = MakeRow(params[r], begin);
    std::copy(params[r].banned.begin(), params[r].banned.end(), banned + begin);
    begin += params[r].banned.size();
  }
  // Everything up to the last banned id in one copy.
  device_.CopyInAsync(staged_.data(), staging, RowBytes() + begin * sizeof(int32_t));
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
}

absl::Status RowSampler::Draw(const ops::LogitsView& logits,
                              std::span<const ops::SampleParams> params,
                              std::span<ops::SampleResult> results,
                              ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, params.size(), results.size()); !s.ok()) return s;
  if (absl::Status s = Stage(params); !s.ok()) return s;
  Run(logits, SamplePasses::Of(params), workspace, outcomes_.as<SampleOutcome>());
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
  return absl::OkStatus();
}

absl::Status RowSampler::LogProbs(const ops::LogitsView& logits, std::span<const int32_t> targets,
                                  std::span<float> out, ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, targets.size(), out.size()); !s.ok()) return s;
  for (const int32_t target : targets) {
    if (target >= 0 && target < logits.vocab()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("target ", target, " is no id of a vocabulary of ", logits.vocab()));
  }
  std::byte* staging = NextStaging();
  auto* rows = reinterpret_cast<SampleRow*>(staging);
  for (size_t r = 0; r < targets.size(); ++r) {
    rows[r] = MakeRow({}, 0);
    rows[r].target = targets[r];
  }
  device_.CopyInAsync(staged_.data(), staging, targets.size() * sizeof(SampleRow));
  Run(logits, {}, workspace, outcomes_.as<SampleOutcome>());
  std::vector<SampleOutcome> outcomes(out.size());
  if (absl::Status s = device_.CopyOut(outcomes.data(), outcomes_.data(),
                                       outcomes.size() * sizeof(SampleOutcome));
      !s.ok()) {
    return s;
  }
  for (size_t r = 0; r < out.size(); ++r) out[r] = outcomes[r].logprob;
  return absl::OkStatus();
}

}  // namespace quartet::cuda
