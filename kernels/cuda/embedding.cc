#include "kernels/cuda/embedding.h"

#include <utility>

#include "kernels/cuda/embedding_params.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

constexpr unsigned kThreads = 256;

class EmbeddingOp final : public ops::Embedding {
 public:
  static absl::StatusOr<std::unique_ptr<ops::Embedding>> Prepare(
      const ops::EmbeddingWeights& weights, Context& context) {
    const ops::DenseMatrix& table = weights.table;
    auto op = std::make_unique<EmbeddingOp>(context);
    op->rows_ = table.rows;
    op->width_ = table.cols;
    op->vocab_begin_ = weights.vocab_begin;
    const ops::DType dtype = StoredType(table);
    absl::StatusOr<Buffer> buffer =
        context.device->Allocate(table.rows * table.cols * ElementBytes(dtype), "embedding");
    if (!buffer.ok()) return buffer.status();
    op->table_ = *std::move(buffer);
    if (absl::Status s =
            UploadStoredRows(context, table, op->table_.as<std::byte>(), table.cols, "embedding");
        !s.ok()) {
      return s;
    }
    absl::StatusOr<const Kernel*> kernel =
        context.device->Find(dtype == ops::DType::kF32   ? "embedding_f32"
                             : dtype == ops::DType::kF16 ? "embedding_f16"
                                                         : "embedding_bf16");
    if (!kernel.ok()) return kernel.status();
    op->kernel_ = *kernel;
    return op;
  }

  explicit EmbeddingOp(Context& context) : context_(context) {}

  void Run(const int32_t* ids, int rows, float* x) const override {
    context_.device->Launch(kernel_,
                            {.grid_x = CeilDiv(width_, kThreads),
                             .grid_y = static_cast<unsigned>(rows),
                             .threads = kThreads},
                            EmbeddingParams{.table = table_.data(),
                                            .ids = ids,
                                            .x = x,
                                            .table_rows = rows_,
                                            .vocab_begin = vocab_begin_,
                                            .width = static_cast<int32_t>(width_)});
  }

 private:
  Context& context_;
  Buffer table_;  // as stored
  int64_t rows_ = 0;
  int64_t width_ = 0;
  int64_t vocab_begin_ = 0;
  const Kernel* kernel_ = nullptr;
};

class HeadOp final : public ops::Head {
 public:
  explicit HeadOp(PackedLinear linear) : linear_(std::move(linear)) {}
  int64_t vocab_local() const override { return linear_.out(); }
  size_t WorkspaceBytes(int max_rows) const override { return linear_.WorkspaceBytes(max_rows); }
  void Run(const float* h, int rows, float* logits, ops::Workspace workspace) const override {
    linear_.Run(h, linear_.in(), rows, logits, linear_.out(), workspace);
  }

 private:
  PackedLinear linear_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::Embedding>> PrepareEmbeddingOp(
    const ops::EmbeddingWeights& weights, Context& context) {
  return EmbeddingOp::Prepare(weights, context);
}

absl::StatusOr<std::unique_ptr<ops::Head>> PrepareHeadOp(const ops::HeadWeights& weights,
                                                         Context& context) {
  absl::StatusOr<PackedLinear> linear =
      PackedLinear::Make(context, {&weights.weight, 1}, PackedLinear::Precision::kF16, "head");
  if (!linear.ok()) return linear.status();
  return std::make_unique<HeadOp>(*std::move(linear));
}

}  // namespace quartet::cuda
