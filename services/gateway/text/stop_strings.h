// Ends a text at the first of some strings, without ever releasing the beginning of one.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_STOP_STRINGS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_STOP_STRINGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::text {

// One stream of text, fed in pieces of any size; the result does not depend on the cutting. The
// match that begins first wins, and of those that begin at the same place the longest; so a match
// is reported only when no better one can follow. Used by one thread at a time.
class StopMatcher {
 public:
  struct Options {
    // Keeps the stop string itself in the text.
    bool include_stop_string = false;
  };
  // Strings must not be empty (empty ones are ignored). At most 16 strings of 1 KiB are expected;
  // the callers check that.
  explicit StopMatcher(std::vector<std::string> stops) : StopMatcher(std::move(stops), Options{}) {}
  StopMatcher(std::vector<std::string> stops, Options options);

  // Feeds text; returns what can be released now. After a match everything is dropped.
  std::string Append(std::string_view text);
  // Feeds text that no stop string may be in; returns it behind what was held.
  std::string Skip(std::string_view text);
  // The end of the text: decides between matches that were waiting for more, and releases what was
  // held.
  std::string Finish();

  bool stopped() const { return stopped_; }
  // The rest is meaningful once stopped() is true.
  const std::string& stop_string() const { return stops_[matched_]; }
  // Bytes of all the text fed so far at which the match begins and ends. A caller that notes the
  // number of bytes fed after each token finds the token in which the match ended: the first whose
  // count is >= match_end().
  uint64_t match_begin() const { return match_begin_; }
  uint64_t match_end() const { return match_begin_ + stops_[matched_].size(); }

 private:
  std::string Process(bool at_end);

  std::vector<std::string> stops_;
  Options options_;
  std::string pending_;         // text not yet released
  uint64_t pending_begin_ = 0;  // bytes of the stream before pending_
  bool stopped_ = false;
  size_t matched_ = 0;
  uint64_t match_begin_ = 0;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_STOP_STRINGS_H_
