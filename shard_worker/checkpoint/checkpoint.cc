#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/escaping.h"
#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/checkpoint/message.h"
#include "shard_worker/checkpoint/safetensors.h"

namespace quartet {
namespace {

namespace json = boost::json;

constexpr uint64_t kMaxIndexBytes = 256u << 20;
constexpr size_t kMaxShards = 4096;

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

// name -> shard file name, as the index says it.
using WeightMap = std::unordered_map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<json::value> parsed = ParseJsonText(*text, path);
  if (!parsed.ok()) return parsed.status();
  const json::value* map =
      parsed->is_object() ? parsed->get_object().if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) {
    return absl::InvalidArgumentError(
        Cat(path, ": weight_map is missing, expected an object of tensor name to shard"));
  }
  WeightMap result;
  for (const auto& item : map->get_object()) {
    if (!item.value().is_string()) {
      return absl::InvalidArgumentError(Cat(path, ": weight_map[\"", std::string(item.key()),
                                            "\"] is ", DescribeJson(item.value()),
                                            ", expected the name of a shard"));
    }
    const json::string& shard = item.value().get_string();
    const std::string name(shard.data(), shard.size());
    // Shards lie beside the index; a path could lead anywhere.
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return absl::InvalidArgumentError(Cat(path, ": weight_map[\"", std::string(item.key()),
                                            "\"] is \"", name,
                                            "\", expected a file name without a folder"));
    }
    result.emplace(std::string(item.key()), name);
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir) {
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint);
  checkpoint->dir_ = dir;
  const std::string index_path = dir + "/model.safetensors.index.json";
  const std::string single_path = dir + "/model.safetensors";
  std::vector<std::string> shards;
  WeightMap index;
  if (Exists(index_path)) {
    absl::StatusOr<WeightMap> map = ReadIndex(index_path);
    if (!map.ok()) return map.status();
    index = *std::move(map);
    checkpoint->has_index_ = true;
    for (const auto& item : index) shards.push_back(item.second);
    std::sort(shards.begin(), shards.end());
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
    if (shards.empty() || shards.size() > kMaxShards) {
      return absl::InvalidArgumentError(
          Cat(index_path, ": names ", shards.size(), " shards, expected 1 to ", kMaxShards));
    }
  } else if (Exists(single_path)) {
    shards.push_back("model.safetensors");
  } else {
    return absl::NotFoundError(
        Cat(dir, ": no weights; expected model.safetensors or model.safetensors.index.json"));
  }

  for (const std::string& shard : shards) {
    const std::string path = Cat(dir, "/", shard);
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
    if (!file.ok()) {
      if (absl::IsNotFound(file.status()) && checkpoint->has_index_) {
        return absl::NotFoundError(
            Cat(path, ": shard is missing, but ", index_path, " names it for ",
                std::count_if(index.begin(), index.end(),
                              [&](const auto& item) { return item.second == shard; }),
                " tensors; expected all ", shards.size(), " shards in the folder"));
      }
      return file.status();
    }
    for (const TensorView& tensor : (*file)->tensors()) {
      const auto [other, inserted] = checkpoint->by_name_.emplace(tensor.name, &tensor);
      if (!inserted) {
        return absl::InvalidArgumentError(Cat("tensor \"", tensor.name, "\" is in ", path,
                                              " and in ", other->second->file,
                                              "; expected it once"));
      }
      checkpoint->tensors_.push_back(&tensor);
      if (!checkpoint->has_index_) continue;
      const auto entry = index.find(tensor.name);
      if (entry == index.end()) {
        return absl::InvalidArgumentError(Cat(path, ": tensor \"", tensor.name, "\" is not in ",
                                              index_path, "; expected the index to name it"));
      }
      if (entry->second != shard) {
        return absl::InvalidArgumentError(Cat(path, ": holds tensor \"", tensor.name, "\", but ",
                                              index_path, " places it in ", entry->second));
      }
    }
    checkpoint->files_.push_back(*std::move(file));
  }
  if (checkpoint->by_name_.size() < index.size()) {
    // Named in a stable order, whatever the hash map's.
    std::map<std::string, std::string> missing;
    for (const auto& item : index) {
      if (checkpoint->by_name_.count(item.first) == 0) missing.insert(item);
    }
    const auto& first = *missing.begin();
    return absl::InvalidArgumentError(Cat(dir, "/", first.second, ": does not hold tensor \"",
                                          first.first, "\", which ", index_path, " places there (",
                                          missing.size(), " such)"));
  }
  return checkpoint;
}

std::unique_ptr<Checkpoint> Checkpoint::FromMemory(const std::string& dir,
                                                   std::deque<TensorView> tensors,
                                                   std::shared_ptr<void> owner) {
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint);
  checkpoint->dir_ = dir;
  checkpoint->in_memory_ = std::move(tensors);
  checkpoint->owner_ = std::move(owner);
  for (const TensorView& tensor : checkpoint->in_memory_) {
    checkpoint->by_name_.emplace(tensor.name, &tensor);
    checkpoint->tensors_.push_back(&tensor);
  }
  return checkpoint;
}

const TensorView* Checkpoint::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

uint64_t Checkpoint::data_bytes() const {
  uint64_t bytes = 0;
  for (const TensorView* tensor : tensors_) bytes += static_cast<uint64_t>(tensor->bytes);
  return bytes;
}

absl::StatusOr<std::string> Checkpoint::Digest() const {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                  &EVP_MD_CTX_free);
  bool good = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  // Every part is preceded by its length, so that no two different inputs give the same stream.
  const auto add = [&](std::string_view bytes) {
    std::string length(8, '\0');
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(bytes.size() >> (8 * i));
    good = good && EVP_DigestUpdate(context.get(), length.data(), length.size()) == 1 &&
           EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1;
  };
  absl::StatusOr<std::string> config = ReadTextFile(dir_ + "/config.json", kMaxIndexBytes);
  if (!config.ok()) return config.status();
  add(*config);
  if (has_index_) {
    absl::StatusOr<std::string> index =
        ReadTextFile(dir_ + "/model.safetensors.index.json", kMaxIndexBytes);
    if (!index.ok()) return index.status();
    add(*index);
  }
  for (const auto& file : files_) {
    add(file->header());
    add(Cat(file->size()));
  }
  for (const TensorView& tensor : in_memory_) {
    add(Cat(tensor.name, " ", ToString(tensor.dtype), " ", ShapeString(tensor.shape)));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  good = good && EVP_DigestFinal_ex(context.get(), digest, &size) == 1;
  if (!good) return absl::InternalError("SHA-256 failed in libcrypto");
  return absl::BytesToHexString(std::string(reinterpret_cast<const char*>(digest), size));
}

}  // namespace quartet
