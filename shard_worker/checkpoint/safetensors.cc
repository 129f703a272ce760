#include "shard_worker/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <cerrno>
#include <cstring>
#include <optional>

#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

namespace json = boost::json;

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  int64_t size;
};

constexpr std::array<DtypeInfo, 15> kDtypes = {{
    {Dtype::kBool, "BOOL", 1},
    {Dtype::kU8, "U8", 1},
    {Dtype::kI8, "I8", 1},
    {Dtype::kF8E4M3, "F8_E4M3", 1},
    {Dtype::kF8E5M2, "F8_E5M2", 1},
    {Dtype::kI16, "I16", 2},
    {Dtype::kU16, "U16", 2},
    {Dtype::kF16, "F16", 2},
    {Dtype::kBf16, "BF16", 2},
    {Dtype::kI32, "I32", 4},
    {Dtype::kU32, "U32", 4},
    {Dtype::kF32, "F32", 4},
    {Dtype::kI64, "I64", 8},
    {Dtype::kU64, "U64", 8},
    {Dtype::kF64, "F64", 8},
}};

std::optional<uint64_t> AsUint(const json::value& value) {
  if (value.is_int64() && value.get_int64() >= 0) return static_cast<uint64_t>(value.get_int64());
  if (value.is_uint64()) return value.get_uint64();
  return std::nullopt;
}

uint64_t LoadLittleEndian64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  return value;
}

// A lost symbolic link becomes a small text file that holds a path; say so, since the bare message
// about the header would send people looking for damage.
std::string LinkHint(absl::Span<const std::byte> head, uint64_t file_size) {
  if (file_size > 4096 || head.size() < file_size) return "";
  const std::string_view text(reinterpret_cast<const char*>(head.data()), file_size);
  const bool printable =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 32 && c < 127; });
  if (!printable || text.find(".safetensors") == std::string_view::npos) return "";
  return Cat("; the file is the text \"", text,
             "\", a symbolic link that was lost in copying: link or copy that file here");
}

absl::StatusOr<HeaderEntry> ParseEntry(const std::string& name, const json::value& value,
                                       std::string_view path) {
  const auto fail = [&](std::string_view what) {
    return absl::InvalidArgumentError(Cat(path, ": tensor \"", name, "\": ", what));
  };
  if (!value.is_object()) return fail("expected an object with dtype, shape and data_offsets");
  const json::object& object = value.get_object();
  for (const auto& field : object) {
    if (field.key() != "dtype" && field.key() != "shape" && field.key() != "data_offsets") {
      return fail(Cat("unknown field \"", std::string(field.key()),
                      "\", expected dtype, shape and data_offsets"));
    }
  }
  HeaderEntry entry;
  entry.name = name;

  const json::value* dtype = object.if_contains("dtype");
  if (dtype == nullptr || !dtype->is_string()) return fail("dtype is missing or not a string");
  const std::string_view dtype_name(dtype->get_string().data(), dtype->get_string().size());
  const auto info = std::find_if(kDtypes.begin(), kDtypes.end(),
                                 [&](const DtypeInfo& d) { return d.name == dtype_name; });
  if (info == kDtypes.end()) {
    std::vector<std::string_view> names;
    for (const DtypeInfo& known : kDtypes) names.push_back(known.name);
    return fail(
        Cat("dtype ", DescribeJson(*dtype), " is unknown; expected one of ", Join(names, ", ")));
  }
  entry.dtype = info->dtype;

  const json::value* shape = object.if_contains("shape");
  if (shape == nullptr || !shape->is_array() || shape->get_array().size() > kMaxTensorDims) {
    return fail(Cat("shape is missing or not a list of at most ", kMaxTensorDims, " sizes"));
  }
  uint64_t bytes = info->size;
  for (const json::value& item : shape->get_array()) {
    const std::optional<uint64_t> size = AsUint(item);
    if (!size || *size > (uint64_t{1} << 40)) {
      return fail(Cat("shape holds ", DescribeJson(item), ", expected sizes from 0 to 2^40"));
    }
    entry.shape.push_back(static_cast<int64_t>(*size));
    if (__builtin_mul_overflow(bytes, *size, &bytes) || bytes > (uint64_t{1} << 60)) {
      return fail(Cat("shape ", DescribeJson(*shape), " is larger than any file"));
    }
  }

  const json::value* offsets = object.if_contains("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->get_array().size() != 2) {
    return fail("data_offsets is missing or not a pair");
  }
  const std::optional<uint64_t> begin = AsUint(offsets->get_array()[0]);
  const std::optional<uint64_t> end = AsUint(offsets->get_array()[1]);
  if (!begin || !end || *end < *begin) {
    return fail(
        Cat("data_offsets ", DescribeJson(*offsets), ", expected two ascending byte offsets"));
  }
  entry.begin = *begin;
  entry.end = *end;
  if (*end - *begin != bytes) {
    return fail(Cat("data_offsets ", DescribeJson(*offsets), " hold ", *end - *begin,
                    " bytes, expected ", bytes, " for ", info->name, " ",
                    ShapeString(entry.shape)));
  }
  return entry;
}

}  // namespace

std::string_view ToString(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}
int64_t DtypeSize(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].size;
}

int64_t TensorView::elements() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

std::string ShapeString(absl::Span<const int64_t> shape) {
  return Cat("[", Join(shape, ", "), "]");
}

absl::StatusOr<std::vector<HeaderEntry>> ParseSafetensorsHeader(absl::Span<const std::byte> head,
                                                                uint64_t file_size,
                                                                std::string_view path) {
  const auto fail = [&](std::string_view what) {
    return absl::InvalidArgumentError(Cat(path, ": ", what));
  };
  if (file_size < 8 || head.size() < 8) {
    return fail(Cat("file of ", file_size,
                    " bytes, expected a safetensors file (8 bytes of header length first)"));
  }
  const uint64_t header_bytes = LoadLittleEndian64(head.data());
  if (header_bytes > file_size - 8) {
    return fail(Cat("header of ", header_bytes, " bytes is longer than the file, which has ",
                    file_size - 8, " bytes after the header length", LinkHint(head, file_size)));
  }
  if (header_bytes > kMaxHeaderBytes) {
    return fail(Cat("header of ", header_bytes, " bytes, expected at most ", kMaxHeaderBytes));
  }
  if (head.size() < 8 + header_bytes) return fail("header was not read whole");
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + 8, header_bytes);
  absl::StatusOr<json::value> parsed = ParseJsonText(text, Cat(path, ": header"));
  if (!parsed.ok()) return parsed.status();
  if (!parsed->is_object()) return fail("header is not a JSON object");
  const json::object& object = parsed->get_object();
  if (object.size() > kMaxTensorsPerFile) {
    return fail(Cat(object.size(), " tensors, expected at most ", kMaxTensorsPerFile));
  }

  std::vector<HeaderEntry> entries;
  entries.reserve(object.size());
  for (const auto& item : object) {
    if (item.key() == "__metadata__") {
      if (!item.value().is_object()) return fail("__metadata__ is not an object");
      continue;
    }
    absl::StatusOr<HeaderEntry> entry = ParseEntry(std::string(item.key()), item.value(), path);
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });

  const uint64_t data_bytes = file_size - 8 - header_bytes;
  uint64_t next = 0;
  const HeaderEntry* last = nullptr;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin < next) {
      return fail(Cat("tensor \"", entry.name, "\" begins at data byte ", entry.begin,
                      ", inside \"", last->name, "\", which ends at ", next,
                      "; expected tensors that do not overlap"));
    }
    if (entry.begin > next) {
      return fail(Cat("bytes ", next, " to ", entry.begin, " in front of tensor \"", entry.name,
                      "\" belong to no tensor; expected no gaps"));
    }
    if (entry.end > data_bytes) {
      return fail(Cat("tensor \"", entry.name, "\" ends at data byte ", entry.end,
                      ", but the file holds only ", data_bytes,
                      " bytes of data: it is cut short, expected ",
                      8 + header_bytes + entries.back().end, " bytes in all"));
    }
    next = entry.end;
    last = &entry;
  }
  if (next != data_bytes) {
    return fail(Cat(data_bytes - next,
                    " bytes after the last tensor belong to none; expected a file of ",
                    8 + header_bytes + next, " bytes, found ", file_size));
  }
  return entries;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    const std::string message = Cat(path, ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(Cat(path, ": not a regular file"));
  }
  auto file = std::unique_ptr<SafetensorsFile>(new SafetensorsFile);
  file->path_ = path;
  file->size_ = static_cast<uint64_t>(info.st_size);
  if (file->size_ > 0) {
    void* map = mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return absl::UnavailableError(
          Cat(path, ": mmap of ", file->size_, " bytes: ", std::strerror(error)));
    }
    file->map_ = static_cast<const std::byte*>(map);
  }
  close(fd);

  absl::StatusOr<std::vector<HeaderEntry>> entries = ParseSafetensorsHeader(
      absl::MakeConstSpan(file->map_, file->size_), file->size_, file->path_);
  if (!entries.ok()) return entries.status();
  const uint64_t header_bytes = LoadLittleEndian64(file->map_);
  file->header_ = std::string_view(reinterpret_cast<const char*>(file->map_) + 8, header_bytes);
  const std::byte* data = file->map_ + 8 + header_bytes;
  for (HeaderEntry& entry : *entries) {
    TensorView& view = file->tensors_.emplace_back();
    view.name = std::move(entry.name);
    view.dtype = entry.dtype;
    view.shape = std::move(entry.shape);
    view.data = data + entry.begin;
    view.bytes = static_cast<int64_t>(entry.end - entry.begin);
    view.file = file->path_;
    view.file_offset = view.data - file->map_;
  }
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (map_ != nullptr) munmap(const_cast<std::byte*>(map_), size_);
}

}  // namespace quartet
