#include "shard_worker/checkpoint/json_text.h"

#include <sys/stat.h>

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unordered_set>
#include <vector>
#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

namespace json = boost::json;

constexpr size_t kMaxDepth = 32;

// Walks the text once and remembers the keys of every open object.
struct DuplicateKeyFinder {
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = 1 << 16;
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  std::vector<std::unordered_set<std::string>> open;
  std::string key;
  std::string duplicate;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(size_t, json::error_code&) {
    open.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code& ec) {
    key.append(part.data(), part.size());
    if (!open.back().insert(key).second) {
      duplicate = key;
      ec = json::error::extra_data;
      return false;
    }
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

}  // namespace

absl::StatusOr<json::value> ParseJsonText(std::string_view text, std::string_view what) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::basic_parser<DuplicateKeyFinder> finder(options);
  json::error_code ec;
  const size_t used = finder.write_some(false, text.data(), text.size(), ec);
  if (!finder.handler().duplicate.empty()) {
    return absl::InvalidArgumentError(Cat(what, ": \"", finder.handler().duplicate,
                                          "\" appears twice; expected every name once"));
  }
  if (ec) {
    return absl::InvalidArgumentError(
        Cat(what, ": not valid JSON near byte ", used, " (", ec.message(), ")"));
  }
  json::value value = json::parse(json::string_view(text.data(), text.size()), ec, {}, options);
  if (ec) {
    return absl::InvalidArgumentError(Cat(what, ": not valid JSON (", ec.message(), ")"));
  }
  return value;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(Cat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(Cat(path, ": not a regular file"));
  }
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return absl::InvalidArgumentError(
        Cat(path, ": ", info.st_size, " bytes, expected at most ", max_bytes));
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) {
    return absl::UnavailableError(Cat(path, ": could not be read"));
  }
  return text.str();
}

std::string DescribeJson(const json::value& value) {
  std::string text = json::serialize(value);
  if (text.size() > 80) {
    text.resize(77);
    text += "...";
  }
  return text;
}

}  // namespace quartet
