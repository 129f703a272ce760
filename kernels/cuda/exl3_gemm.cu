// EXL3 products for many rows: rows are transformed once, then tiles of rows are multiplied with
// weights that are decoded into registers.

#include "kernels/cuda/device/exl3_input.cuh"
#include "kernels/cuda/device/exl3_tiles.cuh"

namespace quartet::cuda {
namespace {

using namespace exl3;  // NOLINT

// What is multiplied at once: `kRows` rows, of which `kStages` units of inputs are in shared
// memory.
template <int kRows>
struct Tile {
  static constexpr int kRowGroups = kRows / 8;
  static constexpr int kStages = kRows > kSmallRowTile ? 3 : 4;  // 48 KiB at most
  static constexpr int kStageHalves = kRows * kUnitInputs;
};

// Transforms the lane's four elements of a block and stores them as FP16 at `row`.
QUARTET_DEVICE void StoreInputs(float* v, uint16_t* row, int block,
                                SaturationCounters* saturation) {
  Hadamard(v);
  const int at = 4 * Lane();
  uint16_t* unit = row + block * kBlock + at / kUnitInputs * kUnitInputs;
  uint32_t saturated = 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    // Neighbours stay neighbours.
    *reinterpret_cast<uint32_t*>(unit + PlaceOfInput(at % kUnitInputs + i)) =
        HalfBits(v[i], saturated) | HalfBits(v[i + 1], saturated) << 16;
  }
  CountSaturated(saturated, saturation);
}

QUARTET_DEVICE const Exl3Weights& WeightsAt(const Exl3Positions& positions, int expert,
                                            int matrix) {
  return positions.bank == nullptr ? positions.single : positions.bank[3 * expert + matrix];
}
QUARTET_DEVICE int ExpertAt(const Exl3Positions& positions, int position) {
  return positions.experts == nullptr ? 0 : positions.experts[position];
}

// One stage of a tile's inputs; rows that are not there become zeros.
template <int kRows>
QUARTET_DEVICE void CopyStage(const Exl3GemmParams& p, const Exl3RowTile& tile,
                              const uint16_t* inputs, int unit, __half* stage) {
#pragma unroll
  for (int i = 0; i < kRows * 8 / kThreads; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = piece / 8;
    const bool valid = row < tile.rows;
    const uint16_t* from = inputs + static_cast<int64_t>(tile.first + (valid ? row : 0)) * p.in +
                           unit * kUnitInputs + piece % 8 * 8;
    CopyAsync16(stage + PieceAt(row, piece % 8), from, valid);
  }
}

QUARTET_DEVICE void StoreTile(Sums& sums, float* to, int64_t width, int first_row, int rows,
                              bool column_major) {
  FinishSums(sums);
  if (!OwnsSums()) return;
#pragma unroll
  for (int i = 0; i < Sums::kCount; ++i) {
    const int row = first_row + RowOfSums(RowBitOfSum(i));
    const int line = LineOfSum(i);
    const int column = column_major ? ColumnOfLine<true>(line) : ColumnOfLine<false>(line);
    if (row < rows) to[row * width + column] = sums.v[i];
  }
}

// A warp's weights on their way: the words of the next two units of its strips. Widths beyond four
// bits, which are rare, are loaded when they are needed.
constexpr int kWordsAhead = 4;
struct WeightStream {
  const uint32_t* next[kStripsAtOnce];
  uint32_t words[2][kStripsAtOnce][kWordsAhead];
};

template <int kBits>
QUARTET_DEVICE void LoadAhead(const uint32_t* unit, uint32_t* words) {
  const Words<kBits> loaded = LoadWords<kBits>(unit + WordsOfLane<kBits>());
#pragma unroll
  for (int i = 0; i < kBits; ++i) words[i] = loaded.v[i];
}
QUARTET_DEVICE void LoadAhead(int bits, const uint32_t* unit, uint32_t* words) {
  switch (bits) {
    case 1:
      return LoadAhead<1>(unit, words);
    case 2:
      return LoadAhead<2>(unit, words);
    case 3:
      return LoadAhead<3>(unit, words);
    case 4:
      return LoadAhead<4>(unit, words);
    default:
      return;
  }
}

QUARTET_DEVICE void Open(WeightStream& stream, const Exl3Weights& w, int strip, int strips,
                         int units) {
#pragma unroll
  for (int s = 0; s < kStripsAtOnce; ++s) {
    // Beyond the end: another strip's weights, whose sums are not stored.
    stream.next[s] =
        w.trellis + static_cast<int64_t>(min(strip + s, strips - 1)) * units * 32 * w.bits;
#pragma unroll
    for (int ahead = 0; ahead < 2; ++ahead) {  // there are at least two units
#pragma unroll
      for (int i = 0; i < kWordsAhead; ++i) stream.words[ahead][s][i] = 0;
      LoadAhead(w.bits, stream.next[s] + ahead * 32 * w.bits, stream.words[ahead][s]);
    }
  }
}

// Decodes the next unit of every strip and asks for the one after the next, which is there if
// `more`.
template <int kBits, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void DecodeNext(WeightStream& stream, Exl3Codebook code, bool more,
                               UnitWeights* weights) {
#pragma unroll
  for (int s = 0; s < kStripsAtOnce; ++s) {
    Words<kBits> words;
    if constexpr (kBits <= kWordsAhead) {
#pragma unroll
      for (int i = 0; i < kBits; ++i) {
        words.v[i] = stream.words[0][s][i];
        stream.words[0][s][i] = stream.words[1][s][i];
      }
      if (more) LoadAhead<kBits>(stream.next[s] + 2 * 32 * kBits, stream.words[1][s]);
    } else {
      words = LoadWords<kBits>(stream.next[s] + WordsOfLane<kBits>());
    }
    stream.next[s] += 32 * kBits;
    weights[s] = DecodeUnit<kBits, kMul1, kColumnMajor>(words, code);
  }
}
template <bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void DecodeNext(int bits, WeightStream& stream, Exl3Codebook code, bool more,
                               UnitWeights* weights) {
  switch (bits) {
    case 1:
      return DecodeNext<1, kMul1, kColumnMajor>(stream, code, more, weights);
    case 2:
      return DecodeNext<2, kMul1, kColumnMajor>(stream, code, more, weights);
    case 3:
      return DecodeNext<3, kMul1, kColumnMajor>(stream, code, more, weights);
    case 4:
      return DecodeNext<4, kMul1, kColumnMajor>(stream, code, more, weights);
    case 5:
      return DecodeNext<5, kMul1, kColumnMajor>(stream, code, more, weights);
    case 6:
      return DecodeNext<6, kMul1, kColumnMajor>(stream, code, more, weights);
    case 7:
      return DecodeNext<7, kMul1, kColumnMajor>(stream, code, more, weights);
    default:
      return DecodeNext<8, kMul1, kColumnMajor>(stream, code, more, weights);
  }
}

// `strip`: the warp's first; those beyond the matrix are not there.
template <int kRows, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void MultiplyTile(const Exl3GemmParams& p, const Exl3RowTile& tile,
                                 const Exl3Weights& w, const uint16_t* inputs, int strip, float* to,
                                 __half* shared) {
  constexpr int kStages = Tile<kRows>::kStages;
  constexpr int kStageHalves = Tile<kRows>::kStageHalves;
  constexpr int kRowGroups = Tile<kRows>::kRowGroups;
  const int units = p.in / kUnitInputs;
  const int strips = p.out / kStrip;
  WeightStream stream;
  Open(stream, w, strip, strips, units);
  Sums sums[kStripsAtOnce][kRowGroups];
#pragma unroll
  for (int s = 0; s < kStripsAtOnce; ++s) {
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) Clear(sums[s][g]);
  }
  __syncthreads();  // the stages may still be read by a product before this one
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < units) CopyStage<kRows>(p, tile, inputs, i, shared + i * kStageHalves);
    CopyAsyncCommit();
  }
  int stage = 0;
  for (int unit = 0; unit < units; ++unit) {
    UnitWeights weights[kStripsAtOnce];
    DecodeNext<kMul1, kColumnMajor>(w.bits, stream, w.codebook, unit + 2 < units, weights);
    CopyAsyncWait<kStages - 2>();
    __syncthreads();
    // Into the stage that all have left.
    const int next = unit + kStages - 1;
    if (next < units) {
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      CopyStage<kRows>(p, tile, inputs, next, shared + free * kStageHalves);
    }
    CopyAsyncCommit();
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) {
      RowInputs x;
      LoadRows(x, shared + stage * kStageHalves, 8 * g);
#pragma unroll
      for (int s = 0; s < kStripsAtOnce; ++s) MultiplyRows(sums[s][g], weights[s], x);
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  const int64_t width = static_cast<int64_t>(p.matrices) * p.out;
#pragma unroll
  for (int s = 0; s < kStripsAtOnce; ++s) {
    if (strip + s >= strips) break;
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) {
      StoreTile(sums[s][g], to + tile.first * width + (strip + s) * kStrip, width, 8 * g, tile.rows,
                kColumnMajor);
    }
  }
}

template <int kRowTile, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void Gemm(const Exl3GemmParams& p) {
  constexpr int kRows = kRowTile < kMostRowsAtOnce ? kRowTile : kMostRowsAtOnce;
  __shared__ __align__(128) uint16_t stages[Tile<kRows>::kStages * Tile<kRows>::kStageHalves];
  auto* shared = reinterpret_cast<__half*>(stages);
  const Exl3Positions& positions = p.positions;
  const int index = static_cast<int>(blockIdx.y);
  // The grid is for the most tiles there can be.
  const int count = positions.tiles == nullptr ? (positions.count + kRowTile - 1) / kRowTile
                                               : *positions.tile_count;
  if (index >= count) return;
  const Exl3RowTile tile =
      positions.tiles == nullptr
          ? Exl3RowTile{0, index * kRowTile, min(kRowTile, positions.count - index * kRowTile)}
          : positions.tiles[index];
  const int column_tiles = (p.out + kColumnTile - 1) / kColumnTile;
  const int matrix = static_cast<int>(blockIdx.x) / column_tiles;
  const int column_tile = static_cast<int>(blockIdx.x) % column_tiles;
  const Exl3Weights w = WeightsAt(positions, tile.expert, p.first_matrix + matrix);
  const uint16_t* inputs = p.inputs + static_cast<int64_t>(matrix) * positions.count * p.in;
  float* to = p.sums + static_cast<int64_t>(matrix) * p.out;
  constexpr int kStripsOfWarp = kColumnTile / kStrip / kWarps;
  for (int s = 0; s < kStripsOfWarp; s += kStripsAtOnce) {
    const int strip = (column_tile * kWarps + Warp()) * kStripsOfWarp + s;
    for (int first = 0; first < tile.rows; first += kRows) {
      const Exl3RowTile rows = {tile.expert, tile.first + first, min(kRows, tile.rows - first)};
      MultiplyTile<kRows, kMul1, kColumnMajor>(p, rows, w, inputs, strip, to, shared);
    }
  }
}

}  // namespace

QUARTET_KERNEL(exl3_transform_rows, kThreads, 1, Exl3TransformParams) {
  const Exl3Positions& positions = p.positions;
  const int position = static_cast<int>(blockIdx.x);
  const int slot = positions.slots == nullptr ? position : positions.slots[position];
  const int expert = ExpertAt(positions, position);
  const float* x = p.x + slot / positions.slots_per_row * p.x_stride;
  for (int block = Warp(); block < p.in / kBlock; block += kWarps) {
    const int at = block * kBlock + 4 * Lane();
    float row[4];
    LoadPadded(x, at, p.used_in, row);
    for (int m = 0; m < p.matrices; ++m) {
      float v[4], scale[4];
      LoadHalves(WeightsAt(positions, expert, p.first_matrix + m).suh + at, scale);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = row[i] * scale[i];
      StoreInputs(v, p.inputs + (static_cast<int64_t>(m) * positions.count + position) * p.in,
                  block, p.saturation);
    }
  }
}

QUARTET_KERNEL(exl3_transform_activations, kThreads, 1, Exl3TransformParams) {
  const Exl3Positions& positions = p.positions;
  const int position = static_cast<int>(blockIdx.x);
  const Exl3Weights* w = positions.bank + 3 * ExpertAt(positions, position);
  const float* sums = p.gate_up + static_cast<int64_t>(position) * 2 * p.in;
  for (int block = Warp(); block < p.in / kBlock; block += kWarps) {
    const int at = block * kBlock + 4 * Lane();
    float gate[4], up[4], gate_scale[4], up_scale[4], scale[4], v[4];
    SumParts(sums + at, 0, 1, gate);
    SumParts(sums + p.in + at, 0, 1, up);
    LoadHalves(w[0].svh + at, gate_scale);
    LoadHalves(w[1].svh + at, up_scale);
    LoadHalves(w[2].suh + at, scale);
    Activate(gate, up, gate_scale, up_scale, at, p.used_in, p.limit, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= scale[i];
    StoreInputs(v, p.inputs + static_cast<int64_t>(position) * p.in, block, p.saturation);
  }
}

QUARTET_KERNEL(exl3_gemm_small_sum_sm80, kThreads, 2, Exl3GemmParams) {
  Gemm<kSmallRowTile, false, false>(p);
}
QUARTET_KERNEL(exl3_gemm_small_sum_colmajor, kThreads, 2, Exl3GemmParams) {
  Gemm<kSmallRowTile, false, true>(p);
}
QUARTET_KERNEL(exl3_gemm_small_mul1_sm80, kThreads, 2, Exl3GemmParams) {
  Gemm<kSmallRowTile, true, false>(p);
}
QUARTET_KERNEL(exl3_gemm_small_mul1_colmajor, kThreads, 2, Exl3GemmParams) {
  Gemm<kSmallRowTile, true, true>(p);
}
QUARTET_KERNEL(exl3_gemm_large_sum_sm80, kThreads, 1, Exl3GemmParams) {
  Gemm<kLargeRowTile, false, false>(p);
}
QUARTET_KERNEL(exl3_gemm_large_sum_colmajor, kThreads, 1, Exl3GemmParams) {
  Gemm<kLargeRowTile, false, true>(p);
}
QUARTET_KERNEL(exl3_gemm_large_mul1_sm80, kThreads, 1, Exl3GemmParams) {
  Gemm<kLargeRowTile, true, false>(p);
}
QUARTET_KERNEL(exl3_gemm_large_mul1_colmajor, kThreads, 1, Exl3GemmParams) {
  Gemm<kLargeRowTile, true, true>(p);
}

}  // namespace quartet::cuda
