// Collectives over peer memory. The emulator runs one block after the other, so nobody can wait for
// anybody here: the packets of the other ranks lie ready before the rank under test starts, and
// what it sends is compared with what it should have sent. tests/integration/gpu_collectives.cc
// lets real ranks wait for each other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/cuda/peer_transport.h"
#include "shard_worker/collectives/descriptor_exchange.h"
#include "tests/support/simt/simt_device.h"
#include "tests/unit/kernels/support.h"

namespace quartet::testing {
namespace {

using cuda::Packet;
using cuda::PeerTransport;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Values whose float sum depends on the order of addition.
std::vector<float> RankValues(int rank, size_t count, unsigned seed) {
  std::mt19937 random = Random(1000u * static_cast<unsigned>(rank) + seed);
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

template <class T>
std::vector<uint8_t> Bytes(const std::vector<T>& values) {
  const auto* data = reinterpret_cast<const uint8_t*>(values.data());
  return {data, data + values.size() * sizeof(T)};
}

// One rank under test, and the memory of the others.
class PeerTransportTest : public ::testing::Test {
 protected:
  void Open(const cuda::PeerOptions& options) {
    options_ = options;
    std::array<void*, cuda::kMaxPeers> addresses{};
    inboxes_.clear();
    for (int r = 0; r < options.size; ++r) {
      inboxes_.push_back(Must(device_->Allocate(PeerTransport::InboxBytes(options), "inbox")));
      device_->Fill(inboxes_[r].data(), 0, inboxes_[r].bytes());
      addresses[r] = inboxes_[r].data();
    }
    transport_ = Must(PeerTransport::Create(*device_, options, addresses));
  }

  cuda::PeerOptions Options(int rank, int size) const {
    return {.rank = rank, .size = size, .epoch = 9, .message_bytes = 32 * 1024};
  }

  // The packets of a message, as the layout says.
  std::vector<Packet> Packets(uint32_t call, const std::vector<uint8_t>& message) const {
    std::vector<Packet> packets((message.size() + 7) / 8);
    const uint64_t tag = uint64_t{cuda::PeerTag(static_cast<uint32_t>(options_.epoch), call)} << 32;
    for (size_t i = 0; i < packets.size(); ++i) {
      for (int word = 0; word < 2; ++word) {
        uint64_t value = tag;
        for (size_t b = 0; b < 4 && 8 * i + 4 * word + b < message.size(); ++b) {
          value |= uint64_t{message[8 * i + 4 * word + b]} << (8 * b);
        }
        packets[i].words[word] = value;
      }
    }
    return packets;
  }

  Packet* Area(int inbox, uint32_t call, int sender) {
    return inboxes_[inbox].as<Packet>() + cuda::PeerArea(transport_->group(), call, sender);
  }

  // As if `sender` had made this call already.
  void Deliver(uint32_t call, int sender, const std::vector<uint8_t>& message) {
    const std::vector<Packet> packets = Packets(call, message);
    ASSERT_TRUE(device_
                    ->CopyIn(Area(options_.rank, call, sender), packets.data(),
                             packets.size() * sizeof(Packet))
                    .ok());
  }

  // What the rank under test has sent to all others is this message and nothing else.
  void ExpectSent(uint32_t call, const std::vector<uint8_t>& message) {
    std::vector<Packet> expected = Packets(call, message);
    expected.resize(options_.message_bytes / 8);
    for (int r = 0; r < options_.size; ++r) {
      if (r == options_.rank) continue;
      std::vector<Packet> sent(expected.size());
      ASSERT_TRUE(
          device_->CopyOut(sent.data(), Area(r, call, options_.rank), sent.size() * sizeof(Packet))
              .ok());
      EXPECT_EQ(std::memcmp(sent.data(), expected.data(), sent.size() * sizeof(Packet)), 0)
          << "to rank " << r;
    }
  }

  cuda::Buffer Upload(const std::vector<uint8_t>& bytes) {
    cuda::Buffer buffer = Must(device_->Allocate(bytes.size(), "test"));
    EXPECT_TRUE(device_->CopyIn(buffer.data(), bytes.data(), bytes.size()).ok());
    return buffer;
  }
  template <class T>
  std::vector<T> Download(const cuda::Buffer& buffer) {
    std::vector<T> values(buffer.bytes() / sizeof(T));
    EXPECT_TRUE(device_->CopyOut(values.data(), buffer.data(), buffer.bytes()).ok());
    return values;
  }

  std::unique_ptr<cuda::Device> device_ = OpenTestDevice();
  cuda::PeerOptions options_;
  std::vector<cuda::Buffer> inboxes_;
  std::unique_ptr<PeerTransport> transport_;
};

// rank, size
class PeerSizeTest : public PeerTransportTest,
                     public ::testing::WithParamInterface<std::pair<int, int>> {
 protected:
  const int rank_ = GetParam().first;
  const int size_ = GetParam().second;
};
INSTANTIATE_TEST_SUITE_P(Ranks, PeerSizeTest,
                         ::testing::Values(std::pair{0, 2}, std::pair{1, 2}, std::pair{2, 3},
                                           std::pair{1, 4}, std::pair{7, 8}),
                         [](const auto& info) {
                           return "Rank" + std::to_string(info.param.first) + "Of" +
                                  std::to_string(info.param.second);
                         });

TEST_P(PeerSizeTest, AllReduceSumsInTheOrderOfRanks) {
  Open(Options(rank_, size_));
  uint32_t call = 0;
  for (const size_t count : {1, 2, 4096, 4097, 8192}) {
    std::vector<float> expected = RankValues(0, count, call);
    for (int r = 1; r < size_; ++r) {
      const std::vector<float> values = RankValues(r, count, call);
      for (size_t i = 0; i < count; ++i) expected[i] += values[i];
    }
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) Deliver(call, r, Bytes(RankValues(r, count, call)));
    }
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) device_->Fill(inboxes_[r].data(), 0, inboxes_[r].bytes());
    }
    const std::vector<float> own = RankValues(rank_, count, call);
    const cuda::Buffer data = Upload(Bytes(own));
    transport_->AllReduceSum(data.as<float>(), data.as<float>(), count);
    EXPECT_THAT(Bits(Download<float>(data)), ElementsAreArray(Bits(expected))) << count;
    ExpectSent(call, Bytes(own));
    ++call;
  }
  EXPECT_TRUE(transport_->Check().ok());
}

TEST_P(PeerSizeTest, AllGatherConcatenatesBytesOfAnyNumber) {
  Open(Options(rank_, size_));
  uint32_t call = 0;
  for (const size_t bytes : {1, 4, 7, 8, 1000, 1001, 32768}) {
    std::vector<std::vector<uint8_t>> messages;
    std::vector<uint8_t> expected;
    std::mt19937 random = Random(call);
    for (int r = 0; r < size_; ++r) {
      messages.emplace_back(bytes);
      for (uint8_t& byte : messages[r]) byte = static_cast<uint8_t>(random());
      expected.insert(expected.end(), messages[r].begin(), messages[r].end());
      if (r != rank_) Deliver(call, r, messages[r]);
    }
    const cuda::Buffer local = Upload(messages[rank_]);
    const cuda::Buffer all = Must(device_->Allocate(bytes * size_, "all"));
    device_->Fill(all.data(), 0xFF, all.bytes());
    transport_->AllGather(local.data(), bytes, all.data());
    EXPECT_THAT(Download<uint8_t>(all), ElementsAreArray(expected)) << bytes;
    ++call;
  }
}

TEST_P(PeerSizeTest, BarrierTellsEverybody) {
  Open(Options(rank_, size_));
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) Deliver(0, r, std::vector<uint8_t>(8));
  }
  transport_->Barrier();
  ASSERT_TRUE(device_->Synchronize().ok());
  ExpectSent(0, std::vector<uint8_t>(8));
  EXPECT_TRUE(transport_->Check().ok());
}

TEST_F(PeerTransportTest, LongMessagesGoInPieces) {
  cuda::PeerOptions options = Options(1, 2);
  options.message_bytes = 64;
  options.first_call = 2;  // calls 0 and 1 clear what lies ready for the next
  Open(options);
  const std::vector<float> own = RankValues(1, 29, 1), other = RankValues(0, 29, 1);
  Deliver(2, 0, Bytes(std::vector<float>(other.begin(), other.begin() + 16)));
  Deliver(3, 0, Bytes(std::vector<float>(other.begin() + 16, other.end())));
  const cuda::Buffer partial = Upload(Bytes(own)), sum = Upload(std::vector<uint8_t>(29 * 4));
  transport_->AllReduceSum(partial.as<float>(), sum.as<float>(), 29);
  std::vector<float> expected = other;
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += own[i];
  EXPECT_THAT(Bits(Download<float>(sum)), ElementsAreArray(Bits(expected)));
  EXPECT_THAT(Bits(Download<float>(partial)), ElementsAreArray(Bits(own)));

  std::vector<uint8_t> bytes(100, 3);
  Deliver(4, 0, std::vector<uint8_t>(64, 5));
  Deliver(5, 0, std::vector<uint8_t>(36, 6));
  const cuda::Buffer local = Upload(bytes), all = Upload(std::vector<uint8_t>(200));
  transport_->AllGather(local.data(), 100, all.data());
  std::vector<uint8_t> both(64, 5);
  both.resize(100, 6);
  both.resize(200, 3);
  EXPECT_THAT(Download<uint8_t>(all), ElementsAreArray(both));
}

TEST_F(PeerTransportTest, AReplayedGraphMakesTheNextCall) {
  Open(Options(0, 2));
  const cuda::Buffer partial = Upload(Bytes(std::vector<float>{1, 2, 3}));
  const cuda::Buffer sum = Upload(std::vector<uint8_t>(12));
  const auto graph = Must(
      device_->Capture([&] { transport_->AllReduceSum(partial.as<float>(), sum.as<float>(), 3); }));
  for (uint32_t call = 0; call < 5; ++call) {
    const float x = 10.0f * static_cast<float>(call);
    Deliver(call, 1, Bytes(std::vector<float>{x, x, x}));
    device_->Replay(*graph);
    EXPECT_THAT(Download<float>(sum), ElementsAreArray({1 + x, 2 + x, 3 + x}));
    ExpectSent(call, Bytes(std::vector<float>{1, 2, 3}));
  }
}

// What must not be taken for the other rank's part: nothing, the call before in the same memory,
// another epoch, half a packet.
TEST_F(PeerTransportTest, WaitsNotLongerThanAllowedForWhatNeverComes) {
  const auto nothing = [](uint32_t, std::vector<Packet>&) {};
  const auto older = [](uint32_t call, std::vector<Packet>& p) {
    for (Packet& packet : p) {
      for (uint64_t& word : packet.words) word = uint64_t{cuda::PeerTag(9, call - 2)} << 32;
    }
  };
  const auto other_epoch = [](uint32_t call, std::vector<Packet>& p) {
    for (Packet& packet : p) {
      for (uint64_t& word : packet.words) word = uint64_t{cuda::PeerTag(8, call)} << 32;
    }
  };
  const auto half = [](uint32_t call, std::vector<Packet>& p) {
    for (Packet& packet : p) packet.words[0] = uint64_t{cuda::PeerTag(9, call)} << 32;
  };
  for (const std::function<void(uint32_t, std::vector<Packet>&)>& fill :
       {std::function<void(uint32_t, std::vector<Packet>&)>(nothing),
        {older},
        {other_epoch},
        {half}}) {
    cuda::PeerOptions options = Options(0, 3);
    options.wait_timeout = absl::Milliseconds(2);
    options.first_call = 6;
    Open(options);
    Deliver(6, 1, std::vector<uint8_t>(400));
    std::vector<Packet> packets(50);
    fill(6, packets);
    ASSERT_TRUE(device_->CopyIn(Area(0, 6, 2), packets.data(), 50 * sizeof(Packet)).ok());
    const cuda::Buffer data = Upload(std::vector<uint8_t>(400));
    transport_->AllReduceSum(data.as<float>(), data.as<float>(), 100);
    ASSERT_TRUE(device_->Synchronize().ok());
    const absl::Status status = transport_->Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 2 did not send its part of call 6 within 2ms of rank 0"));
  }
}

TEST_F(PeerTransportTest, DoesNothingAfterAFailure) {
  cuda::PeerOptions options = Options(0, 2);
  options.wait_timeout = absl::Milliseconds(2);
  Open(options);
  const cuda::Buffer data = Upload(Bytes(std::vector<float>{1, 2}));
  transport_->AllReduceSum(data.as<float>(), data.as<float>(), 2);
  Deliver(1, 1, Bytes(std::vector<float>{1, 2}));
  transport_->AllReduceSum(data.as<float>(), data.as<float>(), 2);
  EXPECT_THAT(Download<float>(data), ElementsAreArray({1.0f, 2.0f}));
  ExpectSent(1, {});
  EXPECT_EQ(transport_->Check().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PeerTransportTest, AnAbortEndsTheWait) {
  Open(Options(0, 2));  // which would wait for 30 s
  transport_->Abort();
  const cuda::Buffer data = Upload(Bytes(std::vector<float>{1, 2}));
  const absl::Time begin = absl::Now();
  transport_->AllReduceSum(data.as<float>(), data.as<float>(), 2);
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_THAT(Download<float>(data), ElementsAreArray({1.0f, 2.0f}));
}

// Tags repeat after 2^24 calls; a slot that nobody used for so long must not hold one then.
TEST_F(PeerTransportTest, OldTagsAreForgotten) {
  cuda::PeerOptions options = Options(0, 2);
  options.message_bytes = 1024;
  options.first_call = 1u << 23;
  Open(options);
  const size_t slots = options.message_bytes / 8;
  Deliver(options.first_call + 1, 1, std::vector<uint8_t>(1024, 7));  // of long ago, as it were
  Deliver(options.first_call, 1, std::vector<uint8_t>(1024, 7));
  const cuda::Buffer data = Upload(std::vector<uint8_t>(8));
  const auto others_used = [&](uint32_t call) {
    std::vector<Packet> packets(slots);
    EXPECT_TRUE(device_->CopyOut(packets.data(), Area(0, call, 1), slots * sizeof(Packet)).ok());
    return std::count_if(packets.begin(), packets.end(),
                         [](const Packet& p) { return p.words[0] != 0 || p.words[1] != 0; });
  };
  transport_->AllReduceSum(data.as<float>(), data.as<float>(), 2);
  EXPECT_EQ(others_used(options.first_call), slots);
  EXPECT_EQ(others_used(options.first_call + 1), 0);
  Deliver(options.first_call + 1, 1, std::vector<uint8_t>(8, 7));
  transport_->AllReduceSum(data.as<float>(), data.as<float>(), 2);
  EXPECT_EQ(others_used(options.first_call), 0);
  EXPECT_EQ(others_used(options.first_call + 1), 1);
  Deliver(options.first_call + 2, 1, std::vector<uint8_t>(8, 7));
  transport_->AllReduceSum(data.as<float>(), data.as<float>(), 2);
  EXPECT_EQ(others_used(options.first_call + 1), 1);
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_TRUE(transport_->Check().ok());
}

TEST_F(PeerTransportTest, AGroupOfOneCopies) {
  Open(Options(0, 1));
  const cuda::Buffer data = Upload(Bytes(std::vector<float>{1, 2, 3}));
  const cuda::Buffer sum = Upload(std::vector<uint8_t>(12)), all = Upload(std::vector<uint8_t>(12));
  transport_->AllReduceSum(data.as<float>(), sum.as<float>(), 3);
  transport_->AllGather(data.data(), 12, all.data());
  transport_->Barrier();
  EXPECT_THAT(Download<float>(sum), ElementsAreArray({1.0f, 2.0f, 3.0f}));
  EXPECT_THAT(Download<float>(all), ElementsAreArray({1.0f, 2.0f, 3.0f}));
}

TEST_F(PeerTransportTest, RefusesGroupsThatCannotBe) {
  const auto error = [&](const cuda::PeerOptions& options) {
    return std::string(PeerTransport::Create(*device_, options, {}).status().message());
  };
  EXPECT_EQ(error(Options(0, 9)), "group of 9 GPUs, expected 1 to 8");
  EXPECT_EQ(error(Options(2, 2)), "rank 2, expected 0 to 1");
  cuda::PeerOptions options = Options(0, 2);
  options.message_bytes = 24;
  EXPECT_THAT(error(options), HasSubstr("message_bytes is 24, expected a multiple of 16"));
}

// ---- the exchange of file descriptors

class DescriptorExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/quartet_descriptors_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { EXPECT_EQ(rmdir(folder_.c_str()), 0) << "sockets stay behind"; }

  // Every rank in a thread.
  void Run(int size, const std::function<void(Collectives&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto group = OpenSharedMemory({.folder = folder_,
                                             .name = "group",
                                             .rank = rank,
                                             .size = size,
                                             .wait_timeout = absl::Seconds(10)});
        ASSERT_TRUE(group.ok()) << group.status();
        body(**group);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static FileDescriptor FileWith(int value) {
    FileDescriptor file(memfd_create("value", MFD_CLOEXEC));
    EXPECT_EQ(pwrite(file.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
    return file;
  }

  std::string folder_;
};

TEST_F(DescriptorExchangeTest, EverybodyGetsEverybodysFile) {
  Run(4, [&](Collectives& group) {
    const FileDescriptor own = FileWith(100 + group.rank());
    const auto files =
        ExchangeDescriptors(group, own.get(), {.folder = folder_, .name = "sockets", .epoch = 3});
    ASSERT_TRUE(files.ok()) << files.status();
    ASSERT_EQ(files->size(), 4u);
    for (int r = 0; r < 4; ++r) {
      int value = 0;
      if (r == group.rank()) {
        EXPECT_LT((*files)[r].get(), 0);
        continue;
      }
      EXPECT_EQ(pread((*files)[r].get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
      EXPECT_EQ(value, 100 + r);
    }
  });
}

TEST_F(DescriptorExchangeTest, AnotherEpochIsRefused) {
  Run(2, [&](Collectives& group) {
    const FileDescriptor own = FileWith(1);
    const auto files = ExchangeDescriptors(
        group, own.get(),
        {.folder = folder_, .name = "sockets", .epoch = 3u + static_cast<unsigned>(group.rank())});
    EXPECT_EQ(files.status().code(), absl::StatusCode::kFailedPrecondition) << files.status();
    ASSERT_TRUE(group.Barrier().ok());
  });
}

TEST_F(DescriptorExchangeTest, ALongNameIsRefused) {
  Run(1, [&](Collectives& group) {
    const auto files = ExchangeDescriptors(
        group, 0, {.folder = folder_, .name = std::string(120, 'x'), .epoch = 3});
    EXPECT_EQ(files.status().code(), absl::StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace quartet::testing
