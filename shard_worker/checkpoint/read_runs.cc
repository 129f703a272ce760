#include "shard_worker/checkpoint/read_runs.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "shard_worker/checkpoint/weight_views.h"

namespace quartet {
namespace {

// From the first to the last byte that is used of `count` stretches of `bytes`, one every
// `stride_bytes`. Stretches further apart than a gap may be stay apart.
void AddStrided(const TensorView& tensor, int64_t begin, int64_t count, int64_t bytes,
                int64_t stride_bytes, int64_t max_gap, ReadPart& runs) {
  if (count == 0 || bytes == 0 || tensor.file_offset == 0) return;
  const auto add = [&](int64_t at, int64_t size) {
    runs.push_back({tensor.file, tensor.file_offset + at, size, tensor.data + at});
  };
  if (stride_bytes - bytes <= max_gap) {
    add(begin, (count - 1) * stride_bytes + bytes);
    return;
  }
  for (int64_t i = 0; i < count; ++i) add(begin + i * stride_bytes, bytes);
}

void AddWhole(const TensorView& tensor, ReadPart& runs) {
  AddStrided(tensor, 0, 1, tensor.bytes, tensor.bytes, 0, runs);
}

void Add(const DenseView& view, int64_t max_gap, ReadPart& runs) {
  const int64_t element = DtypeSize(view.tensor->dtype);
  AddStrided(*view.tensor, (view.row_begin * view.row_stride + view.col_begin) * element, view.rows,
             view.cols * element, view.row_stride * element, max_gap, runs);
  if (view.scale != nullptr) AddWhole(*view.scale, runs);
}

void Add(const VectorView& view, int64_t max_gap, ReadPart& runs) {
  const int64_t bytes = view.count * DtypeSize(view.tensor->dtype);
  AddStrided(*view.tensor, view.begin * DtypeSize(view.tensor->dtype), 1, bytes, bytes, max_gap,
             runs);
}

void Add(const Exl3Vector& vector, int64_t max_gap, ReadPart& runs) {
  const int64_t bits = vector.signs ? 1 : 16;
  const int64_t bytes = vector.count * bits / 8;
  AddStrided(*vector.tensor, vector.begin * bits / 8, 1, bytes, bytes, max_gap, runs);
}

void Add(const Exl3View& view, int64_t max_gap, ReadPart& runs) {
  AddStrided(*view.tensor, view.trellis - view.tensor->data, view.tile_rows(),
             view.tile_cols() * view.tile_bytes, view.tile_row_stride_bytes, max_gap, runs);
  Add(view.suh, max_gap, runs);
  Add(view.svh, max_gap, runs);
}

}  // namespace

ReadPart JoinRuns(ReadPart runs, int64_t max_gap) {
  std::sort(runs.begin(), runs.end(), [](const ReadRun& a, const ReadRun& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  ReadPart joined;
  for (const ReadRun& run : runs) {
    if (!joined.empty() && joined.back().file == run.file &&
        run.offset - joined.back().end() <= max_gap) {
      ReadRun& last = joined.back();
      last.bytes = std::max(last.end(), run.end()) - last.offset;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

std::vector<ReadPart> ListReadRuns(const ModelWeights& weights, int64_t max_gap) {
  std::vector<ReadPart> parts;
  WeightVisitor visitor(
      [&](const auto& view, const WeightTraits&) { Add(view, max_gap, parts.back()); });
  for (const LayerWeights& layer : weights.layers) {
    parts.emplace_back();
    visitor.Layer(layer);
  }
  if (weights.mtp) {
    parts.emplace_back();
    visitor.Mtp(*weights.mtp);
  }
  parts.emplace_back();
  visitor.Ends(weights);
  for (ReadPart& part : parts) part = JoinRuns(std::move(part), max_gap);
  return parts;
}

}  // namespace quartet
