// Times of the DSA ops' kernels in the real model's shapes, 12 layers' caches of 131,072 tokens in
// turn, so that the second-level cache holds none.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dsa_paged.h"
#include "kernels/cuda/indexer_params.h"
#include "kernels/cuda/sparse_mla_params.h"

namespace quartet::bench {
namespace {

constexpr int kLayers = 12;
constexpr int kContext = 131'072;
constexpr int kPageTokens = 256;
constexpr int kRank = 512;
constexpr int kQueryRank = 1536;
constexpr int kNope = 256;
constexpr int kIndexHeads = 32;
constexpr int kIndexDim = 128;
constexpr int kPool = 4;
constexpr int kTopk = 512;

class DsaBench {
 public:
  DsaBench()
      : device_(OpenBenchDevice()),
        backend_(CheckOk(cuda::MakeCudaBackend(
            *device_, {.max_rows = 8192, .max_segments = 8, .max_pages = 8192}))),
        ceilings_(MeasureCeilings(*device_)) {
    PrintHeading(*device_, ceilings_);
    MakePages();
    latents_ = Random(8192 * kQueryRank);
    index_w_ = Random(8192 * kIndexHeads);
    pools_ = Allocate(8192 * kTopk * sizeof(int32_t));
    counts_ = Allocate(8192 * sizeof(int32_t));
    out_ = Allocate(8192 * 64 * sizeof(float));
    workspace_ = Allocate(size_t{1} << 30);
  }

  // Queries, scores and selection of `rows` rows that end at `context`.
  void Select(int rows, int context) {
    ops::IndexerWeights weights;
    weights.heads = kIndexHeads;
    weights.dim = kIndexDim;
    weights.kpool = kPool;
    weights.topk_pools = kTopk;
    // Random bits as FP16 of at most one.
    std::vector<uint16_t> wq_b(kIndexHeads * kIndexDim * kQueryRank);
    std::mt19937 bits(5);
    for (uint16_t& v : wq_b) v = static_cast<uint16_t>(bits() & 0xBBFF);
    weights.wq_b = ops::DenseMatrix{.dtype = ops::DType::kF16,
                                    .data = reinterpret_cast<const std::byte*>(wq_b.data()),
                                    .rows = kIndexHeads * kIndexDim,
                                    .cols = kQueryRank,
                                    .row_stride = kQueryRank};
    const auto op = CheckOk(backend_->PrepareIndexerSelect(weights));
    const auto segments = Begin(rows, context);
    const double us = Time(rows, [&](int i) {
      op->Run({latents_.as<float>(), index_w_.as<float>()}, segments, Layer(i),
              {pools_.as<int32_t>(), counts_.as<int32_t>(), nullptr, nullptr}, Scratch());
    });
    const double keys = context / kPool;
    const double matrix_us =
        rows * keys * kIndexHeads * kIndexDim * 2 / ceilings_.matrix_tflops / 1e6;
    Line(absl::StrFormat("IndexerSelect, %d rows at %d", rows, context), us, keys * kIndexDim * 2,
         matrix_us);
  }

  // The selection alone, on random scores or on equal ones.
  void SelectOnly(int rows, int context, bool equal = false) {
    const cuda::Kernel* kernel = CheckOk(device_->Find("index_select"));
    Begin(rows, context);
    const int stride = context / kPool + 8;
    const auto scores = Random(static_cast<size_t>(stride) * rows);
    if (equal) device_->Fill(scores.data(), 0, scores.bytes());
    const cuda::IndexSelectParams params = {.step = View(),
                                            .scores = scores.as<float>(),
                                            .stride = stride,
                                            .kpool = kPool,
                                            .topk = kTopk,
                                            .pools = pools_.as<int32_t>(),
                                            .counts = counts_.as<int32_t>()};
    const double us = Time(rows, [&](int) {
      device_->Launch(kernel, {.grid_x = static_cast<unsigned>(rows), .threads = 1024}, params);
    });
    Line(absl::StrFormat("  index_select alone, %d rows at %d%s", rows, context,
                         equal ? ", equal scores" : ""),
         us, double{4} * rows * context / kPool);
  }

  // One per-head multiplication, every layer with weights of its own.
  void Heads(const std::string& name, int rows, int heads, int in, int out) {
    const cuda::Kernel* kernel =
        CheckOk(device_->Find(name.c_str(), cuda::HeadLinearSharedBytes(in)));
    const size_t matrix = static_cast<size_t>(heads) * in * out;
    const auto weights = Random(matrix * kLayers / 2);
    const auto x = Random(static_cast<size_t>(rows) * heads * in);
    const auto y = Allocate(static_cast<size_t>(rows) * heads * out * sizeof(float));
    const bool many = rows > 16;
    const bool one = name.ends_with("_one");
    const double us = Time(rows, [&](int i) {
      const cuda::HeadLinearParams params = {
          .x = x.data(),
          .w = weights.as<uint16_t>() + i % kLayers * matrix,
          .y = y.data(),
          .rows = rows,
          .heads = heads,
          .in = in,
          .out = out,
          .saturation = counters_.as<cuda::SaturationCounters>()};
      cuda::LaunchShape shape = {
          .grid_x = cuda::CeilDiv(out, 64),
          .grid_y = static_cast<unsigned>(heads),
          .threads = one ? 256u : cuda::kHeadLinearThreads,
          .shared_bytes = one ? 0 : static_cast<unsigned>(cuda::HeadLinearSharedBytes(in))};
      if (many) {
        shape = {.grid_x = cuda::CeilDiv(out, 128),
                 .grid_y = cuda::CeilDiv(rows, 128),
                 .grid_z = static_cast<unsigned>(heads),
                 .threads = 256};
      }
      device_->Launch(kernel, shape, params);
    });
    Line(absl::StrFormat("  %s, %d rows, %d heads", name, rows, heads), us, matrix * 2.0,
         many ? 2.0 * rows * matrix / ceilings_.matrix_tflops / 1e6 : 0);
  }

  // Attention alone: which kernel, and tiles of 64 keys a split.
  void Attend(const char* name, int rows, int heads, int split_tiles, int context) {
    const bool large = std::string_view(name).find("_64_") != std::string_view::npos;
    const int block_heads = large ? 64 : 16;
    const cuda::Kernel* kernel = CheckOk(
        device_->Find(name, cuda::AttendSharedBytes(block_heads, kRank, kTopk, large ? kRank : 0)));
    const cuda::Kernel* merge = CheckOk(device_->Find("mla_merge"));
    Begin(rows, context);
    Draw(rows, context);
    const int tiles = (std::min(context, kTopk * kPool + 3) + 63) / 64;
    const int splits = (tiles + split_tiles - 1) / split_tiles;
    const auto q = Random(static_cast<size_t>(rows) * heads * kRank / 2);
    const size_t parts = splits > 1 ? static_cast<size_t>(rows) * splits * heads : 1;
    const auto part = Allocate(parts * kRank * sizeof(float));
    const auto sums = Allocate(2 * parts * sizeof(float));
    cuda::AttendParams params = {.step = View(),
                                 .pools = pools_.as<int32_t>(),
                                 .counts = counts_.as<int32_t>(),
                                 .q = q.as<uint16_t>(),
                                 .parts = part.as<float>(),
                                 .part_max = sums.as<float>(),
                                 .part_sum = sums.as<float>() + parts,
                                 .heads = heads,
                                 .kpool = kPool,
                                 .topk = kTopk,
                                 .splits = splits,
                                 .split_tiles = split_tiles,
                                 .scale_log2 = 0.09f,
                                 .saturation = counters_.as<cuda::SaturationCounters>()};
    const double us = Time(rows, [&](int i) {
      params.latents = cuda::Latents(Layer(i), kRank);
      device_->Launch(kernel,
                      {.grid_x = static_cast<unsigned>(splits),
                       .grid_y = static_cast<unsigned>(heads / block_heads),
                       .grid_z = static_cast<unsigned>(rows),
                       .threads = static_cast<unsigned>(large ? cuda::kAttendLargeThreads
                                                              : cuda::kAttendThreads),
                       .shared_bytes = static_cast<unsigned>(
                           cuda::AttendSharedBytes(block_heads, kRank, kTopk, large ? kRank : 0))},
                      params);
      if (splits == 1) return;
      device_->Launch(merge,
                      {.grid_x = static_cast<unsigned>(heads),
                       .grid_y = static_cast<unsigned>(rows),
                       .threads = 512},
                      params);
    });
    const double keys = std::min(context, kTopk * kPool + 3);
    Line(absl::StrFormat("  %s, %d rows, %d heads, %d splits", name, rows, heads, splits), us,
         rows * keys * kRank, 4.0 * rows * heads * keys * kRank / ceilings_.matrix_tflops / 1e6);
  }

  void Project(int rows) {
    const cuda::Kernel* op = CheckOk(device_->Find("dsa_append"));
    Begin(rows, kContext);
    const int width = kQueryRank + kRank + 2 * kIndexDim;
    const auto u = Random(static_cast<size_t>(rows) * width);
    const auto ring = Random(8 * 2 * kIndexDim);
    const auto ones = Random(4096);
    cuda::DsaAppendParams params = {.step = View(),
                                    .u = u.as<float>(),
                                    .u_stride = width,
                                    .q_latent = latents_.as<float>(),
                                    .q_weight = ones.as<float>(),
                                    .kv_weight = ones.as<float>(),
                                    .k_weight = ones.as<float>(),
                                    .k_bias = ones.as<float>(),
                                    .ape = ones.as<float>(),
                                    .index_w = index_w_.as<float>(),
                                    .ring = ring.as<float>(),
                                    .ring_rows = 8,
                                    .q_rank = kQueryRank,
                                    .kpool = kPool,
                                    .index_heads = kIndexHeads,
                                    .q_eps = 1e-5f,
                                    .kv_eps = 1e-5f,
                                    .head_scale = 1.0f,
                                    .saturation = counters_.as<cuda::SaturationCounters>()};
    const double us = Time(rows, [&](int i) {
      params.latents = cuda::Latents(Layer(i), kRank);
      params.pool_keys = cuda::PoolKeys(Layer(i), kPool, kIndexDim);
      device_->Launch(op, {.grid_x = static_cast<unsigned>(rows), .grid_y = 4, .threads = 256},
                      params);
    });
    Line(absl::StrFormat("  dsa_append, %d rows", rows), us, 4.0 * rows * width);
  }

 private:
  cuda::Buffer Allocate(size_t bytes) { return CheckOk(device_->Allocate(bytes, "benchmark")); }
  ops::Workspace Scratch() const { return {workspace_.as<std::byte>(), workspace_.bytes()}; }

  // Normal FP32 values, or what their bits are as other types.
  cuda::Buffer Random(size_t floats) {
    if (noise_.empty()) {
      std::mt19937 bits(1);
      std::normal_distribution<float> normal(0.0f, 1.0f);
      noise_.resize(1 << 22);
      for (float& v : noise_) v = normal(bits);
    }
    cuda::Buffer buffer = Allocate(floats * sizeof(float));
    for (size_t at = 0; at < floats; at += noise_.size()) {
      const size_t count = std::min(noise_.size(), floats - at);
      CheckOk(device_->CopyIn(buffer.as<float>() + at, noise_.data(), count * sizeof(float)));
    }
    return buffer;
  }

  // E4M3 latents and FP16 pooled keys, random, all layers alike.
  void MakePages() {
    counters_ = Allocate(sizeof(uint64_t) * 2);
    layer_bytes_ = int64_t{kPageTokens} * kRank + kPageTokens / kPool * kIndexDim * 2;
    const int pages = kContext / kPageTokens;
    kv_ = Allocate(layer_bytes_ * kLayers * pages);
    std::mt19937 bits(3);
    std::vector<uint8_t> page(layer_bytes_ * kLayers);
    table_.resize(pages);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), bits);
    for (size_t i = 0; i < page.size(); ++i) page[i] = (bits() & 0x8F) | 0x28;  // 0.25 .. 0.94
    for (int p = 0; p < pages; ++p) {
      // Keys differ from page to page.
      for (int layer = 0; layer < kLayers; ++layer) {
        auto* keys =
            reinterpret_cast<uint16_t*>(page.data() + layer * layer_bytes_ + kPageTokens * kRank);
        for (int i = 0; i < kPageTokens / kPool * kIndexDim; ++i) {
          keys[i] = static_cast<uint16_t>((bits() & 0x83FF) | 0x3400 | (bits() & 0x0400));
        }
      }
      CheckOk(device_->CopyIn(kv_.as<uint8_t>() + p * page.size(), page.data(), page.size()));
    }
  }

  ops::KvLayer Layer(int i) const {
    ops::KvLayer layer;
    layer.data = kv_.as<std::byte>();
    layer.page_stride = layer_bytes_ * kLayers;
    layer.latent_offset = i % kLayers * layer_bytes_;
    layer.pool_key_offset = layer.latent_offset + kPageTokens * kRank;
    layer.page_tokens = kPageTokens;
    layer.dtype = ops::KvDType::kF8E4M3;
    return layer;
  }

  // A step of one sequence whose last row stands at context - 1.
  std::vector<ops::Segment> Begin(int rows, int context) {
    const std::vector<ops::Segment> segments = {{0, rows, 0, context - rows, table_}};
    CheckOk(backend_->BeginStep({}, segments));
    step_ = CheckOk(cuda::StepState::Create(
        *device_, {.max_rows = 8192, .max_segments = 8, .max_pages = 8192}));
    CheckOk(step_->Set({}, segments));
    CheckOk(device_->Synchronize());
    return segments;
  }
  cuda::StepView View() const { return step_->view(); }

  // Random selections of rows that end at `context`.
  void Draw(int rows, int context) {
    std::mt19937 bits(7);
    std::vector<int32_t> pools(rows * kTopk), counts(rows);
    for (int r = 0; r < rows; ++r) {
      const int candidates = (context - rows + r + 1) / kPool;
      counts[r] = std::min(candidates, kTopk);
      for (int i = 0; i < counts[r]; ++i) {  // one of each of as many ranges
        const int64_t begin = int64_t{candidates} * i / counts[r];
        const int64_t end = int64_t{candidates} * (i + 1) / counts[r];
        pools[r * kTopk + i] = static_cast<int32_t>(begin + bits() % (end - begin));
      }
    }
    CheckOk(device_->CopyIn(pools_.data(), pools.data(), pools.size() * sizeof(int32_t)));
    CheckOk(device_->CopyIn(counts_.data(), counts.data(), counts.size() * sizeof(int32_t)));
  }

  double Time(int rows, absl::FunctionRef<void(int)> work) {
    return MicrosecondsInGraph(*device_, rows > 64 ? 4 : 4 * kLayers, work);
  }
  void Line(const std::string& what, double us, double bytes, double matrix_us = 0) {
    const double read_us = bytes / ceilings_.read_gbs / 1e3;
    PrintLine(what, us, bytes, ceilings_, std::max({read_us, matrix_us, ceilings_.launch_us}));
  }

  std::unique_ptr<cuda::Device> device_;
  std::unique_ptr<cuda::CudaBackend> backend_;
  const Ceilings ceilings_;
  std::vector<float> noise_;
  std::vector<int32_t> table_;
  std::unique_ptr<cuda::StepState> step_;
  int64_t layer_bytes_ = 0;
  cuda::Buffer kv_, counters_, latents_, index_w_, pools_, counts_, out_, workspace_;
};

void RunAll() {
  DsaBench bench;
  for (int rows : {1, 4, 2048}) bench.Project(rows);
  for (int rows : {1, 4, 8}) {
    for (int context : {1024, 8192, 32'768, kContext}) bench.Select(rows, context);
  }
  bench.Select(64, kContext);
  bench.Select(512, 32'768);
  bench.Select(2048, 32'768);
  bench.Select(2048, kContext);
  for (int rows : {1, 4}) {
    for (int context : {4096, 8192, 32'768, kContext}) {
      for (const bool equal : {false, true}) bench.SelectOnly(rows, context, equal);
    }
  }
  bench.SelectOnly(512, kContext);
  for (int heads : {64, 16}) {
    bench.Heads("mla_absorb_one", 1, heads, kNope, kRank);
    bench.Heads("mla_value_one", 1, heads, kRank, kNope);
    for (int rows : {1, 4, 16}) {
      bench.Heads("mla_absorb_few", rows, heads, kNope, kRank);
      bench.Heads("mla_value_few", rows, heads, kRank, kNope);
    }
    bench.Heads("mla_absorb_many", 1024, heads, kNope, kRank);
    bench.Heads("mla_value_many", 1024, heads, kRank, kNope);
  }
  bench.Attend("mla_attend_16_512", 1, 64, 1, 1024);
  for (int tiles : {1, 2}) bench.Attend("mla_attend_16_512", 1, 64, tiles, kContext);
  bench.Attend("mla_attend_16_512", 2, 64, 1, kContext);
  for (int tiles : {2, 3, 5, 9}) bench.Attend("mla_attend_16_512", 4, 64, tiles, kContext);
  for (int tiles : {5, 9}) bench.Attend("mla_attend_16_512", 8, 64, tiles, kContext);
  for (int tiles : {1, 2}) bench.Attend("mla_attend_16_512", 1, 16, tiles, kContext);
  bench.Attend("mla_attend_16_512", 4, 16, 1, kContext);
  for (const auto& [rows, tiles] : {std::pair{2, 1}, {4, 1}, {8, 3}, {16, 5}}) {
    bench.Attend("mla_attend_64_512", rows, 64, tiles, kContext);
  }
  for (int rows : {132, 1024}) {
    bench.Attend("mla_attend_16_512", rows, 64, 33, kContext);
    bench.Attend("mla_attend_64_512", rows, 64, 33, kContext);
  }
  bench.Attend("mla_attend_16_512", 1024, 16, 33, kContext);
}

}  // namespace
}  // namespace quartet::bench

int main() {
  quartet::bench::RunAll();
}
