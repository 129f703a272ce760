// EXL3 products for few rows: a block transforms the rows' inputs into shared memory, then its
// warps stream and decode the weights.

#include "kernels/cuda/device/exl3.cuh"
#include "kernels/cuda/device/exl3_input.cuh"

namespace quartet::cuda {
namespace {

using namespace exl3;  // NOLINT

// The block's group in shared memory: all of it is asked for at once, since nothing can begin
// before it is there.
QUARTET_DEVICE const Exl3Group& LoadGroup(const Exl3ProductParams& p) {
  constexpr int kWords = sizeof(Exl3Group) / sizeof(uint32_t);
  __shared__ __align__(16) uint32_t words[kWords];
  auto* group = reinterpret_cast<Exl3Group*>(words);
  const int i = static_cast<int>(threadIdx.x);
  if (p.groups != nullptr) {
    const auto* from = reinterpret_cast<const uint32_t*>(p.groups + blockIdx.z);
    if (i < kWords) words[i] = from[i];
  } else {
    const int first = kTokens * static_cast<int>(blockIdx.z);
    if (i < kTokens) group->slots[i] = group->x_rows[i] = first + i;
    if (i == 0) {
      group->rows = min(kTokens, p.slots - first);
      group->matrices[p.first_matrix] = p.single;
    }
  }
  __syncthreads();
  return *group;
}

// What a warp does: `strips` strips from `first` on, over `count` units of their inputs.
struct WarpJob {
  int first_strip;
  int strips;
  int first_unit;
  int count;
};

// Asks for a warp's first units, so that they come while the inputs are transformed.
QUARTET_DEVICE void PrefetchUnits(const Exl3Weights& w, const WarpJob& job, int units_of_strip) {
  constexpr int kBytes = 4096;
  const int bytes = job.count * 128 * w.bits;
  const auto* begin =
      reinterpret_cast<const char*>(w.trellis) +
      (static_cast<int64_t>(job.first_strip) * units_of_strip + job.first_unit) * 128 * w.bits;
  const int at = 128 * Lane();
  if (at < min(bytes, kBytes)) PrefetchL2(begin + at);
}

// The sums of a strip to memory.
template <bool kColumnMajor>
QUARTET_DEVICE void StoreSums(Sums& sums, float* const* to, int strip) {
  FinishSums(sums);
  if (!OwnsSums()) return;
#pragma unroll
  for (int i = 0; i < Sums::kCount; ++i) {
    float* row = to[RowBitOfSum(i)];
    if (row != nullptr) {
      row[strip * kStrip + ColumnOfLine<kColumnMajor>(LineOfSum(i))] = sums.v[i];
    }
  }
}

QUARTET_DEVICE void LoadInputs(const uint32_t* tile, uint32_t* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 four = reinterpret_cast<const uint4*>(tile)[i];
    x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
  }
}

// `to`: where this lane's two rows' sums of the matrix begin, null for rows that are not there.
// `x`: this lane's row of its tile of the first unit. job.count is a multiple of kRing, the units
// in flight: then nothing but the products is done for a unit, and the rest once for kRing of them.
template <int kBits, bool kMul1, bool kColumnMajor, int kRing>
QUARTET_DEVICE void StreamStrips(const Exl3Weights& w, Exl3Codebook code, const WarpJob& job,
                                 int units_of_strip, const uint32_t* x, float* const* to) {
  constexpr int kUnitWords = 32 * kBits;
  Words<kBits> ring[kRing];
  const uint32_t* next =
      w.trellis +
      (static_cast<int64_t>(job.first_strip) * units_of_strip + job.first_unit) * kUnitWords;
#pragma unroll
  for (int u = 0; u < kRing; ++u) ring[u] = LoadWords<kBits>(next + u * kUnitWords);
  // From the last units of a strip to the first of the one behind.
  const int to_next_strip = (units_of_strip - job.count + kRing) * kUnitWords;
  const int last_strip = job.first_strip + job.strips - 1;
  for (int strip = job.first_strip; strip <= last_strip; ++strip) {
    Sums sums[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) Clear(sums[turn]);
    const uint32_t* tile = x;
    for (int left = job.count; left > 0; left -= kRing) {
      const bool ends = left == kRing;
      const bool more = !ends || strip < last_strip;
      next += ends ? to_next_strip : kRing * kUnitWords;
#pragma unroll
      for (int u = 0; u < kRing; ++u) {
        uint32_t inputs[16];
        LoadInputs(tile + u * 4 * kTileWords, inputs);
        MultiplyUnit<kBits, kMul1, kColumnMajor>(sums, ring[u], code, inputs);
        if (more) ring[u] = LoadWords<kBits>(next + u * kUnitWords);
      }
      tile += kRing * 4 * kTileWords;
    }
    AddTurns(sums);
    StoreSums<kColumnMajor>(sums[0], to, strip);
  }
}

// There is always an even number of units; widths that are rare get by with less code.
template <int kBits, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void StreamWidth(const Exl3Weights& w, Exl3Codebook code, const WarpJob& job,
                                int units_of_strip, const uint32_t* x, float* const* to) {
  if constexpr (kBits == 2 || kBits == 3) {
    if (job.count % 4 == 0) {
      return StreamStrips<kBits, kMul1, kColumnMajor, 4>(w, code, job, units_of_strip, x, to);
    }
  }
  StreamStrips<kBits, kMul1, kColumnMajor, 2>(w, code, job, units_of_strip, x, to);
}

template <bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void StreamAnyWidth(const Exl3Weights& w, const WarpJob& job, int units_of_strip,
                                   const uint32_t* x, float* const* to) {
  // The usual codebook with a multiplier that the compiler knows: an operand less to fetch.
  if (!kMul1 && w.codebook.multiplier == kMcgMultiplier) {
    const Exl3Codebook mcg = {kMcgMultiplier, 0, w.codebook.mask};
    switch (w.bits) {
      case 2:
        return StreamWidth<2, kMul1, kColumnMajor>(w, mcg, job, units_of_strip, x, to);
      case 3:
        return StreamWidth<3, kMul1, kColumnMajor>(w, mcg, job, units_of_strip, x, to);
      case 4:
        return StreamWidth<4, kMul1, kColumnMajor>(w, mcg, job, units_of_strip, x, to);
      default:
        break;
    }
  }
  switch (w.bits) {
    case 1:
      return StreamWidth<1, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
    case 2:
      return StreamWidth<2, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
    case 3:
      return StreamWidth<3, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
    case 4:
      return StreamWidth<4, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
    case 5:
      return StreamWidth<5, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
    case 6:
      return StreamWidth<6, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
    case 7:
      return StreamWidth<7, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
    default:
      return StreamWidth<8, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, x, to);
  }
}

// Asks for the scales that the activations of this part need, each a line of 64 halves at a time.
QUARTET_DEVICE void PrefetchScales(const Exl3ProductParams& p, const Exl3Group& group, int part) {
  const int at = part * p.part_inputs + static_cast<int>(threadIdx.x) * 64;
  if (static_cast<int>(threadIdx.x) * 64 >= p.part_inputs) return;
  PrefetchL2(group.matrices[0].svh + at);
  PrefetchL2(group.matrices[1].svh + at);
  PrefetchL2(group.matrices[2].suh + at);
}

template <bool kActivations, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void Product(const Exl3ProductParams& p) {
  auto* shared = reinterpret_cast<uint32_t*>(QUARTET_DYNAMIC_SHARED());
  if constexpr (!kActivations) AwaitPrevious();
  const Exl3Group& group = LoadGroup(p);
  const int rows = group.rows;
  if (rows == 0) return;
  const int matrix = static_cast<int>(blockIdx.y) < p.parts ? 0 : 1;
  const int part = static_cast<int>(blockIdx.y) - matrix * p.parts;
  const Exl3Weights w = group.matrices[p.first_matrix + matrix];
  const int units_of_strip = p.in / kUnitInputs;
  WarpJob job;
  job.first_strip = (static_cast<int>(blockIdx.x) * kWarps + Warp()) * p.strips_per_warp;
  job.strips = p.strips_per_warp;
  job.count = p.part_inputs / kUnitInputs;
  job.first_unit = part * job.count;
  PrefetchUnits(w, job, units_of_strip);
  if constexpr (kActivations) {
    PrefetchScales(p, group, part);
    // Groups were there before the kernel that multiplied gate and up began.
    AwaitPrevious();
  }
  // All blocks have begun when the kernel behind comes, so that it takes no place from them. If it
  // is another product, its groups and first units come before this one has ended.
  LetNextIn();

  const InputSlice slice = {.rows = rows,
                            .begin = part * p.part_inputs,
                            .inputs = p.part_inputs,
                            .row_words = RowWords(p.part_inputs),
                            .saturation = blockIdx.x == 0 ? p.saturation : nullptr};
  if constexpr (kActivations) {
    StageActivations(p, slice, group, shared);
  } else {
    StageRows(p, slice, group.x_rows, w.suh, shared);
  }
  // What comes after needs the output scales of these strips.
  const int outputs = kStrip * kWarps * p.strips_per_warp;
  if (part == 0 && static_cast<int>(threadIdx.x) * 64 < outputs) {
    PrefetchL2(w.svh + blockIdx.x * outputs + threadIdx.x * 64);
  }
  __syncthreads();

  float* to[2];
#pragma unroll
  for (int bit = 0; bit < 2; ++bit) {
    const int row = RowOfSums(bit);
    const int64_t width = static_cast<int64_t>(p.matrices) * p.out;
    to[bit] = row < rows
                  ? p.sums + (static_cast<int64_t>(part) * p.slots + group.slots[row]) * width +
                        static_cast<int64_t>(matrix) * p.out
                  : nullptr;
  }
  // Rows that are not there read another's activations; their sums go nowhere.
  const uint32_t* x =
      shared + min(RunOfLane(), rows - 1) * slice.row_words + TileOfLane() * kTileWords;
  StreamAnyWidth<kMul1, kColumnMajor>(w, job, units_of_strip, x, to);
}

}  // namespace

// Three blocks a multiprocessor: as many as have registers for all that is in flight.

// Products of rows of x.
QUARTET_EARLY_KERNEL(exl3_rows_sum_sm80, kThreads, 3, Exl3ProductParams) {
  Product<false, false, false>(p);
}
QUARTET_EARLY_KERNEL(exl3_rows_sum_colmajor, kThreads, 3, Exl3ProductParams) {
  Product<false, false, true>(p);
}
QUARTET_EARLY_KERNEL(exl3_rows_mul1_sm80, kThreads, 3, Exl3ProductParams) {
  Product<false, true, false>(p);
}
QUARTET_EARLY_KERNEL(exl3_rows_mul1_colmajor, kThreads, 3, Exl3ProductParams) {
  Product<false, true, true>(p);
}
// Products of the activations of gate and up.
QUARTET_EARLY_KERNEL(exl3_activations_sum_sm80, kThreads, 3, Exl3ProductParams) {
  Product<true, false, false>(p);
}
QUARTET_EARLY_KERNEL(exl3_activations_sum_colmajor, kThreads, 3, Exl3ProductParams) {
  Product<true, false, true>(p);
}
QUARTET_EARLY_KERNEL(exl3_activations_mul1_sm80, kThreads, 3, Exl3ProductParams) {
  Product<true, true, false>(p);
}
QUARTET_EARLY_KERNEL(exl3_activations_mul1_colmajor, kThreads, 3, Exl3ProductParams) {
  Product<true, true, true>(p);
}

QUARTET_KERNEL(exl3_output, kThreads, 1, Exl3OutputParams) {
  const int block = static_cast<int>(blockIdx.x) * kWarps + Warp();
  if (block >= p.out / kBlock) return;
  const int at = block * kBlock + 4 * Lane();
  float v[4], scale[4];
  SumParts(p.sums + static_cast<int64_t>(blockIdx.y) * p.out + at,
           static_cast<int64_t>(p.rows) * p.out, p.parts, v);
  LoadHalves(p.svh + at, scale);
  Hadamard(v);
  float* y = p.y + static_cast<int64_t>(blockIdx.y) * p.y_stride;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (at + i < p.used_out) y[at + i] = v[i] * scale[i];
  }
}

QUARTET_KERNEL(exl3_pack, kThreads, 1, Exl3PackParams) {
  const int64_t words = static_cast<int64_t>(p.in) * p.out / 32 * p.bits;
  const int64_t word = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (word >= words) return;
  const int unit_words = 32 * p.bits;
  const int vector = WordVector(p.bits);
  const int64_t unit = word / unit_words;
  const int in_unit = static_cast<int>(word % unit_words);
  const int units_of_strip = p.in / kUnitInputs;
  const int strip = static_cast<int>(unit / units_of_strip);
  const int place = in_unit / vector % 32;
  const int of_run = in_unit / (32 * vector) * vector + in_unit % vector;
  const int64_t tile_row = unit % units_of_strip * 4 + place % 4;
  const int64_t tile = tile_row * (p.out / kStrip) + strip;
  p.units[word] = p.tiles[tile * 8 * p.bits + place / 4 * p.bits + of_run];
}

}  // namespace quartet::cuda
