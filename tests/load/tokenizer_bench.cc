// How fast one thread turns text into ids. tokenizer_bench.py is the driver that sets it beside
// Hugging Face `tokenizers`; by itself it encodes any text file.
//
// One pass over all documents for each line of standard input, so that a driver can put another
// library's passes between them.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/tokenizer.h"

namespace quartet::text {
namespace {

using Documents = std::vector<std::string_view>;
using DocumentIds = std::vector<std::vector<int32_t>>;  // by document

// Processor time, not time on the clock: other work on the machine does not count.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Documents SplitAtZeroBytes(std::string_view text) {
  Documents out;
  while (!text.empty()) {
    const size_t end = text.find('\0');
    if (end != 0) out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return out;
}

// Every document's ids in the machine's byte order, their number in front.
bool WriteIds(const std::string& path, const DocumentIds& ids) {
  std::ofstream file(path, std::ios::binary);
  for (const std::vector<int32_t>& document : ids) {
    const auto count = static_cast<int32_t>(document.size());
    file.write(reinterpret_cast<const char*>(&count), sizeof(count));
    file.write(reinterpret_cast<const char*>(document.data()),
               static_cast<std::streamsize>(document.size() * sizeof(int32_t)));
  }
  return file.flush().good();
}

int Run(const std::string& tokenizer_path, const std::string& documents_path,
        const std::string& ids_path) {
  const double load_begin = CpuSeconds();
  const auto tokenizer = Tokenizer::Load(tokenizer_path);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  const double load_seconds = CpuSeconds() - load_begin;

  std::ifstream file(documents_path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Documents documents = SplitAtZeroBytes(text);
  if (!file || documents.empty()) {
    std::fprintf(stderr, "--documents: %s holds no text\n", documents_path.c_str());
    return 1;
  }
  std::printf("loaded %.3f s, vocabulary %d, documents %zu\n", load_seconds,
              (*tokenizer)->vocab_size(), documents.size());
  std::fflush(stdout);

  for (std::string line; std::getline(std::cin, line);) {
    DocumentIds ids(documents.size());
    size_t tokens = 0;
    const double begin = CpuSeconds();
    for (size_t i = 0; i < documents.size(); ++i) {
      auto encoded = (*tokenizer)->Encode(documents[i]);
      if (!encoded.ok()) {
        std::fprintf(stderr, "%s\n", encoded.status().ToString().c_str());
        return 1;
      }
      ids[i] = *std::move(encoded);
      tokens += ids[i].size();
    }
    const double seconds = CpuSeconds() - begin;
    if (!ids_path.empty() && !WriteIds(ids_path, ids)) {
      std::fprintf(stderr, "--ids: cannot write %s\n", ids_path.c_str());
      return 1;
    }
    std::printf("pass %.6f s, tokens %zu, %.1f MB/s\n", seconds, tokens,
                static_cast<double>(text.size()) * 1e-6 / seconds);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace quartet::text

int main(int argc, char** argv) {
  CLI::App app(
      "How fast one thread turns text into ids; one pass for each line of standard input.");
  std::string tokenizer;
  std::string documents;
  std::string ids;
  app.add_option("--tokenizer", tokenizer, "A tokenizer.json")->required();
  app.add_option("--documents", documents, "Texts with a zero byte between one and the next")
      ->required();
  app.add_option("--ids", ids, "File that gets the ids of each pass");
  CLI11_PARSE(app, argc, argv);
  return quartet::text::Run(tokenizer, documents, ids);
}
