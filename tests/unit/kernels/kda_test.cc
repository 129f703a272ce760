#include "kernels/cpu/kda.h"

#include "tests/unit/kernels/golden_model.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::GoldenModel;
using testing::MaxDifference;
using testing::MaxMagnitude;
using testing::Must;
using testing::Pieces;
using testing::RandomFloats;
using testing::Scratch;
using testing::TensorFile;

// The inputs of a recurrence, owned.
struct Inputs {
  Inputs(int rows, int heads, int dim)
      : q(rows * heads * dim), k(q), v(q), g(q), gate(q), beta(rows * heads) {}
  ops::KdaInputs View() {
    return {q.data(), k.data(), v.data(), g.data(), beta.data(), gate.data()};
  }
  std::vector<float> q, k, v, g, gate, beta;
};

// One slot's state.
struct State {
  State(int heads, int dim, int conv = 4)
      : recurrent(heads * dim * dim, NAN), conv((conv - 1) * 3 * heads * dim, NAN) {}
  ops::KdaState View() {
    return {recurrent.data(), conv.data(), static_cast<int64_t>(recurrent.size()),
            static_cast<int64_t>(conv.size())};
  }
  std::vector<float> recurrent, conv;
};

class KdaGolden : public ::testing::Test {
 protected:
  static constexpr int kRows = 12, kHeads = GoldenModel::kHeads, kDim = GoldenModel::kKdaDim;

  GoldenModel model_;
  TensorFile text_{"model/golden_text.safetensors"};
  std::unique_ptr<CpuBackend> backend_ = MakeCpuBackend({});
};

TEST_F(KdaGolden, IntermediatesOfLayer0FollowTheReference) {
  const auto project = Must(backend_->PrepareKdaProject(model_.Kda(0)));
  const auto recurrence = Must(backend_->PrepareKdaRecurrence(kHeads, kDim));
  const std::vector<float> x = text_.Floats("a.L0.attn_in");
  Inputs in(kRows, kHeads, kDim);
  State state(kHeads, kDim);
  const auto segments = Pieces({kRows}, 0, 0, 0);
  project->Run(x.data(), segments, kRows, state.View(), in.View(),
               Scratch(project->WorkspaceBytes(kRows)));
  // Against a reference in double; the projections have 128 terms.
  constexpr double kTolerance = 5e-6;
  const auto normalised = [&](const std::string& name, double factor) {
    std::vector<double> z = text_.Doubles(name);
    for (size_t head = 0; head < z.size(); head += kDim) {
      double square = 0;
      for (int c = 0; c < kDim; ++c) square += z[head + c] * z[head + c];
      for (int c = 0; c < kDim; ++c) z[head + c] *= factor / std::sqrt(square + 1e-6);
    }
    return z;
  };
  EXPECT_LT(MaxDifference(in.q, normalised("a.ref.L0.kda.q_conv", 1 / std::sqrt(32.0))),
            kTolerance);
  EXPECT_LT(MaxDifference(in.k, normalised("a.ref.L0.kda.k_conv", 1)), kTolerance);
  EXPECT_LT(MaxDifference(in.v, text_.Doubles("a.ref.L0.kda.v_conv")), kTolerance);
  EXPECT_LT(MaxDifference(in.g, text_.Doubles("a.ref.L0.kda.g")), kTolerance);
  EXPECT_LT(MaxDifference(in.beta, text_.Doubles("a.ref.L0.kda.beta")), kTolerance);
  for (bool chunked : {false, true}) {
    std::vector<float> o(kRows * kHeads * kDim);
    const Scratch scratch(recurrence->WorkspaceBytes(kRows));
    if (chunked) {
      recurrence->Chunked(in.View(), segments, state.View(), o.data(), scratch);
    } else {
      recurrence->Step(in.View(), segments, state.View(), o.data(), scratch);
    }
    EXPECT_LT(MaxDifference(o, text_.Doubles("a.ref.L0.kda.core")), kTolerance) << chunked;
  }
}

TEST_F(KdaGolden, EveryLayerFollowsTheReference) {
  for (int layer = 0; layer < GoldenModel::kLayers; ++layer) {
    if (GoldenModel::IsDsa(layer)) continue;
    const std::string p = "a.L" + std::to_string(layer) + ".";
    const ops::KdaWeights w = model_.Kda(layer);
    const auto project = Must(backend_->PrepareKdaProject(w));
    const auto recurrence = Must(backend_->PrepareKdaRecurrence(kHeads, kDim));
    const auto output = Must(backend_->PrepareKdaOutput(w));
    const std::vector<float> x = text_.Floats(p + "attn_in");
    Inputs in(kRows, kHeads, kDim);
    State state(kHeads, kDim);
    const auto segments = Pieces({kRows}, 0, 0, 0);
    project->Run(x.data(), segments, kRows, state.View(), in.View(),
                 Scratch(project->WorkspaceBytes(kRows)));
    std::vector<float> o(kRows * kHeads * kDim), y(kRows * GoldenModel::kHidden);
    recurrence->Step(in.View(), segments, state.View(), o.data(),
                     Scratch(recurrence->WorkspaceBytes(kRows)));
    output->Run(o.data(), in.gate.data(), kRows, y.data(), Scratch(output->WorkspaceBytes(kRows)));
    const std::vector<float> golden = text_.Floats(p + "attn_out");
    // Both sides are FP32; the gated norm divides by a small root mean square, which enlarges
    // rounding relative to the output.
    EXPECT_LT(MaxDifference(y, golden), 2e-5 * std::max(1.0, MaxMagnitude(golden))) << layer;
  }
}

// ---- the two forms of the recurrence

struct Shape {
  int heads, dim;
};

// Random inputs as the projections make them: unit keys, queries of length d^-1/2.
Inputs RandomInputs(int rows, Shape s, float g_low, float g_high, uint32_t seed) {
  Inputs in(rows, s.heads, s.dim);
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
  std::mt19937 bits(seed + 3);
  std::uniform_real_distribution<float> g(g_low, g_high), beta(0.05f, 0.95f);
  for (float& value : in.g) value = g(bits);
  for (float& value : in.beta) value = beta(bits);
  return in;
}

// The step form in double.
std::vector<double> StepInDouble(const Inputs& in, int rows, Shape s, std::vector<double>& state) {
  std::vector<double> o(in.q.size());
  const int d = s.dim;
  std::vector<double> u(d);
  for (int t = 0; t < rows; ++t) {
    for (int h = 0; h < s.heads; ++h) {
      const size_t at = (static_cast<size_t>(t) * s.heads + h) * d;
      double* m = state.data() + static_cast<size_t>(h) * d * d;
      for (int c = 0; c < d; ++c) {
        for (int i = 0; i < d; ++i) m[c * d + i] *= std::exp(double{in.g[at + c]});
      }
      for (int i = 0; i < d; ++i) {
        double sum = 0;
        for (int c = 0; c < d; ++c) sum += m[c * d + i] * in.k[at + c];
        u[i] = in.beta[t * s.heads + h] * (in.v[at + i] - sum);
      }
      for (int c = 0; c < d; ++c) {
        for (int i = 0; i < d; ++i) m[c * d + i] += in.k[at + c] * u[i];
      }
      for (int i = 0; i < d; ++i) {
        for (int c = 0; c < d; ++c) o[at + i] += m[c * d + i] * in.q[at + c];
      }
    }
  }
  return o;
}

class KdaForms : public ::testing::Test {
 protected:
  // Runs both forms over `lengths`, the state carried from piece to piece, and compares them with
  // the recurrence in double.
  void Check(Shape s, const std::vector<int>& lengths, float g_low, float g_high) {
    int rows = 0;
    for (int length : lengths) rows += length;
    Inputs in = RandomInputs(rows, s, g_low, g_high, 17);
    std::vector<double> exact_state(s.heads * s.dim * s.dim);
    const std::vector<double> exact = StepInDouble(in, rows, s, exact_state);
    const auto op = Must(backend_->PrepareKdaRecurrence(s.heads, s.dim));
    const Scratch scratch(op->WorkspaceBytes(rows));
    // Outputs are at most about 1; the state at most a few. FP32 rounding over the whole run.
    constexpr double kTolerance = 3e-6;
    for (bool chunked : {false, true}) {
      State state(s.heads, s.dim);
      std::vector<float> o(in.q.size());
      for (const ops::Segment& segment : Pieces(lengths, 0, 0, 0)) {
        if (chunked) {
          op->Chunked(in.View(), {&segment, 1}, state.View(), o.data(), scratch);
        } else {
          op->Step(in.View(), {&segment, 1}, state.View(), o.data(), scratch);
        }
      }
      EXPECT_LT(MaxDifference(o, exact), kTolerance) << (chunked ? "chunked" : "step");
      EXPECT_LT(MaxDifference(state.recurrent, exact_state), kTolerance)
          << (chunked ? "chunked" : "step");
      EXPECT_GT(MaxMagnitude(o), 1e-3);
    }
  }

  std::unique_ptr<CpuBackend> backend_ = MakeCpuBackend({});
};

TEST_F(KdaForms, AgreeOnMildDecays) {
  Check({3, 32}, {200}, -0.3f, -0.01f);
}
TEST_F(KdaForms, AgreeOnMixedDecays) {
  Check({2, 32}, {256}, -5.0f, 0.0f);
}
TEST_F(KdaForms, AgreeWithDecaysAtTheBound) {
  Check({2, 32}, {256}, -5.0f, -4.999f);
}
TEST_F(KdaForms, AgreeWithoutDecay) {
  Check({2, 32}, {256}, 0.0f, 0.0f);
}
TEST_F(KdaForms, AgreeWithTheStateCarriedOverSegments) {
  Check({2, 32}, {1, 64, 63, 17, 100, 2}, -1.0f, -0.001f);
}
TEST_F(KdaForms, AgreeAtTheBoundWithTheStateCarriedOverSegments) {
  Check({2, 32}, {5, 130, 121}, -5.0f, -4.9f);
}
TEST_F(KdaForms, AgreeOnTheWidthOfTheLargeModel) {
  Check({2, 128}, {150}, -2.0f, -0.001f);
}
TEST_F(KdaForms, AgreeOnAWidthThatNoVectorDivides) {
  Check({3, 21}, {90}, -2.0f, -0.001f);
}

TEST_F(KdaForms, MixedDecaysWithinOneHeadDoNotDisturbTheSlowChannels) {
  // Half of the channels forget at the bound, the others nothing: whatever the fast ones do to
  // the range must not reach the slow ones.
  const Shape s{1, 32};
  Inputs in = RandomInputs(256, s, 0.0f, 0.0f, 23);
  for (size_t i = 0; i < in.g.size(); ++i) in.g[i] = i % 2 == 0 ? -5.0f : 0.0f;
  std::vector<double> exact_state(32 * 32);
  const std::vector<double> exact = StepInDouble(in, 256, s, exact_state);
  const auto op = Must(backend_->PrepareKdaRecurrence(1, 32));
  State state(1, 32);
  std::vector<float> o(in.q.size());
  op->Chunked(in.View(), Pieces({256}, 0, 0, 0), state.View(), o.data(),
              Scratch(op->WorkspaceBytes(256)));
  EXPECT_LT(MaxDifference(o, exact), 3e-6);
  EXPECT_LT(MaxDifference(state.recurrent, exact_state), 3e-6);
}

}  // namespace
}  // namespace quartet::cpu
