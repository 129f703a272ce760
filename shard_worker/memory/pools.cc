#include "shard_worker/memory/pools.h"

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace quartet {
namespace {

int64_t LatentBytes(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kFp32:
      return 4;
    case KvDtype::kFp16:
      return 2;
    case KvDtype::kFp8E4m3:
      return 1;
  }
  return 4;
}

constexpr int64_t kFloatAlignment = ops::kMemoryAlignment / sizeof(float);

int64_t AlignFloats(int64_t floats) {
  return (floats + kFloatAlignment - 1) / kFloatAlignment * kFloatAlignment;
}

}  // namespace

ops::KvDType ToOps(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kFp32:
      return ops::KvDType::kF32;
    case KvDtype::kFp16:
      return ops::KvDType::kF16;
    case KvDtype::kFp8E4m3:
      return ops::KvDType::kF8E4M3;
  }
  return ops::KvDType::kF32;
}

absl::StatusOr<std::unique_ptr<Pools>> Pools::Create(const ModelConfig& config, int tp,
                                                     const PoolOptions& options,
                                                     ops::Backend& backend) {
  if (options.slots < 1 || options.pages < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the pools need at least one slot and one page, given were %d and %d",
                        options.slots, options.pages));
  }
  auto pools = std::unique_ptr<Pools>(new Pools(backend));
  pools->options_ = options;
  pools->ring_rows_ = static_cast<int>(OpenPoolRows(config, options.draft_tokens));
  const int64_t heads = config.kda_heads / tp;
  pools->recurrent_floats_ = heads * config.kda_head_dim * config.kda_head_dim;
  pools->conv_floats_ = (config.kda_conv_kernel - 1) * 3 * heads * config.kda_head_dim;
  const int64_t ring_floats = pools->ring_rows_ * 2 * config.index_head_dim;
  pools->latent_row_bytes_ = config.kv_lora_rank * LatentBytes(options.kv_dtype);
  const int64_t latent_bytes = kTokensPerPage * pools->latent_row_bytes_;
  pools->pool_key_row_bytes_ = config.index_head_dim * (options.kv_dtype == KvDtype::kFp32 ? 4 : 2);
  const int64_t pool_key_bytes = kTokensPerPage / config.index_kpool * pools->pool_key_row_bytes_;

  const int layers = static_cast<int>(config.layers + config.mtp_layers);
  const auto is_kda = [&](int layer) {
    return layer < config.layers && config.attention[layer] == AttentionKind::kKda;
  };
  pools->places_.resize(layers);
  int64_t floats = 0;
  for (int layer = 0; layer < layers; ++layer) {
    if (!is_kda(layer)) continue;
    LayerPlace& place = pools->places_[layer];
    place.recurrent = floats;
    place.conv = AlignFloats(place.recurrent + pools->recurrent_floats_);
    floats = AlignFloats(place.conv + pools->conv_floats_);
  }
  pools->hidden_at_ = floats;
  pools->hidden_ = config.hidden;
  floats = AlignFloats(floats + config.hidden);
  pools->snapshot_floats_ = floats;
  const int64_t inner = heads * config.kda_head_dim;
  const int64_t window_rows = WindowRows(options.draft_tokens);
  pools->window_rows_ = static_cast<int>(window_rows);
  const auto take = [&](int64_t count) {
    const int64_t at = floats;
    floats = AlignFloats(floats + count);
    return at;
  };
  for (int layer = 0; layer < layers; ++layer) {
    if (!is_kda(layer)) continue;
    auto& window = pools->places_[layer].window;
    window.conv = take(window_rows * 3 * inner);
    window.k = take(window_rows * inner);
    window.v = take(window_rows * inner);
    window.g = take(window_rows * inner);
    window.beta = take(window_rows * heads);
  }
  for (int layer = 0; layer < layers; ++layer) {
    if (is_kda(layer)) continue;
    LayerPlace& place = pools->places_[layer];
    place.ring = floats;
    floats = AlignFloats(place.ring + ring_floats);
    place.latent = pools->page_bytes_;
    place.pool_keys = place.latent + static_cast<int64_t>(ops::AlignUp(latent_bytes));
    pools->page_bytes_ = place.pool_keys + static_cast<int64_t>(ops::AlignUp(pool_key_bytes));
  }
  pools->slot_floats_ = floats;

  auto slots = backend.Allocate(static_cast<size_t>(pools->slot_bytes()) * options.slots,
                                "live states of sequences");
  if (!slots.ok()) return slots.status();
  pools->slots_ = *std::move(slots);
  if (options.snapshots > 0) {
    auto snapshots =
        backend.Allocate(static_cast<size_t>(pools->snapshot_bytes()) * options.snapshots,
                         "snapshots of live states");
    if (!snapshots.ok()) return snapshots.status();
    pools->snapshots_ = *std::move(snapshots);
  }
  auto pages = backend.Allocate(static_cast<size_t>(pools->page_bytes_) * options.pages,
                                "pages of the attention cache");
  if (!pages.ok()) return pages.status();
  pools->pages_ = *std::move(pages);
  pools->counts_words_ = AlignFloats(config.vocab_size);
  auto counts = backend.Allocate(static_cast<size_t>(pools->counts_bytes()) * options.slots,
                                 "counts of tokens for penalties");
  if (!counts.ok()) return counts.status();
  pools->counts_ = *std::move(counts);
  return pools;
}

uint32_t* Pools::token_counts(int slot) const {
  return reinterpret_cast<uint32_t*>(counts_.data()) + slot * counts_words_;
}

float* Pools::slot_data(int slot) const {
  return reinterpret_cast<float*>(slots_.data()) + slot * slot_floats_;
}

float* Pools::snapshot_data(int snapshot) const {
  return reinterpret_cast<float*>(snapshots_.data()) + snapshot * snapshot_floats_;
}

void Pools::KeepHidden(int slot, const float* hidden) {
  backend_.Copy(slot_data(slot) + hidden_at_, hidden, hidden_ * sizeof(float));
}

const float* Pools::hidden(int slot) const {
  return slot_data(slot) + hidden_at_;
}

void Pools::Export(int slot, int snapshot) {
  backend_.Copy(snapshot_data(snapshot), slot_data(slot), snapshot_bytes());
}

void Pools::ExportLayer(int layer, int slot, int snapshot) const {
  const LayerPlace& place = places_[layer];
  backend_.Copy(snapshot_data(snapshot) + place.recurrent, slot_data(slot) + place.recurrent,
                recurrent_floats_ * sizeof(float));
  backend_.Copy(snapshot_data(snapshot) + place.conv, slot_data(slot) + place.conv,
                conv_floats_ * sizeof(float));
}

void Pools::ExportHidden(const float* hidden, int snapshot) {
  backend_.Copy(snapshot_data(snapshot) + hidden_at_, hidden, hidden_ * sizeof(float));
}

void Pools::Restore(int snapshot, int slot) {
  backend_.Copy(slot_data(slot), snapshot_data(snapshot), snapshot_bytes());
}

absl::StatusOr<double> Pools::Distance(int a, int b) const {
  double distance = 0, norm = 0;
  std::vector<float> of_a, of_b;
  const auto add = [&](int64_t at, int64_t floats) -> absl::Status {
    of_a.resize(floats);
    of_b.resize(floats);
    const size_t bytes = floats * sizeof(float);
    if (absl::Status s = backend_.CopyOut(of_a.data(), snapshot_data(a) + at, bytes); !s.ok()) {
      return s;
    }
    if (absl::Status s = backend_.CopyOut(of_b.data(), snapshot_data(b) + at, bytes); !s.ok()) {
      return s;
    }
    for (int64_t i = 0; i < floats; ++i) {
      const double difference = double{of_a[i]} - of_b[i];
      distance += difference * difference;
      norm += double{of_a[i]} * of_a[i];
    }
    return absl::OkStatus();
  };
  for (const LayerPlace& place : places_) {
    if (place.conv == 0) continue;  // no KDA layer: there the matrices come first
    if (absl::Status s = add(place.recurrent, recurrent_floats_); !s.ok()) return s;
    if (absl::Status s = add(place.conv, conv_floats_); !s.ok()) return s;
  }
  if (absl::Status s = add(hidden_at_, hidden_); !s.ok()) return s;
  return distance == 0 ? 0 : std::sqrt(distance / norm);
}

ops::KdaState Pools::kda_state(int layer) const {
  float* base = slot_data(0);
  const LayerPlace& place = places_[layer];
  ops::KdaState state;
  state.recurrent = base + place.recurrent;
  state.conv = base + place.conv;
  state.recurrent_slot_stride = slot_floats_;
  state.conv_slot_stride = slot_floats_;
  state.window = {.conv = base + place.window.conv,
                  .k = base + place.window.k,
                  .v = base + place.window.v,
                  .g = base + place.window.g,
                  .beta = base + place.window.beta,
                  .slot_stride = slot_floats_,
                  .rows = window_rows_};
  return state;
}

ops::OpenPool Pools::open_pool(int layer) const {
  ops::OpenPool open;
  open.data = slot_data(0) + places_[layer].ring;
  open.slot_stride = slot_floats_;
  open.ring_rows = ring_rows_;
  return open;
}

ops::KvLayer Pools::kv(int layer) const {
  ops::KvLayer kv;
  kv.data = pages_.data();
  kv.page_stride = page_bytes_;
  kv.latent_offset = places_[layer].latent;
  kv.pool_key_offset = places_[layer].pool_keys;
  kv.page_tokens = static_cast<int>(kTokensPerPage);
  kv.dtype = ToOps(options_.kv_dtype);
  return kv;
}

}  // namespace quartet
