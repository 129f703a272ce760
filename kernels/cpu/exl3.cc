#include "kernels/cpu/exl3.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/simd.h"

namespace quartet::cpu {
namespace {

constexpr int64_t kBlock = 128;

uint16_t LoadU16(const std::byte* data, int64_t index) {
  uint16_t value;
  std::memcpy(&value, data + 2 * index, 2);
  return value;
}

std::vector<float> Scales(const std::byte* halves, const std::byte* signs, int64_t size) {
  std::vector<float> out(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    if (signs != nullptr) {
      out[i] = ((LoadU16(signs, i / 16) >> (i % 16)) & 1) != 0 ? -1.0f : 1.0f;
    } else {
      out[i] = F16ToF32(LoadU16(halves, i));
    }
  }
  return out;
}

}  // namespace

uint16_t CodebookValue(ops::Codebook codebook, uint16_t state) {
  // Every sum and product below is exact in FP32, so the conversion is the only rounding, and no
  // value comes near binary16's limits.
  bool saturated = false;
  const uint32_t s = state;
  if (codebook == ops::Codebook::kMul1) {
    const uint32_t p = s * 0x83DCD12Du;
    const uint32_t bytes = (p & 0xFF) + ((p >> 8) & 0xFF) + ((p >> 16) & 0xFF) + (p >> 24);
    const float scale = F16ToF32(0x1EEE);
    const float bias = F16ToF32(0xC931);
    return F32ToF16(static_cast<float>(1024 + bytes) * scale + bias, &saturated);
  }
  const uint32_t p = codebook == ops::Codebook::kMcg ? s * 0xCBAC1FEDu : s * 89226354u + 64248484u;
  const uint32_t q = (p & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return F32ToF16(F16ToF32(static_cast<uint16_t>(q)) + F16ToF32(static_cast<uint16_t>(q >> 16)),
                  &saturated);
}

Codebooks::Codebooks() {
  for (ops::Codebook codebook :
       {ops::Codebook::kMcg, ops::Codebook::kMul1, ops::Codebook::k3Inst}) {
    std::vector<uint16_t>& table = tables_[static_cast<size_t>(codebook)];
    table.resize(65536);
    for (uint32_t s = 0; s < 65536; ++s) {
      table[s] = CodebookValue(codebook, static_cast<uint16_t>(s));
    }
  }
}

absl::Status CheckExl3(const ops::Exl3Matrix& m, std::string_view what) {
  const std::string name(what);
  if (m.bits < 1 || m.bits > 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", m.bits, " bits a weight; EXL3 has 1 to 8"));
  }
  if (m.in <= 0 || m.out <= 0 || m.in % kBlock != 0 || m.out % kBlock != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": an EXL3 matrix of ", m.in, " x ", m.out,
                                                   "; both must be positive multiples of 128"));
  }
  if (m.used_in < 0 || m.used_in > m.in || m.used_out < 0 || m.used_out > m.out) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": uses ", m.used_in, " x ", m.used_out,
                                                   " of an EXL3 matrix of ", m.in, " x ", m.out));
  }
  if (m.tile_row_stride < m.out / 16) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", m.tile_row_stride,
                                                   " tiles between tile rows, at least ",
                                                   m.out / 16, " are needed"));
  }
  if (m.trellis == nullptr || (m.suh == nullptr && m.su_signs == nullptr) ||
      (m.svh == nullptr && m.sv_signs == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": an EXL3 matrix needs trellis, suh (or su) and svh (or sv)"));
  }
  return absl::OkStatus();
}

void DecodeTileStates(const std::byte* tile, int bits, uint16_t states[256]) {
  const int words = 8 * bits;
  uint32_t word[64];
  for (int i = 0; i < words; ++i) {
    // Little-endian 32-bit words hold the stream, most significant bit first.
    word[i] = static_cast<uint32_t>(LoadU16(tile, 2 * i)) |
              static_cast<uint32_t>(LoadU16(tile, 2 * i + 1)) << 16;
  }
  const int stream = 256 * bits;
  for (int t = 0; t < 256; ++t) {
    const int begin = ((t + 1) * bits - 16 + stream) % stream;
    const int at = begin / 32;
    const uint64_t pair =
        static_cast<uint64_t>(word[at]) << 32 | word[at + 1 == words ? 0 : at + 1];
    states[t] = static_cast<uint16_t>(pair >> (48 - begin % 32));
  }
}

int TileElement(ops::TileOrder order, int position) {
  if (order == ops::TileOrder::kColumnMajor) return (position & 15) * 16 + (position >> 4);
  const int lane = position >> 3;
  const int j = position & 7;
  const int row = 2 * (lane & 3) + (j & 1) + 8 * ((j >> 1) & 1);
  const int column = (lane >> 2) + 8 * (j >> 2);
  return row * 16 + column;
}

std::vector<uint16_t> DecodeInner(const ops::Exl3Matrix& m, const Codebooks& codebooks) {
  const std::vector<uint16_t>& table = codebooks.Table(m.codebook);
  int element[256];
  for (int t = 0; t < 256; ++t) element[t] = TileElement(m.tile_order, t);
  std::vector<uint16_t> inner(static_cast<size_t>(m.in * m.out));
  uint16_t states[256];
  for (int64_t i = 0; i < m.in / 16; ++i) {
    for (int64_t j = 0; j < m.out / 16; ++j) {
      DecodeTileStates(m.trellis + (i * m.tile_row_stride + j) * 32 * m.bits, m.bits, states);
      uint16_t* corner = inner.data() + 16 * i * m.out + 16 * j;
      for (int t = 0; t < 256; ++t) {
        corner[(element[t] >> 4) * m.out + (element[t] & 15)] = table[states[t]];
      }
    }
  }
  return inner;
}

std::vector<uint16_t> DecodeInner(const ops::Exl3Matrix& matrix) {
  return DecodeInner(matrix, Codebooks());
}

std::vector<float> InputScales(const ops::Exl3Matrix& m) {
  return Scales(m.suh, m.su_signs, m.in);
}

std::vector<float> OutputScales(const ops::Exl3Matrix& m) {
  return Scales(m.svh, m.sv_signs, m.out);
}

std::vector<float> ReconstructRows(const ops::Exl3Matrix& m, const Codebooks& codebooks) {
  const std::vector<uint16_t> inner = DecodeInner(m, codebooks);
  const std::vector<float> suh = InputScales(m);
  const std::vector<float> svh = OutputScales(m);
  const int64_t used_in = m.used_in == 0 ? m.in : m.used_in;
  const int64_t used_out = m.used_out == 0 ? m.out : m.used_out;
  // Transform along the outputs, then turn around and transform along the inputs.
  std::vector<float> turned(static_cast<size_t>(m.out * m.in));
  std::vector<float> row(static_cast<size_t>(m.out));
  for (int64_t k = 0; k < m.in; ++k) {
    for (int64_t n = 0; n < m.out; ++n) row[n] = F16ToF32(inner[k * m.out + n]);
    for (int64_t n = 0; n < m.out; n += kBlock) Hadamard128(row.data() + n);
    for (int64_t n = 0; n < m.out; ++n) turned[n * m.in + k] = row[n];
  }
  std::vector<float> out(static_cast<size_t>(used_out * used_in));
  for (int64_t n = 0; n < used_out; ++n) {
    float* column = turned.data() + n * m.in;
    for (int64_t k = 0; k < m.in; k += kBlock) Hadamard128(column + k);
    for (int64_t k = 0; k < used_in; ++k) {
      out[n * used_in + k] = column[k] * (1.0f / kBlock) * suh[k] * svh[n];
    }
  }
  return out;
}

}  // namespace quartet::cpu
