#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/json_text.h"
#include "tests/support/checkpoint_writer.h"

namespace quartet::testing {
namespace {

namespace json = boost::json;

constexpr uint64_t kMaxFile = uint64_t{1} << 32;

absl::Status Write(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  return stream ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": not written"));
}

// A safetensors file taken apart.
struct Parts {
  json::object header;
  std::string data;
};

absl::StatusOr<Parts> Split(const std::string& path) {
  absl::StatusOr<std::string> file = ReadTextFile(path, kMaxFile);
  if (!file.ok()) return file.status();
  uint64_t length = 0;
  std::memcpy(&length, file->data(), 8);
  return Parts{json::parse(file->substr(8, length)).as_object(), file->substr(8 + length)};
}

absl::Status Join(const std::string& path, const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return Write(path, file + header + data);
}

absl::Status EditHeader(const std::string& path, const std::function<void(Parts&)>& edit) {
  absl::StatusOr<Parts> parts = Split(path);
  if (!parts.ok()) return parts.status();
  edit(*parts);
  return Join(path, json::serialize(parts->header), parts->data);
}

absl::Status EditJson(const std::string& path, const std::function<void(json::object&)>& edit) {
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxFile);
  if (!text.ok()) return text.status();
  json::object object = json::parse(*text).as_object();
  edit(object);
  return Write(path, json::serialize(object));
}

// The entries in the order of their data.
std::vector<std::string> NamesByOffset(const json::object& header) {
  std::vector<std::pair<int64_t, std::string>> names;
  for (const auto& item : header) {
    names.emplace_back(item.value().at("data_offsets").as_array()[0].to_number<int64_t>(),
                       std::string(item.key()));
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> result;
  for (auto& [offset, name] : names) result.push_back(name);
  return result;
}

// Takes the tensor and its data out; what lies behind moves up.
void Remove(Parts& parts, const std::string& name) {
  const json::array gone = parts.header.at(name).at("data_offsets").as_array();
  const int64_t begin = gone[0].to_number<int64_t>();
  const int64_t size = gone[1].to_number<int64_t>() - begin;
  parts.header.erase(name);
  parts.data.erase(static_cast<size_t>(begin), static_cast<size_t>(size));
  for (auto& item : parts.header) {
    json::array& offsets = item.value().at("data_offsets").as_array();
    const int64_t at = offsets[0].to_number<int64_t>();
    if (at >= begin + size) {
      offsets = json::array{at - size, offsets[1].to_number<int64_t>() - size};
    }
  }
}

void AddTensor(Parts& parts, const std::string& name) {
  const int64_t begin = static_cast<int64_t>(parts.data.size());
  parts.header[name] = json::object{
      {"dtype", "F32"}, {"shape", json::array{2}}, {"data_offsets", json::array{begin, begin + 8}}};
  parts.data.append(8, '\0');
}

}  // namespace

absl::Status DamageCheckpoint(const std::string& dir, Damage damage) {
  const std::string index = dir + "/model.safetensors.index.json";
  const bool sharded = std::filesystem::exists(index);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) return absl::NotFoundError(absl::StrCat(dir, ": no safetensors files"));
  const std::string& last = files.back();
  const std::string last_name = std::filesystem::path(last).filename().string();
  const std::string config = dir + "/config.json";
  const auto edit_map = [&](const std::function<void(json::object&)>& edit) -> absl::Status {
    if (!sharded) return absl::OkStatus();
    return EditJson(index, [&](json::object& root) { edit(root.at("weight_map").as_object()); });
  };
  const auto need_shards = [&]() -> absl::Status {
    if (sharded) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(dir, ": not sharded"));
  };

  switch (damage) {
    case Damage::kMissingShard: {
      if (absl::Status status = need_shards(); !status.ok()) return status;
      std::filesystem::remove(last);
      return absl::OkStatus();
    }
    case Damage::kTruncatedTensor:
      std::filesystem::resize_file(last, std::filesystem::file_size(last) - 64);
      return absl::OkStatus();
    case Damage::kOverlappingTensors:
      return EditHeader(last, [](Parts& parts) {
        // Every tensor from the second on moves back by its first bytes.
        const std::vector<std::string> names = NamesByOffset(parts.header);
        json::array& first = parts.header.at(names[0]).at("data_offsets").as_array();
        json::array& second = parts.header.at(names[1]).at("data_offsets").as_array();
        const int64_t size = second[1].to_number<int64_t>() - second[0].to_number<int64_t>();
        const int64_t begin = first[1].to_number<int64_t>() - 2;
        second = json::array{begin, begin + size};
      });
    case Damage::kHeaderLongerThanFile: {
      absl::StatusOr<std::string> file = ReadTextFile(last, kMaxFile);
      if (!file.ok()) return file.status();
      const uint64_t length = file->size();
      std::memcpy(file->data(), &length, 8);
      return Write(last, *file);
    }
    case Damage::kWrongDtype:
      return EditHeader(last, [](Parts& parts) {
        for (const std::string& name : NamesByOffset(parts.header)) {
          json::object& entry = parts.header.at(name).as_object();
          if (entry.at("dtype") != "BF16") continue;
          entry["dtype"] = "I16";
          break;
        }
      });
    case Damage::kWrongShape:
      return EditHeader(last, [](Parts& parts) {
        for (const std::string& name : NamesByOffset(parts.header)) {
          if (!name.ends_with("_proj.weight")) continue;
          json::array& shape = parts.header.at(name).at("shape").as_array();
          const int64_t rows = shape[0].to_number<int64_t>();
          const int64_t cols = shape[1].to_number<int64_t>();
          shape = json::array{rows * 2, cols / 2};
          break;
        }
      });
    case Damage::kMissingTensor: {
      constexpr char kName[] = "model.language_model.norm.weight";
      for (const std::string& file : files) {
        absl::StatusOr<Parts> parts = Split(file);
        if (!parts.ok()) return parts.status();
        if (!parts->header.contains(kName)) continue;
        absl::Status status = EditHeader(file, [&](Parts& edited) { Remove(edited, kName); });
        if (!status.ok()) return status;
        return edit_map([&](json::object& map) { map.erase(kName); });
      }
      return absl::NotFoundError(absl::StrCat(dir, ": no ", kName));
    }
    case Damage::kTensorNotInItsShard: {
      if (absl::Status status = need_shards(); !status.ok()) return status;
      return EditHeader(last,
                        [](Parts& parts) { Remove(parts, NamesByOffset(parts.header).back()); });
    }
    case Damage::kTensorNotInIndex: {
      if (absl::Status status = need_shards(); !status.ok()) return status;
      return EditHeader(last, [](Parts& parts) { AddTensor(parts, "model.stray"); });
    }
    case Damage::kUnknownTensor: {
      const std::string name = "model.language_model.layers.0.self_attn.surprise.weight";
      absl::Status status = EditHeader(last, [&](Parts& parts) { AddTensor(parts, name); });
      if (!status.ok()) return status;
      return edit_map([&](json::object& map) { map[name] = last_name; });
    }
    case Damage::kDuplicateInHeader: {
      absl::StatusOr<Parts> parts = Split(last);
      if (!parts.ok()) return parts.status();
      const auto& first = *parts->header.begin();
      std::string header = json::serialize(parts->header);
      header.insert(1, absl::StrCat(json::serialize(json::string(first.key())), ":",
                                    json::serialize(first.value()), ","));
      return Join(last, header, parts->data);
    }
    case Damage::kDuplicateAcrossShards: {
      if (absl::Status status = need_shards(); !status.ok()) return status;
      absl::StatusOr<Parts> other = Split(files.front());
      if (!other.ok()) return other.status();
      const std::string name = NamesByOffset(other->header).front();
      return EditHeader(last, [&](Parts& parts) { AddTensor(parts, name); });
    }
    case Damage::kUnknownTileOrder:
      return EditJson(config, [](json::object& root) {
        root.at("quantization_config").as_object()["tile_order"] = "sm120_zigzag";
      });
    case Damage::kContradictoryTileOrder: {
      std::string name;
      absl::Status status = EditHeader(last, [&](Parts& parts) {
        for (const std::string& candidate : NamesByOffset(parts.header)) {
          if (candidate.ends_with(".trellis")) {
            name = candidate.substr(0, candidate.size() - 8) + ".tile_order";
          }
        }
        const int64_t begin = static_cast<int64_t>(parts.data.size());
        parts.header[name] = json::object{{"dtype", "I32"},
                                          {"shape", json::array{}},
                                          {"data_offsets", json::array{begin, begin + 4}}};
        parts.data.append("\xC0\x70\0\0", 4);
      });
      if (!status.ok()) return status;
      return edit_map([&](json::object& map) { map[name] = last_name; });
    }
    case Damage::kUnsupportedModelType:
      return EditJson(config, [](json::object& root) { root["model_type"] = "deepseek_v4"; });
  }
  return absl::InternalError("unknown damage");
}

}  // namespace quartet::testing
