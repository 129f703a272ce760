#include "kernels/cuda/context.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace quartet::cuda {
namespace {

constexpr size_t Align(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepState>> StepState::Create(Device& device,
                                                             const StepLimits& limits) {
  std::unique_ptr<StepState> state(new StepState(device, limits));
  const size_t rows = Align(limits.max_rows * sizeof(int32_t));
  const size_t segments = Align(limits.max_segments * sizeof(StepSegment));
  const size_t pages = Align(limits.max_pages * sizeof(int32_t));
  absl::StatusOr<Buffer> memory = device.Allocate(rows + segments + pages, "step state");
  if (!memory.ok()) return memory.status();
  state->memory_ = *std::move(memory);
  std::byte* base = state->memory_.as<std::byte>();
  state->view_.row_segments = reinterpret_cast<const int32_t*>(base);
  state->view_.segments = reinterpret_cast<const StepSegment*>(base + rows);
  state->view_.pages = reinterpret_cast<const int32_t*>(base + rows + segments);
  for (std::byte*& ring : state->ring_) {
    absl::StatusOr<void*> pinned =
        device.AllocatePinned(rows + segments + pages, "staging of the step state");
    if (!pinned.ok()) return pinned.status();
    ring = static_cast<std::byte*>(*pinned);
  }
  return state;
}

absl::Status StepState::Set(std::span<const ops::Segment> segments) {
  size_t rows = 0;
  size_t pages = 0;
  for (const ops::Segment& segment : segments) {
    rows += segment.rows;
    pages += segment.pages.size();
  }
  if (rows > static_cast<size_t>(limits_.max_rows) ||
      segments.size() > static_cast<size_t>(limits_.max_segments) ||
      pages > static_cast<size_t>(limits_.max_pages)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows, " rows, ", segments.size(), " segments and ", pages,
                     " pages; the limits are ", limits_.max_rows, ", ", limits_.max_segments,
                     " and ", limits_.max_pages));
  }
  // The stream is at most one result behind the host, so the oldest ring entry was copied long ago.
  std::byte* staging = ring_[next_];
  next_ = (next_ + 1) % kRing;
  const auto* base = reinterpret_cast<const std::byte*>(view_.row_segments);
  const size_t segments_at = reinterpret_cast<const std::byte*>(view_.segments) - base;
  const size_t pages_at = reinterpret_cast<const std::byte*>(view_.pages) - base;
  auto* row_segments = reinterpret_cast<int32_t*>(staging);
  auto* out = reinterpret_cast<StepSegment*>(staging + segments_at);
  auto* page_out = reinterpret_cast<int32_t*>(staging + pages_at);
  size_t page = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const ops::Segment& segment = segments[i];
    out[i] = {.row_begin = segment.row_begin,
              .rows = segment.rows,
              .slot = segment.slot,
              .position = segment.position,
              .page_begin = static_cast<int32_t>(page),
              .page_count = static_cast<int32_t>(segment.pages.size())};
    for (int r = 0; r < segment.rows; ++r) {
      row_segments[segment.row_begin + r] = static_cast<int32_t>(i);
    }
    std::memcpy(page_out + page, segment.pages.data(), segment.pages.size_bytes());
    page += segment.pages.size();
  }
  // Everything up to the last page in one copy.
  device_.CopyInAsync(memory_.data(), staging, pages_at + page * sizeof(int32_t));
  return absl::OkStatus();
}

}  // namespace quartet::cuda
