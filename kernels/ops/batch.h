#ifndef QUARTET_KERNELS_OPS_BATCH_H_
#define QUARTET_KERNELS_OPS_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace quartet::ops {

// What the rows of a step mean. A step's T rows (tokens) are cut into segments: consecutive tokens
// of one sequence.
//
// Speculation. The rows of a window may be taken back: the token drawn last and drafts behind it.
// Live states that cannot be cut (KDA) do not absorb them; their inputs are kept in a ring of the
// slot, where a later segment of the sequence finds those that were accepted and commits them: it
// absorbs them before its own rows, by the same arithmetic as if they had come as plain rows. So
// the live state stands at position - commit before the segment, and where that is 0 it counts as
// zeros. What is indexed by position (latents, pooled keys) needs no commit: rows that were taken
// back are overwritten before they become visible.
struct Segment {
  int row_begin = 0;  // first row of this segment
  int rows = 0;       // >= 1; 0 where an op only commits
  int slot = 0;       // live state of the sequence
  int position = 0;   // of the first row, counted from the start of the sequence
  std::span<const int32_t>
      pages;            // the sequence's page table; page i holds positions i * page_tokens ..
  bool window = false;  // the rows may be taken back
  int commit = 0;       // rows of earlier windows, at position - commit .., that are to stay
  // The next segment goes on with this sequence, at a multiple of a page's tokens; page tables and
  // slots of both are the same. The ops of KDA get one of them after the other, all others both.
  bool more = false;
};

// How latents and pooled keys are stored. Values are rounded to nearest even on the way in and
// widened on the way out; what does not fit saturates and is counted.
enum class KvDType : uint8_t {
  kF32,     // latents and pooled keys FP32: the oracle's setting
  kF16,     // both FP16
  kF8E4M3,  // latents E4M3 without scales (saturating at 448), pooled keys FP16
};

// One layer's paged latents and pooled indexer keys. Pages of all layers lie in one pool: a page's
// bytes begin at data + page * page_stride; this layer's part of it at latent_offset and
// pool_key_offset.
struct KvLayer {
  std::byte* data = nullptr;
  int64_t page_stride = 0;      // bytes
  int64_t latent_offset = 0;    // bytes; [page_tokens, kv_lora_rank]
  int64_t pool_key_offset = 0;  // bytes; [page_tokens / index_kpool, index_head_dim]
  int page_tokens = 0;          // a multiple of index_kpool
  KvDType dtype = KvDType::kF32;
};

// Scratch memory of one op call. An op needs WorkspaceBytes(max_rows) of it, aligned to 64; it
// holds nothing between calls.
struct Workspace {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_BATCH_H_
