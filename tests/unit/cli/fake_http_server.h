#ifndef QUARTET_TESTS_UNIT_CLI_FAKE_HTTP_SERVER_H_
#define QUARTET_TESTS_UNIT_CLI_FAKE_HTTP_SERVER_H_

#include <atomic>
#include <cctype>
#include <functional>
#include <istream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "boost/asio/buffer.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/read_until.hpp"
#include "boost/asio/streambuf.hpp"
#include "boost/asio/write.hpp"

namespace quartet::cli {

struct SeenRequest {
  std::string line;           // "POST /v1/completions HTTP/1.1"
  std::string authorization;  // the header's value in lower case
  std::string body;
};

// Answers each request on 127.0.0.1 with the raw bytes that `handler` returns. One thread for each
// connection; `handler` must be thread safe. A server ends when its clients have closed.
class FakeHttpServer {
 public:
  using Handler = std::function<std::string(const SeenRequest&)>;

  explicit FakeHttpServer(Handler handler)
      : handler_(std::move(handler)),
        acceptor_(context_, {boost::asio::ip::address_v4::loopback(), 0}),
        port_(acceptor_.local_endpoint().port()),
        accepter_([this] { Accept(); }) {}

  ~FakeHttpServer() {
    {
      // Wakes the blocking accept.
      stopping_ = true;
      boost::asio::io_context context;
      boost::asio::ip::tcp::socket wake(context);
      wake.connect({boost::asio::ip::address_v4::loopback(), port_});
      accepter_.join();
    }
    for (std::thread& thread : connections_) thread.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  unsigned short port() const { return port_; }

  std::vector<SeenRequest> seen() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }

 private:
  void Accept() {
    while (true) {
      auto socket = std::make_shared<boost::asio::ip::tcp::socket>(context_);
      boost::system::error_code error;
      acceptor_.accept(*socket, error);
      if (stopping_ || error) return;
      connections_.emplace_back([this, socket] { Serve(*socket); });
    }
  }

  void Serve(boost::asio::ip::tcp::socket& socket) {
    boost::asio::streambuf buffer;
    boost::system::error_code error;
    while (true) {
      boost::asio::read_until(socket, buffer, "\r\n\r\n", error);
      if (error) return;
      std::istream in(&buffer);
      SeenRequest request;
      std::getline(in, request.line);
      if (!request.line.empty()) request.line.pop_back();
      size_t length = 0;
      for (std::string header; std::getline(in, header) && header != "\r";) {
        for (char& c : header) c = static_cast<char>(std::tolower(c));
        if (header.rfind("content-length:", 0) == 0) length = std::stoul(header.substr(15));
        if (header.rfind("authorization: ", 0) == 0) {
          request.authorization = header.substr(15, header.size() - 16);  // without "\r"
        }
      }
      if (buffer.size() < length) {
        boost::asio::read(socket, buffer, boost::asio::transfer_exactly(length - buffer.size()),
                          error);
      }
      request.body.resize(length);
      in.read(request.body.data(), static_cast<std::streamsize>(length));
      {
        std::lock_guard<std::mutex> lock(mutex_);
        seen_.push_back(request);
      }
      const std::string answer = handler_(request);
      boost::asio::write(socket, boost::asio::buffer(answer), error);
      if (error || answer.find("Connection: close") != std::string::npos) return;
    }
  }

  const Handler handler_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  const unsigned short port_;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<SeenRequest> seen_;
  std::vector<std::thread> connections_;
  std::thread accepter_;
};

inline std::string PlainAnswer(int status, const std::string& body,
                               const std::string& more_headers = "") {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\n" +
         more_headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Each event as a chunk of its own.
inline std::string StreamAnswer(const std::vector<std::string>& events) {
  std::string out =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  const char* digits = "0123456789abcdef";
  for (const std::string& event : events) {
    const std::string data = "data: " + event + "\n\n";
    std::string size;
    for (size_t n = data.size(); n > 0; n /= 16) size.insert(size.begin(), digits[n % 16]);
    out += size + "\r\n" + data + "\r\n";
  }
  return out + "0\r\n\r\n";
}

}  // namespace quartet::cli

#endif  // QUARTET_TESTS_UNIT_CLI_FAKE_HTTP_SERVER_H_
