#ifndef QUARTET_KERNELS_CPU_EXL3_H_
#define QUARTET_KERNELS_CPU_EXL3_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/weights.h"

namespace quartet::cpu {

// The binary16 value of a 16-bit trellis state.
uint16_t CodebookValue(ops::Codebook codebook, uint16_t state);

// The values of all states of the three codebooks. 384 KiB; built once, then immutable.
class Codebooks {
 public:
  Codebooks();
  const std::vector<uint16_t>& Table(ops::Codebook codebook) const {
    return tables_[static_cast<size_t>(codebook)];
  }

 private:
  std::array<std::vector<uint16_t>, 3> tables_;
};

// Says what is wrong with the shape of `matrix`, if anything; `what` names it.
absl::Status CheckExl3(const ops::Exl3Matrix& matrix, std::string_view what);

// The 256 states of one tile of `bits` (1..8), read from its 32 * bits bytes. State t is the 16
// bits of the stream that end with position t's own; the stream is cyclic.
void DecodeTileStates(const std::byte* tile, int bits, uint16_t states[256]);

// Where position t of a tile stands in it: row * 16 + column.
int TileElement(ops::TileOrder order, int position);

// The inner matrix Q [in, out] as binary16 bits, exactly as the format defines it: no transform, no
// scale. `matrix` must pass CheckExl3.
std::vector<uint16_t> DecodeInner(const ops::Exl3Matrix& matrix, const Codebooks& codebooks);
// The same with codebooks of its own; for tests and tools.
std::vector<uint16_t> DecodeInner(const ops::Exl3Matrix& matrix);

// suh [in] and svh [out] as FP32, whichever way they are stored.
std::vector<float> InputScales(const ops::Exl3Matrix& matrix);
std::vector<float> OutputScales(const ops::Exl3Matrix& matrix);

// The whole weight in FP32, cut to what is used and turned around: [used_out, used_in], so that
// y = x W^T. For uses that need the matrix itself.
std::vector<float> ReconstructRows(const ops::Exl3Matrix& matrix, const Codebooks& codebooks);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_EXL3_H_
