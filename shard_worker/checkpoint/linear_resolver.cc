#include "shard_worker/checkpoint/linear_resolver.h"

#include <sys/stat.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <cstring>

#include "absl/strings/str_format.h"
#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

namespace json = boost::json;

constexpr int64_t kHadamard = 128;  // EXL3 vectors are transformed in blocks of this size
constexpr int64_t kTile = 16;
constexpr uint32_t kMcgMarker = 0xCBAC1FED;
constexpr uint32_t kMul1Marker = 0x83DCD12D;
constexpr uint32_t kColumnMajorMarker = 0x70C0;
constexpr uint64_t kMaxDescriptionBytes = 512u << 20;

constexpr std::string_view kExl3Suffixes[] = {".trellis", ".suh", ".svh",  ".su",
                                              ".sv",      ".mcg", ".mul1", ".tile_order"};

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

absl::Status TensorError(const TensorView& tensor, std::string_view found,
                         std::string_view expected) {
  return absl::InvalidArgumentError(
      Cat(tensor.file, ": tensor \"", tensor.name, "\" ", found, ", expected ", expected));
}

absl::Status CheckShape(const TensorView& tensor, absl::Span<const int64_t> expected) {
  if (absl::MakeConstSpan(tensor.shape) == expected) return absl::OkStatus();
  return TensorError(tensor, Cat("has shape ", ShapeString(tensor.shape)), ShapeString(expected));
}

absl::Status CheckDtype(const TensorView& tensor, std::initializer_list<Dtype> allowed) {
  if (std::find(allowed.begin(), allowed.end(), tensor.dtype) != allowed.end()) {
    return absl::OkStatus();
  }
  std::vector<std::string_view> names;
  for (Dtype dtype : allowed) names.push_back(ToString(dtype));
  return TensorError(tensor, Cat("has dtype ", ToString(tensor.dtype)), Join(names, " or "));
}

absl::StatusOr<uint32_t> ReadMarker(const TensorView& tensor) {
  if (absl::Status status = CheckDtype(tensor, {Dtype::kI32, Dtype::kU32}); !status.ok()) {
    return status;
  }
  if (tensor.bytes != 4) {
    return TensorError(tensor, Cat("has shape ", ShapeString(tensor.shape)), "a single value");
  }
  uint32_t value;
  std::memcpy(&value, tensor.data, sizeof(value));
  return value;
}

}  // namespace

LinearResolver::LinearResolver(const Checkpoint& checkpoint, const ModelConfig& config, int tp,
                               int rank)
    : checkpoint_(checkpoint),
      config_(config),
      tp_(tp),
      rank_(rank),
      sorted_(checkpoint.tensors()) {
  std::sort(sorted_.begin(), sorted_.end(),
            [](const TensorView* a, const TensorView* b) { return a->name < b->name; });
}

std::string LinearResolver::DescribeOrder() const {
  if (!config_.quantization.tile_order) return "no tile_order";
  return Cat("tile_order ", ToString(*config_.quantization.tile_order));
}

absl::Status LinearResolver::CheckWholeCheckpoint() {
  for (const TensorView* tensor : checkpoint_.tensors()) {
    if (!tensor->name.ends_with(".tile_order")) continue;
    tile_order_markers_ = true;
    if (config_.quantization.tile_order != Exl3TileOrder::kColumnMajor) {
      return TensorError(*tensor, "marks column-major tiles",
                         Cat("quantization_config.tile_order \"colmajor\" in ", config_.path,
                             ", found ", DescribeOrder()));
    }
    break;
  }

  // A description that exllamav3 writes beside the weights. Optional, but when it is there it has
  // to tell the same story.
  const std::string path = checkpoint_.dir() + "/quantization_config.json";
  struct stat info = {};
  if (config_.quantization.method != QuantMethod::kExl3 || stat(path.c_str(), &info) != 0) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxDescriptionBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<json::value> parsed = ParseJsonText(*text, path);
  if (!parsed.ok()) return parsed.status();
  const json::value* storage =
      parsed->is_object() ? parsed->get_object().if_contains("tensor_storage") : nullptr;
  if (storage == nullptr || !storage->is_object()) return absl::OkStatus();
  for (const auto& item : storage->get_object()) {
    if (!item.value().is_object()) continue;
    const json::value* bits = item.value().get_object().if_contains("bits_per_weight");
    if (bits != nullptr && bits->is_int64()) {
      stored_bits_.emplace(std::string(item.key()), bits->get_int64());
    }
  }
  return absl::OkStatus();
}

absl::Status LinearResolver::Missing(const std::string& name) const {
  const auto at = std::lower_bound(
      sorted_.begin(), sorted_.end(), name,
      [](const TensorView* tensor, const std::string& key) { return tensor->name < key; });
  const TensorView* neighbour = nullptr;
  size_t best = 0;
  const auto consider = [&](const TensorView* tensor) {
    const size_t common =
        std::mismatch(name.begin(), name.end(), tensor->name.begin(), tensor->name.end()).first -
        name.begin();
    if (neighbour == nullptr || common > best) {
      neighbour = tensor;
      best = common;
    }
  };
  if (at != sorted_.end()) consider(*at);
  if (at != sorted_.begin()) consider(*(at - 1));
  std::string where = checkpoint_.dir();
  std::string beside;
  if (neighbour != nullptr) {
    where = std::string(neighbour->file);
    beside = Cat(" beside \"", neighbour->name, "\"");
  }
  return absl::NotFoundError(Cat(where, ": tensor \"", name, "\" is missing, expected", beside));
}

absl::StatusOr<const TensorView*> LinearResolver::Take(const std::string& name) {
  const TensorView* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) return Missing(name);
  used_.insert(tensor);
  return tensor;
}

bool LinearResolver::HasModule(const std::string& module) const {
  if (Has(module + ".weight")) return true;
  for (std::string_view suffix : kExl3Suffixes) {
    if (Has(Cat(module, suffix))) return true;
  }
  return false;
}

LinearResolver::Cut LinearResolver::CutFor(int64_t size, bool split) const {
  return split ? Cut{size / tp_ * rank_, size / tp_} : Cut{0, size};
}

absl::StatusOr<VectorView> LinearResolver::Vector(const std::string& name, int64_t count,
                                                  Split split) {
  absl::StatusOr<const TensorView*> tensor = Take(name);
  if (!tensor.ok()) return tensor.status();
  if (absl::Status s = CheckDtype(**tensor, {Dtype::kF32, Dtype::kF16, Dtype::kBf16}); !s.ok()) {
    return s;
  }
  if (absl::Status s = CheckShape(**tensor, {count}); !s.ok()) return s;
  const Cut cut = CutFor(count, split != Split::kNone);
  return VectorView{*tensor, cut.begin, cut.size};
}

absl::StatusOr<DenseView> LinearResolver::Dense(const std::string& name, const LinearSpec& spec,
                                                bool convolution) {
  absl::StatusOr<const TensorView*> taken = Take(name);
  if (!taken.ok()) return taken.status();
  const TensorView& tensor = **taken;
  const int64_t stored_out = spec.stored_out == 0 ? spec.out : spec.stored_out;
  absl::Status status =
      convolution ? CheckDtype(tensor, {Dtype::kF32, Dtype::kF16, Dtype::kBf16})
                  : CheckDtype(tensor, {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF8E4M3});
  if (!status.ok()) return status;
  status = convolution ? CheckShape(tensor, {stored_out, 1, spec.in})
                       : CheckShape(tensor, {stored_out, spec.in});
  if (!status.ok()) return status;

  DenseView view;
  view.tensor = &tensor;
  const Cut rows = CutFor(spec.out, spec.split == Split::kOutputs);
  const Cut cols = CutFor(spec.in, spec.split == Split::kInputs);
  view.row_begin = spec.stored_begin + rows.begin;
  view.rows = rows.size;
  view.col_begin = cols.begin;
  view.cols = cols.size;
  view.row_stride = spec.in;

  const std::string scale_name = name + "_scale_inv";
  if (tensor.dtype != Dtype::kF8E4M3) {
    if (const TensorView* scale = checkpoint_.Find(scale_name)) {
      return TensorError(*scale, "holds block scales",
                         Cat("F8_E4M3 weights beside them, found ", ToString(tensor.dtype)));
    }
    return view;
  }
  absl::StatusOr<const TensorView*> scale = Take(scale_name);
  if (!scale.ok()) return scale.status();
  view.block_rows = config_.quantization.block_rows;
  view.block_cols = config_.quantization.block_cols;
  status = CheckDtype(**scale, {Dtype::kF32});
  if (!status.ok()) return status;
  status = CheckShape(**scale, {RoundUp(stored_out, view.block_rows) / view.block_rows,
                                RoundUp(spec.in, view.block_cols) / view.block_cols});
  if (!status.ok()) return status;
  view.scale = *scale;
  return view;
}

absl::StatusOr<LinearView> LinearResolver::Linear(const LinearSpec& spec) {
  const std::string weight = spec.module + ".weight";
  const TensorView* dense = checkpoint_.Find(weight);
  const TensorView* part = nullptr;
  for (std::string_view suffix : kExl3Suffixes) {
    if (part == nullptr) part = checkpoint_.Find(Cat(spec.module, suffix));
  }
  if (part == nullptr) {
    absl::StatusOr<DenseView> view = Dense(weight, spec);
    if (!view.ok()) return view.status();
    return LinearView(*view);
  }
  if (dense != nullptr) {
    return absl::InvalidArgumentError(Cat(part->file, ": \"", spec.module,
                                          "\" is stored twice, as \"", part->name, "\" and as \"",
                                          weight, "\" in ", dense->file, "; expected one of them"));
  }
  return Exl3Module(spec);
}

absl::Status LinearResolver::CheckExl3Configured(const TensorView& trellis) const {
  if (config_.quantization.method == QuantMethod::kExl3) return absl::OkStatus();
  return TensorError(trellis, "is EXL3",
                     Cat("quantization_config.quant_method \"exl3\" in ", config_.path, ", found ",
                         ToString(config_.quantization.method)));
}

absl::StatusOr<Exl3Codebook> LinearResolver::CodebookOf(const std::string& module) {
  const TensorView* mcg = checkpoint_.Find(module + ".mcg");
  const TensorView* mul1 = checkpoint_.Find(module + ".mul1");
  const std::optional<Exl3Codebook>& configured = config_.quantization.codebook;
  if (mcg != nullptr && mul1 != nullptr) {
    return TensorError(*mul1, Cat("stands beside \"", mcg->name, "\""),
                       "at most one codebook marker");
  }
  if (mcg == nullptr && mul1 == nullptr) {
    if (!configured || *configured == Exl3Codebook::k3Inst) return Exl3Codebook::k3Inst;
    const TensorView* trellis = checkpoint_.Find(module + ".trellis");
    return absl::InvalidArgumentError(
        Cat(trellis == nullptr ? checkpoint_.dir() : std::string(trellis->file), ": \"", module,
            "\" has no codebook marker, which means codebook 3inst, but ", config_.path,
            " says quantization_config.codebook ", ToString(*configured), "; expected \"", module,
            ".", ToString(*configured), "\""));
  }
  const TensorView& marker = mcg != nullptr ? *mcg : *mul1;
  const Exl3Codebook codebook = mcg != nullptr ? Exl3Codebook::kMcg : Exl3Codebook::kMul1;
  const uint32_t expected = mcg != nullptr ? kMcgMarker : kMul1Marker;
  used_.insert(&marker);
  absl::StatusOr<uint32_t> value = ReadMarker(marker);
  if (!value.ok()) return value.status();
  if (*value != expected) {
    return TensorError(marker, absl::StrFormat("holds 0x%08X, an unknown codebook", *value),
                       absl::StrFormat("0x%08X", expected));
  }
  if (configured && *configured != codebook) {
    return TensorError(
        marker, Cat("marks codebook ", ToString(codebook)),
        Cat(ToString(*configured), " as quantization_config.codebook in ", config_.path, " says"));
  }
  return codebook;
}

absl::Status LinearResolver::TakeTileOrderMarker(const std::string& module) {
  if (!tile_order_markers_) return absl::OkStatus();
  absl::StatusOr<const TensorView*> marker = Take(module + ".tile_order");
  if (!marker.ok()) {
    return absl::InvalidArgumentError(
        Cat(marker.status().message(),
            ": other tensors of the checkpoint carry a tile order marker, so all must"));
  }
  absl::StatusOr<uint32_t> value = ReadMarker(**marker);
  if (!value.ok()) return value.status();
  if (*value != kColumnMajorMarker) {
    return TensorError(**marker, absl::StrFormat("holds 0x%X, an unknown tile order", *value),
                       absl::StrFormat("0x%X (column-major)", kColumnMajorMarker));
  }
  return absl::OkStatus();
}

absl::StatusOr<Exl3Vector> LinearResolver::ScaleVector(const std::string& half_name,
                                                       const std::string& sign_name,
                                                       int64_t count) {
  const TensorView* half = checkpoint_.Find(half_name);
  const TensorView* sign = checkpoint_.Find(sign_name);
  if (half != nullptr && sign != nullptr) {
    return TensorError(*sign, Cat("stands beside \"", half_name, "\""), "one of the two");
  }
  if (half == nullptr && sign == nullptr) return Missing(half_name);
  const TensorView& tensor = half != nullptr ? *half : *sign;
  used_.insert(&tensor);
  absl::Status status = half != nullptr ? CheckDtype(tensor, {Dtype::kF16})
                                        : CheckDtype(tensor, {Dtype::kI16, Dtype::kU16});
  if (!status.ok()) return status;
  status = CheckShape(tensor, {half != nullptr ? count : count / 16});
  if (!status.ok()) return status;
  return Exl3Vector{&tensor, half == nullptr, 0, count};
}

absl::Status LinearResolver::CheckBits(const TensorView& trellis, int bits,
                                       const LinearSpec& spec) const {
  const QuantizationConfig& quant = config_.quantization;
  const auto stored = stored_bits_.find(spec.module);
  if (stored != stored_bits_.end() && stored->second != bits) {
    return TensorError(trellis, Cat("holds ", bits, " bits per weight"),
                       Cat(stored->second, " as quantization_config.json says"));
  }
  if (!spec.expert_layer) return absl::OkStatus();
  if (!quant.allowed_bits.empty() && std::find(quant.allowed_bits.begin(), quant.allowed_bits.end(),
                                               bits) == quant.allowed_bits.end()) {
    return TensorError(
        trellis, Cat("holds ", bits, " bits per weight"),
        Cat("one of [", Join(quant.allowed_bits, ","), "] as ", config_.path, " says"));
  }
  const auto layer = quant.layer_bits.find(static_cast<int>(*spec.expert_layer));
  std::optional<int> expected;
  std::string field = "quantization_config.bits";
  if (layer != quant.layer_bits.end()) {
    expected = layer->second;
    field = Cat("quantization_config.layer_bits[", *spec.expert_layer, "]");
  } else if (quant.bits && quant.bits_are_exact) {
    expected = quant.bits;
  }
  if (expected && *expected != bits) {
    return TensorError(trellis, Cat("holds ", bits, " bits per weight"),
                       Cat(*expected, " as ", field, " in ", config_.path, " says"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Exl3View> LinearResolver::CutTrellis(const TensorView& trellis, int64_t first_dim,
                                                    const LinearSpec& spec, std::string_view name,
                                                    Exl3Vector suh, Exl3Vector svh) const {
  const int64_t stored_in = RoundUp(spec.in, kHadamard);
  const int64_t stored_out = RoundUp(spec.stored_out == 0 ? spec.out : spec.stored_out, kHadamard);
  const int64_t words = trellis.shape[first_dim + 2];
  const int bits = static_cast<int>(words / 16);
  if (absl::Status status = CheckBits(trellis, bits, spec); !status.ok()) return status;

  Exl3View view;
  view.name = std::string(name);
  view.bits = bits;
  view.tile_order = config_.quantization.tile_order.value_or(Exl3TileOrder::kSm80);
  view.tensor = &trellis;
  view.tile_bytes = 2 * words;
  view.tile_row_stride_bytes = stored_out / kTile * view.tile_bytes;

  // A cut inside a block of 128 would tear a Hadamard transform apart.
  const auto cut_one = [&](std::string_view what, int64_t size, int64_t begin, bool split,
                           int64_t* used, int64_t* padded, Cut* cut) -> absl::Status {
    *cut = CutFor(size, split);
    const bool part_of_more = split || begin != 0;
    if (part_of_more && (size % (kHadamard * (split ? tp_ : 1)) != 0 || begin % kHadamard != 0)) {
      std::vector<int> good;
      for (int ranks = 1; ranks <= 8; ++ranks) {
        if (size % (kHadamard * ranks) == 0) good.push_back(ranks);
      }
      if (tp_ > 1) {
        return TensorError(
            trellis,
            Cat("has ", size, " ", what, ", which tensor parallel size ", tp_,
                " cuts into parts of ", size / tp_),
            Cat("parts that are multiples of 128 (EXL3 is transformed in blocks of 128); ",
                good.empty() ? "no size but 1 works" : Cat("sizes that work: ", Join(good, ", "))));
      }
      if (begin % kHadamard != 0) {
        return TensorError(trellis, Cat("joins matrices at ", what, " ", begin),
                           "a multiple of 128");
      }
    }
    *used = cut->size;
    *padded = RoundUp(cut->size, kHadamard);
    cut->begin += begin;
    return absl::OkStatus();
  };
  Cut out_cut;
  Cut in_cut;
  absl::Status status =
      cut_one("outputs", spec.out, spec.stored_begin, spec.split == Split::kOutputs && tp_ > 1,
              &view.out, &view.padded_out, &out_cut);
  if (!status.ok()) return status;
  status = cut_one("inputs", spec.in, 0, spec.split == Split::kInputs && tp_ > 1, &view.in,
                   &view.padded_in, &in_cut);
  if (!status.ok()) return status;
  if (out_cut.begin + view.padded_out > stored_out || in_cut.begin + view.padded_in > stored_in) {
    return TensorError(trellis, "is joined from matrices that are not whole blocks",
                       "outputs in multiples of 128");
  }
  view.trellis = trellis.data + in_cut.begin / kTile * view.tile_row_stride_bytes +
                 out_cut.begin / kTile * view.tile_bytes;
  view.suh = suh;
  view.suh.begin += in_cut.begin;
  view.suh.count = view.padded_in;
  view.svh = svh;
  view.svh.begin += out_cut.begin;
  view.svh.count = view.padded_out;
  return view;
}

namespace {

// [.., in / 16, out / 16, 16 * bits], bits 1 to 8.
absl::Status CheckTrellis(const TensorView& trellis, absl::Span<const int64_t> leading,
                          int64_t stored_in, int64_t stored_out) {
  if (absl::Status status = CheckDtype(trellis, {Dtype::kI16, Dtype::kU16}); !status.ok()) {
    return status;
  }
  std::vector<std::string> expected;
  for (int64_t size : leading) expected.push_back(Cat(size));
  expected.push_back(Cat(stored_in / kTile));
  expected.push_back(Cat(stored_out / kTile));
  bool good = trellis.shape.size() == expected.size() + 1;
  for (size_t i = 0; good && i < expected.size(); ++i) {
    good = Cat(trellis.shape[i]) == expected[i];
  }
  const int64_t words = good ? trellis.shape.back() : 0;
  if (good && words % 16 == 0 && words >= 16 && words <= 128) return absl::OkStatus();
  return TensorError(trellis, Cat("has shape ", ShapeString(trellis.shape)),
                     Cat("[", Join(expected, ", "), ", 16 * bits] with 1 to 8 bits per weight"));
}

}  // namespace

absl::StatusOr<LinearView> LinearResolver::Exl3Module(const LinearSpec& spec) {
  absl::StatusOr<const TensorView*> trellis = Take(spec.module + ".trellis");
  if (!trellis.ok()) return trellis.status();
  const int64_t stored_in = RoundUp(spec.in, kHadamard);
  const int64_t stored_out = RoundUp(spec.stored_out == 0 ? spec.out : spec.stored_out, kHadamard);
  if (absl::Status s = CheckExl3Configured(**trellis); !s.ok()) return s;
  if (absl::Status s = CheckTrellis(**trellis, {}, stored_in, stored_out); !s.ok()) return s;
  absl::StatusOr<Exl3Vector> suh =
      ScaleVector(spec.module + ".suh", spec.module + ".su", stored_in);
  if (!suh.ok()) return suh.status();
  absl::StatusOr<Exl3Vector> svh =
      ScaleVector(spec.module + ".svh", spec.module + ".sv", stored_out);
  if (!svh.ok()) return svh.status();
  absl::StatusOr<Exl3Codebook> codebook = CodebookOf(spec.module);
  if (!codebook.ok()) return codebook.status();
  if (absl::Status s = TakeTileOrderMarker(spec.module); !s.ok()) return s;
  absl::StatusOr<Exl3View> view = CutTrellis(**trellis, 0, spec, spec.module, *suh, *svh);
  if (!view.ok()) return view.status();
  view->codebook = *codebook;
  return LinearView(*std::move(view));
}

absl::StatusOr<LinearView> LinearResolver::StackedExpert(const std::string& stem, int64_t expert,
                                                         int64_t experts, const LinearSpec& spec) {
  absl::StatusOr<const TensorView*> trellis = Take(stem + "_trellis");
  if (!trellis.ok()) return trellis.status();
  const TensorView& stack = **trellis;
  const int64_t stored_in = RoundUp(spec.in, kHadamard);
  const int64_t stored_out = RoundUp(spec.out, kHadamard);
  if (absl::Status s = CheckExl3Configured(stack); !s.ok()) return s;
  if (absl::Status s = CheckTrellis(stack, {experts}, stored_in, stored_out); !s.ok()) return s;
  // Stacks carry no markers, and their writers use other orders than the standard one.
  if (!config_.quantization.codebook) {
    return TensorError(stack, "is a stack, which carries no codebook marker",
                       Cat("quantization_config.codebook in ", config_.path));
  }
  if (!config_.quantization.tile_order) {
    return TensorError(stack, "is a stack, whose tile order differs between writers",
                       Cat("quantization_config.tile_order in ", config_.path));
  }
  if (tile_order_markers_) {
    return TensorError(stack, "carries no tile order marker",
                       "none in the whole checkpoint, but other tensors carry one");
  }
  Exl3Vector vectors[2];
  const int64_t counts[2] = {stored_in, stored_out};
  const std::string names[2] = {stem + "_suh", stem + "_svh"};
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<const TensorView*> vector = Take(names[i]);
    if (!vector.ok()) return vector.status();
    if (absl::Status s = CheckDtype(**vector, {Dtype::kF16}); !s.ok()) return s;
    if (absl::Status s = CheckShape(**vector, {experts, counts[i]}); !s.ok()) return s;
    vectors[i] = Exl3Vector{*vector, false, expert * counts[i], counts[i]};
  }
  absl::StatusOr<Exl3View> view =
      CutTrellis(stack, 1, spec, Cat(stem, "[", expert, "]"), vectors[0], vectors[1]);
  if (!view.ok()) return view.status();
  view->codebook = *config_.quantization.codebook;
  view->trellis += expert * (stack.bytes / experts);
  return LinearView(*std::move(view));
}

}  // namespace quartet
