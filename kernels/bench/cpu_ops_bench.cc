// Time of each CPU op at the demo model's shapes, on one thread, beside what the core can do at
// best: `GB/s` counts every weight once a call, `GFLOP/s` two for every weight and row; `of_copy`
// and `of_fma` are their shares of the ceilings measured at the start of the same run. of_copy
// above 1 means that the weights came from a cache. All rates are per second of processor time.
#include <benchmark/benchmark.h>

#include <cstring>
#include <ctime>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include "kernels/bench/ceiling.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/memory.h"

namespace quartet::bench {
namespace {

constexpr int kHidden = 128, kInner = 512, kExperts = 8, kTopK = 2;
constexpr int kHeads = 8, kDim = 32, kWidth = kHeads * kDim;
constexpr int kRank = 128, kIndexHeads = 4, kIndexDim = 128, kPool = 4, kTopkPools = 64;
constexpr int kVocab = 2048, kStreams = 4;
constexpr int kContext = 1024, kPage = 64, kRing = 8;

Ceiling& TheCeiling() {
  static Ceiling ceiling = MeasureCeiling();
  return ceiling;
}

// Random weights; views stay valid as long as the object.
class Weights {
 public:
  ops::DenseMatrix Matrix(int64_t rows, int64_t cols) {
    const std::vector<float>& data = Floats(static_cast<size_t>(rows * cols), 0.08f, 0.0f);
    ops::DenseMatrix m;
    m.data = reinterpret_cast<const std::byte*>(data.data());
    m.rows = rows;
    m.cols = cols;
    m.row_stride = cols;
    weights_ += rows * cols;
    return m;
  }
  ops::VectorView Vector(int64_t size, float mean = 0.0f) {
    const std::vector<float>& data = Floats(static_cast<size_t>(size), 0.1f, mean);
    return {ops::DType::kF32, reinterpret_cast<const std::byte*>(data.data()), size};
  }
  ops::NormWeights Norm(int64_t size) { return {Vector(size, 1.0f), 1e-5f}; }
  // Any bits are a valid trellis. Scales of +-1 over 16.
  ops::Exl3Matrix Exl3(int64_t in, int64_t out, int bits) {
    ops::Exl3Matrix m;
    m.bits = bits;
    m.tile_order = ops::TileOrder::kColumnMajor;
    m.in = in;
    m.out = out;
    m.trellis = Halves(static_cast<size_t>(in / 16 * out / 16 * 16 * bits), 0xFFFF);
    m.tile_row_stride = out / 16;
    m.suh = Scales(in);
    m.svh = Scales(out);
    weights_ += in * out;
    return m;
  }
  int64_t weights() const { return weights_; }

 private:
  const std::vector<float>& Floats(size_t count, float deviation, float mean) {
    std::normal_distribution<float> normal(mean, deviation);
    floats_.emplace_back(count);
    for (float& value : floats_.back()) value = normal(bits_);
    return floats_.back();
  }
  const std::byte* Halves(size_t count, uint32_t mask) {
    halves_.emplace_back(count);
    for (uint16_t& value : halves_.back()) value = static_cast<uint16_t>(bits_() & mask);
    return reinterpret_cast<const std::byte*>(halves_.back().data());
  }
  const std::byte* Scales(int64_t count) {
    const std::byte* data = Halves(static_cast<size_t>(count), 0x8000);
    for (uint16_t& value : halves_.back()) value |= 0x2C00;
    return data;
  }

  std::mt19937 bits_{1};
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<uint16_t>> halves_;
  int64_t weights_ = 0;
};

class Scratch {
 public:
  void Need(size_t bytes) {
    if (bytes <= bytes_) return;
    floats_ = cpu::AllocateFloats(bytes / sizeof(float) + 16);
    std::memset(floats_.get(), 0, bytes);
    bytes_ = bytes;
  }
  operator ops::Workspace() const { return {reinterpret_cast<std::byte*>(floats_.get()), bytes_}; }

 private:
  cpu::AlignedFloats floats_;
  size_t bytes_ = 0;
};

std::vector<float> Activations(size_t count) {
  std::mt19937 bits(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(bits);
  return x;
}

// Processor time since it was made.
class Timer {
 public:
  double seconds() const { return static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC; }

 private:
  std::clock_t start_ = std::clock();
};

void Report(benchmark::State& state, const Timer& timer, double weights, double rows) {
  const double seconds = timer.seconds() / static_cast<double>(state.iterations());
  const double gb_s = 4e-9 * weights / seconds;
  const double gflop_s = 2e-9 * weights * rows / seconds;
  state.counters["GB/s"] = gb_s;
  state.counters["GFLOP/s"] = gflop_s;
  state.counters["of_copy"] = gb_s / TheCeiling().copy_gb_s;
  state.counters["of_fma"] = gflop_s / TheCeiling().fma_gflop_s;
}

ops::MlpWeights DenseMlp(Weights& w) {
  return {w.Matrix(kInner, kHidden), w.Matrix(kInner, kHidden), w.Matrix(kHidden, kInner), 10.0f};
}

ops::MoeWeights MakeMoe(Weights& w, int bits) {
  ops::MoeWeights moe;
  moe.router = w.Matrix(kExperts, kHidden);
  moe.correction_bias = w.Vector(kExperts);
  for (int e = 0; e < kExperts; ++e) {
    moe.experts.push_back({w.Exl3(kHidden, kInner, bits), w.Exl3(kHidden, kInner, bits),
                           w.Exl3(kInner, kHidden, bits), 10.0f});
  }
  moe.shared = DenseMlp(w);
  moe.top_k = kTopK;
  moe.routed_scaling = 2.5f;
  return moe;
}

ops::KdaWeights MakeKda(Weights& w) {
  ops::KdaWeights kda;
  kda.q = w.Matrix(kWidth, kHidden);
  kda.k = w.Matrix(kWidth, kHidden);
  kda.v = w.Matrix(kWidth, kHidden);
  kda.q_conv = w.Vector(kWidth * 4, 0.3f);
  kda.k_conv = w.Vector(kWidth * 4, 0.3f);
  kda.v_conv = w.Vector(kWidth * 4, 0.3f);
  kda.f_a = w.Matrix(kDim, kHidden);
  kda.g_a = w.Matrix(kDim, kHidden);
  kda.f_b = w.Matrix(kWidth, kDim);
  kda.g_b = w.Matrix(kWidth, kDim);
  kda.b = w.Matrix(kHeads, kHidden);
  kda.a_log = w.Vector(kHeads);
  kda.dt_bias = w.Vector(kWidth);
  kda.o_norm = w.Vector(kDim, 1.0f);
  kda.o = w.Matrix(kHidden, kWidth);
  kda.heads = kHeads;
  kda.head_dim = kDim;
  return kda;
}

ops::MlaWeights MakeMla(Weights& w) {
  ops::MlaWeights mla;
  mla.q_a = w.Matrix(kRank, kHidden);
  mla.q_a_norm = w.Norm(kRank);
  mla.q_b = w.Matrix(kWidth, kRank);
  mla.kv_a = w.Matrix(kRank, kHidden);
  mla.kv_a_norm = w.Norm(kRank);
  mla.kv_b = w.Matrix(2 * kWidth, kRank);
  mla.o = w.Matrix(kHidden, kWidth);
  mla.heads = kHeads;
  mla.nope_dim = kDim;
  mla.v_dim = kDim;
  return mla;
}

ops::IndexerWeights MakeIndexer(Weights& w) {
  ops::IndexerWeights index;
  index.wq_b = w.Matrix(kIndexHeads * kIndexDim, kRank);
  index.wk = w.Matrix(kIndexDim, kHidden);
  index.k_norm_weight = w.Vector(kIndexDim, 1.0f);
  index.k_norm_bias = w.Vector(kIndexDim);
  index.gate = w.Matrix(kIndexDim, kHidden);
  index.ape = w.Vector(kPool * kIndexDim);
  index.head_weights = w.Matrix(kIndexHeads, kHidden);
  index.heads = kIndexHeads;
  index.dim = kIndexDim;
  index.kpool = kPool;
  index.topk_pools = kTopkPools;
  return index;
}

ops::MhcSiteWeights MakeSite(Weights& w) {
  ops::MhcSiteWeights site;
  site.fn = w.Matrix(2 * kStreams + kStreams * kStreams, kStreams * kHidden);
  site.base = w.Vector(2 * kStreams + kStreams * kStreams);
  site.scale = w.Vector(3, 1.0f);
  site.norm = w.Norm(kHidden);
  return site;
}

// One sequence's paged cache of one layer, FP16, with room for kContext tokens.
struct Cache {
  Cache() : bytes(kContext / kPage * Stride()), ring(kRing * 2 * kIndexDim) {
    for (int i = 0; i < kContext / kPage; ++i) pages.push_back(i);
  }
  static size_t Stride() { return 2 * (kPage * kRank + kPage / kPool * kIndexDim); }
  ops::KvLayer View() {
    return {bytes.data(),      static_cast<int64_t>(Stride()), 0, 2 * kPage * kRank, kPage,
            ops::KvDType::kF16};
  }
  ops::OpenPool Open() { return {ring.data(), kRing * 2 * kIndexDim, kRing}; }
  std::vector<std::byte> bytes;
  std::vector<float> ring;
  std::vector<int32_t> pages;
};

// ---- single ops

void BM_Dense(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  const int out = static_cast<int>(state.range(1)), in = static_cast<int>(state.range(2));
  Weights w;
  auto backend = cpu::MakeCpuBackend({});
  const auto op = *backend->PrepareLinear(w.Matrix(out, in));
  const std::vector<float> x = Activations(static_cast<size_t>(rows * in));
  std::vector<float> y(static_cast<size_t>(rows * out));
  const Timer timer;
  for (auto _ : state) {
    op->Run(x.data(), rows, y.data(), {});
    benchmark::ClobberMemory();
  }
  Report(state, timer, static_cast<double>(w.weights()), rows);
}

void BM_Exl3(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Weights w;
  auto backend = cpu::MakeCpuBackend({});
  const auto op = *backend->PrepareLinear(w.Exl3(kHidden, kInner, 2));
  Scratch scratch;
  scratch.Need(op->WorkspaceBytes(rows));
  const std::vector<float> x = Activations(static_cast<size_t>(rows * kHidden));
  std::vector<float> y(static_cast<size_t>(rows * kInner));
  const Timer timer;
  for (auto _ : state) {
    op->Run(x.data(), rows, y.data(), scratch);
    benchmark::ClobberMemory();
  }
  Report(state, timer, static_cast<double>(w.weights()), rows);
}

void BM_Mlp(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Weights w;
  auto backend = cpu::MakeCpuBackend({});
  const auto op = *backend->PrepareMlp(DenseMlp(w));
  Scratch scratch;
  scratch.Need(op->WorkspaceBytes(rows));
  const std::vector<float> x = Activations(static_cast<size_t>(rows * kHidden));
  std::vector<float> y(x.size());
  const Timer timer;
  for (auto _ : state) {
    op->Run(x.data(), rows, y.data(), scratch);
    benchmark::ClobberMemory();
  }
  Report(state, timer, static_cast<double>(w.weights()), rows);
}

void BM_Moe(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Weights w;
  auto backend = cpu::MakeCpuBackend({});
  const auto op = *backend->PrepareMoe(MakeMoe(w, 2));
  Scratch scratch;
  scratch.Need(op->WorkspaceBytes(rows));
  const std::vector<float> x = Activations(static_cast<size_t>(rows * kHidden));
  std::vector<float> y(x.size());
  const Timer timer;
  for (auto _ : state) {
    op->Run(x.data(), rows, y.data(), {}, scratch);
    benchmark::ClobberMemory();
  }
  // What a row touches: router, its experts and the shared one.
  Report(state, timer, kExperts * kHidden + (kTopK + 1) * 3.0 * kInner * kHidden, rows);
}

void BM_MhcBoundary(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Weights w;
  auto backend = cpu::MakeCpuBackend({});
  const auto op = *backend->PrepareMhcSite(MakeSite(w));
  const std::vector<float> y = Activations(static_cast<size_t>(rows * kHidden));
  std::vector<float> streams(y.size() * kStreams), x(y.size());
  std::vector<float> post(static_cast<size_t>(rows * kStreams)), comb(post.size() * kStreams);
  const ops::MhcMix mix{post.data(), comb.data()};
  op->Begin(y.data(), rows, streams.data(), mix, x.data());
  const float* partial = y.data();
  const Timer timer;
  for (auto _ : state) {
    op->Boundary({&partial, 1}, rows, streams.data(), mix, x.data());
    benchmark::ClobberMemory();
  }
  Report(state, timer, static_cast<double>(w.weights()), rows);
}

struct KdaBuffers {
  explicit KdaBuffers(int rows)
      : q(static_cast<size_t>(rows * kWidth)),
        k(q),
        v(q),
        g(q),
        gate(q),
        o(q),
        beta(static_cast<size_t>(rows * kHeads)),
        recurrent(kHeads * kDim * kDim),
        conv(9 * kWidth) {}
  ops::KdaInputs Inputs() {
    return {q.data(), k.data(), v.data(), g.data(), beta.data(), gate.data()};
  }
  ops::KdaState State() { return {recurrent.data(), conv.data(), 0, 0}; }
  std::vector<float> q, k, v, g, gate, o, beta, recurrent, conv;
};

void BM_KdaProject(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Weights w;
  auto backend = cpu::MakeCpuBackend({});
  const ops::KdaWeights kda = MakeKda(w);
  const auto op = *backend->PrepareKdaProject(kda);
  Scratch scratch;
  scratch.Need(op->WorkspaceBytes(rows));
  KdaBuffers b(rows);
  const std::vector<float> x = Activations(static_cast<size_t>(rows * kHidden));
  const ops::Segment segment{0, rows, 0, 64, {}};
  const Timer timer;
  for (auto _ : state) {
    op->Run(x.data(), {&segment, 1}, rows, b.State(), b.Inputs(), scratch);
    benchmark::ClobberMemory();
  }
  Report(state, timer, static_cast<double>(w.weights()) - kHidden * kWidth, rows);
}

void Recurrence(benchmark::State& state, bool chunked) {
  const int rows = static_cast<int>(state.range(0));
  auto backend = cpu::MakeCpuBackend({});
  const auto op = *backend->PrepareKdaRecurrence(kHeads, kDim);
  Scratch scratch;
  scratch.Need(op->WorkspaceBytes(rows));
  KdaBuffers b(rows);
  b.q = b.k = b.v = Activations(b.q.size());
  for (float& k : b.k) k *= 0.1f;
  std::fill(b.g.begin(), b.g.end(), -0.5f);
  std::fill(b.beta.begin(), b.beta.end(), 0.5f);
  const ops::Segment segment{0, rows, 0, 64, {}};
  for (auto _ : state) {
    if (chunked) {
      op->Chunked(b.Inputs(), {&segment, 1}, b.State(), b.o.data(), scratch);
    } else {
      op->Step(b.Inputs(), {&segment, 1}, b.State(), b.o.data(), scratch);
    }
    benchmark::ClobberMemory();
  }
  // The state is read and written once a token; five products per element and token in step form.
  state.counters["token"] = benchmark::Counter(
      rows, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
void BM_KdaStep(benchmark::State& state) {
  Recurrence(state, false);
}
void BM_KdaChunked(benchmark::State& state) {
  Recurrence(state, true);
}

void BM_SparseMla(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Weights w;
  auto backend = cpu::MakeCpuBackend({});
  const ops::MlaWeights mla = MakeMla(w);
  const auto op = *backend->PrepareSparseMla(mla, MakeIndexer(w));
  Scratch scratch;
  scratch.Need(op->WorkspaceBytes(rows, kContext));
  Cache cache;
  std::vector<float> latent = Activations(static_cast<size_t>(rows * kRank));
  const ops::DsaQueries queries = {.latent = latent.data(), .index_w = nullptr};
  std::vector<float> y(static_cast<size_t>(rows * kHidden));
  std::vector<int32_t> pools(static_cast<size_t>(rows * kTopkPools)), counts(rows, kTopkPools);
  for (size_t i = 0; i < pools.size(); ++i) pools[i] = static_cast<int32_t>(i % kTopkPools * 2);
  const ops::Segment segment{0, rows, 0, kContext - rows, cache.pages};
  const Timer timer;
  for (auto _ : state) {
    op->Run(queries, {pools.data(), counts.data(), nullptr, nullptr}, {&segment, 1}, rows,
            cache.View(), y.data(), scratch);
    benchmark::ClobberMemory();
  }
  Report(state, timer, 4.0 * kWidth * kRank, rows);
}

// ---- the whole trunk of the demo model: nine layers with weights of their own

class DemoTrunk {
 public:
  explicit DemoTrunk(int max_rows) : max_rows_(max_rows) {
    backend_ = cpu::MakeCpuBackend({});
    embedding_ = *backend_->PrepareEmbedding({weights_.Matrix(kVocab, kHidden), 0});
    head_ = *backend_->PrepareHead({weights_.Matrix(kVocab, kHidden)});
    finish_ = *backend_->PrepareMhcFinish(weights_.Norm(kHidden), kStreams);
    recurrence_ = *backend_->PrepareKdaRecurrence(kHeads, kDim);
    scratch_.Need(head_->WorkspaceBytes(max_rows));
    scratch_.Need(recurrence_->WorkspaceBytes(max_rows));
    for (int i = 0; i < 9; ++i) {
      Layer layer;
      layer.attn_site = *backend_->PrepareMhcSite(MakeSite(weights_));
      layer.ffn_site = *backend_->PrepareMhcSite(MakeSite(weights_));
      if (i % 4 == 3) {
        const ops::MlaWeights mla = MakeMla(weights_);
        const ops::IndexerWeights index = MakeIndexer(weights_);
        layer.dsa = *backend_->PrepareDsaProject(mla, index);
        layer.select = *backend_->PrepareIndexerSelect(index);
        layer.attend = *backend_->PrepareSparseMla(mla, index);
        layer.cache = std::make_unique<Cache>();
        scratch_.Need(layer.dsa->WorkspaceBytes(max_rows));
        scratch_.Need(layer.select->WorkspaceBytes(max_rows, kContext));
        scratch_.Need(layer.attend->WorkspaceBytes(max_rows, kContext));
      } else {
        const ops::KdaWeights kda = MakeKda(weights_);
        layer.project = *backend_->PrepareKdaProject(kda);
        layer.output = *backend_->PrepareKdaOutput(kda);
        layer.kda = std::make_unique<KdaBuffers>(max_rows);
        scratch_.Need(layer.project->WorkspaceBytes(max_rows));
        scratch_.Need(layer.output->WorkspaceBytes(max_rows));
      }
      if (i < 3) {
        layer.mlp = *backend_->PrepareMlp(DenseMlp(weights_));
        scratch_.Need(layer.mlp->WorkspaceBytes(max_rows));
      } else {
        layer.moe = *backend_->PrepareMoe(MakeMoe(weights_, i == 5 || i == 8 ? 3 : 2));
        scratch_.Need(layer.moe->WorkspaceBytes(max_rows));
      }
      layers_.push_back(std::move(layer));
    }
    const size_t rows = static_cast<size_t>(max_rows);
    x_.resize(rows * kHidden);
    y_.resize(rows * kHidden);
    streams_.resize(rows * kHidden * kStreams);
    post_.resize(rows * kStreams);
    comb_.resize(rows * kStreams * kStreams);
    latent_.resize(rows * kRank);
    index_w_.resize(rows * kIndexHeads);
    pools_.resize(rows * kTopkPools);
    counts_.resize(rows);
    logits_.resize(rows * kVocab);
    ids_.resize(rows);
  }

  // `rows` tokens of one sequence, the first at `position`; logits of the last `sampled` of them.
  void Run(int rows, int position, int sampled) {
    for (int r = 0; r < rows; ++r) ids_[r] = (position + r * 37) % kVocab;
    const ops::MhcMix mix{post_.data(), comb_.data()};
    const float* partial = y_.data();
    embedding_->Run(ids_.data(), rows, y_.data());
    for (size_t i = 0; i < layers_.size(); ++i) {
      Layer& layer = layers_[i];
      if (i == 0) {
        layer.attn_site->Begin(y_.data(), rows, streams_.data(), mix, x_.data());
      } else {
        layer.attn_site->Boundary({&partial, 1}, rows, streams_.data(), mix, x_.data());
      }
      if (layer.dsa != nullptr) {
        const ops::Segment segment{0, rows, 0, position, layer.cache->pages};
        const ops::DsaQueries queries{latent_.data(), index_w_.data()};
        const ops::Selection selection{pools_.data(), counts_.data(), nullptr, nullptr};
        layer.dsa->Run(x_.data(), {&segment, 1}, rows, layer.cache->View(), layer.cache->Open(),
                       queries, scratch_);
        layer.select->Run(queries, {&segment, 1}, layer.cache->View(), selection, scratch_);
        layer.attend->Run(queries, selection, {&segment, 1}, rows, layer.cache->View(), y_.data(),
                          scratch_);
      } else {
        const ops::Segment segment{0, rows, 0, position, {}};
        KdaBuffers& b = *layer.kda;
        layer.project->Run(x_.data(), {&segment, 1}, rows, b.State(), b.Inputs(), scratch_);
        recurrence_->Step(b.Inputs(), {&segment, 1}, b.State(), b.o.data(), scratch_);
        layer.output->Run(b.o.data(), b.gate.data(), rows, y_.data(), scratch_);
      }
      layer.ffn_site->Boundary({&partial, 1}, rows, streams_.data(), mix, x_.data());
      if (layer.mlp != nullptr) {
        layer.mlp->Run(x_.data(), rows, y_.data(), scratch_);
      } else {
        layer.moe->Run(x_.data(), rows, y_.data(), {}, scratch_);
      }
    }
    finish_->Run({&partial, 1}, rows, streams_.data(), mix, x_.data());
    head_->Run(x_.data() + (rows - sampled) * kHidden, sampled, logits_.data(), scratch_);
  }

 private:
  struct Layer {
    std::unique_ptr<ops::MhcSite> attn_site, ffn_site;
    std::unique_ptr<ops::KdaProject> project;
    std::unique_ptr<ops::KdaOutput> output;
    std::unique_ptr<KdaBuffers> kda;
    std::unique_ptr<ops::DsaProject> dsa;
    std::unique_ptr<ops::IndexerSelect> select;
    std::unique_ptr<ops::SparseMla> attend;
    std::unique_ptr<Cache> cache;
    std::unique_ptr<ops::Mlp> mlp;
    std::unique_ptr<ops::Moe> moe;
  };

  int max_rows_;
  Weights weights_;
  std::unique_ptr<cpu::CpuBackend> backend_;
  std::unique_ptr<ops::Embedding> embedding_;
  std::unique_ptr<ops::Head> head_;
  std::unique_ptr<ops::MhcFinish> finish_;
  std::unique_ptr<ops::KdaRecurrence> recurrence_;
  std::vector<Layer> layers_;
  Scratch scratch_;
  std::vector<float> x_, y_, streams_, post_, comb_, latent_, index_w_, logits_;
  std::vector<int32_t> pools_, counts_, ids_;
};

// One token a step after a prompt of 320 tokens: the sparse selection is active.
void BM_DemoDecode(benchmark::State& state) {
  DemoTrunk trunk(320);
  trunk.Run(320, 0, 1);
  int position = 320;
  for (auto _ : state) {
    trunk.Run(1, position, 1);
    position = position + 1 < kContext ? position + 1 : 320;
  }
  state.counters["tokens"] = benchmark::Counter(1, benchmark::Counter::kIsIterationInvariantRate);
}

// Prefill of a whole prompt in one step.
void BM_DemoPrefill(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  DemoTrunk trunk(rows);
  for (auto _ : state) trunk.Run(rows, 0, 1);
  state.counters["tokens"] =
      benchmark::Counter(rows, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(BM_Dense)
    ->ArgNames({"rows", "out", "in"})
    ->ArgsProduct({{1, 4, 16, 256}, {kInner}, {kHidden}})
    ->ArgsProduct({{1, 16, 256}, {kHidden}, {kInner}})
    ->ArgsProduct({{1, 16}, {kVocab}, {kHidden}});
BENCHMARK(BM_Exl3)->ArgName("rows")->Arg(1)->Arg(16)->Arg(256);
BENCHMARK(BM_Mlp)->ArgName("rows")->Arg(1)->Arg(16)->Arg(256);
BENCHMARK(BM_Moe)->ArgName("rows")->Arg(1)->Arg(16)->Arg(256);
BENCHMARK(BM_MhcBoundary)->ArgName("rows")->Arg(1)->Arg(16)->Arg(256);
BENCHMARK(BM_KdaProject)->ArgName("rows")->Arg(1)->Arg(16)->Arg(256);
BENCHMARK(BM_KdaStep)->ArgName("rows")->Arg(1)->Arg(64)->Arg(256);
BENCHMARK(BM_KdaChunked)->ArgName("rows")->Arg(64)->Arg(256);
BENCHMARK(BM_SparseMla)->ArgName("rows")->Arg(1)->Arg(16)->Arg(256);
BENCHMARK(BM_DemoDecode);
BENCHMARK(BM_DemoPrefill)->ArgName("rows")->Arg(16)->Arg(64)->Arg(256);

}  // namespace
}  // namespace quartet::bench

int main(int argc, char** argv) {
  const quartet::bench::Ceiling& ceiling = quartet::bench::TheCeiling();
  std::cout << "ceiling of one core: memcpy " << ceiling.copy_gb_s << " GB/s, multiply-add "
            << ceiling.fma_gflop_s << " GFLOP/s\n";
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
