#ifndef QUARTET_TESTS_UNIT_KERNELS_KDA_WINDOWS_H_
#define QUARTET_TESTS_UNIT_KERNELS_KDA_WINDOWS_H_

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/backend.h"
#include "tests/unit/kernels/support.h"

// Windows of rows that may be taken back, on any backend: whatever was accepted, a layer of KDA
// continues with the bits of plain decoding.

namespace quartet::testing {

inline constexpr int kLongestWindow = 4;  // rows

using Rows = std::vector<float>;  // [.., hidden]

struct KdaShape {
  int heads = 4, dim = 32, conv_kernel = 4;
  int hidden = 40, rank = 16;
  int width() const { return heads * dim; }
};

// Weights of which every row picks one input, times a power of two: products are exact whatever the
// number format, the order and the number of rows, so that the bits are those of the convolution,
// the gates and the recurrence.
struct ExactKdaLayer {
  explicit ExactKdaLayer(const KdaShape& s) : shape(s) {
    for (auto* w : {&q, &k, &v}) *w = Picks(s.width(), s.hidden);
    for (auto* w : {&f_a, &g_a}) *w = Picks(s.rank, s.hidden);
    for (auto* w : {&f_b, &g_b}) *w = Picks(s.width(), s.rank);
    b = Picks(s.heads, s.hidden);
    for (auto* w : {&q_conv, &k_conv, &v_conv}) *w = Random(s.width() * s.conv_kernel, 0.5f);
    a_log = Random(s.heads, 0.3f);
    dt_bias = Random(s.width(), 0.5f);
  }
  ops::KdaWeights View() const {
    ops::KdaWeights w;
    w.q = DenseF32(q, shape.width(), shape.hidden);
    w.k = DenseF32(k, shape.width(), shape.hidden);
    w.v = DenseF32(v, shape.width(), shape.hidden);
    w.f_a = DenseF32(f_a, shape.rank, shape.hidden);
    w.g_a = DenseF32(g_a, shape.rank, shape.hidden);
    w.f_b = DenseF32(f_b, shape.width(), shape.rank);
    w.g_b = DenseF32(g_b, shape.width(), shape.rank);
    w.b = DenseF32(b, shape.heads, shape.hidden);
    w.q_conv = VectorF32(q_conv);
    w.k_conv = VectorF32(k_conv);
    w.v_conv = VectorF32(v_conv);
    w.a_log = VectorF32(a_log);
    w.dt_bias = VectorF32(dt_bias);
    w.heads = shape.heads;
    w.head_dim = shape.dim;
    w.conv_kernel = shape.conv_kernel;
    return w;
  }

  KdaShape shape;
  std::vector<float> q, k, v, f_a, g_a, f_b, g_b, b, q_conv, k_conv, v_conv, a_log, dt_bias;

 private:
  std::vector<float> Picks(int rows, int cols) {
    std::mt19937 bits(seed_++);
    std::vector<float> matrix(static_cast<size_t>(rows) * cols);
    for (int row = 0; row < rows; ++row) {
      matrix[row * cols + bits() % cols] =
          std::ldexp(bits() % 2 == 0 ? 1.0f : -1.0f, -static_cast<int>(bits() % 3));
    }
    return matrix;
  }
  std::vector<float> Random(int count, float deviation) {
    return RandomFloats(count, deviation, seed_++);
  }
  uint32_t seed_ = 100;
};

class KdaWindowTest : public ::testing::Test {
 protected:
  static constexpr int kSlots = 3;
  static constexpr int kRingRows = 2 * kLongestWindow;

  // `device` is what the backend stands on; it outlives the backend.
  explicit KdaWindowTest(std::unique_ptr<ops::Backend> backend,
                         std::shared_ptr<void> device = nullptr)
      : device_(std::move(device)), backend_(std::move(backend)) {}
  ops::Backend& backend() { return *backend_; }

  void Prepare(const KdaShape& shape) {
    shape_ = shape;
    layer_ = std::make_unique<ExactKdaLayer>(shape);
    project_ = Must(backend().PrepareKdaProject(layer_->View()));
    recurrence_ = Must(backend().PrepareKdaRecurrence(shape.heads, shape.dim));
  }

  // What a layer remembers of kSlots sequences; NaN where nothing was written.
  struct Memory {
    ops::Memory bytes;
    ops::KdaState state;
  };
  Memory MakeMemory() {
    const int width = shape_.width();
    const std::vector<float> nan(kSlots * SlotFloats(), NAN);
    Memory memory;
    memory.bytes = Place(nan);
    float* at = reinterpret_cast<float*>(memory.bytes.data());
    const auto take = [&](int floats) { return std::exchange(at, at + floats); };
    memory.state = {take(width * shape_.dim), take(ConvFloats()), SlotFloats(), SlotFloats()};
    memory.state.window.conv = take(kRingRows * 3 * width);
    memory.state.window.k = take(kRingRows * width);
    memory.state.window.v = take(kRingRows * width);
    memory.state.window.g = take(kRingRows * width);
    memory.state.window.beta = take(kRingRows * shape_.heads);
    memory.state.window.slot_stride = SlotFloats();
    memory.state.window.rows = kRingRows;
    return memory;
  }
  // Recurrent matrices and history of a slot.
  std::vector<float> State(const Memory& memory, int slot) {
    return Fetch(memory.state.recurrent + slot * SlotFloats(),
                 shape_.width() * shape_.dim + ConvFloats());
  }

  // Outputs of the recurrence and of the gate, [rows, 2, width].
  std::vector<float> Run(const Rows& x, const std::vector<ops::Segment>& segments, Memory& memory) {
    const int rows = static_cast<int>(x.size()) / shape_.hidden;
    const int width = shape_.width();
    const std::vector<int32_t> ids(rows);
    Must(backend().BeginStep(ids, segments));
    const ops::Memory input = Place(x);
    const ops::Memory out = Place(std::vector<float>(rows * (6 * width + 16), NAN));
    float* at = reinterpret_cast<float*>(out.data());
    const auto take = [&](int floats) { return std::exchange(at, at + floats); };
    ops::KdaInputs in;
    in.q = take(rows * width);
    in.k = take(rows * width);
    in.v = take(rows * width);
    in.g = take(rows * width);
    in.gate = take(rows * width);
    float* o = take(rows * width);
    in.beta = take(rows * 16);
    project_->Run(reinterpret_cast<const float*>(input.data()), segments, rows, memory.state, in,
                  Workspace(project_->WorkspaceBytes(rows)));
    recurrence_->Step(in, segments, memory.state, o, Workspace(recurrence_->WorkspaceBytes(rows)));
    const std::vector<float> outputs = Fetch(o, rows * width);
    const std::vector<float> gates = Fetch(in.gate, rows * width);
    std::vector<float> both;
    for (int r = 0; r < rows; ++r) {
      both.insert(both.end(), outputs.begin() + r * width, outputs.begin() + (r + 1) * width);
      both.insert(both.end(), gates.begin() + r * width, gates.begin() + (r + 1) * width);
    }
    return both;
  }
  void Commit(const std::vector<ops::Segment>& segments, Memory& memory) {
    Must(backend().BeginStep({}, segments));
    project_->Commit(segments, memory.state);
    recurrence_->Commit(segments, memory.state, Workspace(recurrence_->WorkspaceBytes(1)));
  }
  // The text token by token, without windows.
  std::vector<float> Plain(const Rows& text, int tokens, int slot, Memory& memory) {
    std::vector<float> out;
    for (int t = 0; t < tokens; ++t) {
      const std::vector<float> row =
          Run(Part(text, t, t + 1), {{.rows = 1, .slot = slot, .position = t}}, memory);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

  // Numbers that FP16 holds.
  Rows Text(int tokens, uint32_t seed) const {
    std::mt19937 bits(seed);
    Rows x(static_cast<size_t>(tokens) * shape_.hidden);
    for (float& value : x) {
      value = static_cast<float>(static_cast<int>(bits() % 513) - 256) / 128.0f;
    }
    return x;
  }
  // Tokens [begin, end) of a text.
  Rows Part(const Rows& text, int begin, int end) const {
    return {text.begin() + begin * shape_.hidden, text.begin() + end * shape_.hidden};
  }
  // The same, of which only the first `good` are the text's.
  Rows Drafted(const Rows& text, int begin, int good, int rows, uint32_t seed) const {
    return Join(Part(text, begin, begin + good), Text(rows - good, seed));
  }
  static Rows Join(Rows a, const Rows& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  void ExpectSameState(const Memory& a, const Memory& b, int slot, const std::string& what) {
    EXPECT_TRUE(SameBits(State(a, slot), State(b, slot))) << what << ", slot " << slot;
  }

  void CheckAnyAcceptance(int tokens) {
    const Rows text = Text(tokens + kLongestWindow, 5);
    Memory plain = MakeMemory();
    const std::vector<float> expected = Plain(text, tokens, 1, plain);
    for (int start = 0; start <= 4; ++start) {  // tokens before the first window
      std::mt19937 bits(start + 1);
      Memory memory = MakeMemory();
      std::vector<float> out;
      if (start > 0) {
        out = Run(Part(text, 0, start), {{.rows = start, .slot = 1, .position = 0}}, memory);
      }
      int position = start;
      int pending = 0;
      while (position < tokens) {
        const bool window = bits() % 4 != 0;
        const int rows = 1 + static_cast<int>(bits() % (window ? kLongestWindow : 2));
        const int kept = window ? 1 + static_cast<int>(bits() % rows) : rows;
        const std::vector<float> got = Run(
            Drafted(text, position, kept, rows, bits()),
            {{.rows = rows, .slot = 1, .position = position, .window = window, .commit = pending}},
            memory);
        out.insert(out.end(), got.begin(), got.begin() + kept * 2 * shape_.width());
        position += kept;
        pending = window ? kept : 0;
      }
      out.resize(expected.size());
      EXPECT_TRUE(SameBits(out, expected)) << "from " << start;
      // The rest of the last window and what the text has beyond it.
      Commit({{.slot = 1, .position = position, .commit = pending}}, memory);
      Memory longer = MakeMemory();
      Plain(text, position, 1, longer);
      ExpectSameState(memory, longer, 1, "from " + std::to_string(start));
    }
  }

  void CheckThatWindowsLeaveTheState() {
    const Rows text = Text(20, 6);
    Memory memory = MakeMemory();
    Run(Part(text, 0, 9), {{.rows = 9, .slot = 0, .position = 0}}, memory);
    const std::vector<float> before = State(memory, 0);
    Run(Part(text, 9, 13), {{.rows = 4, .slot = 0, .position = 9, .window = true}}, memory);
    EXPECT_TRUE(SameBits(State(memory, 0), before));
    // One that commits moves it to where the window before was accepted, and no further.
    Run(Part(text, 11, 14), {{.rows = 3, .slot = 0, .position = 11, .window = true, .commit = 2}},
        memory);
    Memory eleven = MakeMemory();
    Plain(text, 11, 0, eleven);
    ExpectSameState(memory, eleven, 0, "after the second window");
    // Of which nothing was accepted.
    Run(Part(text, 11, 14), {{.rows = 3, .slot = 0, .position = 11, .window = true}}, memory);
    ExpectSameState(memory, eleven, 0, "after the second window again");
  }

  void CheckCommitsInTwoParts() {
    const Rows text = Text(20, 7);
    for (int kept = 1; kept <= kLongestWindow; ++kept) {
      for (int first = 0; first <= kept; ++first) {
        Memory memory = MakeMemory();
        Run(Part(text, 0, 10), {{.rows = 10, .slot = 2, .position = 0}}, memory);
        Run(Drafted(text, 10, kept, kLongestWindow, 99),
            {{.rows = kLongestWindow, .slot = 2, .position = 10, .window = true}}, memory);
        Commit({{.slot = 2, .position = 10 + first, .commit = first}}, memory);
        Memory inside = MakeMemory(), whole = MakeMemory();
        Plain(text, 10 + first, 2, inside);
        ExpectSameState(memory, inside, 2, "after the first part");
        Commit({{.slot = 2, .position = 10 + kept, .commit = kept - first}}, memory);
        Plain(text, 10 + kept, 2, whole);
        ExpectSameState(memory, whole, 2, "after both parts");
      }
    }
  }

  void CheckSequencesTogether() {
    const Rows a = Text(16, 8), b = Text(16, 9), c = Text(16, 10);
    Memory memory = MakeMemory();
    // a stands at 6, b at 3; c begins.
    Run(Part(a, 0, 6), {{.rows = 6, .slot = 0, .position = 0}}, memory);
    Run(Part(b, 0, 3), {{.rows = 3, .slot = 2, .position = 0}}, memory);
    Run(Join(Join(Drafted(a, 6, 2, 4, 1), Part(b, 3, 4)), Part(c, 0, 5)),
        {{.row_begin = 0, .rows = 4, .slot = 0, .position = 6, .window = true},
         {.row_begin = 4, .rows = 1, .slot = 2, .position = 3},
         {.row_begin = 5, .rows = 5, .slot = 1, .position = 0}},
        memory);
    const std::vector<float> got =
        Run(Join(Join(Part(a, 8, 9), Drafted(b, 4, 3, 3, 2)), Drafted(c, 5, 1, 2, 3)),
            {{.row_begin = 0, .rows = 1, .slot = 0, .position = 8, .commit = 2},
             {.row_begin = 1, .rows = 3, .slot = 2, .position = 4, .window = true},
             {.row_begin = 4, .rows = 2, .slot = 1, .position = 5, .window = true}},
            memory);
    Commit({{.slot = 2, .position = 7, .commit = 3}, {.slot = 1, .position = 6, .commit = 1}},
           memory);
    Memory plain = MakeMemory();
    const std::vector<float> out_a = Plain(a, 9, 0, plain);
    Plain(b, 7, 2, plain);
    Plain(c, 6, 1, plain);
    for (int slot = 0; slot < kSlots; ++slot) ExpectSameState(memory, plain, slot, "in the end");
    const size_t row = 2 * shape_.width();
    EXPECT_TRUE(SameBits(std::span(got).first(row), std::span(out_a).last(row)));
  }

 private:
  int ConvFloats() const { return (shape_.conv_kernel - 1) * 3 * shape_.width(); }
  // Parts of a slot begin on 16 bytes: everything but beta has widths that are multiples of 4.
  int64_t SlotFloats() const {
    const int64_t floats =
        shape_.width() * (shape_.dim + kRingRows * 6) + ConvFloats() + kRingRows * shape_.heads;
    return (floats + 15) / 16 * 16;
  }

  // Memory of the backend that holds these values.
  ops::Memory Place(const std::vector<float>& values) {
    ops::Memory memory = Must(backend().Allocate(values.size() * sizeof(float), "test"));
    EXPECT_TRUE(backend().CopyIn(memory.data(), values.data(), values.size() * sizeof(float)).ok());
    return memory;
  }
  std::vector<float> Fetch(const float* data, size_t count) {
    std::vector<float> values(count);
    EXPECT_TRUE(backend().CopyOut(values.data(), data, count * sizeof(float)).ok());
    return values;
  }
  // A workspace for an op, poisoned. Alive until the next call.
  ops::Workspace Workspace(size_t bytes) {
    workspace_ = Place(std::vector<float>(bytes / sizeof(float) + 1, NAN));
    return {workspace_.data(), bytes};
  }

  const std::shared_ptr<void> device_;
  const std::unique_ptr<ops::Backend> backend_;
  KdaShape shape_;
  std::unique_ptr<ExactKdaLayer> layer_;
  std::unique_ptr<ops::KdaProject> project_;
  std::unique_ptr<ops::KdaRecurrence> recurrence_;
  ops::Memory workspace_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_KERNELS_KDA_WINDOWS_H_
