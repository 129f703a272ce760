#ifndef QUARTET_KERNELS_CPU_CONTEXT_H_
#define QUARTET_KERNELS_CPU_CONTEXT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/exl3.h"
#include "kernels/cpu/thread_pool.h"

namespace quartet::cpu {

// Values that did not fit their stored format, since the backend was made.
struct SaturationCounters {
  std::atomic<uint64_t> f16{0};
  std::atomic<uint64_t> e4m3{0};
};

// What all ops of a backend share. The backend owns it and outlives the ops.
struct Context {
  ThreadPool* pool = nullptr;
  SaturationCounters* saturation = nullptr;
  const Codebooks* codebooks = nullptr;
  const std::array<float, 256>* e4m3 = nullptr;
};

// An error if a weight has other sizes than its neighbours ask for.
inline absl::Status CheckShape(std::string_view what, int64_t rows, int64_t cols,
                               int64_t wanted_rows, int64_t wanted_cols) {
  if (rows == wanted_rows && cols == wanted_cols) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), ": shape [", rows, ", ", cols,
                                                 "], should be [", wanted_rows, ", ", wanted_cols,
                                                 "]"));
}

}  // namespace quartet::cpu

// Leaves the function with the error of `expr`, or sets `lhs` from it.
#define QUARTET_CPU_CONCAT_(a, b) a##b
#define QUARTET_CPU_CONCAT(a, b) QUARTET_CPU_CONCAT_(a, b)
#define QUARTET_CPU_ASSIGN(lhs, expr)                             \
  auto QUARTET_CPU_CONCAT(quartet_value_, __LINE__) = (expr);     \
  if (!QUARTET_CPU_CONCAT(quartet_value_, __LINE__).ok()) {       \
    return QUARTET_CPU_CONCAT(quartet_value_, __LINE__).status(); \
  }                                                               \
  lhs = *std::move(QUARTET_CPU_CONCAT(quartet_value_, __LINE__))
#define QUARTET_CPU_RETURN(expr)                       \
  do {                                                 \
    absl::Status quartet_status_ = (expr);             \
    if (!quartet_status_.ok()) return quartet_status_; \
  } while (false)

#endif  // QUARTET_KERNELS_CPU_CONTEXT_H_
