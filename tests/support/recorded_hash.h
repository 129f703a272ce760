#ifndef QUARTET_TESTS_SUPPORT_RECORDED_HASH_H_
#define QUARTET_TESTS_SUPPORT_RECORDED_HASH_H_

#include <cstddef>
#include <string>

// Reference tensors of EXL3 that are kept as hashes (tests/data/exl3/README.md).

namespace quartet::testing {

// In hexadecimal.
std::string Sha256(const void* data, size_t bytes);

// What exact.json records of a tensor that was left out of its file.
std::string RecordedSha(const std::string& file, const std::string& tensor);

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_RECORDED_HASH_H_
