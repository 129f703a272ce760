#ifndef QUARTET_SHARD_WORKER_MODEL_MODEL_H_
#define QUARTET_SHARD_WORKER_MODEL_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/weights.h"
#include "shard_worker/collectives/collectives.h"
#include "shard_worker/memory/pools.h"

// The whole model: its configuration is ModelConfig (shard_worker/checkpoint/model_config.h), its
// weights as ops are ModelOps, what it remembers between steps is Pools
// (shard_worker/memory/pools.h), what it holds during one step is Activations.
//
//   streams = 4 copies of the embedding
//   45 x { x = norm(collapse(streams)); y = attention(x); streams = expand(streams, y)
//          x = norm(collapse(streams)); y = mlp(x);       streams = expand(streams, y) }
//   h = norm(mean of streams); logits = h head^T
//
// Letters in shape comments: R rows (tokens) of the step, H hidden, M residual streams, n heads of
// this rank, d head width, V vocabulary, tp ranks.

namespace quartet {

struct KdaLayerOps {
  std::unique_ptr<ops::KdaProject> project;        // x -> q, k, v, g, beta, gate
  std::unique_ptr<ops::KdaRecurrence> recurrence;  // -> o [R, n, d]
  std::unique_ptr<ops::KdaOutput> output;          // -> partial [R, H]
};

struct DsaLayerOps {
  std::unique_ptr<ops::DsaProject> project;    // x -> latent, index_w; appends to the caches
  std::unique_ptr<ops::IndexerSelect> select;  // -> pools of each row
  std::unique_ptr<ops::SparseMla> attend;      // -> partial [R, H]
};

struct LayerOps {
  std::unique_ptr<ops::MhcSite> attn_site;
  std::variant<KdaLayerOps, DsaLayerOps> attention;
  std::unique_ptr<ops::MhcSite> ffn_site;
  std::variant<std::unique_ptr<ops::Mlp>, std::unique_ptr<ops::Moe>> mlp;
};

// The draft layer: plain residuals, no hyper-connections.
struct MtpOps {
  std::unique_ptr<ops::MtpEntry> entry;  // [norm(emb), norm(h)] eh_proj^T
  std::unique_ptr<ops::RmsNorm> input_norm;
  DsaLayerOps attention;
  std::unique_ptr<ops::ResidualNorm> post_attention_norm;  // x += y; norm
  std::unique_ptr<ops::Moe> moe;
  std::unique_ptr<ops::ResidualNorm> head_norm;  // x += y; norm -> o
};

// One rank's prepared weights.
struct ModelOps {
  std::unique_ptr<ops::Embedding> embedding;
  std::vector<LayerOps> layers;
  std::unique_ptr<ops::MhcFinish> finish;
  std::unique_ptr<ops::Head> head;
  std::optional<MtpOps> mtp;
};

struct LoadStep {
  int64_t done_bytes = 0;  // of this rank's part, as stored
  int64_t total_bytes = 0;
};
// Called before the first layer and after each; an error stops the loading and is returned.
using LoadProgressFn = std::function<absl::Status(const LoadStep&)>;

// Prepares one layer after the other, so that only this rank's slice of the mapped files is read.
absl::StatusOr<ModelOps> LoadModelOps(const ModelConfig& config, const ModelWeights& weights,
                                      ops::Backend& backend, const LoadProgressFn& progress);

struct StepLimits {
  int max_rows = 512;        // tokens of one step
  int max_context = 131072;  // positions of one sequence, drafts included
};

// Rows of a step that may be recorded: decode steps and verify windows.
inline constexpr int kMaxRecordedRows = 8;

// Rows that go through the head at once.
inline constexpr int kHeadRows = 16;

// What a step holds: one block of the backend's memory, cut at start for max_rows rows.
struct Activations {
  float* embedding = nullptr;  // [R, H]
  float* streams = nullptr;    // [R, M, H]
  ops::MhcMix mix;             // [R, M], [R, M, M]
  float* x = nullptr;          // [R, H], input of a sublayer
  float* y = nullptr;          // [R, H], output of a sublayer: partial, then summed over ranks
  float* h = nullptr;          // [R, H], the trunk's hidden rows after the final norm
  ops::KdaInputs kda;          // [R, n, d] each, beta [R, n]
  float* kda_o = nullptr;      // [R, n, d]
  ops::DsaQueries dsa;         // [R, q_lora_rank], [R, index_heads]
  ops::Selection selection;    // [R, topk_pools], [R], [R]
  int32_t* router_experts = nullptr;  // [R, top_k], traced only
  float* router_weights = nullptr;    // [R, top_k], traced only
  float* router_logits = nullptr;     // [R, experts], traced only
  int32_t* mtp_tails = nullptr;       // [R], where the tail of a reused list ends
  float* mtp_h = nullptr;             // [R, H], hidden rows that enter the draft layer
  float* mtp_x = nullptr;             // [R, H], its residual
  float* mtp_o = nullptr;             // [R, H], what it yields, after its head norm
  float* head_in = nullptr;           // [kHeadRows, H]
  float* logits_local = nullptr;      // [kHeadRows, V / tp]
  float* logits_ranks = nullptr;      // [tp, kHeadRows, V / tp]
  ops::Workspace workspace;           // of the hungriest op
  ops::Workspace forked_workspace;    // of the hungriest that a few rows fork

  ops::Memory memory;  // behind all of the above
};

absl::StatusOr<Activations> MakeActivations(const ModelConfig& config, int tp, const ModelOps& ops,
                                            const StepLimits& limits, ops::Backend& backend);

// Where a traced value stands. Rows are the step's rows.
enum class TracePoint {
  kAttnIn,       // [R, H], after the site's norm
  kAttnOut,      // [R, H], summed over ranks
  kMlpIn,        // [R, H]
  kMlpOut,       // [R, H]
  kStreams,      // [R, M, H], after the layer
  kFinalHidden,  // [R, H]
  kMtpHidden,    // [R, H], what the draft layer yields
};

// For tests: sees the values of a step on their way. Called on the thread that runs the step; the
// pointers are valid during the call only. Layer config.layers is the draft layer.
class Trace {
 public:
  virtual ~Trace() = default;
  virtual void Values(int layer, TracePoint point, std::span<const float> values, int rows) {}
  // `selection.margins` is filled.
  virtual void Selected(int layer, const ops::Selection& selection, int topk_pools, int rows) {}
  virtual void Routed(int layer, const ops::RouterTrace& router, int top_k, int experts, int rows) {
  }
};

// The forward pass of one rank. All ranks make the same calls with the same arguments, except that
// each has its own weights and pools. One thread at a time. Errors come from the collectives only
// and leave the step half done: nothing may be run after one.
class Model {
 public:
  // Keeps references to everything but `ops`; `trace` may be null.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const ModelConfig& config, ModelOps ops,
                                                       ops::Backend& backend, const Pools& pools,
                                                       Collectives& collectives,
                                                       const StepLimits& limits);

  // Runs the trunk over rows that the segments cut up; ids[r] is row r's token. Advances the live
  // states, appends to the pages. activations().h then holds the hidden rows.
  // exports: for each segment with `more`, in their order, the snapshot that takes its sequence's
  // recurrent state behind it.
  absl::Status Trunk(std::span<const int32_t> ids, std::span<const ops::Segment> segments,
                     std::span<const int> exports = {});

  // Takes in what the segments are to commit, before any of their rows; they need no rows. A trunk
  // over rows does the same for its segments by itself.
  absl::Status Commit(std::span<const ops::Segment> segments);

  // Records the trunk for steps of these segment lengths (kMaxRecordedRows rows at most), where the
  // backend records; later steps of that shape replay it, windows or not and whatever they commit.
  // Once, before the first step: it runs the ops, on slot 0 at position 0 with page 0, and every
  // rank must do it.
  absl::Status RecordTrunk(std::span<const int> segment_rows);

  // Runs the draft layer. Row r stands at its segment's position p with the hidden row
  // activations().mtp_h[r], and next_ids[r] is the token at p + 1. activations().mtp_o then holds
  // what the head turns into draft logits.
  //   kRecompute: every row selects its own pools.
  //   kKeepLast:  as before, and the last row's list is remembered.
  //   kShared:    all rows use the remembered list, tail included, as it was.
  enum class DraftSelection { kRecompute, kKeepLast, kShared };
  absl::Status Draft(std::span<const int32_t> next_ids, std::span<const ops::Segment> segments,
                     DraftSelection selection = DraftSelection::kRecompute);

  // Draws a token from the logits of each of some rows of hidden [.., H]: rows[i] by params[i].
  // Every rank draws the same.
  absl::Status Draw(const float* hidden, std::span<const int> rows,
                    std::span<const ops::SampleParams> params,
                    std::span<ops::SampleResult> results);
  // Log-probabilities of row rows[i]'s logits, by params[i].
  absl::Status Score(const float* hidden, std::span<const int> rows,
                     std::span<const ops::ScoreParams> params,
                     std::span<ops::SampleResult> results);

  // For tests: the logits of some rows, whole vocabulary on every rank, in host memory. `visit` is
  // called once for each entry of `rows`, in order: (index into rows, logits [V]).
  absl::Status Logits(const float* hidden, std::span<const int> rows,
                      absl::FunctionRef<void(int, std::span<const float>)> visit);

  Activations& activations() { return activations_; }
  ops::Backend& backend() { return backend_; }
  const ModelConfig& config() const { return config_; }
  const StepLimits& limits() const { return limits_; }
  bool has_mtp() const { return ops_.mtp.has_value(); }
  void set_trace(Trace* trace) { trace_ = trace; }

 private:
  Model(const ModelConfig& config, ModelOps ops, ops::Backend& backend, const Pools& pools,
        Collectives& collectives, const StepLimits& limits);

  absl::Status TrunkOps(const int32_t* ids, std::span<const ops::Segment> segments, int rows,
                        std::span<const int> exports);
  absl::Status Embed(const int32_t* ids, int rows);
  // The head over `rows`, kHeadRows at a time; `use` gets the index of a piece's first row.
  absl::Status HeadRows(
      const float* hidden, std::span<const int> rows,
      absl::FunctionRef<absl::Status(size_t begin, const ops::LogitsView& logits)> use);
  void GatherRows(const float* hidden, std::span<const int> rows, float* out);
  absl::Status Attention(int layer, std::span<const ops::Segment> segments, int rows,
                         std::span<const int> exports);
  void Kda(int layer, const KdaLayerOps& kda, std::span<const ops::Segment> segments,
           std::span<const int> exports);
  void Recurrence(const KdaLayerOps& kda, std::span<const ops::Segment> segments,
                  const ops::KdaState& state);
  absl::Status Dsa(int layer, const DsaLayerOps& dsa, std::span<const ops::Segment> segments,
                   int rows, DraftSelection selection);
  absl::Status KeepLast(int rows, const ops::Selection& picked);
  absl::Status ReuseKept(int rows, ops::Selection& picked);
  absl::Status Feed(int layer, const LayerOps& ops, int rows);
  void RunMoe(int layer, const ops::Moe& moe, int rows);
  absl::Status ReduceY(int rows);

  // Hand copies to the trace, if there is one.
  void TraceValues(int layer, TracePoint point, const float* data, int rows, int64_t width);
  void TraceSelected(int layer, const ops::Selection& selection, int rows);
  void TraceRouted(int layer, const ops::RouterTrace& router, int rows);

  const ModelConfig& config_;
  ModelOps ops_;
  ops::Backend& backend_;
  const Pools& pools_;
  Collectives& collectives_;
  const StepLimits limits_;
  Activations activations_;
  Trace* trace_ = nullptr;

  // By the lengths of a step's segments.
  std::map<std::vector<int>, std::unique_ptr<ops::Recording>> recordings_;

  // The list that kShared reuses, on the host: pools of one row, and the position whose tail goes
  // with it.
  std::vector<int32_t> kept_pools_;
  int32_t kept_count_ = 0;
  int32_t kept_position_ = 0;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MODEL_MODEL_H_
