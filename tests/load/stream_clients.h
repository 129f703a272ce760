// Many clients that read a chat's answer as a stream, each on a connection of its own, all in one
// thread.
#ifndef QUARTET_TESTS_LOAD_STREAM_CLIENTS_H_
#define QUARTET_TESTS_LOAD_STREAM_CLIENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/load/token_feed.h"

namespace quartet::load {

struct ClientsOptions {
  std::string address;  // host:port of the gateway
  std::string model;    // as the gateway serves it
  // The first so many streams read the head of their answer and then nothing until ReadOn. They ask
  // for log-probabilities, which make much of few tokens, and their sockets take little ahead.
  size_t slow_streams = 0;
  // Requests that may wait for their answer's head at a time: a gateway queues a few hundred.
  size_t opening_max = 64;
};

// How a stream went.
struct StreamReport {
  uint32_t tokens = 0;  // read whole
  bool whole = false;   // all tokens, a finish reason and [DONE] came
  std::string error;    // the connection's, if it broke
  std::string fault;    // what an answer must not have: another status, other text, an error event
};

// Thread safe.
class StreamClients {
 public:
  // `feed` must outlive it. Begins at once.
  static std::unique_ptr<StreamClients> Start(ClientsOptions options, const TokenFeed* feed);
  virtual ~StreamClients() = default;  // closes what is open

  virtual size_t opened() const = 0;     // streams whose answer has begun
  virtual size_t open_slow() const = 0;  // slow ones that have not ended
  virtual size_t open_others() const = 0;
  virtual void ReadOn() = 0;

  // To be called when all streams have ended.
  virtual const std::vector<StreamReport>& reports() const = 0;
  // From the engine's word to the client's eye, of each token of the streams that are not slow.
  virtual const std::vector<double>& latencies_ms() const = 0;
  virtual Clock::time_point last_token_at() const = 0;  // of those
};

}  // namespace quartet::load

#endif  // QUARTET_TESTS_LOAD_STREAM_CLIENTS_H_
