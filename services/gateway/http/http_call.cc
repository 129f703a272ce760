#include "services/gateway/http/http_call.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"

namespace quartet::gateway {

using text::Av;

std::string_view HttpReason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:
      return "Site Is Overloaded";
    default:
      return "Unknown";
  }
}

BufferedCall::BufferedCall(HttpRequest request, CallTraits traits,
                           std::shared_ptr<const std::atomic<bool>> closing,
                           std::function<void()> wake)
    : request_(std::move(request)),
      traits_(traits),
      closing_(std::move(closing)),
      wake_(std::move(wake)) {}

void BufferedCall::Watch(std::function<void()> on_closed, std::function<void()> on_drained) {
  {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!closed_) {
      on_closed_ = std::move(on_closed);
      on_drained_ = std::move(on_drained);
      return;
    }
  }
  if (on_closed) on_closed();
}

void BufferedCall::MakeHead(int status, std::string_view content_type, const HttpHeaders& headers,
                            int64_t content_length) {
  status_ = status;
  keep_alive_ = traits_.keep_alive && !(closing_ && closing_->load());
  if (content_length < 0) {
    // Without a length an HTTP/1.0 answer ends where the connection ends.
    chunked_ = !traits_.http_1_0;
    if (traits_.http_1_0) keep_alive_ = false;
  }
  absl::StrAppend(&pending_, "HTTP/1.1 ", status, " ", Av(HttpReason(status)),
                  "\r\nContent-Type: ", Av(content_type), "\r\n");
  if (content_length >= 0) {
    absl::StrAppend(&pending_, "Content-Length: ", content_length, "\r\n");
  } else if (chunked_) {
    pending_ += "Transfer-Encoding: chunked\r\n";
  }
  const auto add = [this](const std::string& name, const std::string& value) {
    absl::StrAppend(&pending_, name, ": ", value, "\r\n");
    if (absl::EqualsIgnoreCase(name, "X-Request-Id")) request_id_ = value;
  };
  const auto is_set = [&headers](const std::string& name) {
    return std::any_of(headers.begin(), headers.end(), [&name](const auto& header) {
      return absl::EqualsIgnoreCase(header.first, name);
    });
  };
  for (const auto& [name, value] : headers) add(name, value);
  for (const auto& [name, value] : traits_.headers) {
    if (!is_set(name)) add(name, value);
  }
  if (!keep_alive_) {
    pending_ += "Connection: close\r\n";
  } else if (traits_.http_1_0) {
    pending_ += "Connection: keep-alive\r\n";
  }
  pending_ += "\r\n";
}

void BufferedCall::Frame(std::string_view bytes) {
  if (bytes.empty()) return;  // an empty chunk would end the body
  body_bytes_ += bytes.size();
  if (traits_.head_only) return;
  if (chunked_) {
    absl::StrAppend(&pending_, absl::Hex(bytes.size()), "\r\n", Av(bytes), "\r\n");
  } else {
    pending_ += bytes;
  }
}

void BufferedCall::Wake(std::unique_lock<std::mutex> lock) {
  // Under the lock, so that Detach can promise that no call comes after it. `wake` only posts to
  // the connection's thread.
  if (wake_) wake_();
}

void BufferedCall::Reply(HttpReply reply) {
  std::function<void()> closed, drained;  // destroyed without the lock
  std::unique_lock lock(mutex_);
  if (status_ != 0 || closed_) return;
  MakeHead(reply.status, reply.content_type, reply.headers,
           static_cast<int64_t>(reply.body.size()));
  Frame(reply.body);
  finished_ = true;
  lease_.reset();
  closed.swap(on_closed_);
  drained.swap(on_drained_);
  Wake(std::move(lock));
}

void BufferedCall::StartStream(HttpStreamHead head) {
  std::unique_lock lock(mutex_);
  if (status_ != 0 || closed_) return;
  MakeHead(head.status, head.content_type, head.headers, -1);
  ping_ = std::move(head.ping);
  Wake(std::move(lock));
}

bool BufferedCall::Write(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (closed_ || finished_ || status_ == 0) return true;
  Frame(bytes);
  const bool go_on = pending_.size() + in_flight_ < traits_.marks.pause_at;
  if (!go_on) paused_ = true;
  Wake(std::move(lock));
  return go_on;
}

void BufferedCall::EndStream() {
  std::function<void()> closed, drained;
  std::unique_lock lock(mutex_);
  if (closed_ || finished_ || status_ == 0) return;
  if (chunked_) pending_ += "0\r\n\r\n";
  finished_ = true;
  lease_.reset();
  closed.swap(on_closed_);
  drained.swap(on_drained_);
  Wake(std::move(lock));
}

void BufferedCall::Note(std::string_view key, std::string_view value) {
  std::lock_guard lock(mutex_);
  absl::StrAppend(&notes_, " ", Av(key), "=", Av(value));
}

void BufferedCall::Hold(std::shared_ptr<void> lease) {
  std::lock_guard lock(mutex_);
  if (!finished_ && !closed_) lease_ = std::move(lease);
}

BufferedCall::Output BufferedCall::Take() {
  std::lock_guard lock(mutex_);
  Output output;
  output.bytes.swap(pending_);
  output.finished = finished_;
  in_flight_ += output.bytes.size();
  return output;
}

void BufferedCall::Sent(size_t bytes) {
  std::function<void()> drained;
  {
    std::lock_guard lock(mutex_);
    in_flight_ -= bytes;
    if (paused_ && pending_.size() + in_flight_ < traits_.marks.resume_at) {
      paused_ = false;
      drained = on_drained_;
    }
  }
  if (drained) drained();
}

void BufferedCall::Ping() {
  std::lock_guard lock(mutex_);
  if (closed_ || finished_ || status_ == 0 || ping_.empty()) return;
  Frame(ping_);
}

void BufferedCall::Close() {
  std::function<void()> closed, drained;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    lease_.reset();
    pending_.clear();
    closed.swap(on_closed_);
    drained.swap(on_drained_);
    if (finished_) closed = nullptr;
  }
  if (closed) closed();
}

void BufferedCall::Detach() {
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

bool BufferedCall::finished() const {
  std::lock_guard lock(mutex_);
  return finished_;
}
bool BufferedCall::pings() const {
  std::lock_guard lock(mutex_);
  return !ping_.empty() && !finished_;
}
bool BufferedCall::paused() const {
  std::lock_guard lock(mutex_);
  return paused_;
}
bool BufferedCall::keep_alive() const {
  std::lock_guard lock(mutex_);
  return keep_alive_;
}
int BufferedCall::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}
std::string BufferedCall::request_id() const {
  std::lock_guard lock(mutex_);
  return request_id_;
}
std::string BufferedCall::notes() const {
  std::lock_guard lock(mutex_);
  return notes_;
}
size_t BufferedCall::body_bytes() const {
  std::lock_guard lock(mutex_);
  return body_bytes_;
}

}  // namespace quartet::gateway
