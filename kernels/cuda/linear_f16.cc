#include "kernels/cuda/linear_f16.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/device/row_dot_shape.h"
#include "kernels/cuda/gemm_shape.h"
#include "kernels/cuda/linear_params.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

constexpr int kMaxRowsOfRows = 8;
constexpr int kRowTile = row_dot::kRowDotOutputs;
constexpr int kRowStep = row_dot::kRowDotStep;

// cuBLAS from here on.
constexpr int kLibraryMinRows = 64;

// Emulated blocks take the shared memory of asynchronous copies in either form.
bool HasAsyncCopies(const DeviceInfo& info) {
  return info.image != "sm_70";
}

int64_t RoundUp(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

RowsShape ChooseRowsShape(int64_t in, int64_t out, bool gated, const DeviceInfo& info) {
  const int64_t tiles = gated ? 2 * CeilDiv(out / 2, kRowTile) : CeilDiv(out, kRowTile);
  const int64_t steps = CeilDiv(in, kRowStep);
  const bool async_copies = HasAsyncCopies(info);
  int64_t warps_of_tile;
  if (async_copies) {
    // All blocks at once on the card, with as many warps as the shared memory of their rings
    // allows.
    warps_of_tile = std::clamp<int64_t>(int64_t{info.multiprocessors} * 18 / tiles, 1, steps);
  } else {
    // 2 to 8 steps a warp, so that its beginning and end cost little and the last blocks end
    // together.
    const int64_t warps = int64_t{info.multiprocessors} * 24;
    warps_of_tile = CeilDiv(steps, std::clamp<int64_t>(CeilDiv(tiles * steps, warps), 1, 8));
  }
  const int max_warps =
      async_copies && info.image != "simt" ? row_dot::kMaxWarpsAsync : row_dot::kMaxWarpsPlain;
  RowsShape shape;
  shape.slots = gated ? 2 : 1;
  shape.blocks = static_cast<int>(tiles / shape.slots);
  shape.splits = static_cast<int>(CeilDiv(warps_of_tile, max_warps / shape.slots));
  const int64_t steps_per_warp =
      CeilDiv(steps, CeilDiv(warps_of_tile, shape.splits) * shape.splits);
  shape.k_warps = static_cast<int>(CeilDiv(CeilDiv(steps, steps_per_warp), shape.splits));
  shape.k_per_warp = static_cast<int>(steps_per_warp) * kRowStep;
  shape.shared_per_warp =
      static_cast<int>(async_copies ? row_dot::RingBytes() : row_dot::SumBytes(kMaxRowsOfRows));
  return shape;
}

GemmShape ChooseGemmShape(int rows, int64_t in, int64_t out, const DeviceInfo& info) {
  const int multiprocessors = info.multiprocessors;
  GemmShape shape = {};
  while (shape.kind < 3 && rows > gemm::kTiles[shape.kind].rows) ++shape.kind;
  if (rows > 256 && out >= 256) shape.kind = 4;
  shape.row_tiles = static_cast<int>(CeilDiv(rows, gemm::kTiles[shape.kind].rows));
  shape.out_tiles = static_cast<int>(CeilDiv(out, gemm::kTiles[shape.kind].outs));
  const int tiles = shape.row_tiles * shape.out_tiles;
  const int steps = static_cast<int>(CeilDiv(in, gemm::kSplitStep));
  int splits = 1;
  if (tiles < multiprocessors) {
    const int blocks = shape.kind == 4 ? multiprocessors : 2 * multiprocessors;  // at once
    splits = static_cast<int>(CeilDiv(blocks, tiles));
  }
  const int steps_per_split = static_cast<int>(CeilDiv(steps, std::min(splits, steps)));
  shape.splits = static_cast<int>(CeilDiv(steps, steps_per_split));
  shape.depth_per_split = steps_per_split * gemm::kSplitStep;
  return shape;
}

absl::StatusOr<std::unique_ptr<LinearPart>> LinearF16::Make(
    Context& context, std::span<const ops::DenseMatrix> matrices, std::string_view what,
    bool shared_decision) {
  auto part = std::make_unique<LinearF16>();
  part->context_ = &context;
  part->shared_decision_ = shared_decision;
  part->in_ = matrices[0].cols;
  part->stride_ = RoundUp(part->in_, 8);
  for (const ops::DenseMatrix& matrix : matrices) {
    if (matrix.cols != part->in_) {
      return absl::InvalidArgumentError(absl::StrCat(
          std::string(what), ": a matrix of ", matrix.cols, " inputs in a stack of ", part->in_));
    }
    part->out_ += matrix.rows;
  }
  Device& device = *context.device;
  absl::StatusOr<Buffer> weights =
      device.Allocate(part->out_ * part->stride_ * sizeof(uint16_t), what);
  if (!weights.ok()) return weights.status();
  part->weights_ = *std::move(weights);
  uint16_t* to = part->weights_.as<uint16_t>();
  for (const ops::DenseMatrix& matrix : matrices) {
    if (absl::Status s = UploadF16Rows(context, matrix, to, part->stride_, what); !s.ok()) return s;
    to += matrix.rows * part->stride_;
  }
  const int multiprocessors = device.info().multiprocessors;
  part->rows_shape_ = ChooseRowsShape(part->in_, part->out_, false, device.info());
  part->gated_shape_ = ChooseRowsShape(part->in_, part->out_, true, device.info());
  // As many counters as a launch with shared tiles can have tiles.
  const size_t counter_bytes =
      std::max<size_t>(CeilDiv(part->out_, kRowTile), multiprocessors) * sizeof(uint32_t);
  absl::StatusOr<Buffer> arrived = device.Allocate(counter_bytes, what);
  if (!arrived.ok()) return arrived.status();
  part->arrived_ = *std::move(arrived);
  device.Fill(part->arrived_.data(), 0, counter_bytes);
  if (absl::Status s = part->FindKernels(); !s.ok()) return s;
  return part;
}

absl::Status LinearF16::FindKernels() {
  const auto find = [&](const std::string& name, size_t shared_bytes, const Kernel*& kernel) {
    absl::StatusOr<const Kernel*> found = context_->device->Find(name.c_str(), shared_bytes);
    if (found.ok()) kernel = *found;
    return found.status();
  };
  for (int i = 0; i < kRowKernels; ++i) {
    const size_t shared_bytes = std::max(rows_shape_.SharedBytes(), gated_shape_.SharedBytes());
    if (absl::Status s = find(absl::StrCat("linear_rows_", i + 1), shared_bytes, row_kernels_[i]);
        !s.ok()) {
      return s;
    }
  }
  for (int i = 0; i < gemm::kTileKinds; ++i) {
    if (absl::Status s = find(absl::StrCat("gemm_", i), GemmSharedBytes(i), gemm_kernels_[i]);
        !s.ok()) {
      return s;
    }
  }
  return find("linear_to_half", 0, to_half_);
}

unsigned LinearF16::GemmSharedBytes(int kind) const {
  return static_cast<unsigned>(
      gemm::kTiles[kind].SharedBytes(HasAsyncCopies(context_->device->info())));
}

bool LinearF16::UsesLibrary(int rows) const {
  return context_->cublas != nullptr && !shared_decision_ && rows >= kLibraryMinRows;
}

size_t LinearF16::WorkspaceFor(int rows) const {
  if (rows <= kMaxRowsOfRows) {
    size_t most = 0;
    for (const RowsShape& s : {rows_shape_, gated_shape_}) {
      if (s.splits > 1) most = std::max(most, s.PartialFloats(rows) * sizeof(float));
    }
    return most;
  }
  WorkspaceCutter cutter;
  cutter.Take<uint16_t>(rows * stride_);
  // The library is left out of this: it may not be there where the workspace is planned.
  const GemmShape s = ChooseGemmShape(rows, in_, out_, context_->device->info());
  if (s.splits > 1) {
    cutter.Take<float>(int64_t{s.row_tiles} * s.out_tiles * s.splits * gemm::kTiles[s.kind].rows *
                       gemm::kTiles[s.kind].outs);
  }
  return cutter.used();
}

size_t LinearF16::WorkspaceBytes(int max_rows) const {
  // The most at the end of each range of rows that is cut alike.
  size_t most = WorkspaceFor(max_rows);
  for (int rows : {kMaxRowsOfRows, 16, 32, 64}) {
    if (rows < max_rows) most = std::max(most, WorkspaceFor(rows));
  }
  for (int rows = 128; rows < max_rows; rows += 128) most = std::max(most, WorkspaceFor(rows));
  return most;
}

void LinearF16::Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                    ops::Workspace workspace) const {
  assert(workspace.bytes >= WorkspaceFor(rows));
  WorkspaceCutter cutter(workspace.data);
  if (rows <= kMaxRowsOfRows) {
    RunRows(rows_shape_, 0.0f, x, x_stride, rows, y, y_stride, workspace);
    return;
  }
  uint16_t* half = cutter.Take<uint16_t>(rows * stride_);
  context_->device->Launch(to_half_,
                           {.grid_x = CeilDiv(stride_, gemm::kToHalfCols),
                            .grid_y = static_cast<unsigned>(rows),
                            .threads = 256},
                           LinearToHalfParams{.x = x,
                                              .half = half,
                                              .saturation = context_->saturation,
                                              .x_stride = x_stride,
                                              .half_stride = stride_,
                                              .in = static_cast<int32_t>(in_),
                                              .rows = rows});
  if (UsesLibrary(rows)) {
    context_->cublas->Multiply({.x = half,
                                .x_stride = stride_,
                                .w = weights_.as<uint16_t>(),
                                .w_stride = stride_,
                                .y = y,
                                .y_stride = y_stride,
                                .rows = rows,
                                .in = in_,
                                .out = out_});
    return;
  }
  RunGemm(half, rows, y, y_stride, reinterpret_cast<float*>(cutter.rest()));
}

bool LinearF16::RunsGated(int rows) const {
  return rows <= kMaxRowsOfRows && out_ % 2 == 0;
}

void LinearF16::RunGated(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                         float limit, ops::Workspace workspace) const {
  assert(RunsGated(rows) && workspace.bytes >= WorkspaceFor(rows));
  RunRows(gated_shape_, limit, x, x_stride, rows, y, y_stride, workspace);
}

void LinearF16::RunRows(const RowsShape& s, float limit, const float* x, int64_t x_stride, int rows,
                        float* y, int64_t y_stride, ops::Workspace workspace) const {
  const bool x_aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_stride % 4 == 0;
  context_->device->Launch(row_kernels_[rows - 1],
                           {.grid_x = static_cast<unsigned>(s.blocks),
                            .grid_y = static_cast<unsigned>(s.splits),
                            .threads = static_cast<unsigned>(32 * s.slots * s.k_warps),
                            .shared_bytes = static_cast<unsigned>(s.SharedBytes())},
                           LinearRowsParams{.weights = weights_.as<uint16_t>(),
                                            .x = x,
                                            .y = y,
                                            .partial = reinterpret_cast<float*>(workspace.data),
                                            .arrived = arrived_.as<uint32_t>(),
                                            .saturation = context_->saturation,
                                            .w_stride = stride_,
                                            .x_stride = x_stride,
                                            .y_stride = y_stride,
                                            .in = static_cast<int32_t>(in_),
                                            .out = static_cast<int32_t>(out_),
                                            .slots = s.slots,
                                            .k_warps = s.k_warps,
                                            .k_per_warp = s.k_per_warp,
                                            .shared_per_warp = s.shared_per_warp,
                                            .x_aligned = x_aligned,
                                            .gated = s.slots == 2,
                                            .limit = limit});
}

void LinearF16::RunGemm(const uint16_t* x, int rows, float* y, int64_t y_stride,
                        float* partial) const {
  const GemmShape s = ChooseGemmShape(rows, in_, out_, context_->device->info());
  context_->device->Launch(gemm_kernels_[s.kind],
                           {.grid_x = static_cast<unsigned>(s.row_tiles * s.out_tiles),
                            .grid_y = static_cast<unsigned>(s.splits),
                            .threads = gemm::kThreads,
                            .shared_bytes = GemmSharedBytes(s.kind)},
                           GemmParams{.x = x,
                                      .weights = weights_.as<uint16_t>(),
                                      .y = y,
                                      .partial = partial,
                                      .arrived = arrived_.as<uint32_t>(),
                                      .x_stride = stride_,
                                      .w_stride = stride_,
                                      .y_stride = y_stride,
                                      .depth = static_cast<int32_t>(stride_),
                                      .rows = rows,
                                      .out = static_cast<int32_t>(out_),
                                      .row_tiles = s.row_tiles,
                                      .out_tiles = s.out_tiles,
                                      .depth_per_split = s.depth_per_split});
}

}  // namespace quartet::cuda
