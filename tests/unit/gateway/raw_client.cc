#include "tests/unit/gateway/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace quartet::testing {

RawClient::RawClient(const std::string& address, int receive_buffer_bytes) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) SetReceiveBuffer(receive_buffer_bytes);
  const timeval limit{20, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) Close();
}

RawClient::~RawClient() {
  Close();
}

void RawClient::SetReceiveBuffer(int bytes) {
  setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

bool RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void RawClient::HalfClose() {
  shutdown(socket_, SHUT_WR);
}

void RawClient::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void RawClient::Reset() {
  const linger now{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

bool RawClient::Fill() {
  char bytes[16384];
  const ssize_t got = recv(socket_, bytes, sizeof(bytes), 0);
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::string RawClient::Take(size_t bytes) {
  std::string taken = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  return taken;
}

RawReply RawClient::ReadHead() {
  RawReply reply;
  size_t end;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill()) return reply;
  }
  const std::string head = Take(end + 4);
  reply.version = head.substr(0, 8);
  reply.status = std::stoi(head.substr(9, 3));
  size_t at = head.find("\r\n") + 2;
  while (at < head.size() - 2) {
    const size_t stop = head.find("\r\n", at);
    const std::string line = head.substr(at, stop - at);
    const size_t colon = line.find(": ");
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    reply.headers[name] = line.substr(colon + 2);
    at = stop + 2;
  }
  return reply;
}

RawReply RawClient::ReadReply(bool head_request) {
  RawReply reply = ReadHead();
  if (reply.status == 0) return reply;
  if (head_request) {
    reply.complete = true;
  } else if (reply.headers.count("content-length")) {
    const size_t length = std::stoul(reply.headers["content-length"]);
    while (buffer_.size() < length && Fill()) {
    }
    reply.complete = buffer_.size() >= length;
    reply.body = Take(length);
  } else if (reply.headers.count("transfer-encoding")) {
    for (;;) {
      size_t end;
      while ((end = buffer_.find("\r\n")) == std::string::npos) {
        if (!Fill()) return reply;
      }
      const size_t size = std::stoul(buffer_.substr(0, end), nullptr, 16);
      Take(end + 2);
      while (buffer_.size() < size + 2) {
        if (!Fill()) return reply;
      }
      if (size == 0) {
        Take(2);
        reply.complete = true;
        break;
      }
      reply.body += Take(size);
      Take(2);
    }
  } else {
    reply.body = ReadAll();
    reply.complete = true;
  }
  return reply;
}

std::string RawClient::ReadChunk() {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return "";
  }
  const size_t size = std::stoul(buffer_.substr(0, end), nullptr, 16);
  Take(end + 2);
  while (buffer_.size() < size + 2) {
    if (!Fill()) return "";
  }
  std::string chunk = Take(size);
  Take(2);
  return chunk;
}

std::string RawClient::ReadEvent() {
  size_t end;
  while ((end = events_.find("\n\n")) == std::string::npos) {
    const std::string chunk = ReadChunk();
    if (chunk.empty()) return "";
    events_ += chunk;
  }
  std::string event = events_.substr(0, end);
  events_.erase(0, end + 2);
  return event;
}

std::string RawClient::ReadAll() {
  while (Fill()) {
  }
  return Take(buffer_.size());
}

bool RawClient::AtEnd() {
  char byte;
  for (;;) {
    const ssize_t got = recv(socket_, &byte, 1, 0);
    if (got == 0) return true;
    if (got < 0) return errno == ECONNRESET;
  }
}

std::string PostText(std::string_view path, std::string_view body, std::string_view extra_headers) {
  return absl::StrCat(
      "POST ", std::string(path), " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
      std::string(extra_headers), "Content-Length: ", body.size(), "\r\n\r\n", std::string(body));
}

std::string GetText(std::string_view path, std::string_view extra_headers) {
  return absl::StrCat("GET ", std::string(path), " HTTP/1.1\r\nHost: x\r\n",
                      std::string(extra_headers), "\r\n");
}

RawReply Fetch(const std::string& address, const std::string& request) {
  RawClient client(address);
  client.Send(request);
  return client.ReadReply();
}

std::string At(std::string_view json, std::string_view path) {
  boost::system::error_code error;
  const boost::json::value root = boost::json::parse({json.data(), json.size()}, error);
  if (error) return "<not JSON>";
  const boost::json::value* at = &root;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    const std::string_view step = path.substr(0, dot);
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
    if (const auto* object = at->if_object()) {
      at = object->if_contains({step.data(), step.size()});
    } else if (const auto* list = at->if_array()) {
      at = list->if_contains(std::stoul(std::string(step)));
    } else {
      at = nullptr;
    }
    if (!at) return "<none>";
  }
  if (const auto* text = at->if_string()) return std::string(text->data(), text->size());
  return boost::json::serialize(*at);
}

}  // namespace quartet::testing
