// A coordinator that says a token when it is told to, on any number of streams at once. It speaks
// engine.proto over real gRPC and queues what it writes as the real one does.
#ifndef QUARTET_TESTS_LOAD_PACED_ENGINE_H_
#define QUARTET_TESTS_LOAD_PACED_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tests/load/token_feed.h"

namespace quartet::load {

// What the gateway said about a stream.
struct SeenStream {
  bool submitted = false;
  uint32_t said = 0;
  std::optional<Clock::time_point> paused_since;
  uint32_t pauses = 0;
  std::optional<Clock::time_point> cancelled_at;  // before everything was said
  Clock::duration paused_for_at_cancel{};
  std::string fault;  // what is wrong with its submit
};

// Thread safe. Destroying it breaks all calls.
class PacedEngine {
 public:
  // `feed` must outlive it.
  static absl::StatusOr<std::unique_ptr<PacedEngine>> Start(TokenFeed* feed);
  virtual ~PacedEngine() = default;

  virtual std::string address() const = 0;
  virtual size_t submitted() const = 0;
  virtual SeenStream seen(size_t stream) const = 0;
  // Says the stream's next token, and the end behind the last one. False if the stream has not been
  // submitted, is paused or has ended.
  virtual bool Say(size_t stream) = 0;
  // Whether nothing can be said any more.
  virtual bool over(size_t stream) const = 0;
};

}  // namespace quartet::load

#endif  // QUARTET_TESTS_LOAD_PACED_ENGINE_H_
