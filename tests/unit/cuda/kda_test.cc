// The CUDA form of Kimi delta attention against the CPU's, and against itself with the rows cut
// differently. The CPU works in FP32 throughout.

#include "kernels/ops/kda.h"

#include <functional>

#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

using ops::Segment;

struct Shape {
  int heads, dim;
  size_t width() const { return static_cast<size_t>(heads) * dim; }
  size_t state_floats() const { return width() * dim; }
};

std::string Name(Shape s) {
  return std::to_string(s.heads) + " heads of " + std::to_string(s.dim);
}

// The inputs of a recurrence on the host.
struct HostInputs {
  HostInputs(int rows, Shape s)
      : q(rows * s.width()), k(q), v(q), g(q), gate(q), beta(static_cast<size_t>(rows) * s.heads) {}
  ops::KdaInputs View() {
    return {q.data(), k.data(), v.data(), g.data(), beta.data(), gate.data()};
  }
  std::vector<float> q, k, v, g, gate, beta;
};

// The same in device memory.
struct DeviceInputs {
  ops::KdaInputs View() const {
    return {q.as<float>(), k.as<float>(),    v.as<float>(),
            g.as<float>(), beta.as<float>(), gate.as<float>()};
  }
  cuda::Buffer q, k, v, g, gate, beta;
};

// Inputs as the projections make them: unit keys, queries of length d^-1/2.
HostInputs RandomInputs(int rows, Shape s, float g_low, float g_high, uint32_t seed) {
  HostInputs in(rows, s);
  const size_t count = in.q.size();
  in.q = RandomFloats(count, 1.0f, seed);
  in.k = RandomFloats(count, 1.0f, seed + 1);
  in.v = RandomFloats(count, 1.0f, seed + 2);
  for (size_t head = 0; head < count; head += s.dim) {
    float q2 = 0, k2 = 0;
    for (int c = 0; c < s.dim; ++c) {
      q2 += in.q[head + c] * in.q[head + c];
      k2 += in.k[head + c] * in.k[head + c];
    }
    for (int c = 0; c < s.dim; ++c) {
      in.q[head + c] /= std::sqrt(q2 * s.dim);
      in.k[head + c] /= std::sqrt(k2);
    }
  }
  std::mt19937 bits = Random(seed + 3);
  std::uniform_real_distribution<float> g(g_low, g_high), beta(0.05f, 0.95f);
  for (float& value : in.g) value = g(bits);
  for (float& value : in.beta) value = beta(bits);
  return in;
}

int RowsOf(std::span<const Segment> segments) {
  int rows = 0;
  for (const Segment& segment : segments) rows += segment.rows;
  return rows;
}

class KdaOnCuda : public CudaOps {
 protected:
  static constexpr int kConv = 4;

  DeviceInputs UploadInputs(const HostInputs& in) {
    return {Upload(in.q), Upload(in.k),    Upload(in.v),
            Upload(in.g), Upload(in.gate), Upload(in.beta)};
  }
  static ops::KdaState States(float* recurrent, float* conv, Shape s) {
    return {recurrent, conv, static_cast<int64_t>(s.state_floats()),
            static_cast<int64_t>((kConv - 1) * 3 * s.width())};
  }
};

// ---- recurrence

using Form = void (ops::KdaRecurrence::*)(const ops::KdaInputs&, std::span<const Segment>,
                                          ops::KdaState, float*, ops::Workspace) const;
constexpr Form kStep = &ops::KdaRecurrence::Step;
constexpr Form kChunked = &ops::KdaRecurrence::Chunked;

struct Outcome {
  std::vector<float> o, states;
};

class KdaRecurrenceOnCuda : public KdaOnCuda {
 protected:
  // Each element of `calls` is one call, the states carried over. Rows that no segment has stay
  // poisoned.
  Outcome OnCuda(Form form, Shape s, const HostInputs& in,
                 const std::vector<std::vector<Segment>>& calls, std::vector<float> states) {
    const auto op = Must(cuda_->PrepareKdaRecurrence(s.heads, s.dim));
    const DeviceInputs inputs = UploadInputs(in);
    const cuda::Buffer device_states = Upload(states);
    const cuda::Buffer o = Poisoned<float>(in.q.size());
    for (const std::vector<Segment>& segments : calls) {
      Must(cuda_->BeginStep({}, segments));
      (op.get()->*form)(inputs.View(), segments, States(device_states.as<float>(), nullptr, s),
                        o.as<float>(), Workspace(op->WorkspaceBytes(RowsOf(segments))));
      MustOk(device_->Synchronize());
    }
    return {Download<float>(o, in.q.size()), Download<float>(device_states, states.size())};
  }

  Outcome OnCpu(Shape s, HostInputs in, const std::vector<std::vector<Segment>>& calls,
                std::vector<float> states) {
    const auto op = Must(cpu_->PrepareKdaRecurrence(s.heads, s.dim));
    Outcome out = {std::vector<float>(in.q.size()), std::move(states)};
    for (const std::vector<Segment>& segments : calls) {
      op->Step(in.View(), segments, States(out.states.data(), nullptr, s), out.o.data(),
               Scratch(op->WorkspaceBytes(RowsOf(segments))));
    }
    return out;
  }

  // Differences relative to the largest output and the largest element of the state.
  static void ExpectClose(const Outcome& cuda, const Outcome& cpu, double tolerance,
                          const std::string& what) {
    ASSERT_GT(MaxMagnitude(cpu.o), 1e-4) << what;
    ASSERT_GT(MaxMagnitude(cpu.states), 1e-3) << what;
    EXPECT_LT(MaxDifference(cuda.o, cpu.o), tolerance * MaxMagnitude(cpu.o)) << what;
    EXPECT_LT(MaxDifference(cuda.states, cpu.states), tolerance * MaxMagnitude(cpu.states)) << what;
  }

  // One call over these segments, starting from random states.
  void Check(Form form, Shape s, const std::vector<Segment>& segments, float g_low, float g_high,
             double tolerance) {
    int slots = 0;
    for (const Segment& segment : segments) slots = std::max(slots, segment.slot + 1);
    const HostInputs in = RandomInputs(RowsOf(segments), s, g_low, g_high, 31);
    const std::vector<float> states = RandomFloats(slots * s.state_floats(), 0.3f, 37);
    ExpectClose(OnCuda(form, s, in, {segments}, states), OnCpu(s, in, {segments}, states),
                tolerance, Name(s) + ", " + std::to_string(RowsOf(segments)) + " rows");
  }

  static constexpr double kStepTolerance = 1e-5;
  static constexpr double kChunkedTolerance = 2e-5;
};

TEST_F(KdaRecurrenceOnCuda, StepAgreesWithTheCpu) {
  for (const Shape s : {Shape{3, 32}, {2, 64}, {2, 128}, {2, 48}, {1, 4}}) {
    Check(kStep, s, Pieces({1}, 0, 0, 0), -2.0f, -0.001f, kStepTolerance);
    Check(kStep, s, Pieces({1}, 0, 9, 1), -2.0f, -0.001f, kStepTolerance);
    Check(kStep, s, Pieces({4}, 0, 9, 1), -5.0f, -0.001f, kStepTolerance);
    Check(kStep, s, Pieces({19}, 0, 0, 0), -2.0f, -0.001f, kStepTolerance);
  }
}

TEST_F(KdaRecurrenceOnCuda, ChunkedAgreesWithTheStepsOfTheCpu) {
  for (const Shape s : {Shape{3, 32}, {2, 64}, {2, 128}, {1, 48}, {1, 4}}) {
    Check(kChunked, s, Pieces({1}, 0, 3, 0), -2.0f, -0.001f, kChunkedTolerance);
    Check(kChunked, s, Pieces({64}, 0, 0, 0), -2.0f, -0.001f, kChunkedTolerance);
    Check(kChunked, s, Pieces({150}, 0, 9, 1), -2.0f, -0.001f, kChunkedTolerance);
  }
}

TEST_F(KdaRecurrenceOnCuda, ChunkedStaysInRangeAtAnyDecay) {
  const Shape s{2, 32};
  const auto segments = Pieces({256}, 0, 7, 0);
  Check(kChunked, s, segments, -5.0f, -4.999f, kChunkedTolerance);
  Check(kChunked, s, segments, -5.0f, 0.0f, kChunkedTolerance);
  Check(kChunked, s, segments, -0.01f, 0.0f, kChunkedTolerance);
  Check(kChunked, s, segments, 0.0f, 0.0f, kChunkedTolerance);
}

TEST_F(KdaRecurrenceOnCuda, ChannelsThatForgetDoNotDisturbThoseThatRemember) {
  const Shape s{1, 64};
  HostInputs in = RandomInputs(200, s, 0.0f, 0.0f, 23);
  for (size_t i = 0; i < in.g.size(); ++i) in.g[i] = i % 2 == 0 ? -5.0f : 0.0f;
  const std::vector<float> states = RandomFloats(s.state_floats(), 0.3f, 37);
  const std::vector<std::vector<Segment>> calls = {Pieces({200}, 0, 3, 0)};
  ExpectClose(OnCuda(kChunked, s, in, calls, states), OnCpu(s, in, calls, states),
              kChunkedTolerance, "half of the channels at -5, half at 0");
}

TEST_F(KdaRecurrenceOnCuda, DecaysThatChangeInsideABlockKeepTheirPrecision) {
  // Eight tokens that forget everything, then eight that forget nothing, and so on: sums of logs
  // that grow large first must not cost the small differences after them.
  const Shape s{1, 32};
  HostInputs in = RandomInputs(192, s, -0.01f, 0.0f, 29);
  for (size_t i = 0; i < in.g.size(); ++i) {
    if (i / s.width() / 8 % 2 == 0) in.g[i] -= 4.9f;
  }
  const std::vector<float> states = RandomFloats(s.state_floats(), 0.3f, 37);
  const std::vector<std::vector<Segment>> calls = {Pieces({192}, 0, 3, 0)};
  ExpectClose(OnCuda(kChunked, s, in, calls, states), OnCpu(s, in, calls, states),
              kChunkedTolerance, "alternating decays");
}

// Sequences of any length, some fresh and some not, in slots in no order.
std::vector<Segment> SeveralSequences() {
  return {{.row_begin = 0, .rows = 70, .slot = 2, .position = 0},
          {.row_begin = 70, .rows = 1, .slot = 0, .position = 5},
          {.row_begin = 71, .rows = 64, .slot = 3, .position = 64},
          {.row_begin = 135, .rows = 3, .slot = 1, .position = 0},
          {.row_begin = 138, .rows = 129, .slot = 5, .position = 1}};
}

TEST_F(KdaRecurrenceOnCuda, SeveralSequencesInOneCallKeepToTheirSlots) {
  for (const Shape s : {Shape{2, 32}, {1, 128}}) {
    Check(kStep, s, SeveralSequences(), -1.0f, -0.001f, kStepTolerance);
    Check(kChunked, s, SeveralSequences(), -1.0f, -0.001f, kChunkedTolerance);
  }
}

TEST_F(KdaRecurrenceOnCuda, SomeOfAStepsSegmentsCanBeRunAlone) {
  const Shape s{2, 32};
  const std::vector<Segment> all = SeveralSequences();
  const HostInputs in = RandomInputs(RowsOf(all), s, -1.0f, -0.001f, 31);
  const std::vector<float> states = RandomFloats(6 * s.state_floats(), 0.3f, 37);
  const Outcome expected = OnCpu(s, in, {all}, states);
  const auto op = Must(cuda_->PrepareKdaRecurrence(s.heads, s.dim));
  const DeviceInputs inputs = UploadInputs(in);
  const cuda::Buffer device_states = Upload(states);
  const cuda::Buffer o = Poisoned<float>(in.q.size());
  Must(cuda_->BeginStep({}, all));
  const ops::KdaState state = States(device_states.as<float>(), nullptr, s);
  const std::span<const Segment> segments = all;
  op->Chunked(inputs.View(), segments.first(1), state, o.as<float>(),
              Workspace(op->WorkspaceBytes(RowsOf(all))));
  op->Step(inputs.View(), segments.subspan(1, 1), state, o.as<float>(), {});
  op->Chunked(inputs.View(), segments.subspan(2), state, o.as<float>(),
              Workspace(op->WorkspaceBytes(RowsOf(all))));
  ExpectClose({Download<float>(o, in.q.size()), Download<float>(device_states, states.size())},
              expected, kChunkedTolerance, "prefill, decode, prefill");
}

TEST_F(KdaRecurrenceOnCuda, StepsHaveTheSameBitsHoweverTheSequenceIsCut) {
  const Shape s{2, 32};
  const HostInputs in = RandomInputs(30, s, -1.0f, -0.001f, 41);
  const std::vector<float> states(s.state_floats(), NAN);
  const Outcome whole = OnCuda(kStep, s, in, {Pieces({30}, 0, 0, 0)}, states);
  std::vector<std::vector<Segment>> calls;
  for (const Segment& piece : Pieces({1, 1, 5, 8, 9, 6}, 0, 0, 0)) calls.push_back({piece});
  const Outcome cut = OnCuda(kStep, s, in, calls, states);
  EXPECT_TRUE(SameBits(cut.o, whole.o));
  EXPECT_TRUE(SameBits(cut.states, whole.states));
}

TEST_F(KdaRecurrenceOnCuda, ChunksCutDifferentlyAgree) {
  const Shape s{2, 32};
  const HostInputs in = RandomInputs(247, s, -1.0f, -0.001f, 43);
  const std::vector<float> states(s.state_floats(), NAN);
  std::vector<std::vector<Segment>> calls;
  for (const Segment& piece : Pieces({1, 64, 63, 17, 100, 2}, 0, 0, 0)) calls.push_back({piece});
  ExpectClose(OnCuda(kChunked, s, in, calls, states), OnCpu(s, in, calls, states),
              kChunkedTolerance, "cut");
}

TEST_F(KdaRecurrenceOnCuda, ALongSegmentGoesThroughSeveralPasses) {
  // 300 heads leave one chunk a pass.
  const Shape s{300, 4};
  if (TestDeviceIsEmulated()) {
    Check(kChunked, s, Pieces({70}, 0, 5, 0), -1.0f, -0.001f, kChunkedTolerance);
  } else {
    Check(kChunked, s, Pieces({700}, 0, 5, 0), -1.0f, -0.001f, kChunkedTolerance);
  }
}

TEST_F(KdaRecurrenceOnCuda, AgreesAtTheShapesOfTheLargeModel) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "too large for the emulator";
  for (const int heads : {64, 16}) {
    const Shape s{heads, 128};
    for (const int rows : {1, 4, 64, 200}) {
      const auto segments = Pieces({rows}, 0, 100, 1);
      Check(kStep, s, segments, -2.0f, -0.001f, kStepTolerance);
      Check(kChunked, s, segments, -2.0f, -0.001f, kChunkedTolerance);
    }
    Check(kChunked, s, Pieces({1300}, 0, 100, 1), -5.0f, 0.0f, kChunkedTolerance);
    Check(kStep, s, SeveralSequences(), -2.0f, -0.001f, kStepTolerance);
    Check(kChunked, s, SeveralSequences(), -2.0f, -0.001f, kChunkedTolerance);
  }
}

TEST_F(KdaRecurrenceOnCuda, RefusesHeadsThatTheKernelsDoNotHave) {
  for (const Shape s : {Shape{0, 32}, {2, 0}, {2, 21}, {2, 132}}) {
    EXPECT_EQ(cuda_->PrepareKdaRecurrence(s.heads, s.dim).status().code(),
              absl::StatusCode::kInvalidArgument)
        << Name(s);
  }
}

// ---- projection and output

// A layer's weights, owned.
struct Layer {
  Layer(Shape s, int hidden, int rank, int conv_kernel, float deviation, uint32_t seed)
      : shape(s), hidden(hidden), rank(rank), conv_kernel(conv_kernel) {
    const auto random = [&](size_t count, float d) { return RandomFloats(count, d, seed++); };
    for (auto* w : {&q, &k, &v}) *w = random(s.width() * hidden, deviation);
    for (auto* w : {&q_conv, &k_conv, &v_conv}) *w = random(s.width() * conv_kernel, 0.5f);
    for (auto* w : {&f_a, &g_a}) *w = random(static_cast<size_t>(rank) * hidden, deviation);
    for (auto* w : {&f_b, &g_b}) *w = random(s.width() * rank, deviation);
    b = random(static_cast<size_t>(s.heads) * hidden, deviation);
    a_log = random(s.heads, 0.3f);
    dt_bias = random(s.width(), 0.5f);
    o_norm = random(s.dim, 1.0f);
    o = random(s.width() * hidden, deviation);
  }
  ops::KdaWeights View() const {
    const int width = static_cast<int>(shape.width());
    ops::KdaWeights w;
    w.q = DenseF32(q, width, hidden);
    w.k = DenseF32(k, width, hidden);
    w.v = DenseF32(v, width, hidden);
    w.q_conv = VectorF32(q_conv);
    w.k_conv = VectorF32(k_conv);
    w.v_conv = VectorF32(v_conv);
    w.f_a = DenseF32(f_a, rank, hidden);
    w.g_a = DenseF32(g_a, rank, hidden);
    w.f_b = DenseF32(f_b, width, rank);
    w.g_b = DenseF32(g_b, width, rank);
    w.b = DenseF32(b, shape.heads, hidden);
    w.a_log = VectorF32(a_log);
    w.dt_bias = VectorF32(dt_bias);
    w.o_norm = VectorF32(o_norm);
    w.o = DenseF32(o, hidden, width);
    w.heads = shape.heads;
    w.head_dim = shape.dim;
    w.conv_kernel = conv_kernel;
    return w;
  }

  Shape shape;
  int hidden, rank, conv_kernel;
  std::vector<float> q, k, v, q_conv, k_conv, v_conv, f_a, g_a, f_b, g_b, b, a_log, dt_bias, o_norm,
      o;
};

// Every row of a matrix picks one input, times a power of two: products are exact in any number
// format and order, so what is left to compare are the convolution, the norms and the gates.
void MakeExact(std::vector<float>& matrix, int cols, uint32_t seed) {
  std::mt19937 bits = Random(seed);
  for (size_t row = 0; row < matrix.size(); row += cols) {
    std::fill_n(matrix.begin() + row, cols, 0.0f);
    matrix[row + bits() % cols] = std::ldexp(bits() % 2 == 0 ? 1.0f : -1.0f, -int(bits() % 3));
  }
}
Layer ExactLayer(Shape s, int hidden, int rank, int conv_kernel) {
  Layer layer(s, hidden, rank, conv_kernel, 0.1f, 7);
  uint32_t seed = 100;
  for (auto* w : {&layer.q, &layer.k, &layer.v, &layer.f_a, &layer.g_a, &layer.b}) {
    MakeExact(*w, hidden, seed++);
  }
  for (auto* w : {&layer.f_b, &layer.g_b}) MakeExact(*w, rank, seed++);
  return layer;
}
// Numbers that FP16 holds.
std::vector<float> ExactRows(size_t count, uint32_t seed) {
  std::mt19937 bits = Random(seed);
  std::vector<float> x(count);
  for (float& value : x) value = static_cast<float>(int(bits() % 513) - 256) / 128.0f;
  return x;
}

class KdaProjectOnCuda : public KdaOnCuda {
 protected:
  struct Outcome {
    HostInputs out;
    std::vector<float> conv;
  };

  static size_t ConvFloats(const Layer& layer, int slots) {
    return static_cast<size_t>(slots) * (kConv - 1) * 3 * layer.shape.width();
  }

  Outcome OnCuda(const Layer& layer, const std::vector<float>& x,
                 const std::vector<std::vector<Segment>>& calls, std::vector<float> conv) {
    const Shape s = layer.shape;
    const int all_rows = static_cast<int>(x.size()) / layer.hidden;
    const auto op = Must(cuda_->PrepareKdaProject(layer.View()));
    const cuda::Buffer dx = Upload(x);
    const cuda::Buffer device_conv = Upload(conv);
    HostInputs out(all_rows, s);
    size_t row = 0;
    for (const std::vector<Segment>& segments : calls) {
      const int rows = RowsOf(segments);
      DeviceInputs device = {Poisoned<float>(rows * s.width()), Poisoned<float>(rows * s.width()),
                             Poisoned<float>(rows * s.width()), Poisoned<float>(rows * s.width()),
                             Poisoned<float>(rows * s.width()), Poisoned<float>(rows * s.heads)};
      Must(cuda_->BeginStep({}, segments));
      op->Run(dx.as<float>() + row * layer.hidden, segments, rows,
              States(nullptr, device_conv.as<float>(), s), device.View(),
              Workspace(op->WorkspaceBytes(rows)));
      const auto keep = [&](const cuda::Buffer& from, std::vector<float>& to, size_t width) {
        const std::vector<float> values = Download<float>(from, rows * width);
        std::copy(values.begin(), values.end(), to.begin() + row * width);
      };
      keep(device.q, out.q, s.width());
      keep(device.k, out.k, s.width());
      keep(device.v, out.v, s.width());
      keep(device.g, out.g, s.width());
      keep(device.gate, out.gate, s.width());
      keep(device.beta, out.beta, s.heads);
      row += rows;
    }
    return {std::move(out), Download<float>(device_conv, conv.size())};
  }

  Outcome OnCpu(const Layer& layer, const std::vector<float>& x,
                const std::vector<std::vector<Segment>>& calls, std::vector<float> conv) {
    const Shape s = layer.shape;
    const auto op = Must(cpu_->PrepareKdaProject(layer.View()));
    Outcome result = {HostInputs(static_cast<int>(x.size()) / layer.hidden, s), std::move(conv)};
    size_t row = 0;
    for (const std::vector<Segment>& segments : calls) {
      const int rows = RowsOf(segments);
      ops::KdaInputs out = result.out.View();
      out.q += row * s.width();
      out.k += row * s.width();
      out.v += row * s.width();
      out.g += row * s.width();
      out.gate += row * s.width();
      out.beta += row * s.heads;
      op->Run(x.data() + row * layer.hidden, segments, rows, States(nullptr, result.conv.data(), s),
              out, Scratch(op->WorkspaceBytes(rows)));
      row += rows;
    }
    return result;
  }

  using Distance = std::function<double(const std::vector<float>&, const std::vector<float>&)>;
  static void ExpectClose(const Outcome& cuda, const Outcome& cpu, const Distance& distance,
                          double tolerance, const std::string& what) {
    EXPECT_LT(distance(cuda.out.q, cpu.out.q), tolerance) << "q, " << what;
    EXPECT_LT(distance(cuda.out.k, cpu.out.k), tolerance) << "k, " << what;
    EXPECT_LT(distance(cuda.out.v, cpu.out.v), tolerance) << "v, " << what;
    EXPECT_LT(distance(cuda.out.g, cpu.out.g), tolerance) << "g, " << what;
    EXPECT_LT(distance(cuda.out.gate, cpu.out.gate), tolerance) << "gate, " << what;
    EXPECT_LT(distance(cuda.out.beta, cpu.out.beta), tolerance) << "beta, " << what;
    EXPECT_LT(distance(cuda.conv, cpu.conv), tolerance) << "conv, " << what;
  }

  // Weights that make all products exact: everything else within FP32 rounding.
  void CheckExact(const Layer& layer, const std::vector<std::vector<Segment>>& calls, int slots,
                  const std::string& what) {
    int rows = 0;
    for (const auto& segments : calls) rows += RowsOf(segments);
    const std::vector<float> x = ExactRows(static_cast<size_t>(rows) * layer.hidden, 3);
    // Slots whose sequences begin in a call hold what must not be read.
    std::vector<float> conv = RandomFloats(ConvFloats(layer, slots), 1.0f, 5);
    const size_t slot_floats = conv.size() / slots;
    for (const Segment& segment : calls.front()) {
      if (segment.position == 0) {
        std::fill_n(conv.begin() + segment.slot * slot_floats, slot_floats, NAN);
      }
    }
    const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
      return MaxDifference(a, b);
    };
    ExpectClose(OnCuda(layer, x, calls, conv), OnCpu(layer, x, calls, conv), distance, 2e-6, what);
  }

  // Random weights: projections in FP16.
  void CheckRandom(const Layer& layer, const std::vector<Segment>& segments, int slots) {
    const std::vector<float> x =
        RandomFloats(static_cast<size_t>(RowsOf(segments)) * layer.hidden, 1.0f, 3);
    const std::vector<float> conv = RandomFloats(ConvFloats(layer, slots), 1.0f, 5);
    const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
      return RelativeL2(a, b);
    };
    ExpectClose(OnCuda(layer, x, {segments}, conv), OnCpu(layer, x, {segments}, conv), distance,
                1e-3, Name(layer.shape) + ", " + std::to_string(RowsOf(segments)) + " rows");
  }
};

TEST_F(KdaProjectOnCuda, AgreesWithTheCpu) {
  for (const Shape s : {Shape{4, 32}, {3, 32}, {2, 64}, {1, 128}, {3, 20}}) {
    const Layer layer(s, 96, 32, kConv, 0.1f, 11);
    CheckRandom(layer, Pieces({1}, 0, 0, 0), 1);
    CheckRandom(layer, Pieces({4}, 0, 7, 1), 2);
    CheckRandom(layer, Pieces({9}, 0, 7, 1), 2);
  }
}

TEST_F(KdaProjectOnCuda, ConvolutionNormsAndGatesAreExactToFp32) {
  for (const Shape s : {Shape{5, 32}, {2, 64}, {2, 128}, {2, 12}}) {
    const Layer layer = ExactLayer(s, 40, 16, kConv);
    CheckExact(layer, {Pieces({6}, 0, 0, 0)}, 1, Name(s) + ", few rows");
    CheckExact(layer, {Pieces({70}, 0, 11, 0)}, 1, Name(s) + ", many rows");
  }
}

TEST_F(KdaProjectOnCuda, GatesMayHaveAnyRank) {
  for (const int rank : {8, 12, 200, 264}) {
    const Layer layer = ExactLayer({2, 32}, 40, rank, kConv);
    CheckExact(layer, {Pieces({3}, 0, 0, 0)}, 1, "rank " + std::to_string(rank));
  }
}

TEST_F(KdaProjectOnCuda, HistoryCarriesOverSegmentsOfAnyLength) {
  const Layer layer = ExactLayer({2, 32}, 40, 16, kConv);
  for (const std::vector<int>& lengths :
       {std::vector<int>{1, 1, 1, 1, 1}, {2, 2, 2}, {3, 1, 3}, {5, 2, 5, 1}, {40, 1, 33, 2, 65}}) {
    std::vector<std::vector<Segment>> calls;
    for (const Segment& piece : Pieces(lengths, 0, 0, 0)) {
      Segment alone = piece;
      alone.row_begin = 0;
      calls.push_back({alone});
    }
    CheckExact(layer, calls, 1, "first " + std::to_string(lengths[0]) + " rows");
  }
}

TEST_F(KdaProjectOnCuda, SomeOfAStepsSegmentsCanBeRunAlone) {
  const Layer layer = ExactLayer({2, 32}, 40, 16, kConv);
  const Shape s = layer.shape;
  // Another sequence, then one that is cut twice.
  const std::vector<Segment> step = {
      {.row_begin = 0, .rows = 3, .slot = 0, .position = 9},
      {.row_begin = 3, .rows = 64, .slot = 1, .position = 11, .more = true},
      {.row_begin = 67, .rows = 70, .slot = 1, .position = 75, .more = true},
      {.row_begin = 137, .rows = 2, .slot = 1, .position = 145}};
  const std::vector<Segment> uncut = {step[0],
                                      {.row_begin = 3, .rows = 136, .slot = 1, .position = 11}};
  const int rows = RowsOf(step);
  const std::vector<float> x = ExactRows(static_cast<size_t>(rows) * layer.hidden, 3);
  const std::vector<float> conv = RandomFloats(ConvFloats(layer, 2), 1.0f, 5);
  const Outcome expected = OnCpu(layer, x, {uncut}, conv);

  const auto on_cuda = Must(cuda_->PrepareKdaProject(layer.View()));
  const auto on_cpu = Must(cpu_->PrepareKdaProject(layer.View()));
  const cuda::Buffer dx = Upload(x);
  const cuda::Buffer device_conv = Upload(conv);
  const DeviceInputs device = {Poisoned<float>(rows * s.width()), Poisoned<float>(rows * s.width()),
                               Poisoned<float>(rows * s.width()), Poisoned<float>(rows * s.width()),
                               Poisoned<float>(rows * s.width()), Poisoned<float>(rows * s.heads)};
  Outcome cpu = {HostInputs(rows, s), conv};
  Must(cuda_->BeginStep({}, step));
  const auto run = [&](size_t begin, size_t count) {
    const auto some = std::span(step).subspan(begin, count);
    on_cuda->Run(dx.as<float>(), some, RowsOf(some), States(nullptr, device_conv.as<float>(), s),
                 device.View(), Workspace(on_cuda->WorkspaceBytes(rows)));
    on_cpu->Run(x.data(), some, RowsOf(some), States(nullptr, cpu.conv.data(), s), cpu.out.View(),
                Scratch(on_cpu->WorkspaceBytes(rows)));
  };
  run(0, 2);
  run(2, 1);
  run(3, 1);
  Outcome cuda = {HostInputs(rows, s), Download<float>(device_conv, conv.size())};
  cuda.out.q = Download<float>(device.q, rows * s.width());
  cuda.out.k = Download<float>(device.k, rows * s.width());
  cuda.out.v = Download<float>(device.v, rows * s.width());
  cuda.out.g = Download<float>(device.g, rows * s.width());
  cuda.out.gate = Download<float>(device.gate, rows * s.width());
  cuda.out.beta = Download<float>(device.beta, rows * s.heads);
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    return MaxDifference(a, b);
  };
  ExpectClose(cuda, expected, distance, 2e-6, "CUDA");
  EXPECT_TRUE(SameBits(cpu.out.q, expected.out.q));
  EXPECT_TRUE(SameBits(cpu.out.g, expected.out.g));
  EXPECT_TRUE(SameBits(cpu.out.gate, expected.out.gate));
  EXPECT_TRUE(SameBits(cpu.conv, expected.conv));
}

TEST_F(KdaProjectOnCuda, SeveralSequencesInOneCallKeepToTheirSlots) {
  const Layer layer = ExactLayer({2, 32}, 40, 16, kConv);
  CheckExact(layer,
             {{{.row_begin = 0, .rows = 2, .slot = 2, .position = 0},
               {.row_begin = 2, .rows = 1, .slot = 0, .position = 1},
               {.row_begin = 3, .rows = 4, .slot = 1, .position = 12}}},
             3, "decode");
  CheckExact(layer,
             {{{.row_begin = 0, .rows = 67, .slot = 2, .position = 0},
               {.row_begin = 67, .rows = 1, .slot = 0, .position = 1},
               {.row_begin = 68, .rows = 32, .slot = 3, .position = 0},
               {.row_begin = 100, .rows = 2, .slot = 1, .position = 12}}},
             4, "prefill");
}

TEST_F(KdaProjectOnCuda, AShorterConvolutionLooksBackLess) {
  for (const int conv_kernel : {2, 3}) {
    const Layer layer = ExactLayer({2, 32}, 40, 16, conv_kernel);
    CheckExact(layer, {Pieces({1}, 0, 5, 0), Pieces({2}, 0, 6, 0), Pieces({9}, 0, 8, 0)}, 1,
               std::to_string(conv_kernel) + " taps");
  }
}

TEST_F(KdaProjectOnCuda, AgreesAtTheShapesOfTheLargeModel) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "too large for the emulator";
  const Layer layer({64, 128}, 512, 128, kConv, 0.05f, 13);
  for (const int rows : {1, 4, 64, 200}) CheckRandom(layer, Pieces({rows}, 0, 3, 1), 2);
}

class KdaOutputOnCuda : public KdaOnCuda {};

TEST_F(KdaOutputOnCuda, AgreesWithTheCpu) {
  std::vector<Shape> shapes = {{4, 32}, {3, 20}, {2, 64}, {1, 128}};
  if (!TestDeviceIsEmulated()) shapes.push_back({64, 128});
  for (const Shape s : shapes) {
    const Layer layer(s, 72, 16, kConv, 0.1f, 17);
    for (const int rows : {1, 5, 17}) {
      const std::vector<float> o = RandomFloats(rows * s.width(), 0.1f, 19);
      const std::vector<float> gate = RandomFloats(rows * s.width(), 1.5f, 21);
      std::vector<float> expected(static_cast<size_t>(rows) * layer.hidden);
      const auto oracle = Must(cpu_->PrepareKdaOutput(layer.View()));
      oracle->Run(o.data(), gate.data(), rows, expected.data(),
                  Scratch(oracle->WorkspaceBytes(rows)));

      const auto op = Must(cuda_->PrepareKdaOutput(layer.View()));
      const cuda::Buffer device_o = Upload(o);
      const cuda::Buffer device_gate = Upload(gate);
      const cuda::Buffer partial = Poisoned<float>(expected.size());
      op->Run(device_o.as<float>(), device_gate.as<float>(), rows, partial.as<float>(),
              Workspace(op->WorkspaceBytes(rows)));
      EXPECT_LT(RelativeL2(Download<float>(partial, expected.size()), expected), 1e-3)
          << Name(s) << ", " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace quartet::testing
