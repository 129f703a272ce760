#include "tests/support/recorded_hash.h"

#include <openssl/evp.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>

namespace quartet::testing {

std::string Sha256(const void* data, size_t bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_Digest(data, bytes, digest, &length, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

std::string RecordedSha(const std::string& file, const std::string& tensor) {
  std::ifstream in(std::string(QUARTET_SOURCE_DIR) + "/tests/data/exl3/exact.json");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return std::string(boost::json::parse(text)
                         .at(file)
                         .as_object()
                         .at(tensor)
                         .as_object()
                         .at("sha256")
                         .as_string());
}

}  // namespace quartet::testing
