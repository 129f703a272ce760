#include "shard_worker/checkpoint/decode_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <variant>

#include "absl/strings/str_format.h"

namespace quartet {
namespace {

constexpr size_t kMatrices = 3;
// Half of the last place of a binary16, which a decoder may not round to, and what is lost on the
// way through a product: weights are of the order of 1.
constexpr float kRelative = 0.0006f;
constexpr float kAbsolute = 0.0001f;

// Nearest binary16, ties to even, of a value whose magnitude is that of a normal one or 0.
uint16_t HalfBits(double value) {
  if (value == 0) return 0;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  int exponent = 0;
  // In [1024, 2048): the ten bits of the fraction before the point.
  const double scaled = std::frexp(std::abs(value), &exponent) * 2048;
  auto fraction = static_cast<uint32_t>(std::nearbyint(scaled));
  int biased = exponent - 1 + 15;
  if (fraction == 2048) {
    fraction = 1024;
    ++biased;
  }
  return static_cast<uint16_t>(sign | biased << 10 | (fraction - 1024));
}

uint16_t CodebookBits(Exl3Codebook codebook, uint32_t state) {
  if (codebook == Exl3Codebook::kMul1) {
    const uint32_t product = state * 0x83DCD12Du;
    double sum = 1024;
    for (int byte = 0; byte < 4; ++byte) sum += product >> (8 * byte) & 0xFF;
    return HalfBits(sum * HalfToFloat(0x1EEE) + HalfToFloat(0xC931));
  }
  const uint32_t mixed =
      codebook == Exl3Codebook::kMcg ? state * 0xCBAC1FEDu : state * 89226354u + 64248484u;
  const uint32_t halves = (mixed & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return HalfBits(static_cast<double>(HalfToFloat(static_cast<uint16_t>(halves))) +
                  HalfToFloat(static_cast<uint16_t>(halves >> 16)));
}

// Where the weight at (row, column) of a tile stands in the tile's stream.
int PlaceInStream(Exl3TileOrder order, int row, int column) {
  if (order == Exl3TileOrder::kColumnMajor) return 16 * column + row;
  // The fragments of a tensor core's product: 32 lanes of eight weights.
  const int lane = 4 * (column % 8) + row % 8 / 2;
  return 8 * lane + 4 * (column / 8) + 2 * (row / 8) + row % 2;
}

// Bit `bit` of the stream, which is in little-endian words of 32 bits, the top bit first.
uint32_t BitAt(const std::byte* tile, int bit) {
  uint32_t word = 0;
  for (int byte = 3; byte >= 0; --byte) {
    word = word << 8 | std::to_integer<uint32_t>(tile[bit / 32 * 4 + byte]);
  }
  return word >> (31 - bit % 32) & 1;
}

void Collect(const LinearView& linear, std::vector<const Exl3View*>& views) {
  if (const auto* view = std::get_if<Exl3View>(&linear)) views.push_back(view);
}

void Collect(const MlpWeights& mlp, std::vector<const Exl3View*>& views) {
  for (const LinearView* linear : {&mlp.gate, &mlp.up, &mlp.down}) Collect(*linear, views);
}

void Collect(const MoeWeights& moe, std::vector<const Exl3View*>& views) {
  for (const MlpWeights& expert : moe.experts) Collect(expert, views);
  Collect(moe.shared, views);
}

void Collect(const KdaWeights& kda, std::vector<const Exl3View*>& views) {
  for (const LinearView* linear : {&kda.q_proj, &kda.k_proj, &kda.v_proj, &kda.f_a, &kda.f_b,
                                   &kda.g_a, &kda.g_b, &kda.b_proj, &kda.o_proj}) {
    Collect(*linear, views);
  }
}

void Collect(const DsaWeights& dsa, std::vector<const Exl3View*>& views) {
  for (const LinearView* linear : {&dsa.q_a, &dsa.q_b, &dsa.kv_a, &dsa.kv_b, &dsa.o_proj,
                                   &dsa.indexer.wq_b, &dsa.indexer.wk, &dsa.indexer.weights_proj}) {
    Collect(*linear, views);
  }
}

std::vector<const Exl3View*> AllMatrices(const ModelWeights& weights) {
  std::vector<const Exl3View*> views;
  const auto collect = [&](const auto& part) { Collect(part, views); };
  for (const LayerWeights& layer : weights.layers) {
    std::visit(collect, layer.attention);
    std::visit(collect, layer.mlp);
  }
  Collect(weights.head, views);
  if (weights.mtp.has_value()) {
    Collect(weights.mtp->eh_proj, views);
    Collect(weights.mtp->attention, views);
    Collect(weights.mtp->moe, views);
  }
  return views;
}

}  // namespace

std::vector<uint16_t> DecodeBlockByDefinition(const Exl3View& view) {
  std::vector<uint16_t> block(kDecodeBlock * kDecodeBlock);
  const int stream = 256 * view.bits;
  for (int64_t row = 0; row < kDecodeBlock; ++row) {
    for (int64_t column = 0; column < kDecodeBlock; ++column) {
      const std::byte* tile = view.tile(row / 16, column / 16);
      const int place =
          PlaceInStream(view.tile_order, static_cast<int>(row % 16), static_cast<int>(column % 16));
      // A state is the 16 bits that end with the weight's own; the stream has no beginning.
      uint32_t state = 0;
      for (int i = 16; i > 0; --i) {
        state = state << 1 | BitAt(tile, ((place + 1) * view.bits - i + stream) % stream);
      }
      block[row * kDecodeBlock + column] = CodebookBits(view.codebook, state);
    }
  }
  return block;
}

std::vector<const Exl3View*> ChooseForDecodeCheck(const ModelWeights& weights) {
  const std::vector<const Exl3View*> all = AllMatrices(weights);
  std::vector<const Exl3View*> chosen;
  const auto choose = [&](const Exl3View* view) {
    if (chosen.size() < kMatrices && std::ranges::find(chosen, view) == chosen.end()) {
      chosen.push_back(view);
    }
  };
  std::set<int> widths;
  for (const Exl3View* view : all) {
    if (widths.insert(view->bits).second) choose(view);
  }
  if (all.empty()) return chosen;
  choose(all.back());
  choose(all[all.size() / 2]);
  for (const Exl3View* view : all) choose(view);
  return chosen;
}

absl::Status CheckDecoding(const ModelWeights& weights, const BlockDecoder& decode) {
  for (const Exl3View* view : ChooseForDecodeCheck(weights)) {
    const absl::StatusOr<std::vector<float>> found = decode(*view);
    if (!found.ok()) return found.status();
    const std::vector<uint16_t> expected = DecodeBlockByDefinition(*view);
    const auto error = [&](const std::string& what) {
      return absl::DataLossError(absl::StrFormat(
          "%s: tensor \"%s\" (%d bits per weight, codebook %s, tile order %s): the self-test of "
          "its decoding failed, %s; weights decoded like this would give wrong answers",
          std::string(view->tensor->file), view->name, view->bits,
          std::string(ToString(view->codebook)), std::string(ToString(view->tile_order)), what));
    };
    if (found->size() != expected.size()) {
      return error(absl::StrFormat("found %d weights of a block, expected %d", found->size(),
                                   expected.size()));
    }
    const auto [e, f] = std::ranges::mismatch(expected, *found, [](uint16_t bits, float weight) {
      const float right = HalfToFloat(bits);
      return std::abs(weight - right) <= kRelative * std::abs(right) + kAbsolute;  // false for NaN
    });
    if (e == expected.end()) continue;
    const int64_t at = e - expected.begin();
    return error(absl::StrFormat("found %.6g at input %d, output %d, expected %.6g", *f,
                                 at / kDecodeBlock, at % kDecodeBlock, HalfToFloat(*e)));
  }
  return absl::OkStatus();
}

}  // namespace quartet
