#ifndef QUARTET_KERNELS_CUDA_SAMPLER_PARAMS_H_
#define QUARTET_KERNELS_CUDA_SAMPLER_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

constexpr int kSampleThreads = 256;
constexpr int kSampleIds = 8;                              // of a thread
constexpr int kSampleChunk = kSampleThreads * kSampleIds;  // ids of a block
constexpr int kSampleBins = 2048;                          // of one pass of a cut
constexpr int kSampleTop = 20;                             // likeliest ids of a row, at most
constexpr int kSampleUncounted = 4;                        // of a row, at most
constexpr int kCountThreads = 256;

// What is drawn for a row, as kernels see ops::SampleParams.
struct SampleRow {
  double over_temperature;  // 0: greedy
  double top_p;             // 1 and more: no cut
  double log_min_p;         // -infinity: no cut
  uint32_t key[2];          // the seed, low half first
  uint32_t choice;
  uint32_t position;
  int32_t top_k;         // 0: no cut
  int32_t first_banned;  // no id: INT32_MAX
  int32_t banned_begin;  // words into the lists of all rows
  int32_t banned_count;
  int32_t target;  // >= 0: nothing is drawn, this id's log-probability is wanted
  int32_t draft;   // >= 0: tested before anything is drawn; of rows that are not greedy
  // Adjustments, as ops::SampleParams.
  const uint32_t* counts;  // null: none
  int32_t bias_begin;      // words into the lists: of each entry the id, then the value's bits
  int32_t bias_count;
  int32_t allowed_begin;  // words into the lists; -1: all are allowed
  int32_t forced;         // -1: none
  int32_t penalises;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t uncounted_count;
  int32_t uncounted[kSampleUncounted];
  int32_t top;  // likeliest ids that are wanted
};

// What comes of a row, in device memory; ops::SampleResult.
struct SampleOutcome {
  int32_t token;
  float logprob;
  int32_t finite;
};

// One of the likeliest ids, of a chunk with its logit, of a row with its log-probability.
struct SampleTop {
  float value;
  int32_t id;  // -1: there is none
};

// A chunk's contribution.
struct SampleChunkSums {
  double draw;              // the best of logit / temperature + noise
  unsigned long long mass;  // of the kept ids, in units of 2^-42 of the largest; with a draft only
  int32_t draw_id;          // -1: none
  float best;               // the largest allowed logit
  int32_t best_id;
  float largest;  // of all logits
  float sum;      // of exp(logit - largest)
  int32_t bad;    // holds a NaN or +infinity
};

// What is known of a row after the first pass, and the kept set as cuts narrow it: the ids with a
// key above `threshold`, and those with exactly that key up to the id `last_tie`.
struct SampleState {
  double log_sum;  // log sum exp of all logits
  float best;      // the largest allowed logit, adjusted
  int32_t finite;
  uint32_t threshold;
  int32_t last_tie;
  // The cut under way: the leading bits of its threshold so far, what lies above them, and how much
  // is wanted (ids, or mass in units of 2^-42 of the largest).
  uint32_t prefix;
  int32_t cutting;
  unsigned long long taken;
  unsigned long long wanted;
};

struct SampleParamsCommon {
  const float* logits;  // id of row r: (rank * rows + r) * local + id - rank * local
  int32_t row_count;
  int32_t local;
  int32_t vocab;
  const SampleRow* rows;
  const uint32_t* lists;    // of banned ids, biases and masks
  uint32_t* tickets;        // [rows], zeros
  SampleChunkSums* chunks;  // [rows, ceil(vocab / kSampleChunk)]
  SampleState* states;      // [rows]
  uint32_t* keys;           // [rows, vocab]: order-preserving, 0 = never drawn. Rows with cuts only
  uint32_t* bin_counts;     // [rows, kSampleBins]
  unsigned long long* bin_masses;
  SampleOutcome* outcomes;  // [rows]
  SampleTop* chunk_tops;    // [rows, chunks, kSampleTop]. Rows with `top` only, as the next
  SampleTop* tops;          // [rows, kSampleTop]
};

struct SampleCountParams {
  uint32_t* counts;  // [vocab]
  const int32_t* tokens;
  int32_t n_tokens;
  int32_t prompt;  // their bit is set, else they are counted
};

// One pass of a cut over the bits [shift, shift + bits) of the keys.
struct SampleCutParams {
  SampleParamsCommon common;
  int32_t by_mass;  // top_p, else top_k
  int32_t shift;
  int32_t bits;
  int32_t first;
  int32_t last;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_SAMPLER_PARAMS_H_
