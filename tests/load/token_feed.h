// What the streams of a load test say, and when each token was said: the engine's side writes the
// times and the reader's side looks them up.
#ifndef QUARTET_TESTS_LOAD_TOKEN_FEED_H_
#define QUARTET_TESTS_LOAD_TOKEN_FEED_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/tokenizer.h"

namespace quartet::load {

using Clock = std::chrono::steady_clock;

struct Word {
  int32_t id = 0;
  std::string text;
};

// Tokens that are a space and letters, so that each is shown as soon as it comes.
std::vector<Word> PlainWords(const text::Tokenizer& tokenizer);

// The name of a stream's request, and the stream of a name.
std::string RequestName(size_t stream);
std::optional<size_t> StreamOfName(std::string_view name);

// Thread safe. The words go round, each stream begins at another one.
class TokenFeed {
 public:
  // `tokens`: how many each stream says.
  TokenFeed(std::vector<Word> words, const std::vector<uint32_t>& tokens);

  size_t streams() const { return tokens_.size(); }
  uint32_t tokens(size_t stream) const { return tokens_[stream]; }
  const Word& word(size_t stream, uint32_t index) const {
    return words_[(stream * 7 + index) % words_.size()];
  }

  void NoteSaid(size_t stream, uint32_t index, Clock::time_point when) {
    said_[first_[stream] + index].store(when.time_since_epoch().count(), std::memory_order_release);
  }
  // After NoteSaid.
  Clock::time_point SaidAt(size_t stream, uint32_t index) const {
    return Clock::time_point(
        Clock::duration(said_[first_[stream] + index].load(std::memory_order_acquire)));
  }

 private:
  const std::vector<Word> words_;
  const std::vector<uint32_t> tokens_;
  std::vector<size_t> first_;  // of each stream, in said_
  std::vector<std::atomic<Clock::rep>> said_;
};

}  // namespace quartet::load

#endif  // QUARTET_TESTS_LOAD_TOKEN_FEED_H_
