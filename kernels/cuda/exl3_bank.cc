#include "kernels/cuda/exl3_bank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/exl3.h"
#include "kernels/cuda/device/exl3_layout.h"

namespace quartet::cuda {
namespace {

using exl3::kBlock;
using exl3::kStrip;
using exl3::kUnitInputs;
using exl3::kWarps;

constexpr size_t kAlign = 256;
constexpr size_t kMaxShared = 96 * 1024;  // what every card has

size_t Align(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}
size_t TrellisBytes(const ops::Exl3Matrix& m) {
  return static_cast<size_t>(m.in) * m.out / 8 * m.bits;
}

Exl3Codebook CodebookOf(ops::Codebook codebook) {
  switch (codebook) {
    case ops::Codebook::kMul1:
      return {0x83DCD12Du, 0, 0x1EEEu};
    case ops::Codebook::k3Inst:
      return {89226354u, 64248484u, 0x8FFF8FFFu};
    case ops::Codebook::kMcg:
      break;
  }
  return {kMcgMultiplier, 0, 0x8FFF8FFFu};
}

// suh or svh as FP16, whichever way it is stored.
void CopyScales(const std::byte* halves, const std::byte* signs, int64_t size, std::byte* to) {
  if (signs == nullptr) {
    std::memcpy(to, halves, static_cast<size_t>(size) * 2);
    return;
  }
  for (int64_t i = 0; i < size; ++i) {
    uint16_t word;
    std::memcpy(&word, signs + i / 16 * 2, 2);
    const uint16_t half = (word >> (i % 16) & 1) != 0 ? 0xBC00 : 0x3C00;
    std::memcpy(to + 2 * i, &half, 2);
  }
}

// The bank's memory: all trellises, then all scales, which go up in one copy.
struct BankLayout {
  std::vector<size_t> trellis;
  std::vector<size_t> suh, svh;  // from the start of the scales
  size_t scales_begin = 0;
  size_t scales_bytes = 0;
};

BankLayout LayOut(std::span<const ops::Exl3Matrix* const> matrices) {
  BankLayout layout;
  for (const ops::Exl3Matrix* m : matrices) {
    layout.trellis.push_back(layout.scales_begin);
    layout.scales_begin += Align(TrellisBytes(*m));
    layout.suh.push_back(layout.scales_bytes);
    layout.scales_bytes += Align(static_cast<size_t>(m->in) * 2);
    layout.svh.push_back(layout.scales_bytes);
    layout.scales_bytes += Align(static_cast<size_t>(m->out) * 2);
  }
  return layout;
}

absl::Status CheckBank(std::span<const ops::Exl3Matrix* const> matrices,
                       std::span<const std::string> names) {
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (absl::Status s = cpu::CheckExl3(*matrices[i], names[i]); !s.ok()) return s;
    if (matrices[i]->tile_order != matrices[0]->tile_order) {
      return absl::UnimplementedError(
          absl::StrCat(names[i], " and ", names[0], " differ in tile order"));
    }
    if ((matrices[i]->codebook == ops::Codebook::kMul1) !=
        (matrices[0]->codebook == ops::Codebook::kMul1)) {
      return absl::UnimplementedError(
          absl::StrCat(names[i], " and ", names[0], ": one has codebook mul1, the other has not"));
    }
  }
  return absl::OkStatus();
}

// The matrix' tiles without the gaps between the rows of a slice.
const std::byte* Contiguous(const ops::Exl3Matrix& m, std::vector<std::byte>& gathered) {
  if (m.tile_row_stride == m.out / 16) return m.trellis;
  const size_t tile_bytes = 32 * static_cast<size_t>(m.bits);
  const size_t row = m.out / 16 * tile_bytes;
  gathered.resize(TrellisBytes(m));
  for (int64_t i = 0; i < m.in / 16; ++i) {
    std::memcpy(gathered.data() + i * row, m.trellis + i * m.tile_row_stride * tile_bytes, row);
  }
  return gathered.data();
}

}  // namespace

absl::StatusOr<PackedExl3> PackExl3(Context& context,
                                    std::span<const ops::Exl3Matrix* const> matrices,
                                    std::span<const std::string> names) {
  if (absl::Status s = CheckBank(matrices, names); !s.ok()) return s;
  Device& device = *context.device;
  absl::StatusOr<const Kernel*> pack = device.Find("exl3_pack");
  if (!pack.ok()) return pack.status();

  const BankLayout layout = LayOut(matrices);
  PackedExl3 bank;
  bank.mul1 = matrices[0]->codebook == ops::Codebook::kMul1;
  bank.column_major = matrices[0]->tile_order == ops::TileOrder::kColumnMajor;
  absl::StatusOr<Buffer> memory =
      device.Allocate(layout.scales_begin + layout.scales_bytes, names[0]);
  if (!memory.ok()) return memory.status();
  bank.memory = *std::move(memory);
  size_t most = 0;
  for (const ops::Exl3Matrix* m : matrices) most = std::max(most, TrellisBytes(*m));
  absl::StatusOr<Buffer> staging = device.Allocate(most, "staging of EXL3 weights");
  if (!staging.ok()) return staging.status();

  std::byte* base = bank.memory.as<std::byte>();
  std::vector<std::byte> scales(layout.scales_bytes);
  std::vector<std::byte> gathered;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const ops::Exl3Matrix& m = *matrices[i];
    CopyScales(m.suh, m.su_signs, m.in, scales.data() + layout.suh[i]);
    CopyScales(m.svh, m.sv_signs, m.out, scales.data() + layout.svh[i]);
    absl::Status s = device.CopyIn(staging->data(), Contiguous(m, gathered), TrellisBytes(m));
    if (!s.ok()) return s;
    auto* units = reinterpret_cast<uint32_t*>(base + layout.trellis[i]);
    device.Launch(
        *pack, {.grid_x = CeilDiv(TrellisBytes(m) / 4, exl3::kThreads), .threads = exl3::kThreads},
        Exl3PackParams{.tiles = staging->as<uint32_t>(),
                       .units = units,
                       .in = static_cast<int32_t>(m.in),
                       .out = static_cast<int32_t>(m.out),
                       .bits = m.bits});
    bank.weights.push_back(
        {.trellis = units,
         .suh = reinterpret_cast<uint16_t*>(base + layout.scales_begin + layout.suh[i]),
         .svh = reinterpret_cast<uint16_t*>(base + layout.scales_begin + layout.svh[i]),
         .codebook = CodebookOf(m.codebook),
         .bits = m.bits});
  }
  absl::Status s = device.CopyIn(base + layout.scales_begin, scales.data(), scales.size());
  if (!s.ok()) return s;
  // The staging memory goes away when this returns.
  if (s = device.Synchronize(); !s.ok()) return s;
  return bank;
}

Exl3Cut CutProduct(const Context& context, int64_t in, int64_t outputs, int64_t out, int groups,
                   int rows) {
  constexpr int kUsualStrips = 4 * kWarps, kMostStrips = 8 * kWarps;
  constexpr int64_t kMostInputs = 1024, kLeastInputs = 512;  // of a part; of one of two even less
  // Two blocks a multiprocessor are enough to keep it busy, and begin and end only once.
  const int64_t multiprocessors = context.device->info().multiprocessors;
  const int64_t enough = 2 * multiprocessors * 9 / 10;
  const int64_t blocks = in / kBlock;
  const auto fits = [&](int64_t parts) {
    return in / parts <= kMostInputs &&
           rows * exl3::RowWords(static_cast<int>(in / parts)) * sizeof(uint32_t) <= kMaxShared / 2;
  };
  const auto grid = [&](const Exl3Cut& cut) {
    return groups * outputs * cut.parts / (kStrip * cut.strips);
  };
  const auto divides = [&](int strips) { return out / kStrip % strips == 0; };
  const auto finished = [&](Exl3Cut cut) {
    // Where there are enough blocks twice over, half as many prepare the same inputs half as often.
    while (cut.strips < kMostStrips && divides(2 * cut.strips) && grid(cut) >= 2 * enough) {
      cut.strips *= 2;
    }
    // Of two blocks of a multiprocessor the older one goes first and leaves the other alone at the
    // end, with too few warps to keep it busy; those of one block go side by side.
    if (grid(cut) > multiprocessors && grid(cut) <= 2 * multiprocessors &&
        divides(2 * cut.strips)) {
      cut.strips *= 2;
      cut.warps *= 2;
      // The same blocks with half the inputs to prepare.
      if (divides(2 * cut.strips) && in / (2 * cut.parts) >= kLeastInputs) {
        cut.parts *= 2;
        cut.strips *= 2;
      }
    }
    return cut;
  };
  Exl3Cut cut;
  for (int strips = kUsualStrips; strips >= kWarps; strips /= 2) {
    if (!divides(strips)) continue;
    cut.strips = strips;
    cut.warps = kWarps;
    cut.parts = 0;
    for (int parts = 1; parts <= blocks; ++parts) {
      if (blocks % parts != 0 || !fits(parts)) continue;
      if (cut.parts != 0 && parts > 2 && in / parts < kLeastInputs) break;
      cut.parts = parts;
      if (grid(cut) >= enough) return finished(cut);
    }
  }
  return finished(cut);
}

absl::StatusOr<Exl3Product> Exl3Product::Make(Context& context, const PackedExl3& bank) {
  const std::string name = absl::StrCat("exl3_product", bank.mul1 ? "_mul1" : "_sum",
                                        bank.column_major ? "_colmajor" : "_sm80");
  absl::StatusOr<const Kernel*> kernel = context.device->Find(name.c_str(), kMaxShared);
  if (!kernel.ok()) return kernel.status();
  Exl3Product product;
  product.context_ = &context;
  product.kernel_ = *kernel;
  return product;
}

void Exl3Product::Launch(Exl3ProductParams params, const Exl3Cut& cut, int groups,
                         int rows_of_group) const {
  params.parts = cut.parts;
  params.part_inputs = params.in / cut.parts;
  params.strips_per_warp = cut.strips / cut.warps;
  const int row_words = exl3::RowWords(params.part_inputs);
  LaunchShape shape = {.grid_x = static_cast<unsigned>(params.out / (kStrip * cut.strips)),
                       .grid_y = static_cast<unsigned>(params.matrices * cut.parts),
                       .grid_z = static_cast<unsigned>(groups),
                       .threads = static_cast<unsigned>(32 * cut.warps),
                       .shared_bytes = static_cast<unsigned>(rows_of_group * row_words * 4)};
  // Blocks that fit two to a multiprocessor are not to lie three to one, as they would where the
  // work of another stream ends sooner on one than on another: they take too much shared memory.
  const DeviceInfo& info = context_->device->info();
  const auto two_of_each = static_cast<unsigned>(2 * info.multiprocessors);
  if (cut.warps == kWarps && shape.grid_x * shape.grid_y * shape.grid_z <= two_of_each) {
    const auto over_a_third = static_cast<unsigned>(info.shared_bytes_per_block / 3 + 1024);
    shape.shared_bytes = std::max(shape.shared_bytes, over_a_third);
  }
  context_->device->Launch(kernel_, shape, params);
}

}  // namespace quartet::cuda
