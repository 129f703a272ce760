#ifndef QUARTET_KERNELS_CUDA_KDA_CHUNK_PARAMS_H_
#define QUARTET_KERNELS_CUDA_KDA_CHUNK_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/kda_params.h"

// The chunked form of the delta rule: parameters, workspace and shared memory.

namespace quartet::cuda {

constexpr int kKdaChunk = 64;  // tokens
constexpr int kKdaBlock = 16;  // tokens of a sub-block
constexpr int kKdaBlocks = kKdaChunk / kKdaBlock;
constexpr int kKdaPairs = kKdaBlocks * (kKdaBlocks + 1) / 2;  // on and below the diagonal

template <int Width>
struct KdaChunkLayout {
  static constexpr int kW = 0;                               // [64, Width] Tm (K e^G)
  static constexpr int kQ = kW + kKdaChunk * Width;          // [64, Width] Q e^G
  static constexpr int kK = kQ + kKdaChunk * Width;          // [64, Width] K e^(G_last - G)
  static constexpr int kU = kK + kKdaChunk * Width;          // [64, Width] Tm V
  static constexpr int kM = kU + kKdaChunk * Width;          // [64, 64] on and below the diagonal
  static constexpr int kDecay = kM + kKdaChunk * kKdaChunk;  // [Width] e^G_last
  static constexpr int kFloats = kDecay + Width;
};

// A pass handles the chunks [first_chunk, first_chunk + chunks) of the list of all segments'
// chunks, in the order of the segments.
struct KdaChunkParams {
  KdaSegments segments;
  KdaRecurrenceInputs in;
  KdaStates states;
  float* o;          // [rows, n, d]
  float* workspace;  // [chunks of a pass, n, KdaChunkLayout::kFloats]
  int32_t first_chunk;
  int32_t chunks;
};

// ---- shared memory of the algebra of a chunk (kda_chunk_*)

// Channels whose factors are in shared memory at a time.
constexpr int kKdaSlab = 32;
// Rows that are read as float4 hit different banks.
constexpr int kKdaFactorStride = kKdaSlab + 4;
constexpr int kKdaAStride = kKdaChunk + 4;

using KdaFactor = float[kKdaChunk][kKdaFactorStride];
struct KdaChunkFactors {
  // For blocks on the diagonal: k and q times e^(log from the pivot), k times e^-(that).
  KdaFactor near_left_k, near_left_q, near_right;
  // For blocks below it: k and q times the decay since their block's start, k times the decay to
  // its block's end.
  KdaFactor far_left_k, far_left_q, far_right;
  float block_log[kKdaBlocks][kKdaSlab];  // log decay over a whole block
  float between[kKdaPairs][kKdaSlab];     // a pair's decay over the blocks between its two
};
// What is solved for: columns of Tm (K e^G) and of Tm V, up to 128 of each.
struct KdaChunkSolution {
  float w[kKdaChunk][128];
  float u[kKdaChunk][128];
};
struct alignas(16) KdaChunkShared {
  union {
    KdaChunkFactors factors;
    KdaChunkSolution solution;  // after the factors
  };
  float a[kKdaChunk][kKdaAStride];  // A^T: [j][i], set for j < i
  float beta[kKdaChunk];
};

// ---- shared memory of the walk over the chunks (kda_walk_*)

constexpr int kKdaStages = 3;  // pieces of the workspace under way or in use
constexpr int kKdaPiece = 16;  // channels or tokens of a piece
constexpr int kKdaPieceStride = kKdaPiece + 4;

// The workspace of a chunk comes in Width / 16 pieces of 16 channels of W and Q e^G, and then in 4
// pieces of 16 tokens of K e^(G_last - G) and M.
template <int Width>
struct KdaWalkShared {
  static constexpr int kFirstFloats = 2 * kKdaChunk * kKdaPieceStride;
  static constexpr int kSecondFloats = kKdaPiece * Width + kKdaChunk * kKdaPieceStride;
  static constexpr int kStageFloats = kFirstFloats > kSecondFloats ? kFirstFloats : kSecondFloats;
  static constexpr int kPieces = Width / kKdaPiece + kKdaBlocks;

  float s[Width * kKdaColumns];      // [Width, 32]
  float u[kKdaChunk * kKdaColumns];  // [64, 32]
  float stages[kKdaStages * kStageFloats];
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_KDA_CHUNK_PARAMS_H_
