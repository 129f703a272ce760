// EXL3 products for few rows: a block transforms the rows' inputs into shared memory, then its
// warps stream and decode the weights.

#include "kernels/cuda/device/exl3.cuh"
#include "kernels/cuda/device/exl3_input.cuh"
#include "kernels/cuda/device/exl3_single.cuh"

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

// What a warp does: `strips` strips from `first` on, as many apart as the block has warps, over
// `count` units of their inputs.
struct WarpJob {
  int first_strip;
  int strips;
  int first_unit;
  int count;
};

// Asks for `bytes` of a warp's first units, at most 4 KiB, which come while the inputs are
// transformed.
QUARTET_DEVICE void PrefetchUnits(const Exl3Weights& w, const WarpJob& job, int units_of_strip,
                                  int bytes) {
  const int unit_bytes = 128 * w.bits;
  const int64_t begin =
      (static_cast<int64_t>(job.first_strip) * units_of_strip + job.first_unit) * unit_bytes;
  const int at = 128 * Lane();
  if (at < min(job.count * unit_bytes, bytes)) {
    PrefetchL2(reinterpret_cast<const char*>(w.trellis) + begin + at);
  }
}

// What is done with a strip's units, one after the other: for several rows with tensor cores.
template <int kBits, bool kMul1, bool kColumnMajor>
class RowsOfStrip {
 public:
  static constexpr int kUnitWords = 4 * kTileWords;  // of activations

  // `to`: where this lane's two rows' sums of the first strip are, null for rows that are not
  // there.
  QUARTET_DEVICE explicit RowsOfStrip(float* const* to) : to_{to[0], to[1]} {}

  QUARTET_DEVICE void Begin() {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) exl3::Clear(sums_[turn]);
  }
  // `tile`: this lane's row of its tile.
  QUARTET_DEVICE void Add(int /*unit*/, const Words<kBits>& words, Exl3Codebook code,
                          const uint32_t* tile) {
    uint32_t inputs[16];
    LoadInputs<16>(tile, inputs);
    MultiplyUnit<kBits, kMul1, kColumnMajor>(sums_, words, code, inputs);
  }
  QUARTET_DEVICE void End() {
    AddTurns(sums_);
    FinishSums(sums_[0]);
    if (OwnsSums()) {
#pragma unroll
      for (int i = 0; i < Sums::kCount; ++i) {
        float* row = to_[RowBitOfSum(i)];
        if (row != nullptr) {
          row[strip_at_ + ColumnOfLine<kColumnMajor>(LineOfSum(i))] = sums_[0].v[i];
        }
      }
    }
    strip_at_ += WarpsOfBlock() * kStrip;
  }

 private:
  float* to_[2];
  int strip_at_ = 0;
  Sums sums_[kTurns];
};

// For a single row, without.
template <int kBits, bool kMul1, bool kColumnMajor>
class SingleRowOfStrip {
 public:
  static constexpr int kUnitWords = 4 * kSingleTileWords;

  // `to`: where the row's sums of the first strip are.
  QUARTET_DEVICE explicit SingleRowOfStrip(float* to)
      : to_(to + ColumnOfLine<kColumnMajor>(RunOfLane() + 8 * (TileOfLane() & 1))) {}

  QUARTET_DEVICE void Begin() { sums_ = {}; }
  QUARTET_DEVICE void Add(int unit, const Words<kBits>& words, Exl3Codebook code,
                          const uint32_t* tile) {
    __half2 of_unit[2];
    MultiplySingleUnit<kBits, kMul1, kColumnMajor>(words, code, tile, of_unit);
    if (unit % 2 == 0) {
      before_[0] = of_unit[0], before_[1] = of_unit[1];
    } else {
      AddUnits(sums_, before_, of_unit, tile);
    }
  }
  QUARTET_DEVICE void End() {
    *to_ = SumOfLines(sums_);  // two lanes the same
    to_ += WarpsOfBlock() * kStrip;
  }

 private:
  float* to_;
  SingleSums sums_;
  __half2 before_[2];  // of an even unit
};

// `x`: this lane's activations of the first unit. job.count is a multiple of kRing, the units in
// flight: then nothing but the products is done for a unit, and the rest once for kRing of them.
template <int kBits, int kRing, typename Strip>
QUARTET_DEVICE void StreamStrips(const Exl3Weights& w, Exl3Codebook code, const WarpJob& job,
                                 int units_of_strip, const uint32_t* x, Strip strip) {
  constexpr int kUnitWords = 32 * kBits;
  Words<kBits> ring[kRing];
  const int lane_words = WordsOfLane<kBits>();
  const uint32_t* next =
      w.trellis + lane_words +
      (static_cast<int64_t>(job.first_strip) * units_of_strip + job.first_unit) * kUnitWords;
  const int strip_words = WarpsOfBlock() * units_of_strip * kUnitWords;  // to the next one
  // 4 KiB of a strip are asked for when the one before it begins: the ring is too short for what
  // comes from memory.
  const int line = 32 * Lane();
  const bool has_line = line < job.count * kUnitWords;
  const int ahead = strip_words + line - lane_words;
  if (has_line) PrefetchL2(next + line - lane_words);
#pragma unroll
  for (int u = 0; u < kRing; ++u) ring[u] = LoadWords<kBits>(next + u * kUnitWords);
  for (int strips = job.strips; strips > 0; --strips) {
    const bool last = strips == 1;
    if (!last && has_line) PrefetchL2(next + ahead);
    strip.Begin();
    const uint32_t* tile = x;
    for (int left = job.count; left > 0; left -= kRing) {
      // From the last units of a strip to the first of the one behind. After all of them the last
      // ones are fetched again: not to would take more instructions.
      const int step = left > kRing ? kRing * kUnitWords
                       : last       ? 0
                                    : strip_words - (job.count - kRing) * kUnitWords;
      next += step;
#pragma unroll
      for (int u = 0; u < kRing; ++u) {
        strip.Add(u, ring[u], code, tile + u * Strip::kUnitWords);
        ring[u] = LoadWords<kBits>(next + u * kUnitWords);
      }
      tile += kRing * Strip::kUnitWords;
    }
    strip.End();
  }
}

// Where a block's products go and what they are made of.
struct RowSums {
  const uint32_t* shared;  // activations
  int rows;
  int row_words;
  float* single;  // the first row's sums of the warp's first strip
  float* to[2];   // this lane's two rows' of that strip, null for rows that are not there
};

// There is always an even number of units; widths that are rare get by with less code.
template <int kBits, typename Strip>
QUARTET_DEVICE void StreamInRing(const Exl3Weights& w, Exl3Codebook code, const WarpJob& job,
                                 int units_of_strip, const uint32_t* x, const Strip& strip) {
  if constexpr (kBits == 2 || kBits == 3) {
    if (job.count % 4 == 0) return StreamStrips<kBits, 4>(w, code, job, units_of_strip, x, strip);
  }
  StreamStrips<kBits, 2>(w, code, job, units_of_strip, x, strip);
}

template <int kBits, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void StreamWidth(const Exl3Weights& w, Exl3Codebook code, const WarpJob& job,
                                int units_of_strip, const RowSums& rows) {
  if (rows.rows == 1) {
    const SingleRowOfStrip<kBits, kMul1, kColumnMajor> strip(rows.single);
    const uint32_t* x = rows.shared + TileOfLane() * kSingleTileWords;
    return StreamInRing<kBits>(w, code, job, units_of_strip, x, strip);
  }
  const RowsOfStrip<kBits, kMul1, kColumnMajor> strip(rows.to);
  // Rows that are not there read another's activations; their sums go nowhere.
  const uint32_t* x =
      rows.shared + min(RunOfLane(), rows.rows - 1) * rows.row_words + TileOfLane() * kTileWords;
  StreamInRing<kBits>(w, code, job, units_of_strip, x, strip);
}

template <bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void StreamAnyWidth(const Exl3Weights& w, const WarpJob& job, int units_of_strip,
                                   const RowSums& rows) {
  // The usual codebook with a multiplier that the compiler knows: an operand less to fetch.
  if (!kMul1 && w.codebook.multiplier == kMcgMultiplier) {
    const Exl3Codebook mcg = {kMcgMultiplier, 0, w.codebook.mask};
    switch (w.bits) {
      case 2:
        return StreamWidth<2, kMul1, kColumnMajor>(w, mcg, job, units_of_strip, rows);
      case 3:
        return StreamWidth<3, kMul1, kColumnMajor>(w, mcg, job, units_of_strip, rows);
      case 4:
        return StreamWidth<4, kMul1, kColumnMajor>(w, mcg, job, units_of_strip, rows);
      default:
        break;
    }
  }
  switch (w.bits) {
    case 1:
      return StreamWidth<1, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
    case 2:
      return StreamWidth<2, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
    case 3:
      return StreamWidth<3, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
    case 4:
      return StreamWidth<4, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
    case 5:
      return StreamWidth<5, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
    case 6:
      return StreamWidth<6, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
    case 7:
      return StreamWidth<7, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
    default:
      return StreamWidth<8, kMul1, kColumnMajor>(w, w.codebook, job, units_of_strip, rows);
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

template <bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void Product(const Exl3ProductParams& p) {
  auto* shared = reinterpret_cast<uint32_t*>(QUARTET_DYNAMIC_SHARED());
  const bool activations = p.gate_up != nullptr;
  // Groups were there before the kernel that multiplied gate and up began.
  if (!activations) AwaitPrevious();
  const Exl3Group& group = LoadGroup(p);
  const int rows = group.rows;
  if (rows == 0) return;
  const int matrix = static_cast<int>(blockIdx.y) < p.parts ? 0 : 1;
  const int part = static_cast<int>(blockIdx.y) - matrix * p.parts;
  const Exl3Weights w = group.matrices[p.first_matrix + matrix];
  const int units_of_strip = p.in / kUnitInputs;
  WarpJob job;
  const int strips = p.strips_per_warp * WarpsOfBlock();
  job.first_strip = static_cast<int>(blockIdx.x) * strips + Warp();
  job.strips = p.strips_per_warp;
  job.count = p.part_inputs / kUnitInputs;
  job.first_unit = part * job.count;
  if (activations) {
    PrefetchUnits(w, job, units_of_strip, 4096);
    PrefetchScales(p, group, part);
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
  if (activations) {
    StageActivations(p, slice, group, shared);
  } else {
    // Behind the inputs, and not so much that they must wait for it.
    StageRows(p, slice, group.x_rows, w.suh, shared,
              [&] { PrefetchUnits(w, job, units_of_strip, 1024); });
  }
  // What comes after needs the output scales of these strips.
  const int outputs = kStrip * strips;
  if (part == 0 && static_cast<int>(threadIdx.x) * 64 < outputs) {
    PrefetchL2(w.svh + blockIdx.x * outputs + threadIdx.x * 64);
  }
  __syncthreads();

  const int64_t width = static_cast<int64_t>(p.matrices) * p.out;
  const auto sums_of = [&](int row) {
    return p.sums + (static_cast<int64_t>(part) * p.slots + group.slots[row]) * width +
           static_cast<int64_t>(matrix) * p.out + job.first_strip * kStrip;
  };
  RowSums sums = {
      .shared = shared, .rows = rows, .row_words = slice.row_words, .single = sums_of(0), .to = {}};
#pragma unroll
  for (int bit = 0; bit < 2; ++bit) {
    const int row = RowOfSums(bit);
    sums.to[bit] = row < rows ? sums_of(row) : nullptr;
  }
  StreamAnyWidth<kMul1, kColumnMajor>(w, job, units_of_strip, sums);
}

}  // namespace

// Three blocks of eight warps a multiprocessor, or one of 16: see CutProduct. One kernel for gate
// and up and for down: with one for each the sequence took 2 to 6 % longer, it is thought because
// the code of the loop over units had to be fetched twice.
QUARTET_EARLY_KERNEL(exl3_product_sum_sm80, kProductThreads, 1, Exl3ProductParams) {
  Product<false, false>(p);
}
QUARTET_EARLY_KERNEL(exl3_product_sum_colmajor, kProductThreads, 1, Exl3ProductParams) {
  Product<false, true>(p);
}
QUARTET_EARLY_KERNEL(exl3_product_mul1_sm80, kProductThreads, 1, Exl3ProductParams) {
  Product<true, false>(p);
}
QUARTET_EARLY_KERNEL(exl3_product_mul1_colmajor, kProductThreads, 1, Exl3ProductParams) {
  Product<true, true>(p);
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
