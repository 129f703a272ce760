#include <algorithm>

#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {

absl::Status Model::Logits(const float* hidden, std::span<const int> rows,
                           absl::FunctionRef<void(int, std::span<const float>)> visit) {
  Activations& a = activations_;
  const int64_t width = config_.hidden;
  const int64_t vocab = config_.vocab_size;
  const int64_t local = ops_.head->vocab_local();
  const int ranks = collectives_.size();
  for (size_t begin = 0; begin < rows.size(); begin += kHeadRows) {
    const int count = static_cast<int>(std::min<size_t>(kHeadRows, rows.size() - begin));
    for (int i = 0; i < count; ++i) {
      std::copy_n(hidden + rows[begin + i] * width, width, a.head_in + i * width);
    }
    ops_.head->Run(a.head_in, count, a.logits_local, a.workspace);
    if (ranks == 1) {
      for (int i = 0; i < count; ++i) {
        visit(static_cast<int>(begin) + i,
              {a.logits_local + i * local, static_cast<size_t>(vocab)});
      }
      continue;
    }
    QUARTET_RETURN_IF_ERROR(collectives_.AllGather(
        a.logits_local, static_cast<size_t>(count * local) * sizeof(float), a.logits_ranks));
    for (int i = 0; i < count; ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        std::copy_n(a.logits_ranks + (rank * count + i) * local, local,
                    a.logits_row + rank * local);
      }
      visit(static_cast<int>(begin) + i, {a.logits_row, static_cast<size_t>(vocab)});
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
