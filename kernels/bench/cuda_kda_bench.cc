// Kimi delta attention on a GPU: times of its ops at the shapes of the large model, on one rank of
// one and of four. Values are random; slots rotate so that the second-level cache holds no state.

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kda_chunk_params.h"

namespace quartet::bench {
namespace {

constexpr int kDim = 128;
constexpr int kRank = 128;
constexpr int kConv = 4;
constexpr int kSlots = 32;  // of 4 MiB at 64 heads: twice the cache of an H200
constexpr int kLayers = 34;
constexpr int kPrefillRows = 8192;

std::vector<float> Uniform(size_t count, float low, float high, uint32_t seed) {
  std::minstd_rand bits(seed);
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = draw(bits);
  return values;
}

class KdaBench {
 public:
  KdaBench(cuda::Device& device, const Ceilings& ceilings, int heads)
      : device_(device),
        ceilings_(ceilings),
        heads_(heads),
        width_(static_cast<size_t>(heads) * kDim),
        backend_(CheckOk(cuda::MakeCudaBackend(device, {.max_rows = kPrefillRows}))) {
    const size_t count = kPrefillRows * width_;
    // Keys and queries of about the length that the norms give them.
    const float unit = std::sqrt(3.0f / kDim);
    q_ = Upload(Uniform(count, -0.1f * unit, 0.1f * unit, 1));
    k_ = Upload(Uniform(count, -unit, unit, 2));
    v_ = Upload(Uniform(count, -1, 1, 3));
    g_ = Upload(Uniform(count, -1, 0, 4));
    beta_ = Upload(Uniform(static_cast<size_t>(kPrefillRows) * heads, 0, 1, 5));
    gate_ = Upload(Uniform(count, -1, 1, 6));
    o_ = Allocate(count);
    states_ = Allocate(kSlots * width_ * kDim);
    conv_ = Allocate(kSlots * (kConv - 1) * 3 * width_);
    device.Fill(states_.data(), 0, states_.bytes());
    device.Fill(conv_.data(), 0, conv_.bytes());
  }

  void Step(int rows) {
    const auto op = CheckOk(backend_->PrepareKdaRecurrence(heads_, kDim));
    Begin({rows});
    const double us = MicrosecondsInGraph(device_, kSlots, [&](int i) {
      op->Step(Inputs(), segments_, State(i), o_.as<float>(), {});
    });
    Print("step", rows, us, 2.0 * width_ * kDim + 6.0 * rows * width_);
  }

  // A verify window of `rows` rows that commits `commit` of the window before.
  void Window(int rows, int commit) {
    const auto op = CheckOk(backend_->PrepareKdaRecurrence(heads_, kDim));
    constexpr int kRing = 8;
    const cuda::Buffer ring = Allocate(kRing * (3 * width_ + heads_));
    device_.Fill(ring.data(), 0, ring.bytes());
    segments_ = {{.rows = rows, .slot = 0, .position = 100, .window = true, .commit = commit}};
    CheckOk(backend_->BeginStep({}, segments_));
    const double us = MicrosecondsInGraph(device_, kSlots, [&](int i) {
      ops::KdaState state = State(i);
      float* at = ring.as<float>();
      state.window = {.conv = nullptr,
                      .k = at,
                      .v = at + kRing * width_,
                      .g = at + 2 * kRing * width_,
                      .beta = at + 3 * kRing * width_,
                      .slot_stride = 0,
                      .rows = kRing};
      op->Step(Inputs(), segments_, state, o_.as<float>(), {});
    });
    Print("window behind " + std::to_string(commit) + " accepted", rows, us,
          (commit > 0 ? 2.0 : 1.0) * width_ * kDim + (9.0 * rows + 3.0 * commit) * width_);
  }

  void Chunked(const std::vector<int>& lengths) {
    const auto op = CheckOk(backend_->PrepareKdaRecurrence(heads_, kDim));
    const int rows = Begin(lengths);
    const size_t bytes = op->WorkspaceBytes(rows);
    const cuda::Buffer workspace = Allocate(bytes / sizeof(float));
    const double us = MicrosecondsInGraph(device_, 4, [&](int) {
      op->Chunked(Inputs(), segments_, State(0), o_.as<float>(),
                  {workspace.as<std::byte>(), bytes});
    });
    Print("chunked, " + std::to_string(lengths.size()) + " segments", rows, us,
          2.0 * width_ * kDim * lengths.size() + 6.0 * rows * width_);
    // Multiplications and additions that the algebra needs.
    const double flops = 2.0 * rows * width_ * (3.5 * kDim + 2.5 * 64);
    std::printf("%56s %.1f TFLOP/s, %.3f s for %d layers\n", "", flops / us / 1e6,
                us * kLayers / 1e6, kLayers);
  }

  // The two kernels of the chunked form alone, over the chunks of one pass.
  void Pass(int chunks) {
    const cuda::Kernel* algebra =
        CheckOk(device_.Find("kda_chunk_128", sizeof(cuda::KdaChunkShared)));
    const auto step = CheckOk(cuda::StepState::Create(device_, {.max_rows = kPrefillRows}));
    const int rows = Begin({chunks * cuda::kKdaChunk});
    CheckOk(step->Set({}, segments_));
    const cuda::Buffer workspace =
        Allocate(static_cast<size_t>(chunks) * heads_ * cuda::KdaChunkLayout<kDim>::kFloats);
    const cuda::KdaChunkParams params = {
        .segments = {step->view(), 0, 1, rows},
        .in = {q_.as<float>(), k_.as<float>(), v_.as<float>(), g_.as<float>(), beta_.as<float>(),
               heads_, kDim},
        .states = {states_.as<float>(), State(0).recurrent_slot_stride},
        .o = o_.as<float>(),
        .workspace = workspace.as<float>(),
        .first_chunk = 0,
        .chunks = chunks};
    const double algebra_us = MicrosecondsInGraph(device_, 4, [&](int) {
      device_.Launch(algebra,
                     {.grid_x = static_cast<unsigned>(chunks),
                      .grid_y = static_cast<unsigned>(heads_),
                      .threads = 320,
                      .shared_bytes = sizeof(cuda::KdaChunkShared)},
                     params);
    });
    Print("kda_chunk_128", rows, algebra_us, 8.0 * rows * width_);
    constexpr unsigned kWalkShared = sizeof(cuda::KdaWalkShared<kDim>);
    const cuda::Kernel* walk = CheckOk(device_.Find("kda_walk_128", kWalkShared));
    const double walk_us = MicrosecondsInGraph(device_, 4, [&](int) {
      device_.Launch(walk,
                     {.grid_x = static_cast<unsigned>(heads_ * kDim / cuda::kKdaColumns),
                      .threads = 128,
                      .shared_bytes = kWalkShared},
                     params);
    });
    Print("kda_walk_128", rows, walk_us, 5.5 * rows * width_);
  }

  // The kernels between two projections, without these.
  void Elementwise(const std::vector<int>& decode_rows) {
    const cuda::Kernel* decode = CheckOk(device_.Find("kda_project_decode_128"));
    const cuda::Kernel* many = CheckOk(device_.Find("kda_project_rows_128"));
    const cuda::Kernel* norm = CheckOk(device_.Find("kda_norm_128"));
    const auto step = CheckOk(cuda::StepState::Create(device_, {.max_rows = kPrefillRows}));
    const int64_t stride = 3 * width_ + 2 * kRank + heads_;
    const size_t gate_halves = 2 * width_ * kRank;
    const cuda::Buffer u = Allocate(kPrefillRows * stride);
    const cuda::Buffer weights = Allocate(kSlots * gate_halves / 2);
    const cuda::Buffer taps = Upload(Uniform(4 * 3 * width_, -0.5f, 0.5f, 8));
    device_.Fill(u.data(), 0, u.bytes());
    device_.Fill(weights.data(), 0, weights.bytes());
    const auto launch = [&](int rows, int i) {
      const cuda::KdaProjectParams params = {
          .segments = {step->view(), 0, 1, rows},
          .u = u.as<float>(),
          .u_stride = stride,
          .conv = State(i).conv,
          .conv_slot_stride = State(i).conv_slot_stride,
          .taps = taps.as<float>(),
          .gate_scale = taps.as<float>(),
          .dt_bias = taps.as<float>(),
          .gate_weights = weights.as<uint16_t>() + i % kSlots * gate_halves,
          .q = q_.as<float>(),
          .k = k_.as<float>(),
          .v = v_.as<float>(),
          .g = o_.as<float>(),
          .beta = beta_.as<float>(),
          .gate = gate_.as<float>(),
          .heads = heads_,
          .dim = kDim,
          .rank = kRank,
          .history = kConv - 1,
          .lower_bound = -5.0f,
          .query_scale = 0.1f,
          .conv_blocks = static_cast<int32_t>(cuda::CeilDiv(3 * heads_, 4))};
      if (rows <= cuda::kKdaDecodeRows) {
        device_.Launch(
            decode,
            {.grid_x = params.conv_blocks + cuda::CeilDiv(2 * width_, cuda::kKdaGateRows),
             .threads = 128},
            params);
      } else {
        device_.Launch(many,
                       {.grid_x = cuda::CeilDiv(4 * heads_, 4),
                        .grid_y = cuda::CeilDiv(rows, cuda::kKdaTileRows),
                        .threads = 128},
                       params);
      }
    };
    const auto begin = [&](int rows) {
      Begin({rows});
      CheckOk(step->Set({}, segments_));
    };
    for (const int rows : decode_rows) {
      begin(rows);
      const double us = MicrosecondsInGraph(device_, kSlots, [&](int i) { launch(rows, i); });
      Print("project without the stack", rows, us,
            gate_halves / 2 + (2.0 * (kConv - 1) + kConv) * 3 * width_ + 8.0 * rows * width_);
    }
    begin(kPrefillRows);
    const double many_us = MicrosecondsInGraph(device_, 4, [&](int) { launch(kPrefillRows, 0); });
    Print("project without products", kPrefillRows, many_us, 8.0 * kPrefillRows * width_);
    for (const int rows : {1, kPrefillRows}) {
      const cuda::KdaNormParams params = {.o = o_.as<float>(),
                                          .gate = gate_.as<float>(),
                                          .norm = taps.as<float>(),
                                          .y = q_.as<float>(),
                                          .vectors = static_cast<int64_t>(rows) * heads_,
                                          .dim = kDim,
                                          .eps = 1e-5f};
      const double us = MicrosecondsInGraph(device_, 4, [&](int) {
        device_.Launch(norm, {.grid_x = cuda::CeilDiv(params.vectors, 4), .threads = 128}, params);
      });
      Print("gated norm", rows, us, 3.0 * rows * width_);
    }
  }

 private:
  cuda::Buffer Allocate(size_t floats) {
    return CheckOk(device_.Allocate(floats * sizeof(float), "benchmark"));
  }
  cuda::Buffer Upload(const std::vector<float>& values) {
    cuda::Buffer buffer = Allocate(values.size());
    CheckOk(device_.CopyIn(buffer.data(), values.data(), values.size() * sizeof(float)));
    return buffer;
  }
  // A step of sequences of these lengths, all past their start. Returns its rows.
  int Begin(const std::vector<int>& lengths) {
    segments_.clear();
    int rows = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      segments_.push_back(
          {.row_begin = rows, .rows = lengths[i], .slot = static_cast<int>(i), .position = 1});
      rows += lengths[i];
    }
    CheckOk(backend_->BeginStep({}, segments_));
    return rows;
  }
  ops::KdaInputs Inputs() const {
    return {q_.as<float>(), k_.as<float>(),    v_.as<float>(),
            g_.as<float>(), beta_.as<float>(), gate_.as<float>()};
  }
  // Slot 0 of the step is slot i % kSlots of the pool.
  ops::KdaState State(int i) const {
    const int64_t recurrent = static_cast<int64_t>(width_) * kDim;
    const int64_t conv = static_cast<int64_t>(kConv - 1) * 3 * width_;
    return {states_.as<float>() + i % kSlots * recurrent, conv_.as<float>() + i % kSlots * conv,
            recurrent, conv};
  }
  void Print(const std::string& what, int rows, double us, double floats) {
    PrintLine(what + ", " + std::to_string(heads_) + " heads, " + std::to_string(rows) + " rows",
              us, floats * sizeof(float), ceilings_);
  }

  cuda::Device& device_;
  const Ceilings& ceilings_;
  const int heads_;
  const size_t width_;
  std::unique_ptr<cuda::CudaBackend> backend_;
  std::vector<ops::Segment> segments_;
  cuda::Buffer q_, k_, v_, g_, beta_, gate_, o_, states_, conv_;
};

}  // namespace
}  // namespace quartet::bench

int main() {
  using quartet::bench::KdaBench;
  const auto device = quartet::bench::OpenBenchDevice();
  const quartet::bench::Ceilings ceilings = quartet::bench::MeasureCeilings(*device);
  quartet::bench::PrintHeading(*device, ceilings);
  for (const int heads : {64, 16}) {
    KdaBench bench(*device, ceilings, heads);
    for (const int rows : {1, 2, 4, 8, 64}) bench.Step(rows);
    for (const int commit : {0, 2, 4}) bench.Window(4, commit);
    bench.Pass(256 / heads);
    bench.Pass(512 / heads);
    bench.Chunked({17});
    bench.Chunked({64});
    bench.Chunked({512});
    bench.Chunked({8192});
    bench.Chunked({1000, 30, 3000, 500});
    bench.Elementwise({1, 4, 8});
  }
}
