#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_SAFETENSORS_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace quartet {

enum class Dtype {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

// The name as safetensors headers spell it ("BF16").
std::string_view ToString(Dtype dtype);
// Bytes of one element.
int64_t DtypeSize(Dtype dtype);

// One tensor inside a mapped file. `data` need not be aligned to the element size.
struct TensorView {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // C order; empty for a scalar
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  std::string_view file;    // path of the file, owned by its SafetensorsFile
  int64_t file_offset = 0;  // of `data` in the file; 0 if it lies in memory only

  int64_t elements() const;
};

// "[8192, 4096]"
std::string ShapeString(absl::Span<const int64_t> shape);

// Limits on what a header may ask for, so that a damaged file costs neither memory nor time.
inline constexpr uint64_t kMaxHeaderBytes = 100u << 20;
inline constexpr size_t kMaxTensorsPerFile = 2'000'000;
inline constexpr size_t kMaxTensorDims = 8;

// One tensor of a header, offsets relative to the data section.
struct HeaderEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Parses and checks the header of a safetensors file: `head` holds the first bytes of the file, at
// least 8 + header length of them, `file_size` is the size of the whole. Entries come back in the
// order of their data. Refuses duplicate names, unknown dtypes, sizes that contradict the shape,
// overlaps, gaps, and data that ends before or after the file does.
absl::StatusOr<std::vector<HeaderEntry>> ParseSafetensorsHeader(absl::Span<const std::byte> head,
                                                                uint64_t file_size,
                                                                std::string_view path);

// A safetensors file mapped into memory, read only. Only the header is touched by Open; pages of
// data are read when somebody reads through a view. Views live as long as the object. Immutable
// after Open, so any thread may use it.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  const std::deque<TensorView>& tensors() const { return tensors_; }
  // The header's bytes, without the length in front.
  std::string_view header() const { return header_; }

 private:
  SafetensorsFile() = default;

  std::string path_;
  const std::byte* map_ = nullptr;
  uint64_t size_ = 0;
  std::string_view header_;
  std::deque<TensorView> tensors_;
};

// All tensors of a checkpoint folder: `model.safetensors`, or the shards that
// `model.safetensors.index.json` names. Immutable after Open; owns the mappings behind every view.
class Checkpoint {
 public:
  // Opens and cross-checks every header. Errors: a missing shard, a tensor that the index places in
  // a shard which does not hold it, one that a shard holds and the index does not know, one name in
  // two shards, and whatever is wrong inside a file.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& dir);

  // Tensors that lie in memory: `owner` keeps their bytes. Names must differ.
  static std::unique_ptr<Checkpoint> FromMemory(const std::string& dir,
                                                std::deque<TensorView> tensors,
                                                std::shared_ptr<void> owner);

  // The tensor of that name, or nullptr. Stays valid as long as the checkpoint.
  const TensorView* Find(std::string_view name) const;
  // Every tensor, in the order of files and of data inside them.
  const std::vector<const TensorView*>& tensors() const { return tensors_; }
  const std::string& dir() const { return dir_; }
  uint64_t data_bytes() const;

  // SHA-256 in hex over config.json, the index, every header and every file size, never the data:
  // two workers with the same digest have the same model, up to damage inside the weights.
  absl::StatusOr<std::string> Digest() const;

 private:
  Checkpoint() = default;

  std::string dir_;
  bool has_index_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::deque<TensorView> in_memory_;
  std::shared_ptr<void> owner_;  // of the bytes of in_memory_
  std::vector<const TensorView*> tensors_;
  std::unordered_map<std::string_view, const TensorView*> by_name_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_SAFETENSORS_H_
