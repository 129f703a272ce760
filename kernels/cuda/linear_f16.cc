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
// Warps of a block of linear_rows: at least so many where the card holds all blocks at once, else
// so many.
constexpr int kMinWarps = 6;
constexpr int kUsualWarps = 8;
// Adding up splits takes as long as one step of all warps.
constexpr int kSplitSteps = 1;

// cuBLAS from here on. Measured on the H200, us (own, cuBLAS 13), rows x [out, in]:
//     64 x [24896, 4096]    81    55        64 x [4096, 8192]   44    25
//     64 x [2304, 4096]     27    11       512 x [24896, 4096] 353   150
//    512 x [2304, 4096]     70    20      8192 x [8192, 4096] 1742   796
constexpr int kLibraryMinRows = 64;

// Emulated blocks take the shared memory of asynchronous copies in either form.
bool HasAsyncCopies(const DeviceInfo& info) {
  return info.image != "sm_70";
}

// Whether gemm_<kind> can run on this device.
bool HasKernel(int kind, const DeviceInfo& info) {
  return (kind != gemm::kLargest || HasAsyncCopies(info)) &&
         gemm::kTiles[kind].SharedBytes(HasAsyncCopies(info)) <= info.shared_bytes_per_block;
}

int64_t RoundUp(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

RowsShape ChooseRowsShape(int64_t in, int64_t out, bool gated, const DeviceInfo& info) {
  const int sm = info.multiprocessors;
  RowsShape shape;
  shape.slots = gated ? 2 : 1;
  // One output cannot be gated, but has a shape all the same.
  shape.blocks = std::max(1, static_cast<int>(CeilDiv(out / shape.slots, kRowTile)));
  const int steps = static_cast<int>(CeilDiv(in, kRowStep));
  // The fewest steps a warp among the ways in which the card holds all blocks at once, with as many
  // warps as then fit. Few large blocks add up in shared memory what splits exchange through the
  // second-level cache (H200, us for [4096, 8192]: 19.5 with 3 splits of 8 warps, 16.9 with 24).
  const int most_warps = HasAsyncCopies(info) ? row_dot::kRowDotWarps : row_dot::kRowDotWarpsSm70;
  int best = 0;
  for (int splits = 1;; ++splits) {
    const int on_one = static_cast<int>(CeilDiv(int64_t{splits} * shape.blocks, sm));
    const int fitting = std::min(most_warps, row_dot::kRowDotWarps / on_one);
    if (splits > 1 && fitting < kMinWarps) break;
    const int k_warps = (fitting < kMinWarps ? kUsualWarps : fitting) / shape.slots;
    const int cost =
        static_cast<int>(CeilDiv(steps, splits * k_warps)) + (splits > 1 ? kSplitSteps : 0);
    if (splits > 1 && cost >= best) continue;
    best = cost;
    shape.splits = splits;
    shape.k_warps = k_warps;
  }
  const int per_warp = static_cast<int>(CeilDiv(steps, shape.splits * shape.k_warps));
  shape.k_warps = static_cast<int>(CeilDiv(CeilDiv(steps, per_warp), shape.splits));
  shape.k_per_warp = per_warp * kRowStep;
  return shape;
}

GemmShape ChooseGemmShape(int rows, int64_t in, int64_t out, const DeviceInfo& info) {
  const int sm = info.multiprocessors;
  GemmShape shape = {};
  const auto cut = [&](int kind) {
    shape.kind = kind;
    shape.row_tiles = static_cast<int>(CeilDiv(rows, gemm::kTiles[kind].rows));
    shape.out_tiles = static_cast<int>(CeilDiv(out, gemm::kTiles[kind].outs));
    return shape.row_tiles * shape.out_tiles;
  };
  int kind = 0;
  while (kind < gemm::kTallest && rows > gemm::kTiles[kind].rows) ++kind;
  int tiles = cut(kind);
  // Two blocks of tiles of 64 rows run on a multiprocessor at once.
  if (kind == gemm::kTallest && tiles > 2 * sm) {
    tiles = cut(HasKernel(gemm::kLargest, info) ? gemm::kLargest : gemm::kLarge);
  }
  // A block a multiprocessor: more blocks that share a tile write more sums than they save.
  const int steps = static_cast<int>(CeilDiv(in, gemm::kSplitStep));
  const int splits = std::clamp(sm / tiles, 1, steps);
  const int steps_per_split = static_cast<int>(CeilDiv(steps, splits));
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
    if (absl::Status s = find(absl::StrCat("linear_rows_", i + 1), 0, row_kernels_[i]); !s.ok()) {
      return s;
    }
  }
  for (int i = 0; i < gemm::kTileKinds; ++i) {
    if (!HasKernel(i, context_->device->info())) continue;
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
  for (int rows : {kMaxRowsOfRows, 16, 32}) {
    if (rows < max_rows) most = std::max(most, WorkspaceFor(rows));
  }
  for (int rows = 64; rows < max_rows; rows += 64) most = std::max(most, WorkspaceFor(rows));
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
                            .threads = static_cast<unsigned>(32 * s.slots * s.k_warps)},
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
                            .threads = static_cast<unsigned>(gemm::kTiles[s.kind].Threads()),
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
