#include "tests/support/exl3_scalar.h"

#include <bit>
#include <cmath>

#include "shard_worker/checkpoint/weights.h"
#include "tests/support/checkpoint_writer.h"

namespace quartet::testing {
namespace {

double RoundToHalf(double value) {
  // Sums and products of two halves are exact in double and their magnitudes are far from the ends
  // of float's range, so that passing through float cannot round twice: they need at most 24 bits.
  return HalfToFloat(FloatToHalf(static_cast<float>(value)));
}

// Where element (row, column) of a tile stands in the stream.
int Position(Exl3TileOrder order, int row, int column) {
  if (order == Exl3TileOrder::kColumnMajor) return 16 * column + row;
  // The fragment order of a 16 x 8 x 16 tensor-core product: a lane holds two rows, the same two 8
  // below, and all that again 8 columns to the right.
  const int lane = 4 * (column % 8) + (row % 8) / 2;
  return 8 * lane + 4 * (column / 8) + 2 * (row / 8) + row % 2;
}

}  // namespace

double Exl3CodebookValue(Exl3Codebook codebook, uint16_t state) {
  const uint32_t s = state;
  if (codebook == Exl3Codebook::kMul1) {
    const uint32_t p = s * 0x83DCD12Du;
    const uint32_t sum = (p & 0xFF) + (p >> 8 & 0xFF) + (p >> 16 & 0xFF) + (p >> 24);
    const double scale = HalfToFloat(0x1EEE);
    const double bias = HalfToFloat(0xC931);
    return RoundToHalf((1024.0 + sum) * scale + bias);
  }
  const uint32_t p = codebook == Exl3Codebook::kMcg ? s * 0xCBAC1FEDu : s * 89226354u + 64248484u;
  const uint32_t q = (p & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return RoundToHalf(static_cast<double>(HalfToFloat(static_cast<uint16_t>(q))) +
                     static_cast<double>(HalfToFloat(static_cast<uint16_t>(q >> 16))));
}

double Exl3InnerValue(const std::vector<uint16_t>& trellis, int64_t out, int bits,
                      Exl3Codebook codebook, Exl3TileOrder order, int64_t row, int64_t column) {
  const int64_t tile = row / 16 * (out / 16) + column / 16;
  const uint16_t* words = trellis.data() + tile * 16 * bits;
  const int position = Position(order, static_cast<int>(row % 16), static_cast<int>(column % 16));
  const int stream_bits = 256 * bits;
  uint32_t state = 0;
  for (int i = 0; i < 16; ++i) {
    const int bit = ((position + 1) * bits - 16 + i + stream_bits) % stream_bits;
    // Pairs of 16-bit words form little-endian 32-bit words, of which the top bit comes first.
    const uint32_t word = words[bit / 32 * 2] | static_cast<uint32_t>(words[bit / 32 * 2 + 1])
                                                    << 16;
    state = state << 1 | (word >> (31 - bit % 32) & 1);
  }
  return Exl3CodebookValue(codebook, static_cast<uint16_t>(state));
}

std::vector<double> Exl3Weight(const std::vector<uint16_t>& trellis, int64_t in, int64_t out,
                               int bits, Exl3Codebook codebook, Exl3TileOrder order,
                               const std::vector<float>& suh, const std::vector<float>& svh) {
  std::vector<double> w(in * out);
  for (int64_t r = 0; r < in; ++r) {
    for (int64_t c = 0; c < out; ++c) {
      w[r * out + c] = Exl3InnerValue(trellis, out, bits, codebook, order, r, c);
    }
  }
  // Blocks of 128 along one dimension: `count` lines, elements `step` apart, lines `next` apart.
  const auto transform = [&](int64_t length, int64_t step, int64_t count, int64_t next) {
    std::vector<double> block(128);
    for (int64_t line = 0; line < count; ++line) {
      for (int64_t begin = 0; begin < length; begin += 128) {
        double* base = w.data() + line * next + begin * step;
        for (uint32_t i = 0; i < 128; ++i) {
          double sum = 0;
          for (uint32_t j = 0; j < 128; ++j) {
            const double value = base[j * step];
            sum += std::popcount(i & j) % 2 == 0 ? value : -value;
          }
          block[i] = sum / std::sqrt(128.0);
        }
        for (uint32_t i = 0; i < 128; ++i) base[i * step] = block[i];
      }
    }
  };
  transform(in, out, out, 1);
  transform(out, 1, in, out);
  for (int64_t r = 0; r < in; ++r) {
    for (int64_t c = 0; c < out; ++c) {
      w[r * out + c] *= static_cast<double>(suh[r]) * static_cast<double>(svh[c]);
    }
  }
  return w;
}

}  // namespace quartet::testing
