#include "kernels/cpu/mlp.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "kernels/cpu/math.h"
#include "kernels/cpu/memory.h"

namespace quartet::cpu {
namespace {

constexpr size_t kParallelFloats = 65'536;

class MlpOp : public ops::Mlp {
 public:
  MlpOp(MlpCore core, const Context& context) : core_(std::move(core)), context_(context) {}

  size_t WorkspaceBytes(int max_rows) const override {
    return core_.ScratchFloats(static_cast<size_t>(max_rows)) * sizeof(float);
  }
  void Run(const float* x, int rows, float* partial, ops::Workspace workspace) const override {
    assert(workspace.bytes >= WorkspaceBytes(rows));
    core_.Run(x, static_cast<size_t>(rows), partial, reinterpret_cast<float*>(workspace.data),
              context_.pool);
  }

 private:
  MlpCore core_;
  Context context_;
};

}  // namespace

absl::StatusOr<MlpCore> MlpCore::Prepare(const ops::MlpWeights& w, std::string_view what,
                                         const Context& context) {
  const std::string name(what);
  const int64_t inner = OutFeatures(w.gate);
  const int64_t hidden = InFeatures(w.gate);
  QUARTET_CPU_RETURN(CheckShape(name + " up", OutFeatures(w.up), InFeatures(w.up), inner, hidden));
  QUARTET_CPU_RETURN(CheckShape(name + " down", OutFeatures(w.down), InFeatures(w.down),
                                OutFeatures(w.down), inner));
  MlpCore core;
  QUARTET_CPU_ASSIGN(
      core.gate_up_,
      FusedLinear::Prepare({{&w.gate, name + " gate"}, {&w.up, name + " up"}}, context));
  QUARTET_CPU_ASSIGN(core.down_, LinearOp::Prepare(w.down, name + " down", context));
  core.limit_ = w.limit;
  return core;
}

size_t MlpCore::ScratchFloats(size_t rows) const {
  const size_t block = std::min(rows, kMlpRows);
  return block * static_cast<size_t>(gate_up_.width()) +
         std::max(gate_up_.ScratchFloats(block), down_.ScratchFloats(block));
}

void MlpCore::RunBlock(const float* x, size_t rows, float* y, float* scratch,
                       ThreadPool* pool) const {
  const size_t inner = static_cast<size_t>(down_.in());
  const size_t ld = static_cast<size_t>(gate_up_.width());
  float* gate_up = scratch;
  float* rest = scratch + rows * ld;
  gate_up_.Run(x, static_cast<size_t>(gate_up_.in()), rows, gate_up, rest, pool);
  pool->For(rows, 1, rows * inner >= kParallelFloats, [&](size_t begin, size_t end, int) {
    for (size_t r = begin; r < end; ++r) {
      float* gate = gate_up + r * ld;
      ClampedSwiGlu(gate, gate + inner, inner, limit_, gate);
    }
  });
  down_.Run(gate_up, ld, rows, y, static_cast<size_t>(down_.out()), rest, pool);
}

void MlpCore::Run(const float* x, size_t rows, float* y, float* scratch, ThreadPool* pool) const {
  for (size_t r = 0; r < rows; r += kMlpRows) {
    RunBlock(x + r * static_cast<size_t>(in()), std::min(kMlpRows, rows - r),
             y + r * static_cast<size_t>(out()), scratch, pool);
  }
}

absl::StatusOr<std::unique_ptr<ops::Mlp>> PrepareMlpOp(const ops::MlpWeights& weights,
                                                       const Context& context) {
  QUARTET_CPU_ASSIGN(MlpCore core, MlpCore::Prepare(weights, "MLP", context));
  return std::make_unique<MlpOp>(std::move(core), context);
}

}  // namespace quartet::cpu
