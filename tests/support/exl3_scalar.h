#ifndef QUARTET_TESTS_SUPPORT_EXL3_SCALAR_H_
#define QUARTET_TESTS_SUPPORT_EXL3_SCALAR_H_

#include <cstdint>
#include <vector>

#include "shard_worker/checkpoint/model_config.h"

// A second opinion on the EXL3 format: one weight at a time, written from the format's description
// and sharing no code with the kernels.

namespace quartet::testing {

// Value of a 16-bit trellis state.
double Exl3CodebookValue(Exl3Codebook codebook, uint16_t state);

// Element (row, column) of the inner matrix of shape [in, out]; `trellis` holds the 16-bit words
// [in / 16, out / 16, 16 * bits].
double Exl3InnerValue(const std::vector<uint16_t>& trellis, int64_t out, int bits,
                      Exl3Codebook codebook, Exl3TileOrder order, int64_t row, int64_t column);

// The whole weight [in, out] = diag(suh) Had Q Had diag(svh), row-major.
std::vector<double> Exl3Weight(const std::vector<uint16_t>& trellis, int64_t in, int64_t out,
                               int bits, Exl3Codebook codebook, Exl3TileOrder order,
                               const std::vector<float>& suh, const std::vector<float>& svh);

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_EXL3_SCALAR_H_
