// What the tests of the text room share: files of the repository, and random cuts.
#ifndef QUARTET_TESTS_UNIT_TEXT_TEST_DATA_H_
#define QUARTET_TESTS_UNIT_TEXT_TEST_DATA_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/template/chat_template.h"
#include "services/gateway/text/tokenizer.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// Path of a file of the repository.
std::string SourcePath(std::string_view relative);

// A JSON file of the repository; the test fails, and the value is undefined, if it cannot be read.
Value LoadJson(std::string_view relative);
Value Json(std::string_view text);

std::vector<int32_t> Ids(const Value& list);

// The tokenizer of tests/data/chat: 602 base entries, the added tokens 602..637.
const Tokenizer& ToyTokenizer();

// The template variables of an example of templates.json.
Value TemplateVariables(const Value& example);

// `text` in pieces: of one byte each, or cut at random places.
std::vector<std::string> SingleBytes(std::string_view text);
std::vector<std::string> RandomCuts(std::string_view text, std::mt19937& random);

// A folder that vanishes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  void Write(std::string_view name, std::string_view text) const;

 private:
  std::string path_;
};

}  // namespace quartet::text

#endif  // QUARTET_TESTS_UNIT_TEXT_TEST_DATA_H_
