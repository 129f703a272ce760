#include "kernels/cuda/linear_exact.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear_exact_shape.h"
#include "kernels/cuda/linear_params.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

// Up to here every row tile of 8 reads the weights again, from the second-level cache.
constexpr int kFewMaxRows = 64;

// Blocks of linear_exact_many that a multiprocessor holds; and up to how many waves of them blocks
// may share tiles, since each partial sum costs workspace.
constexpr unsigned kManyBlocks = 2;
constexpr unsigned kMaxSharedWaves = 2;

std::string KernelName(std::string_view kind, ops::DType dtype) {
  const char* type = dtype == ops::DType::kF32 ? "f32" : dtype == ops::DType::kF16 ? "f16" : "bf16";
  return absl::StrCat("linear_exact_", std::string(kind), "_", type);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinearPart>> LinearExact::Make(
    Context& context, std::span<const ops::DenseMatrix> matrices, std::string_view what) {
  auto part = std::make_unique<LinearExact>();
  part->context_ = &context;
  part->in_ = matrices[0].cols;
  const ops::DType dtype = StoredType(matrices[0]);
  const int64_t bytes = static_cast<int64_t>(ElementBytes(dtype));
  part->stride_ = CeilDiv(part->in_ * bytes, 16) * 16 / bytes;
  for (const ops::DenseMatrix& matrix : matrices) {
    if (matrix.cols != part->in_) {
      return absl::InvalidArgumentError(absl::StrCat(
          std::string(what), ": a matrix of ", matrix.cols, " inputs in a stack of ", part->in_));
    }
    part->out_ += matrix.rows;
  }
  absl::StatusOr<Buffer> weights =
      context.device->Allocate(part->out_ * part->stride_ * bytes, what);
  if (!weights.ok()) return weights.status();
  part->weights_ = *std::move(weights);
  std::byte* to = part->weights_.as<std::byte>();
  for (const ops::DenseMatrix& matrix : matrices) {
    if (absl::Status s = UploadStoredRows(context, matrix, to, part->stride_, what); !s.ok()) {
      return s;
    }
    to += matrix.rows * part->stride_ * bytes;
  }
  // As many counters as a launch with shared tiles can have tiles.
  const size_t few_tiles =
      CeilDiv(part->out_, exact::kFewOuts) * size_t{CeilDiv(kFewMaxRows, exact::kFewRows)};
  const size_t many_tiles =
      size_t{kMaxSharedWaves} * kManyBlocks * context.device->info().multiprocessors;
  const size_t counter_bytes = std::max(few_tiles, many_tiles) * sizeof(uint32_t);
  absl::StatusOr<Buffer> arrived = context.device->Allocate(counter_bytes, what);
  if (!arrived.ok()) return arrived.status();
  part->arrived_ = *std::move(arrived);
  context.device->Fill(part->arrived_.data(), 0, counter_bytes);
  absl::StatusOr<const Kernel*> few = context.device->Find(KernelName("few", dtype).c_str());
  if (!few.ok()) return few.status();
  part->few_ = *few;
  absl::StatusOr<const Kernel*> many = context.device->Find(KernelName("many", dtype).c_str());
  if (!many.ok()) return many.status();
  part->many_ = *many;
  return part;
}

LinearExact::Plan LinearExact::PlanFor(int rows) const {
  const unsigned slices = CeilDiv(in_, exact::kSlice);
  if (rows <= kFewMaxRows) {
    Plan plan = {.many = false,
                 .out_tiles = CeilDiv(out_, exact::kFewOuts),
                 .row_tiles = CeilDiv(rows, exact::kFewRows),
                 .parts = slices};
    plan.partial_bytes = slices == 1 ? 0
                                     : size_t{plan.out_tiles} * plan.row_tiles * slices *
                                           exact::kFewRows * exact::kFewOuts * sizeof(float);
    return plan;
  }
  Plan plan = {.many = true,
               .out_tiles = CeilDiv(out_, exact::kManyOuts),
               .row_tiles = CeilDiv(rows, exact::kManyRows),
               .parts = 1};
  // A block a group of slices where the card is then busy for a shorter time.
  const unsigned at_once = kManyBlocks * context_->device->info().multiprocessors;
  const unsigned tiles = plan.out_tiles * plan.row_tiles;
  const unsigned groups = CeilDiv(slices, exact::kSlicesPerGroup);
  if (tiles <= kMaxSharedWaves * at_once &&
      CeilDiv(int64_t{tiles} * groups, at_once) < CeilDiv(tiles, at_once) * groups) {
    plan.parts = groups;
  }
  plan.partial_bytes = plan.parts == 1 ? 0
                                       : size_t{plan.out_tiles} * plan.row_tiles * plan.parts *
                                             exact::kManyRows * exact::kManyOuts * sizeof(float);
  return plan;
}

size_t LinearExact::WorkspaceBytes(int max_rows) const {
  size_t most = PlanFor(std::min(max_rows, kFewMaxRows)).partial_bytes;
  for (int rows = kFewMaxRows + 1; rows <= max_rows; rows += exact::kManyRows) {
    most = std::max(most, PlanFor(std::min(rows + exact::kManyRows - 1, max_rows)).partial_bytes);
  }
  return std::max(most, PlanFor(max_rows).partial_bytes);
}

void LinearExact::Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                      ops::Workspace workspace) const {
  const Plan plan = PlanFor(rows);
  assert(workspace.bytes >= plan.partial_bytes);
  const bool x_aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_stride % 4 == 0;
  const LinearExactParams params = {.weights = weights_.data(),
                                    .x = x,
                                    .y = y,
                                    .partial = reinterpret_cast<float*>(workspace.data),
                                    .arrived = arrived_.as<uint32_t>(),
                                    .w_stride = stride_,
                                    .x_stride = x_stride,
                                    .y_stride = y_stride,
                                    .in = static_cast<int32_t>(in_),
                                    .out = static_cast<int32_t>(out_),
                                    .rows = rows,
                                    .x_aligned = x_aligned};
  context_->device->Launch(
      plan.many ? many_ : few_,
      {.grid_x = plan.out_tiles, .grid_y = plan.row_tiles, .grid_z = plan.parts, .threads = 256},
      params);
}

}  // namespace quartet::cuda
