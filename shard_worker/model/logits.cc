#include <algorithm>

#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {

// Consecutive rows are taken by one copy.
void Model::GatherRows(const float* hidden, std::span<const int> rows, float* out) {
  const int64_t width = config_.hidden;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    backend_.Copy(out + begin * width, hidden + rows[begin] * width,
                  (end - begin) * width * sizeof(float));
    begin = end;
  }
}

absl::Status Model::Logits(const float* hidden, std::span<const int> rows,
                           absl::FunctionRef<void(int, std::span<const float>)> visit) {
  Activations& a = activations_;
  const int64_t vocab = config_.vocab_size;
  const int64_t local = ops_.head->vocab_local();
  const int ranks = collectives_.size();
  logits_row_.resize(ranks == 1 ? 0 : vocab);
  for (size_t begin = 0; begin < rows.size(); begin += kHeadRows) {
    const int count = static_cast<int>(std::min<size_t>(kHeadRows, rows.size() - begin));
    GatherRows(hidden, rows.subspan(begin, count), a.head_in);
    ops_.head->Run(a.head_in, count, a.logits_local, a.workspace);
    const float* logits = a.logits_local;  // [ranks, count, local]
    if (ranks > 1) {
      QUARTET_RETURN_IF_ERROR(collectives_.AllGather(
          a.logits_local, static_cast<size_t>(count * local) * sizeof(float), a.logits_ranks));
      logits = a.logits_ranks;
    }
    if (!backend_.on_host()) {
      logits_host_.resize(kHeadRows * vocab);
      QUARTET_RETURN_IF_ERROR(
          backend_.CopyOut(logits_host_.data(), logits, count * vocab * sizeof(float)));
      // On a device a sum that failed shows only now.
      QUARTET_RETURN_IF_ERROR(collectives_.Check());
      logits = logits_host_.data();
    }
    for (int i = 0; i < count; ++i) {
      const float* row = logits + i * local;
      if (ranks > 1) {
        for (int rank = 0; rank < ranks; ++rank) {
          std::copy_n(logits + (rank * count + i) * local, local,
                      logits_row_.data() + rank * local);
        }
        row = logits_row_.data();
      }
      visit(static_cast<int>(begin) + i, {row, static_cast<size_t>(vocab)});
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
