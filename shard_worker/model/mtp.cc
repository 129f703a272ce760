#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {

absl::Status Model::Draft(std::span<const int32_t> next_ids, std::span<const ops::Segment> segments,
                          DraftSelection selection) {
  Activations& a = activations_;
  const MtpOps& mtp = *ops_.mtp;
  const int layer = static_cast<int>(ops_.layers.size());
  const int rows = static_cast<int>(next_ids.size());
  ops::StepRows step;
  QUARTET_ASSIGN(step, backend_.BeginStep(next_ids, segments));
  QUARTET_RETURN_IF_ERROR(Embed(step.ids, rows));
  mtp.entry->Run(a.embedding, a.mtp_h, step.positions, rows, a.mtp_x, a.workspace);

  const float* const y[] = {a.y};
  mtp.input_norm->Run(a.mtp_x, rows, a.x);
  QUARTET_RETURN_IF_ERROR(Dsa(layer, mtp.attention, segments, rows, selection));
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  mtp.post_attention_norm->Run(a.mtp_x, y, rows, a.x);
  RunMoe(layer, *mtp.moe, rows);
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  mtp.head_norm->Run(a.mtp_x, y, rows, a.mtp_o);
  TraceValues(layer, TracePoint::kMtpHidden, a.mtp_o, rows, config_.hidden);
  return absl::OkStatus();
}

}  // namespace quartet
