// One HTTP request and the answer to it, between the server that moves bytes and the handler that
// makes them.
#ifndef QUARTET_SERVICES_GATEWAY_HTTP_HTTP_CALL_H_
#define QUARTET_SERVICES_GATEWAY_HTTP_HTTP_CALL_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quartet::gateway {

struct HttpRequest {
  std::string method;
  std::string path;               // without the query
  std::string remote;             // the peer's address, for logs
  std::string client_request_id;  // X-Request-Id; empty if the client sent none or an unfit one
  // X-Request-Id of every answer: the client's, else one that the server made.
  std::string request_id;
  // The header as it came, or "Bearer " and an X-Api-Key; never logged.
  std::string authorization;
  std::string deadline_ms;        // X-Request-Deadline-Ms as it came
  std::string anthropic_version;  // Anthropic-Version as it came: who sends it wants its forms
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
  std::string body;
};

struct HttpStreamHead {
  int status = 200;
  std::string content_type;
  HttpHeaders headers;
  // Sent whenever nothing else was for the server's ping interval. Empty: never.
  std::string ping;
};

// A handler answers either with Reply, or with StartStream, any number of Write and EndStream. All
// methods are thread safe and none blocks. After the peer has gone, everything is accepted and
// dropped.
class HttpCall {
 public:
  virtual ~HttpCall() = default;

  virtual const HttpRequest& request() const = 0;
  // Moves the body out, so that it need not stay in memory while the answer is made. For the
  // handler, once.
  virtual std::string TakeBody() = 0;

  // `on_closed` is called at most once, on the connection's thread, when the peer has gone or reads
  // too slowly before the answer is complete; at once (in this thread) if that has happened
  // already. `on_drained` is called after a Write that returned false, when the peer has read
  // enough to go on. Both are dropped when the answer is complete.
  virtual void Watch(std::function<void()> on_closed, std::function<void()> on_drained) = 0;

  virtual void Reply(HttpReply reply) = 0;
  virtual void StartStream(HttpStreamHead head) = 0;
  // False: the peer reads slowly; write no more until `on_drained`. The bytes were taken all the
  // same.
  virtual bool Write(std::string_view bytes) = 0;
  virtual void EndStream() = 0;

  // Adds `key=value` to the access log line of this request. Never text of prompts or answers.
  virtual void Note(std::string_view key, std::string_view value) = 0;
};

// Limits of a call's output buffer, in bytes.
struct OutputMarks {
  size_t pause_at = 256 << 10;  // Write returns false from here on
  size_t resume_at = 64 << 10;  // on_drained is called below this
};

struct CallTraits {
  bool http_1_0 = false;
  bool keep_alive = true;  // as the client wishes
  bool head_only = false;  // the request was HEAD: the reply's body is left out
  OutputMarks marks;
  HttpHeaders
      headers;  // of every answer; one that the handler sets takes the place of its namesake
};

// The HttpCall that the server hands out: frames the answer and holds what is not sent yet.
// Handlers use the HttpCall side from any thread; the connection uses the rest from its own thread.
class BufferedCall final : public HttpCall {
 public:
  // `wake` tells the connection that there is something to send; it is called with no lock held
  // that the connection needs, from any thread, and never after Detach. `closing`: the server
  // drains, so connections are not kept.
  BufferedCall(HttpRequest request, CallTraits traits,
               std::shared_ptr<const std::atomic<bool>> closing, std::function<void()> wake);

  const HttpRequest& request() const override { return request_; }
  std::string TakeBody() override { return std::move(request_.body); }
  void Watch(std::function<void()> on_closed, std::function<void()> on_drained) override;
  void Reply(HttpReply reply) override;
  void StartStream(HttpStreamHead head) override;
  bool Write(std::string_view bytes) override;
  void EndStream() override;
  void Note(std::string_view key, std::string_view value) override;

  // Holds what is to be let go before the end of the answer is sent, or when the peer has gone.
  void Hold(std::shared_ptr<void> lease);

  struct Output {
    std::string bytes;
    bool finished = false;  // nothing follows these bytes
  };
  // Takes everything that waits to be sent. The bytes still count as buffered until Sent.
  Output Take();
  // `bytes` of what was taken have left; calls on_drained if the mark was crossed.
  void Sent(size_t bytes);
  // Appends a ping if the answer is a stream that wants pings and is not finished.
  void Ping();
  // The peer has gone: calls on_closed unless the answer is complete. Idempotent.
  void Close();
  // The connection ends; `wake` is not called any more.
  void Detach();

  bool finished() const;
  bool pings() const;
  // Whether the buffer is above the mark and has not been drained since.
  bool paused() const;
  // Valid once the head was made: whether the connection may serve another request afterwards.
  bool keep_alive() const;
  int status() const;              // 0 before the head was made
  std::string request_id() const;  // X-Request-Id as it was sent; empty if it was not
  std::string notes() const;
  size_t body_bytes() const;

 private:
  void MakeHead(int status, std::string_view content_type, const HttpHeaders& headers,
                int64_t content_length);
  void Frame(std::string_view bytes);
  void Wake(std::unique_lock<std::mutex> lock);

  HttpRequest request_;
  const CallTraits traits_;
  const std::shared_ptr<const std::atomic<bool>> closing_;

  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::function<void()> on_closed_;
  std::function<void()> on_drained_;
  std::shared_ptr<void> lease_;
  std::string pending_;
  size_t in_flight_ = 0;  // taken, not yet sent
  size_t body_bytes_ = 0;
  int status_ = 0;
  bool chunked_ = false;
  bool keep_alive_ = false;
  bool finished_ = false;
  bool closed_ = false;
  bool paused_ = false;
  std::string ping_;
  std::string request_id_;
  std::string notes_;
};

// The reason phrase of a status; "Unknown" for those that are not used here.
std::string_view HttpReason(int status);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_HTTP_HTTP_CALL_H_
