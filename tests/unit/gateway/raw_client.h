// A blocking HTTP client made of a socket, so that tests see and can break every byte.
#ifndef QUARTET_TESTS_UNIT_GATEWAY_RAW_CLIENT_H_
#define QUARTET_TESTS_UNIT_GATEWAY_RAW_CLIENT_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::testing {

struct RawReply {
  int status = 0;  // 0: the connection ended before a whole head
  std::string version;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // decoded if it was chunked
  bool complete = false;                       // the body ended as its framing says
};

// One connection. Every wait ends after 20 s. Not thread safe.
class RawClient {
 public:
  // `address` is host:port. `receive_buffer_bytes` 0: the system's choice.
  explicit RawClient(const std::string& address, int receive_buffer_bytes = 0);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void SetReceiveBuffer(int bytes);
  bool Send(std::string_view bytes);  // false: the peer has closed
  void HalfClose();
  void Close();
  void Reset();  // closes with RST

  RawReply ReadReply(bool head_request = false);
  // The next reply's head only; its body is then read with ReadChunk or ReadEvent.
  RawReply ReadHead();
  // The next piece of a chunked body; empty at its end or when the connection ended.
  std::string ReadChunk();
  // The next event of a chunked event stream without its blank line; empty at the end.
  std::string ReadEvent();
  // Everything until the peer closes.
  std::string ReadAll();
  // Whether the peer has closed (reads until then).
  bool AtEnd();

 private:
  bool Fill();
  std::string Take(size_t bytes);

  int socket_ = -1;
  std::string buffer_;
  std::string events_;
};

std::string PostText(std::string_view path, std::string_view body,
                     std::string_view extra_headers = "");
std::string GetText(std::string_view path, std::string_view extra_headers = "");
// One request on a connection of its own.
RawReply Fetch(const std::string& address, const std::string& request);

// The value at a path like "choices.0.message.content" of JSON, as text: strings as they are, other
// values as JSON,
// "<none>" if there is nothing.
std::string At(std::string_view json, std::string_view path);

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_GATEWAY_RAW_CLIENT_H_
