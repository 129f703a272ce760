// Times the mixture of experts on a GPU: the routed experts of a decode step and its parts, and
// prefill.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/bench/cuda_timing.h"
#include "kernels/cuda/device/counters.h"
#include "kernels/cuda/device/exl3_layout.h"
#include "kernels/cuda/moe_exl3.h"

namespace quartet::bench {
namespace {

using cuda::Exl3Cut;
using cuda::Exl3Experts;

constexpr int kHidden = 4096;
constexpr int kExperts = 288;
constexpr int kTopK = 8;
// Instructions that a warp issues for one weight of each lane, K2 and one row an expert, as
// compiled for sm_90. The integer pipe takes 4.3 cycles for those of them that are its own.
constexpr double kIssuesAWeight = 4.7;

// One expert's weights, random bits; all experts are made from the same ones and lie apart on the
// device.
class RandomExpert {
 public:
  RandomExpert(int inner, int bits) {
    std::mt19937_64 random(1);
    data_.resize(static_cast<size_t>(kHidden) * inner / 8 * bits);
    for (size_t i = 0; i + 8 <= data_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(data_.data() + i, &word, 8);
    }
    ones_.assign(kHidden, 0x2C00);  // 1/16
    weights_.gate = Matrix(kHidden, inner, bits);
    weights_.up = Matrix(kHidden, inner, bits);
    weights_.down = Matrix(inner, kHidden, bits);
  }
  const ops::MlpWeights& weights() const { return weights_; }

 private:
  ops::Exl3Matrix Matrix(int64_t in, int64_t out, int bits) const {
    ops::Exl3Matrix m;
    m.bits = bits;
    m.in = in;
    m.out = out;
    m.trellis = data_.data();
    m.tile_row_stride = out / 16;
    m.suh = m.svh = reinterpret_cast<const std::byte*>(ones_.data());
    return m;
  }

  std::vector<std::byte> data_;
  std::vector<uint16_t> ones_;
  ops::MlpWeights weights_;
};

class Bench {
 public:
  Bench() : device_(OpenBenchDevice()), ceilings_(MeasureCeilings(*device_)) {
    counters_ = CheckOk(device_->Allocate(sizeof(cuda::SaturationCounters), "counters"));
    device_->Fill(counters_.data(), 0, counters_.bytes());
    context_ = {device_.get(), nullptr, counters_.as<cuda::SaturationCounters>()};
    PrintHeading(*device_, ceilings_);
  }

  std::unique_ptr<Exl3Experts> MakeExperts(int inner, int bits) {
    const RandomExpert expert(inner, bits);
    return CheckOk(Exl3Experts::Make(
        context_, std::vector<ops::MlpWeights>(kExperts, expert.weights()), kTopK));
  }

  void Run(int inner, int bits, bool sweep) {
    const auto experts = MakeExperts(inner, bits);
    for (int rows : {1, 2, 4, 8}) {
      DecodeRows(*experts, inner, bits, rows, experts->CutsFor(rows));
      if (sweep) Sweep(*experts, inner, bits, rows);
    }
    for (int rows : {64, 512, 2048, 8192}) Prefill(*experts, inner, bits, rows);
  }

 private:
  cuda::Buffer Upload(const std::vector<int32_t>& values) {
    cuda::Buffer b = CheckOk(device_->Allocate(values.size() * 4, "bench"));
    CheckOk(device_->CopyIn(b.data(), values.data(), values.size() * 4));
    return b;
  }

  // Experts in a random order, so that none comes back before all others did.
  std::vector<int32_t> Walk(int calls, int slots) {
    std::vector<int32_t> order(kExperts), walk;
    for (int e = 0; e < kExperts; ++e) order[e] = e;
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    for (int i = 0; i < calls * slots; ++i) walk.push_back(order[i % kExperts]);
    return walk;
  }

  void Prefill(const Exl3Experts& experts, int inner, int bits, int rows) {
    std::mt19937 random(3);
    std::vector<int32_t> chosen;
    std::vector<int32_t> order(kExperts);
    for (int e = 0; e < kExperts; ++e) order[e] = e;
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < kTopK; ++j) {
        std::swap(order[j], order[j + random() % (kExperts - j)]);
        chosen.push_back(order[j]);
      }
    }
    const cuda::Buffer forced = Upload(chosen);
    const size_t floats = static_cast<size_t>(rows) * (2 * kHidden + kExperts);
    const cuda::Buffer memory = CheckOk(device_->Allocate(sizeof(float) * floats, "bench"));
    device_->Fill(memory.data(), 0, memory.bytes());
    auto* x = memory.as<float>();
    float* partial = x + static_cast<size_t>(rows) * kHidden;
    const float* logits = partial + static_cast<size_t>(rows) * kHidden;
    const size_t bytes = experts.WorkspaceBytes(rows);
    const cuda::Buffer workspace = CheckOk(device_->Allocate(bytes, "bench"));
    const double us = MicrosecondsInGraph(*device_, 2, [&](int) {
      experts.Run(x, rows,
                  {.logits = logits,
                   .bias = logits,
                   .forced = forced.as<int32_t>(),
                   .scaling = 1.0f,
                   .trace = {}},
                  partial, {workspace.as<std::byte>(), bytes});
    });
    const double flops = 2.0 * 3 * kHidden * inner * kTopK * rows;
    PrintLine(absl::StrFormat("K%d inner %d prefill of %d rows, %.0f TFLOP/s, %zu MiB", bits, inner,
                              rows, flops / us / 1e6, bytes >> 20),
              us, 3.0 * kHidden * inner * kExperts * bits / 8, ceilings_,
              flops / ceilings_.matrix_tflops / 1e6);
  }

  void Sweep(const Exl3Experts& experts, int inner, int bits, int rows) {
    const auto base = experts.CutsFor(rows);
    for (int warps : {8, 16}) {
      for (int strips : {16, 32, 64, 128}) {
        for (int parts : {2, 4, 8}) {
          auto cuts = base;
          if (inner / 16 % strips != 0) continue;
          cuts.gate_up = {parts, strips, warps};
          DecodeRows(experts, inner, bits, rows, cuts);
        }
        for (int parts : {1, 2, 4}) {
          auto cuts = base;
          cuts.down = {parts, strips, warps};
          DecodeRows(experts, inner, bits, rows, cuts);
        }
      }
    }
  }

  void DecodeRows(const Exl3Experts& experts, int inner, int bits, int rows,
                  const Exl3Experts::Cuts& cuts) {
    constexpr int kCalls = 36;
    const int slots = rows * kTopK;
    const auto shared = [&](int inputs) { return rows * cuda::exl3::RowWords(inputs) * 4; };
    if (shared(kHidden / cuts.gate_up.parts) > 96 * 1024) return;
    if (shared(inner / cuts.down.parts) > 96 * 1024) return;
    const cuda::Buffer forced = Upload(Walk(kCalls, slots));
    const cuda::Buffer floats =
        CheckOk(device_->Allocate(sizeof(float) * rows * (2 * kHidden + kExperts + 1), "bench"));
    device_->Fill(floats.data(), 0, floats.bytes());
    float* x = floats.as<float>();
    float* partial = x + rows * kHidden;
    const float* logits = partial + rows * kHidden;
    // Every call has buffers of its own, which an earlier run of Select has filled.
    cuda::WorkspaceCutter measure;
    experts.Cut(measure, rows, cuts);
    const cuda::Buffer memory = CheckOk(device_->Allocate(measure.used() * kCalls, "bench"));
    std::vector<Exl3Experts::DecodeBuffers> buffers;
    for (int i = 0; i < kCalls; ++i) {
      cuda::WorkspaceCutter cutter(memory.as<std::byte>() + i * measure.used());
      buffers.push_back(experts.Cut(cutter, rows, cuts));
    }
    const auto choice = [&](int i) {
      return cuda::RouterChoice{.logits = logits,
                                .bias = logits,
                                .forced = forced.as<int32_t>() + i * slots,
                                .scaling = 1.0f,
                                .trace = {}};
    };
    const double select = MicrosecondsInGraph(
        *device_, kCalls, [&](int i) { experts.Select(rows, choice(i), buffers[i]); });
    const double gate_up = MicrosecondsInGraph(
        *device_, kCalls, [&](int i) { experts.GateUp(x, rows, cuts, buffers[i]); });
    const double down =
        MicrosecondsInGraph(*device_, kCalls, [&](int i) { experts.Down(rows, cuts, buffers[i]); });
    const double combine = MicrosecondsInGraph(*device_, kCalls, [&](int i) {
      experts.Combine(rows, cuts.down.parts, buffers[i].slots, nullptr, buffers[i].down, partial);
    });
    const auto all = [&](int i) {
      experts.GateUp(x, rows, cuts, buffers[i]);
      experts.Down(rows, cuts, buffers[i]);
      experts.Combine(rows, cuts.down.parts, buffers[i].slots, nullptr, buffers[i].down, partial);
    };
    const double routed = MicrosecondsInGraph(*device_, kCalls, all);
    const double with = MicrosecondsInGraph(*device_, kCalls, [&](int i) {
      experts.Select(rows, choice(i), buffers[i]);
      all(i);
    });
    const double weights = 3.0 * kHidden * inner * slots;
    const double bytes = weights * bits / 8 + slots * (3.0 * kHidden + 3.0 * inner) * 2;
    // The pipe of the multiply-adds takes one every other cycle.
    const double issue_us = weights * kIssuesAWeight / (2 * ceilings_.integer_gops * 1e3);
    const double floor = std::max(bytes / ceilings_.read_gbs / 1e3, issue_us);
    const auto name = [](const Exl3Cut& cut) {
      return absl::StrFormat("%dx%d/%d", cut.parts, cut.strips, cut.warps);
    };
    PrintLine(absl::StrFormat("K%d inner %d rows %d, cut %s %s", bits, inner, rows,
                              name(cuts.gate_up), name(cuts.down)),
              routed, bytes, ceilings_, floor);
    std::printf(
        "  gate+up %.2f  activate+down %.2f  combine %.2f  select %.2f  all %.2f  floor: "
        "read "
        "%.2f issue %.2f\n",
        gate_up, down, combine, select, with, bytes / ceilings_.read_gbs / 1e3, issue_us);
  }

  std::unique_ptr<cuda::Device> device_;
  Ceilings ceilings_;
  cuda::Buffer counters_;
  cuda::Context context_;
};

}  // namespace
}  // namespace quartet::bench

int main(int argc, char** argv) {
  const bool sweep = argc > 1 && std::strcmp(argv[1], "sweep") == 0;
  quartet::bench::Bench bench;
  for (int inner : {512, 2048}) {
    for (int bits : {2, 3, 4}) bench.Run(inner, bits, sweep && bits == 2);
  }
}
