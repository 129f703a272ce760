#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {

absl::Status Model::Draft(std::span<const int32_t> next_ids, std::span<const ops::Segment> segments,
                          DraftSelection selection) {
  Activations& a = activations_;
  const MtpOps& mtp = *ops_.mtp;
  const int layer = static_cast<int>(ops_.layers.size());
  const int rows = static_cast<int>(next_ids.size());
  for (const ops::Segment& segment : segments) {
    for (int i = 0; i < segment.rows; ++i) {
      a.mtp_positions[segment.row_begin + i] = segment.position + i;
    }
  }
  QUARTET_RETURN_IF_ERROR(Embed(next_ids));
  mtp.entry->Run(a.embedding, a.mtp_h, a.mtp_positions, rows, a.mtp_x, a.workspace);

  const float* const y[] = {a.y};
  mtp.input_norm->Run(a.mtp_x, rows, a.x);
  Dsa(layer, mtp.attention, segments, rows, selection);
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  mtp.post_attention_norm->Run(a.mtp_x, y, rows, a.x);
  RunMoe(layer, *mtp.moe, rows);
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  mtp.head_norm->Run(a.mtp_x, y, rows, a.mtp_o);
  if (trace_ != nullptr) {
    trace_->Values(layer, TracePoint::kMtpHidden,
                   {a.mtp_o, static_cast<size_t>(rows * config_.hidden)}, rows);
  }
  return absl::OkStatus();
}

}  // namespace quartet
