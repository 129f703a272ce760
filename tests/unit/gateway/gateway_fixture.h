// A whole gateway between real sockets: raw HTTP or gRPC on one side, a scripted engine on the
// other.
#ifndef QUARTET_TESTS_UNIT_GATEWAY_GATEWAY_FIXTURE_H_
#define QUARTET_TESTS_UNIT_GATEWAY_GATEWAY_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "services/common/status_channel.h"
#include "services/gateway/gateway.h"
#include "services/gateway/text/tokenizer.h"
#include "tests/support/scripted_engine.h"
#include "tests/unit/gateway/raw_client.h"

namespace quartet::gateway {

class GatewayTest : public ::testing::Test {
 protected:
  GatewayTest();
  ~GatewayTest() override;

  // Starts engine and gateway and waits until the gateway says that it is ready.
  void Start();
  // The parts of Start.
  void StartEngine(int port = 0);
  void StartGatewayOnly();
  void AwaitReady();

  // What every sequence answers from now on: `text` and an end token.
  void Answer(const std::string& text);
  // The script itself, locked for the length of the expression: engine threads read it.
  class LockedScript {
   public:
    LockedScript(std::mutex& mutex, testing::SequenceScript* script)
        : lock_(mutex), script_(script) {}
    testing::SequenceScript* operator->() { return script_; }

   private:
    std::unique_lock<std::mutex> lock_;
    testing::SequenceScript* script_;
  };
  LockedScript script() { return {mutex_, &script_}; }

  std::vector<int32_t> Ids(const std::string& text) const;
  int32_t end_id() const { return 1991; }

  testing::RawReply Post(const std::string& path, const std::string& body);
  testing::RawReply Chat(const std::string& fields = "");        // with one user message
  testing::RawReply Completion(const std::string& fields = "");  // with the prompt "hi"
  testing::RawReply Get(const std::string& path);
  static std::string ChatBody(const std::string& fields);
  // The data of all events of a streamed answer.
  static std::vector<std::string> Events(const testing::RawReply& reply);

  testing::SeenSequence LastSeen() const;

  GatewayConfig config_;
  std::unique_ptr<testing::ScriptedEngine> engine_;
  std::unique_ptr<Gateway> gateway_;
  std::string address_;

 private:
  std::unique_ptr<const text::Tokenizer> tokenizer_;
  mutable std::mutex mutex_;
  testing::SequenceScript script_;  // read by the engine when a sequence comes
  int status_pipe_[2] = {-1, -1};
  std::unique_ptr<StatusChannel> status_;
  std::string status_text_;
};

}  // namespace quartet::gateway

#endif  // QUARTET_TESTS_UNIT_GATEWAY_GATEWAY_FIXTURE_H_
