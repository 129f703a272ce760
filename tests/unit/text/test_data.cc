#include "tests/unit/text/test_data.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "services/gateway/text/files.h"
#include "services/gateway/text/json.h"

namespace quartet::text {

std::string SourcePath(std::string_view relative) {
  return std::string(QUARTET_SOURCE_DIR) + "/" + std::string(relative);
}

Value LoadJson(std::string_view relative) {
  absl::StatusOr<Value> value = ReadJsonObjectFile(SourcePath(relative), size_t{64} << 20);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *value : Value();
}

Value Json(std::string_view text) {
  absl::StatusOr<Value> value = ParseJson(text);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *value : Value();
}

std::vector<int32_t> Ids(const Value& list) {
  std::vector<int32_t> out;
  for (const Value& id : list.list()) out.push_back(static_cast<int32_t>(id.integer()));
  return out;
}

const Tokenizer& ToyTokenizer() {
  static const auto tokenizer = Tokenizer::Load(SourcePath("tests/data/chat/toy_tokenizer.json"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return **tokenizer;
}

Value TemplateVariables(const Value& example) {
  Value::Entries variables = example.Get("kwargs").entries();
  variables.emplace_back("messages", example.Get("messages"));
  variables.emplace_back("tools", example.Get("tools"));
  return Value::MakeObject(std::move(variables));
}

std::vector<std::string> SingleBytes(std::string_view text) {
  std::vector<std::string> out;
  for (const char c : text) out.emplace_back(1, c);
  return out;
}

std::vector<std::string> RandomCuts(std::string_view text, std::mt19937& random) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t bytes = std::min<size_t>(text.size(), 1 + random() % 9);
    out.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return out;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = testing::TempDir() + "quartet_text_XXXXXX";
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::Write(std::string_view name, std::string_view text) const {
  std::ofstream(path_ + "/" + std::string(name), std::ios::binary) << text;
}

}  // namespace quartet::text
