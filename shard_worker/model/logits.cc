#include <algorithm>
#include <vector>

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

absl::Status Model::HeadRows(
    const float* hidden, std::span<const int> rows,
    absl::FunctionRef<absl::Status(size_t begin, const ops::LogitsView& logits)> use) {
  Activations& a = activations_;
  const int64_t local = ops_.head->vocab_local();
  const int ranks = collectives_.size();
  for (size_t begin = 0; begin < rows.size(); begin += kHeadRows) {
    const int count = static_cast<int>(std::min<size_t>(kHeadRows, rows.size() - begin));
    GatherRows(hidden, rows.subspan(begin, count), a.head_in);
    ops_.head->Run(a.head_in, count, a.logits_local, a.workspace);
    ops::LogitsView logits = {
        .data = a.logits_local, .rows = count, .ranks = ranks, .local = local};
    if (ranks > 1) {
      QUARTET_RETURN_IF_ERROR(collectives_.AllGather(
          a.logits_local, static_cast<size_t>(count * local) * sizeof(float), a.logits_ranks));
      logits.data = a.logits_ranks;
    }
    QUARTET_RETURN_IF_ERROR(use(begin, logits));
    // On a device a sum that failed shows only when its results are there.
    QUARTET_RETURN_IF_ERROR(collectives_.Check());
  }
  return absl::OkStatus();
}

absl::Status Model::Draw(const float* hidden, std::span<const int> rows,
                         std::span<const ops::SampleParams> params,
                         std::span<ops::SampleResult> results) {
  return HeadRows(hidden, rows, [&](size_t begin, const ops::LogitsView& logits) {
    return backend_.row_sampler().Draw(logits, params.subspan(begin, logits.rows),
                                       results.subspan(begin, logits.rows), activations_.workspace);
  });
}

absl::Status Model::Score(const float* hidden, std::span<const int> rows,
                          std::span<const ops::ScoreParams> params,
                          std::span<ops::SampleResult> results) {
  return HeadRows(hidden, rows, [&](size_t begin, const ops::LogitsView& logits) {
    return backend_.row_sampler().Score(logits, params.subspan(begin, logits.rows),
                                        results.subspan(begin, logits.rows),
                                        activations_.workspace);
  });
}

absl::Status Model::Logits(const float* hidden, std::span<const int> rows,
                           absl::FunctionRef<void(int, std::span<const float>)> visit) {
  std::vector<float> host;
  std::vector<float> row(config_.vocab_size);
  return HeadRows(hidden, rows, [&](size_t begin, const ops::LogitsView& logits) -> absl::Status {
    host.resize(logits.rows * logits.vocab());
    QUARTET_RETURN_IF_ERROR(
        backend_.CopyOut(host.data(), logits.data, host.size() * sizeof(float)));
    for (int i = 0; i < logits.rows; ++i) {
      for (int rank = 0; rank < logits.ranks; ++rank) {
        std::copy_n(host.data() + (rank * logits.rows + i) * logits.local, logits.local,
                    row.data() + rank * logits.local);
      }
      visit(static_cast<int>(begin) + i, row);
    }
    return absl::OkStatus();
  });
}

}  // namespace quartet
