#include "shard_worker/model/decode_probe.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <variant>

#include "shard_worker/checkpoint/decode_check.h"
#include "shard_worker/model/weights_to_ops.h"

namespace quartet {
namespace {

constexpr int kBlock = kDecodeBlock;
// As decode steps have.
constexpr int kRows = 8;
constexpr uint16_t kOne = 0x3C00;  // as binary16

// Element (i, j) of the orthonormal Hadamard matrix of 128, its own inverse.
double Hadamard(int i, int j) {
  const double magnitude = 1 / std::sqrt(static_cast<double>(kBlock));
  return std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? magnitude : -magnitude;
}

}  // namespace

absl::StatusOr<std::vector<float>> DecodeBlock(ops::Backend& backend, const Exl3View& view) {
  absl::StatusOr<ops::LinearWeights> weights = ToOps(LinearView(view));
  if (!weights.ok()) return weights.status();
  // The block alone, without scales: y = Had(Had(x) Q).
  const std::vector<uint16_t> ones(kBlock, kOne);
  auto& matrix = std::get<ops::Exl3Matrix>(*weights);
  matrix.in = matrix.out = kBlock;
  matrix.used_in = matrix.used_out = 0;
  matrix.suh = matrix.svh = reinterpret_cast<const std::byte*>(ones.data());
  matrix.su_signs = matrix.sv_signs = nullptr;
  absl::StatusOr<std::unique_ptr<ops::Linear>> linear = backend.PrepareLinear(*weights);
  if (!linear.ok()) return linear.status();

  constexpr size_t kBytes = sizeof(float) * kRows * kBlock;
  const size_t workspace_bytes = (*linear)->WorkspaceBytes(kRows);
  absl::StatusOr<ops::Memory> memory =
      backend.Allocate(2 * kBytes + workspace_bytes, "the self-test of decoding");
  if (!memory.ok()) return memory.status();
  auto* x = reinterpret_cast<float*>(memory->data());
  auto* y = reinterpret_cast<float*>(memory->data() + kBytes);
  const ops::Workspace workspace{memory->data() + 2 * kBytes, workspace_bytes};

  std::vector<float> block, in(kRows * kBlock), out(kRows * kBlock);
  for (int first = 0; first < kBlock; first += kRows) {
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kBlock; ++j) {
        in[r * kBlock + j] = static_cast<float>(Hadamard(first + r, j));
      }
    }
    if (absl::Status s = backend.CopyIn(x, in.data(), kBytes); !s.ok()) return s;
    (*linear)->Run(x, kRows, y, workspace);
    if (absl::Status s = backend.CopyOut(out.data(), y, kBytes); !s.ok()) return s;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kBlock; ++i) {
        double weight = 0;
        for (int j = 0; j < kBlock; ++j) weight += Hadamard(i, j) * out[r * kBlock + j];
        block.push_back(static_cast<float>(weight));
      }
    }
  }
  return block;
}

}  // namespace quartet
