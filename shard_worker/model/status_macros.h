#ifndef QUARTET_SHARD_WORKER_MODEL_STATUS_MACROS_H_
#define QUARTET_SHARD_WORKER_MODEL_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expression` (an absl::Status) is an error.
#define QUARTET_RETURN_IF_ERROR(expression)                   \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

// Stores the value of `expression` (an absl::StatusOr) in `target`, an existing variable, or
// returns its error.
#define QUARTET_ASSIGN(target, expression)                 \
  do {                                                     \
    auto result_ = (expression);                           \
    if (!result_.ok()) return std::move(result_).status(); \
    target = *std::move(result_);                          \
  } while (false)

#endif  // QUARTET_SHARD_WORKER_MODEL_STATUS_MACROS_H_
