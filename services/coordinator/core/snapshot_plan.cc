#include "services/coordinator/core/snapshot_plan.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace quartet::coordinator {
namespace {

constexpr size_t kLastSnapshotsKept = 4;

uint32_t RoundDown(uint32_t tokens, uint32_t multiple) {
  return tokens / multiple * multiple;
}

}  // namespace

const char* SnapshotPolicyError(const SnapshotPolicy& policy) {
  if (policy.unit_tokens == 0) return "unit_tokens is 0";
  if (policy.block_tokens == 0 || policy.block_tokens % policy.unit_tokens != 0) {
    return "block_tokens is not a multiple of unit_tokens";
  }
  return "";
}

std::vector<SnapshotMark> PrefillSnapshots(const SnapshotPolicy& policy, const PromptMarks& marks,
                                           uint32_t begin, uint32_t end) {
  assert(marks.cached_tokens <= begin && begin <= end && end <= marks.prompt_tokens);
  std::vector<SnapshotMark> snapshots;
  const auto add = [&](uint32_t offset, SnapshotKind kind) {
    if (offset > begin && offset <= end) snapshots.push_back({offset, kind});
  };
  if (policy.boundary) {
    for (uint64_t offset = RoundDown(begin, policy.block_tokens) + uint64_t{policy.block_tokens};
         offset <= end; offset += policy.block_tokens) {
      add(static_cast<uint32_t>(offset), SnapshotKind::kBoundary);
    }
  }
  // One token of every prompt is computed, so its own repetition can use nothing behind this.
  if (policy.last && marks.prompt_tokens > 0) {
    add(RoundDown(marks.prompt_tokens - 1, policy.unit_tokens), SnapshotKind::kConversationEnd);
  }
  if (policy.branch) {
    add(RoundDown(marks.branch_point, policy.unit_tokens), SnapshotKind::kBranch);
  }
  if (policy.system_prefix) {
    add(RoundDown(marks.system_prefix, policy.unit_tokens), SnapshotKind::kSystemPrefix);
  }
  std::sort(snapshots.begin(), snapshots.end(), [](const SnapshotMark& a, const SnapshotMark& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.kind > b.kind;
  });
  const auto same_offset = [](const SnapshotMark& a, const SnapshotMark& b) {
    return a.offset == b.offset;
  };
  snapshots.erase(std::unique(snapshots.begin(), snapshots.end(), same_offset), snapshots.end());
  return snapshots;
}

std::optional<DecodeExport> DecodeSnapshot(const SnapshotPolicy& policy, uint32_t before,
                                           uint32_t after) {
  assert(before <= after && after - before < policy.unit_tokens);
  const uint32_t offset = RoundDown(after, policy.unit_tokens);
  if (offset <= before) return std::nullopt;
  const bool boundary = policy.boundary && offset % policy.block_tokens == 0;
  if (!boundary && !policy.turn) return std::nullopt;
  return DecodeExport{offset, boundary};
}

uint32_t TurnEnd(const SnapshotPolicy& policy, uint32_t absorbed_tokens, uint32_t text_tokens) {
  if (!policy.turn) return 0;
  return RoundDown(std::min(absorbed_tokens, text_tokens), policy.unit_tokens);
}

std::vector<uint32_t> SnapshotsToThin(const SnapshotPolicy& policy,
                                      std::span<const SnapshotMark> marks) {
  std::vector<uint32_t> ordinary;
  for (const SnapshotMark& mark : marks) {
    assert(&mark == marks.data() || (&mark)[-1].offset < mark.offset);
    if (mark.kind < SnapshotKind::kBranch) ordinary.push_back(mark.offset);
  }
  std::vector<uint32_t> thinned;
  if (ordinary.size() <= kLastSnapshotsKept) return thinned;
  ordinary.resize(ordinary.size() - kLastSnapshotsKept);
  int last_range = -1;
  for (uint32_t offset : ordinary) {
    const uint32_t distance_units = (marks.back().offset - offset) / policy.unit_tokens;
    const int range = std::bit_width(distance_units);
    if (range == last_range) thinned.push_back(offset);
    last_range = range;
  }
  return thinned;
}

}  // namespace quartet::coordinator
