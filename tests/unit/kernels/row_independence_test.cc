// A row's bits depend on the row and its sequence's state alone: not on the rows beside it, on how
// a sequence is cut into segments, or on threads.
#include <functional>
#include <memory>

#include "tests/unit/kernels/golden_model.h"
#include "tests/unit/kernels/paged_kv.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::GoldenModel;
using testing::Must;
using testing::PagedKv;
using testing::Pieces;
using testing::RandomFloats;
using testing::SameBits;
using testing::Scratch;
using testing::TensorFile;

constexpr int kHidden = GoldenModel::kHidden;

// ---- ops without sequence state

// Runs an op on `rows` rows from `first` on and returns everything that it wrote for them.
using RowsFn = std::function<std::vector<float>(int first, int rows)>;
// Makes that of a backend's op.
using PrepareFn = std::function<RowsFn(CpuBackend& backend)>;

template <class T>
std::shared_ptr<T> Share(absl::StatusOr<std::unique_ptr<T>> op) {
  return Must(std::move(op));
}

void ExpectRowsIndependent(int total, const PrepareFn& prepare) {
  std::vector<float> reference;
  auto one = MakeCpuBackend({.threads = 1});
  const RowsFn alone = prepare(*one);
  for (int r = 0; r < total; ++r) {
    const std::vector<float> row = alone(r, 1);
    reference.insert(reference.end(), row.begin(), row.end());
  }
  const size_t width = reference.size() / static_cast<size_t>(total);
  for (int threads : {1, 2, 3}) {
    auto backend = MakeCpuBackend({.threads = threads});
    const RowsFn run = prepare(*backend);
    for (int step : {total, 2, 5, 17}) {
      for (int first = 0; first < total; first += step) {
        const int rows = std::min(step, total - first);
        const std::vector<float> out = run(first, rows);
        ASSERT_TRUE(SameBits(out, std::span(reference).subspan(first * width, rows * width)))
            << threads << " threads, rows " << first << " to " << first + rows;
      }
    }
  }
}

// Rows of several outputs, side by side.
std::vector<float> Interleave(int rows, const std::vector<std::vector<float>>& outputs) {
  std::vector<float> all;
  for (int r = 0; r < rows; ++r) {
    for (const auto& out : outputs) {
      const size_t width = out.size() / static_cast<size_t>(rows);
      all.insert(all.end(), out.begin() + r * width, out.begin() + (r + 1) * width);
    }
  }
  return all;
}

constexpr int kTotal = 150;

TEST(RowIndependence, Mlp) {
  GoldenModel model;
  const std::vector<float> x = RandomFloats(kTotal * kHidden, 1.0f, 1);
  ExpectRowsIndependent(kTotal, [&](CpuBackend& backend) -> RowsFn {
    const auto op = Share(backend.PrepareMlp(model.DenseMlp(2)));
    return [&, op](int first, int rows) {
      std::vector<float> y(rows * kHidden);
      op->Run(&x[first * kHidden], rows, y.data(), Scratch(op->WorkspaceBytes(rows)));
      return y;
    };
  });
}

TEST(RowIndependence, Moe) {
  GoldenModel model;
  const std::vector<float> x = RandomFloats(kTotal * kHidden, 1.0f, 2);
  ExpectRowsIndependent(kTotal, [&](CpuBackend& backend) -> RowsFn {
    const auto op = Share(backend.PrepareMoe(model.Moe(6)));
    return [&, op](int first, int rows) {
      std::vector<float> y(rows * kHidden), weights(rows * 3), logits(rows * 8);
      std::vector<int32_t> experts(rows * 3);
      op->Run(&x[first * kHidden], rows, y.data(), {experts.data(), weights.data(), logits.data()},
              Scratch(op->WorkspaceBytes(rows)));
      return Interleave(rows, {y, weights, logits, {experts.begin(), experts.end()}});
    };
  });
}

TEST(RowIndependence, Exl3Linear) {
  const TensorFile file("exl3/exl3_mcg_k3_256x384.safetensors");
  ops::Exl3Matrix m;
  m.bits = 3;
  m.in = 256;
  m.out = 384;
  m.trellis = file.Get("trellis").data;
  m.tile_row_stride = 24;
  m.suh = file.Get("suh").data;
  m.svh = file.Get("svh").data;
  const std::vector<float> x = RandomFloats(kTotal * 256, 1.0f, 3);
  ExpectRowsIndependent(kTotal, [&](CpuBackend& backend) -> RowsFn {
    const auto op = Share(backend.PrepareLinear(m));
    return [&, op](int first, int rows) {
      std::vector<float> y(rows * 384);
      op->Run(&x[first * 256], rows, y.data(), Scratch(op->WorkspaceBytes(rows)));
      return y;
    };
  });
}

TEST(RowIndependence, Head) {
  GoldenModel model;
  const std::vector<float> x = RandomFloats(kTotal * kHidden, 1.0f, 4);
  ExpectRowsIndependent(kTotal, [&](CpuBackend& backend) -> RowsFn {
    const auto op = Share(backend.PrepareHead({model.file().Matrix("lm_head.weight")}));
    return [&, op](int first, int rows) {
      std::vector<float> y(rows * 512);
      op->Run(&x[first * kHidden], rows, y.data(), Scratch(op->WorkspaceBytes(rows)));
      return y;
    };
  });
}

TEST(RowIndependence, MhcSites) {
  GoldenModel model;
  constexpr int kFlat = 4 * kHidden;
  const std::vector<float> embedding = RandomFloats(kTotal * kHidden, 1.0f, 5);
  const std::vector<float> y0 = RandomFloats(kTotal * kHidden, 1.0f, 6);
  const std::vector<float> y1 = RandomFloats(kTotal * kHidden, 1.0f, 7);
  ExpectRowsIndependent(kTotal, [&](CpuBackend& backend) -> RowsFn {
    const auto attn = Share(backend.PrepareMhcSite(model.Mhc(1, "attn")));
    const auto ffn = Share(backend.PrepareMhcSite(model.Mhc(1, "ffn")));
    const auto finish =
        Share(backend.PrepareMhcFinish(model.Norm("model.language_model.norm.weight"), 4));
    return [&, attn, ffn, finish](int first, int rows) {
      std::vector<float> streams(rows * kFlat), x(rows * kHidden), x2(x), h(x);
      std::vector<float> post(rows * 4), comb(rows * 16);
      const ops::MhcMix mix{post.data(), comb.data()};
      attn->Begin(&embedding[first * kHidden], rows, streams.data(), mix, x.data());
      const float* partials[] = {&y0[first * kHidden], &y1[first * kHidden]};
      ffn->Boundary(partials, rows, streams.data(), mix, x2.data());
      finish->Run(partials, rows, streams.data(), mix, h.data());
      return Interleave(rows, {x, x2, h, streams, post, comb});
    };
  });
}

TEST(RowIndependence, KdaOutput) {
  GoldenModel model;
  const std::vector<float> o = RandomFloats(kTotal * kHidden, 1.0f, 8);
  const std::vector<float> gate = RandomFloats(kTotal * kHidden, 1.0f, 9);
  ExpectRowsIndependent(kTotal, [&](CpuBackend& backend) -> RowsFn {
    const auto op = Share(backend.PrepareKdaOutput(model.Kda(1)));
    return [&, op](int first, int rows) {
      std::vector<float> y(rows * kHidden);
      op->Run(&o[first * kHidden], &gate[first * kHidden], rows, y.data(),
              Scratch(op->WorkspaceBytes(rows)));
      return y;
    };
  });
}

TEST(RowIndependence, NormsAndDraftEntry) {
  GoldenModel model;
  const std::string p = GoldenModel::Layer(9);
  const std::vector<float> a = RandomFloats(kTotal * kHidden, 1.0f, 10);
  const std::vector<float> b = RandomFloats(kTotal * kHidden, 1.0f, 11);
  std::vector<int32_t> positions(kTotal);
  for (int i = 0; i < kTotal; ++i) positions[i] = i % 7;
  ExpectRowsIndependent(kTotal, [&](CpuBackend& backend) -> RowsFn {
    const auto norm = Share(backend.PrepareRmsNorm(model.Norm(p + "input_layernorm.weight")));
    const auto residual =
        Share(backend.PrepareResidualNorm(model.Norm(p + "post_attention_layernorm.weight")));
    const auto entry = Share(
        backend.PrepareMtpEntry({model.Norm(p + "enorm.weight"), model.Norm(p + "hnorm.weight"),
                                 model.file().Matrix(p + "eh_proj.weight")}));
    return [&, norm, residual, entry](int first, int rows) {
      std::vector<float> x(rows * kHidden), normed(x), again(x);
      entry->Run(&a[first * kHidden], &b[first * kHidden], &positions[first], rows, x.data(),
                 Scratch(entry->WorkspaceBytes(rows)));
      norm->Run(x.data(), rows, normed.data());
      const float* partials[] = {&a[first * kHidden], &b[first * kHidden]};
      residual->Run(x.data(), partials, rows, again.data());
      return Interleave(rows, {x, normed, again});
    };
  });
}

// ---- ops with sequence state: two sequences, cut and batched in different ways

// One step: how many rows of sequence A and of B it takes; in the batch, A's segment comes first
// unless b_first.
struct Cut {
  int a, b;
  bool b_first = false;
};

// All cover 70 rows of A and 33 of B.
const std::vector<std::vector<Cut>>& Cuttings() {
  static const auto* cuttings = new std::vector<std::vector<Cut>>{
      {{70, 33}},
      {{70, 0}, {0, 33}},
      {{1, 33, true}, {1, 0}, {1, 0}, {1, 0}, {66, 0}},
      {{64, 1}, {5, 2, true}, {1, 30}},
      {{17, 16}, {17, 1, true}, {17, 15}, {19, 1}},
  };
  return *cuttings;
}
constexpr int kRowsA = 70, kRowsB = 33;

// Gathers what the steps wrote per row back into the order A's rows, then B's.
class StepRunner {
 public:
  // step(segments, rows, input row numbers in [0, 103)) -> per-row outputs, row-major.
  using StepFn = std::function<std::vector<float>(const std::vector<ops::Segment>&, int,
                                                  const std::vector<int>&)>;

  static std::vector<float> Run(const std::vector<Cut>& cuts, std::span<const int32_t> pages_a,
                                std::span<const int32_t> pages_b, const StepFn& step) {
    std::vector<float> all;
    int done_a = 0, done_b = 0;
    for (const Cut& cut : cuts) {
      std::vector<ops::Segment> segments;
      std::vector<int> source;
      const auto add = [&](int count, int& done, int base, int slot,
                           std::span<const int32_t> pages) {
        if (count == 0) return;
        segments.push_back({static_cast<int>(source.size()), count, slot, done, pages});
        for (int i = 0; i < count; ++i) source.push_back(base + done + i);
        done += count;
      };
      if (cut.b_first) add(cut.b, done_b, kRowsA, 2, pages_b);
      add(cut.a, done_a, 0, 0, pages_a);
      if (!cut.b_first) add(cut.b, done_b, kRowsA, 2, pages_b);
      const int rows = static_cast<int>(source.size());
      const std::vector<float> out = step(segments, rows, source);
      const size_t width = out.size() / static_cast<size_t>(rows);
      all.resize((kRowsA + kRowsB) * width);
      for (int r = 0; r < rows; ++r) {
        std::copy_n(out.begin() + r * width, width, all.begin() + source[r] * width);
      }
    }
    EXPECT_EQ(done_a, kRowsA);
    EXPECT_EQ(done_b, kRowsB);
    return all;
  }
};

std::vector<float> Gather(const std::vector<float>& x, const std::vector<int>& rows) {
  std::vector<float> out;
  for (int r : rows) out.insert(out.end(), x.begin() + r * kHidden, x.begin() + (r + 1) * kHidden);
  return out;
}

TEST(RowIndependence, KdaOverSegmentsAndSequences) {
  GoldenModel model;
  constexpr int kHeads = GoldenModel::kHeads, kDim = GoldenModel::kKdaDim;
  constexpr int kWidth = kHeads * kDim, kSlots = 3;
  const std::vector<float> x = RandomFloats((kRowsA + kRowsB) * kHidden, 1.0f, 12);
  std::vector<float> reference, reference_state;
  for (int threads : {1, 2, 3}) {
    auto backend = MakeCpuBackend({.threads = threads});
    const auto project = Must(backend->PrepareKdaProject(model.Kda(4)));
    const auto recurrence = Must(backend->PrepareKdaRecurrence(kHeads, kDim));
    for (const auto& cuts : Cuttings()) {
      // What lay in the slots before must not matter.
      std::vector<float> state(kSlots * kHeads * kDim * kDim, NAN), conv(kSlots * 9 * kWidth, NAN);
      const ops::KdaState view{state.data(), conv.data(), kHeads * kDim * kDim, 9 * kWidth};
      const auto run = [&](const std::vector<ops::Segment>& segments, int rows,
                           const std::vector<int>& source) {
        const std::vector<float> input = Gather(x, source);
        std::vector<float> q(rows * kWidth), k(q), v(q), g(q), gate(q), o(q), beta(rows * kHeads);
        const ops::KdaInputs in{q.data(), k.data(), v.data(), g.data(), beta.data(), gate.data()};
        project->Run(input.data(), segments, rows, view, in,
                     Scratch(project->WorkspaceBytes(rows)));
        recurrence->Step(in, segments, view, o.data(), Scratch(recurrence->WorkspaceBytes(rows)));
        return Interleave(rows, {q, k, v, g, beta, gate, o});
      };
      const std::vector<float> out = StepRunner::Run(cuts, {}, {}, run);
      std::vector<float> states = state;
      states.insert(states.end(), conv.begin(), conv.end());
      if (reference.empty()) {
        reference = out;
        reference_state = states;
      }
      EXPECT_TRUE(SameBits(out, reference)) << threads << " threads";
      EXPECT_TRUE(SameBits(states, reference_state)) << threads << " threads";
    }
  }
}

class DsaIndependence : public ::testing::TestWithParam<ops::KvDType> {};

TEST_P(DsaIndependence, OverSegmentsAndSequences) {
  GoldenModel model;
  constexpr int kIndexHeads = GoldenModel::kIndexHeads, kIndexDim = GoldenModel::kIndexDim;
  constexpr int kTopk = 6;  // fewer than the model's, so that selection bites within 70 tokens
  constexpr int kContext = 96, kRing = 8;
  ops::IndexerWeights indexer = model.Indexer(3);
  indexer.topk_pools = kTopk;
  const std::vector<float> x = RandomFloats((kRowsA + kRowsB) * kHidden, 1.0f, 13);
  std::vector<float> reference, reference_ring;
  std::vector<std::byte> reference_pages;
  for (int threads : {1, 2, 3}) {
    auto backend = MakeCpuBackend({.threads = threads});
    const auto project = Must(backend->PrepareDsaProject(model.Mla(3), indexer));
    const auto select = Must(backend->PrepareIndexerSelect(indexer));
    const auto attend = Must(backend->PrepareSparseMla(model.Mla(3), indexer));
    for (const auto& cuts : Cuttings()) {
      PagedKv kv(GetParam(), 16, GoldenModel::kRank, GoldenModel::kPool, kIndexDim, 2 * kContext);
      const std::span<const int32_t> pages = kv.pages();
      std::vector<float> ring(3 * kRing * 2 * kIndexDim, NAN);
      const ops::OpenPool open{ring.data(), kRing * 2 * kIndexDim, kRing};
      const auto run = [&](const std::vector<ops::Segment>& segments, int rows,
                           const std::vector<int>& source) {
        const std::vector<float> input = Gather(x, source);
        std::vector<float> latent(rows * GoldenModel::kQueryRank);
        std::vector<float> index_w(rows * kIndexHeads), margins(rows), y(rows * kHidden);
        std::vector<int32_t> pools(rows * kTopk, -1), counts(rows);
        const ops::DsaQueries queries{latent.data(), index_w.data()};
        const ops::Selection selection{pools.data(), counts.data(), margins.data(), nullptr};
        project->Run(input.data(), segments, rows, kv.View(), open, queries,
                     Scratch(project->WorkspaceBytes(rows)));
        select->Run(queries, segments, kv.View(), selection,
                    Scratch(select->WorkspaceBytes(rows, kContext)));
        attend->Run(queries, selection, segments, rows, kv.View(), y.data(),
                    Scratch(attend->WorkspaceBytes(rows, kContext)));
        return Interleave(rows, {latent,
                                 index_w,
                                 margins,
                                 y,
                                 {pools.begin(), pools.end()},
                                 {counts.begin(), counts.end()}});
      };
      const std::vector<float> out = StepRunner::Run(cuts, pages.first(6), pages.subspan(6), run);
      if (reference.empty()) {
        reference = out;
        reference_ring = ring;
        reference_pages = kv.bytes();
      }
      EXPECT_TRUE(SameBits(out, reference)) << threads << " threads";
      EXPECT_TRUE(SameBits(ring, reference_ring)) << threads << " threads";
      EXPECT_EQ(kv.bytes(), reference_pages) << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, DsaIndependence,
                         ::testing::Values(ops::KvDType::kF32, ops::KvDType::kF16,
                                           ops::KvDType::kF8E4M3));

}  // namespace
}  // namespace quartet::cpu
