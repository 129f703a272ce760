#include <algorithm>

#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {
namespace {

// Rows of a segment from which the chunked form of the recurrence pays.
constexpr int kKdaChunkedRows = 128;

std::vector<int> Lengths(std::span<const ops::Segment> segments) {
  std::vector<int> lengths;
  for (const ops::Segment& segment : segments) lengths.push_back(segment.rows);
  return lengths;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelConfig& config, ModelOps ops,
                                                     ops::Backend& backend, const Pools& pools,
                                                     Collectives& collectives,
                                                     const StepLimits& limits) {
  auto model = std::unique_ptr<Model>(
      new Model(config, std::move(ops), backend, pools, collectives, limits));
  QUARTET_ASSIGN(model->activations_,
                 MakeActivations(config, collectives.size(), model->ops_, limits, backend));
  return model;
}

Model::Model(const ModelConfig& config, ModelOps ops, ops::Backend& backend, const Pools& pools,
             Collectives& collectives, const StepLimits& limits)
    : config_(config),
      ops_(std::move(ops)),
      backend_(backend),
      pools_(pools),
      collectives_(collectives),
      limits_(limits),
      kept_pools_(config.index_pools()) {}

absl::Status Model::ReduceY(int rows) {
  return collectives_.AllReduceSum(activations_.y, rows * config_.hidden);
}

absl::Status Model::Embed(const int32_t* ids, int rows) {
  Activations& a = activations_;
  ops_.embedding->Run(ids, rows, a.embedding);
  return collectives_.AllReduceSum(a.embedding, rows * config_.hidden);
}

absl::Status Model::Trunk(std::span<const int32_t> ids, std::span<const ops::Segment> segments,
                          std::span<const int> exports) {
  const int rows = static_cast<int>(ids.size());
  ops::StepRows step;
  QUARTET_ASSIGN(step, backend_.BeginStep(ids, segments));
  if (rows <= kMaxRecordedRows && trace_ == nullptr && !recordings_.empty()) {
    const auto recording = recordings_.find(Lengths(segments));
    if (recording != recordings_.end()) {
      backend_.Replay(*recording->second);
      return absl::OkStatus();
    }
  }
  return TrunkOps(step.ids, segments, rows, exports);
}

absl::Status Model::RecordTrunk(std::span<const int> segment_rows) {
  if (backend_.on_host()) return absl::OkStatus();
  const std::vector<int32_t> pages = {0};
  std::vector<ops::Segment> segments;
  int rows = 0;
  for (const int length : segment_rows) {
    segments.push_back(
        {.row_begin = rows, .rows = length, .slot = 0, .position = 0, .pages = pages});
    rows += length;
  }
  const std::vector<int32_t> ids(rows, 0);
  // Once for real, so that whatever happens at a first call does not happen while recording.
  QUARTET_RETURN_IF_ERROR(Trunk(ids, segments));
  absl::Status status;
  std::unique_ptr<ops::Recording> recording;
  ops::StepRows step;
  QUARTET_ASSIGN(step, backend_.BeginStep(ids, segments));
  QUARTET_ASSIGN(recording,
                 backend_.Record([&] { status = TrunkOps(step.ids, segments, rows, {}); }));
  QUARTET_RETURN_IF_ERROR(status);
  if (recording != nullptr) recordings_[Lengths(segments)] = std::move(recording);
  return absl::OkStatus();
}

absl::Status Model::TrunkOps(const int32_t* ids, std::span<const ops::Segment> segments, int rows,
                             std::span<const int> exports) {
  Activations& a = activations_;
  const int layers = static_cast<int>(ops_.layers.size());
  QUARTET_RETURN_IF_ERROR(Embed(ids, rows));
  const float* const y[] = {a.y};
  for (int i = 0; i < layers; ++i) {
    const LayerOps& layer = ops_.layers[i];
    if (i == 0) {
      layer.attn_site->Begin(a.embedding, rows, a.streams, a.mix, a.x);
    } else {
      layer.attn_site->Boundary(y, rows, a.streams, a.mix, a.x);
      TraceValues(i - 1, TracePoint::kStreams, a.streams, rows, config_.hc_mult * config_.hidden);
    }
    QUARTET_RETURN_IF_ERROR(Attention(i, segments, rows, exports));
    layer.ffn_site->Boundary(y, rows, a.streams, a.mix, a.x);
    QUARTET_RETURN_IF_ERROR(Feed(i, layer, rows));
  }
  ops_.finish->Run(y, rows, a.streams, a.mix, a.h);
  TraceValues(layers - 1, TracePoint::kStreams, a.streams, rows, config_.hc_mult * config_.hidden);
  TraceValues(layers - 1, TracePoint::kFinalHidden, a.h, rows, config_.hidden);
  return absl::OkStatus();
}

absl::Status Model::Attention(int layer, std::span<const ops::Segment> segments, int rows,
                              std::span<const int> exports) {
  Activations& a = activations_;
  TraceValues(layer, TracePoint::kAttnIn, a.x, rows, config_.hidden);
  if (const auto* kda = std::get_if<KdaLayerOps>(&ops_.layers[layer].attention)) {
    Kda(layer, *kda, segments, exports);
    kda->output->Run(a.kda_o, a.kda.gate, rows, a.y, a.workspace);
  } else {
    QUARTET_RETURN_IF_ERROR(Dsa(layer, std::get<DsaLayerOps>(ops_.layers[layer].attention),
                                segments, rows, DraftSelection::kRecompute));
  }
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  TraceValues(layer, TracePoint::kAttnOut, a.y, rows, config_.hidden);
  return absl::OkStatus();
}

// Where a sequence's state is taken inside of its rows, the rows behind it come afterwards: the
// live state is what goes from one segment to the next.
void Model::Kda(int layer, const KdaLayerOps& kda, std::span<const ops::Segment> segments,
                std::span<const int> exports) {
  Activations& a = activations_;
  const ops::KdaState state = pools_.kda_state(layer);
  auto snapshot = exports.begin();
  for (size_t begin = 0; begin < segments.size();) {
    size_t end = begin;
    int rows = 0;
    do {
      rows += segments[end++].rows;
    } while (end < segments.size() && !segments[end - 1].more);
    const auto run = segments.subspan(begin, end - begin);
    kda.project->Run(a.x, run, rows, state, a.kda, a.workspace);
    Recurrence(kda, run, state);
    if (run.back().more) pools_.ExportLayer(layer, run.back().slot, *snapshot++);
    begin = end;
  }
}

// Chunks are faster where a segment is long, but their bits depend on how the prompt was cut. Each
// form runs the segments beside each other that are its own.
void Model::Recurrence(const KdaLayerOps& kda, std::span<const ops::Segment> segments,
                       const ops::KdaState& state) {
  Activations& a = activations_;
  const auto chunked = [&](const ops::Segment& segment) {
    return !backend_.batch_invariant() && segment.rows >= kKdaChunkedRows && !segment.window;
  };
  for (size_t begin = 0; begin < segments.size();) {
    size_t end = begin + 1;
    while (end < segments.size() && chunked(segments[end]) == chunked(segments[begin])) ++end;
    const auto run = segments.subspan(begin, end - begin);
    if (!chunked(segments[begin])) {
      kda.recurrence->Step(a.kda, run, state, a.kda_o, a.workspace);
    } else {
      const auto commits = [](const ops::Segment& segment) { return segment.commit > 0; };
      if (std::any_of(run.begin(), run.end(), commits)) {
        kda.recurrence->Commit(run, state, a.workspace);
      }
      kda.recurrence->Chunked(a.kda, run, state, a.kda_o, a.workspace);
    }
    begin = end;
  }
}

absl::Status Model::Commit(std::span<const ops::Segment> segments) {
  if (absl::Status s = backend_.BeginStep({}, segments).status(); !s.ok()) return s;
  for (size_t i = 0; i < ops_.layers.size(); ++i) {
    const auto* kda = std::get_if<KdaLayerOps>(&ops_.layers[i].attention);
    if (kda == nullptr) continue;
    const ops::KdaState state = pools_.kda_state(static_cast<int>(i));
    kda->project->Commit(segments, state);
    kda->recurrence->Commit(segments, state, activations_.workspace);
  }
  return absl::OkStatus();
}

absl::Status Model::Dsa(int layer, const DsaLayerOps& dsa, std::span<const ops::Segment> segments,
                        int rows, DraftSelection selection) {
  Activations& a = activations_;
  const ops::KvLayer kv = pools_.kv(layer);
  dsa.project->Run(a.x, segments, rows, kv, pools_.open_pool(layer), a.dsa, a.workspace);

  ops::Selection picked = a.selection;
  if (selection == DraftSelection::kShared) {
    QUARTET_RETURN_IF_ERROR(ReuseKept(rows, picked));
  } else {
    if (trace_ == nullptr) picked.margins = nullptr;
    const auto select = [&](ops::Workspace workspace) {
      dsa.select->Run(a.dsa, segments, kv, picked, workspace);
    };
    // A few rows beside the attention's queries, since both leave room: attend joins.
    if (rows <= kMaxRecordedRows) {
      backend_.Fork([&] { select(a.forked_workspace); });
    } else {
      select(a.workspace);
    }
    TraceSelected(layer, picked, rows);
  }
  if (selection == DraftSelection::kKeepLast) {
    QUARTET_RETURN_IF_ERROR(KeepLast(rows, picked));
    kept_position_ = segments.back().position + segments.back().rows - 1;
  }
  dsa.attend->Run(a.dsa, picked, segments, rows, kv, a.y, a.workspace);
  return absl::OkStatus();
}

absl::Status Model::KeepLast(int rows, const ops::Selection& picked) {
  const int64_t topk = config_.index_pools();
  QUARTET_RETURN_IF_ERROR(
      backend_.CopyOut(&kept_count_, picked.counts + rows - 1, sizeof(kept_count_)));
  return backend_.CopyOut(kept_pools_.data(), picked.pools + (rows - 1) * topk,
                          kept_count_ * sizeof(int32_t));
}

absl::Status Model::ReuseKept(int rows, ops::Selection& picked) {
  const int64_t topk = config_.index_pools();
  const std::vector<int32_t> counts(rows, kept_count_);
  const std::vector<int32_t> tails(rows, kept_position_);
  for (int r = 0; r < rows; ++r) {
    QUARTET_RETURN_IF_ERROR(backend_.CopyIn(picked.pools + r * topk, kept_pools_.data(),
                                            kept_count_ * sizeof(int32_t)));
  }
  QUARTET_RETURN_IF_ERROR(backend_.CopyIn(picked.counts, counts.data(), rows * sizeof(int32_t)));
  QUARTET_RETURN_IF_ERROR(
      backend_.CopyIn(activations_.mtp_tails, tails.data(), rows * sizeof(int32_t)));
  picked.tail_positions = activations_.mtp_tails;
  return absl::OkStatus();
}

absl::Status Model::Feed(int layer, const LayerOps& ops, int rows) {
  Activations& a = activations_;
  TraceValues(layer, TracePoint::kMlpIn, a.x, rows, config_.hidden);
  if (const auto* dense = std::get_if<std::unique_ptr<ops::Mlp>>(&ops.mlp)) {
    (*dense)->Run(a.x, rows, a.y, a.workspace);
  } else {
    RunMoe(layer, *std::get<std::unique_ptr<ops::Moe>>(ops.mlp), rows);
  }
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  TraceValues(layer, TracePoint::kMlpOut, a.y, rows, config_.hidden);
  return absl::OkStatus();
}

void Model::RunMoe(int layer, const ops::Moe& moe, int rows) {
  Activations& a = activations_;
  ops::RouterTrace router;
  if (trace_ != nullptr) {
    router = {.experts = a.router_experts, .weights = a.router_weights, .logits = a.router_logits};
  }
  moe.Run(a.x, rows, a.y, router, a.workspace);
  TraceRouted(layer, router, rows);
}

}  // namespace quartet
