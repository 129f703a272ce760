#ifndef QUARTET_KERNELS_OPS_WEIGHTS_H_
#define QUARTET_KERNELS_OPS_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <variant>

namespace quartet::ops {

// Views of weights as they lie in a checkpoint, cut to one rank's slice. They own nothing: the
// bytes must stay mapped until the op that was prepared from them exists. Nothing is read before
// `Backend::Prepare*`.

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3 };

// A matrix [rows = out, cols = in], element (r, c) at data[r * row_stride + c], stride in elements.
struct DenseMatrix {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
  // kF8E4M3 only: value(r, c) is multiplied by
  //   scales[(r + row_offset) / block_rows * scale_stride + (c + col_offset) / block_cols].
  // The offsets say where this slice begins inside the whole matrix, since scale blocks lie on the
  // whole matrix' grid.
  const std::byte* scales = nullptr;  // F32, little endian
  int64_t scale_stride = 0;           // blocks in a block row of the whole matrix
  int64_t block_rows = 128;
  int64_t block_cols = 128;
  int64_t row_offset = 0;
  int64_t col_offset = 0;
};

enum class Codebook : uint8_t { kMcg, kMul1, k3Inst };

// Which element (row r = input, column c = output) of a 16 x 16 tile stands at position t of its
// bit stream.
enum class TileOrder : uint8_t {
  kSm80,  // the B fragments of mma.m16n8k16: r = 2(l & 3) + (j & 1) + 8((j >> 1) & 1), c = (l >> 2)
          // + 8(j >> 2) with l = t >> 3, j = t & 7
  kColumnMajor,  // r = t & 15, c = t >> 4
};

// An EXL3 matrix W [in, out] = diag(suh) Had Q Had diag(svh), y = x W. `trellis` points at the
// slice's first tile; tile (i, j) covers inputs 16i.. and outputs 16j.. and lies at trellis + (i *
// tile_row_stride + j) * 16 * bits (int16).
struct Exl3Matrix {
  int bits = 0;  // K, 1..8
  Codebook codebook = Codebook::kMcg;
  TileOrder tile_order = TileOrder::kSm80;
  int64_t in = 0;   // multiple of 128
  int64_t out = 0;  // multiple of 128
  // What the model uses of them where its own sizes are no multiples of 128: the rest of x counts
  // as zero, the rest of y is dropped. 0 = all.
  int64_t used_in = 0;
  int64_t used_out = 0;
  const std::byte* trellis = nullptr;  // I16
  int64_t tile_row_stride = 0;         // tiles between tile rows: the whole matrix' out / 16
  // F16 [in] and [out]; or, where the *_signs pointer is set instead, one bit an element (set =
  // negative), magnitude 1.
  const std::byte* suh = nullptr;
  const std::byte* svh = nullptr;
  const std::byte* su_signs = nullptr;  // I16 [in / 16]
  const std::byte* sv_signs = nullptr;  // I16 [out / 16]
};

// Any linear layer may be EXL3.
using LinearWeights = std::variant<DenseMatrix, Exl3Matrix>;

// A vector of `size` elements, or a small tensor that is used flat.
struct VectorView {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  int64_t size = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_WEIGHTS_H_
