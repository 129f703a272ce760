#include "kernels/cuda/context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quartet::cuda {

StepState::Layout StepState::Cut(std::byte* data) const {
  WorkspaceCutter cutter(data);
  Layout layout;
  layout.ids = cutter.Take<int32_t>(limits_.max_rows);
  layout.positions = cutter.Take<int32_t>(limits_.max_rows);
  layout.row_segments = cutter.Take<int32_t>(limits_.max_rows);
  layout.segments = cutter.Take<StepSegment>(limits_.max_segments);
  layout.pages = cutter.Take<int32_t>(limits_.max_pages);
  return layout;
}

absl::StatusOr<std::unique_ptr<StepState>> StepState::Create(Device& device,
                                                             const StepLimits& limits) {
  std::unique_ptr<StepState> state(new StepState(device, limits));
  WorkspaceCutter measure;
  measure.Take<int32_t>(limits.max_rows);
  measure.Take<int32_t>(limits.max_rows);
  measure.Take<int32_t>(limits.max_rows);
  measure.Take<StepSegment>(limits.max_segments);
  measure.Take<int32_t>(limits.max_pages);
  absl::StatusOr<Buffer> memory = device.Allocate(measure.used(), "step state");
  if (!memory.ok()) return memory.status();
  state->memory_ = *std::move(memory);
  const Layout layout = state->Cut(state->memory_.as<std::byte>());
  state->view_ = {.ids = layout.ids,
                  .positions = layout.positions,
                  .row_segments = layout.row_segments,
                  .segments = layout.segments,
                  .pages = layout.pages};
  for (Staging& staging : state->ring_) {
    absl::StatusOr<void*> pinned =
        device.AllocatePinned(measure.used(), "staging of the step state");
    if (!pinned.ok()) return pinned.status();
    staging.data = static_cast<std::byte*>(*pinned);
    absl::StatusOr<std::unique_ptr<Fence>> fence = device.MakeFence();
    if (!fence.ok()) return fence.status();
    staging.copied = *std::move(fence);
  }
  return state;
}

absl::Status StepState::Set(std::span<const int32_t> ids, std::span<const ops::Segment> segments) {
  size_t rows = 0;
  size_t pages = 0;
  for (const ops::Segment& segment : segments) {
    rows += segment.rows;
    if (!segment.more) pages += segment.pages.size();
  }
  if (rows > static_cast<size_t>(limits_.max_rows) ||
      segments.size() > static_cast<size_t>(limits_.max_segments) ||
      pages > static_cast<size_t>(limits_.max_pages)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows, " rows, ", segments.size(), " segments and ", pages,
                     " pages; the limits are ", limits_.max_rows, ", ", limits_.max_segments,
                     " and ", limits_.max_pages));
  }
  Staging& staging = ring_[next_];
  next_ = (next_ + 1) % kRing;
  if (absl::Status s = device_.Await(*staging.copied); !s.ok()) return s;
  const Layout out = Cut(staging.data);
  std::copy(ids.begin(), ids.end(), out.ids);
  size_t page = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const ops::Segment& segment = segments[i];
    // It has the page table of the one that it goes on from.
    const bool goes_on = i > 0 && segments[i - 1].more;
    if (goes_on) page -= segments[i - 1].pages.size();
    out.segments[i] = {.row_begin = segment.row_begin,
                       .rows = segment.rows,
                       .slot = segment.slot,
                       .position = segment.position,
                       .page_begin = static_cast<int32_t>(page),
                       .page_count = static_cast<int32_t>(segment.pages.size()),
                       .window = segment.window ? 1 : 0,
                       .commit = segment.commit,
                       .more = segment.more ? 1 : 0};
    for (int r = 0; r < segment.rows; ++r) {
      out.positions[segment.row_begin + r] = segment.position + r;
      out.row_segments[segment.row_begin + r] = static_cast<int32_t>(i);
    }
    std::copy(segment.pages.begin(), segment.pages.end(), out.pages + page);
    page += segment.pages.size();
  }
  // Everything up to the last page in one copy.
  const auto bytes =
      static_cast<size_t>(reinterpret_cast<std::byte*>(out.pages + page) - staging.data);
  device_.CopyInAsync(memory_.data(), staging.data, bytes);
  device_.Place(*staging.copied);
  return absl::OkStatus();
}

}  // namespace quartet::cuda
