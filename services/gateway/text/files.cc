#include "services/gateway/text/files.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/json.h"

namespace quartet::text {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (status.type() != std::filesystem::file_type::regular) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  if (bytes > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", bytes, " bytes, at most ", bytes_max, " are allowed"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  return text;
}

absl::StatusOr<Value> ReadJsonObjectFile(const std::string& path, size_t bytes_max) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, bytes_max);
  if (!text.ok()) return text.status();
  absl::StatusOr<Value> value = ParseJson(*text);
  if (!value.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::string(value.status().message())));
  }
  if (!value->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the top level is ", std::string(value->TypeName()), ", an object is expected"));
  }
  return value;
}

}  // namespace quartet::text
