#include "services/gateway/access/key_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "services/gateway/access/fair_key.h"

namespace quartet::gateway {
namespace {

using ::testing::HasSubstr;

const std::string kAnn = "Bearer key-of-ann-0123456789";
const std::string kBob = "Bearer key-of-bob-0123456789";

class KeyGateTest : public ::testing::Test {
 protected:
  using Names = std::vector<std::pair<std::string, std::string>>;  // with their headers
  static ApiKeys Keys(const KeyLimits& limits,
                      const Names& names = {{"ann", kAnn}, {"bob", kBob}}) {
    std::string file;
    for (const auto& [name, header] : names) {
      absl::StrAppend(&file, *MakeApiKeyLine(name, BearerKey(header)), "\n");
    }
    return *ApiKeys::Parse(file, "keys", limits);
  }
  void Limit(const KeyLimits& limits) {
    gate_ = std::make_unique<KeyGate>(Keys(limits), [this] { return now_; });
  }
  // What holds the tokens, or null if they were refused.
  std::shared_ptr<void> HoldTokens(const std::string& header, int64_t tokens) {
    auto result = gate_->HoldTokens(FairKey(header, ""), tokens);
    if (auto* held = std::get_if<std::shared_ptr<void>>(&result)) return std::move(*held);
    refusal_ = std::get<KeyRefusal>(std::move(result));
    return nullptr;
  }

  // The lease, or null if the request was refused.
  std::shared_ptr<KeyLease> Admit(const std::string& header, bool counted = true) {
    auto result = gate_->Admit(header, counted);
    if (auto* lease = std::get_if<std::shared_ptr<KeyLease>>(&result)) return std::move(*lease);
    refusal_ = std::get<KeyRefusal>(std::move(result));
    return nullptr;
  }

  absl::Duration now_ = absl::Hours(5);
  std::unique_ptr<KeyGate> gate_;
  KeyRefusal refusal_;
};

TEST_F(KeyGateTest, OnlyKnownKeysComeThrough) {
  Limit({});
  const auto lease = Admit(kAnn);
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(lease->name(), "ann");
  EXPECT_EQ(Admit("Bearer key-of-eve-0123456789"), nullptr);
  EXPECT_EQ(refusal_.reason, KeyRefusal::Reason::kWrongKey);
  EXPECT_THAT(refusal_.message, Not(HasSubstr("eve")));
  for (const char* header : {"", "Bearer ", "Basic YW5uOg=="}) {
    EXPECT_EQ(Admit(header), nullptr) << header;
    EXPECT_EQ(refusal_.reason, KeyRefusal::Reason::kNoKey) << header;
  }
}

TEST_F(KeyGateTest, WithoutLimitsAnyNumberComesThrough) {
  Limit({});
  std::vector<std::shared_ptr<KeyLease>> leases;
  for (int i = 0; i < 1000; ++i) leases.push_back(Admit(kAnn));
  gate_->ChargeTokens(FairKey(kAnn, ""), 1'000'000'000);
  EXPECT_NE(Admit(kAnn), nullptr);
}

TEST_F(KeyGateTest, RequestsAtATimeAreGivenBackWithTheirLeases) {
  Limit({.requests = 2});
  auto one = Admit(kAnn);
  auto two = Admit(kAnn);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_EQ(refusal_.reason, KeyRefusal::Reason::kLimit);
  EXPECT_THAT(refusal_.message, HasSubstr("2 requests at a time"));
  EXPECT_NE(Admit(kAnn, false), nullptr) << "what does not count is not held up";
  EXPECT_NE(Admit(kBob), nullptr) << "every key has its own";
  one.reset();
  EXPECT_NE(Admit(kAnn), nullptr);
}

TEST_F(KeyGateTest, WhenAPlaceWillBeFreeIsEstimatedFromHowLongRequestsTook) {
  Limit({.requests = 1});
  auto first = Admit(kAnn);
  now_ += absl::Seconds(20);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_EQ(refusal_.retry_after, absl::Seconds(1)) << "nothing is known yet";
  first.reset();
  auto second = Admit(kAnn);
  now_ += absl::Seconds(5);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_EQ(refusal_.retry_after, absl::Seconds(15));
  now_ += absl::Seconds(60);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_EQ(refusal_.retry_after, absl::Seconds(1));
}

TEST_F(KeyGateTest, RequestsOfAMinuteComeBackOneByOneAndRetryAfterIsTrue) {
  Limit({.requests_per_minute = 4});
  for (int i = 0; i < 4; ++i) EXPECT_NE(Admit(kAnn), nullptr);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_THAT(refusal_.message, HasSubstr("4 requests in a minute"));
  EXPECT_NEAR(absl::ToDoubleSeconds(refusal_.retry_after), 15, 1e-3);
  EXPECT_NE(Admit(kBob), nullptr);
  now_ += refusal_.retry_after - absl::Milliseconds(10);
  EXPECT_EQ(Admit(kAnn), nullptr) << "a refused request does not count, and it is not time yet";
  now_ += absl::Milliseconds(10);
  EXPECT_NE(Admit(kAnn), nullptr);
  EXPECT_EQ(Admit(kAnn), nullptr);
  now_ += absl::Hours(1);
  for (int i = 0; i < 4; ++i) EXPECT_NE(Admit(kAnn), nullptr);
  EXPECT_EQ(Admit(kAnn), nullptr) << "no more than a minute's are saved up";
}

TEST_F(KeyGateTest, TokensAreTakenAfterwardsAndOverdrawnOnesAreWaitedFor) {
  Limit({.tokens_per_minute = 600});
  EXPECT_NE(Admit(kAnn), nullptr);
  gate_->ChargeTokens(FairKey(kAnn, ""), 599);
  EXPECT_NE(Admit(kAnn), nullptr) << "one is left";
  gate_->ChargeTokens(FairKey(kAnn, ""), 100);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_THAT(refusal_.message, HasSubstr("600 tokens in a minute"));
  // 99 too many and one that must be there, at ten a second.
  EXPECT_NEAR(absl::ToDoubleSeconds(refusal_.retry_after), 10, 1e-3);
  now_ += refusal_.retry_after;
  EXPECT_NE(Admit(kAnn), nullptr);
  EXPECT_NE(Admit(kBob), nullptr);
}

TEST_F(KeyGateTest, TokensOfWhomItDoesNotKnowAreNobodys) {
  Limit({.tokens_per_minute = 1});
  gate_->ChargeTokens(FairKey("Bearer key-of-eve-0123456789", ""), 100);
  gate_->ChargeTokens(0, 100);
  EXPECT_NE(Admit(kAnn), nullptr);
}

TEST_F(KeyGateTest, OfSeveralLimitsTheOneThatHoldsLongestIsNamed) {
  Limit({.requests = 1, .requests_per_minute = 1, .tokens_per_minute = 60});
  const auto lease = Admit(kAnn);
  gate_->ChargeTokens(FairKey(kAnn, ""), 180);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_THAT(refusal_.message, HasSubstr("60 tokens in a minute"));
  EXPECT_NEAR(absl::ToDoubleSeconds(refusal_.retry_after), 121, 1e-3);
}

TEST_F(KeyGateTest, TokensAtATimeAreHeldAndGivenBack) {
  Limit({.tokens = 1000});
  const std::vector<std::shared_ptr<KeyLease>> leases = {Admit(kAnn), Admit(kBob)};
  auto most = HoldTokens(kAnn, 900);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(HoldTokens(kAnn, 101), nullptr);
  EXPECT_EQ(refusal_.reason, KeyRefusal::Reason::kLimit);
  EXPECT_THAT(refusal_.message, HasSubstr("1000 tokens of requests at a time; 900 are at work"));
  EXPECT_GE(refusal_.retry_after, absl::Seconds(1));
  const auto rest = HoldTokens(kAnn, 100);
  EXPECT_NE(rest, nullptr) << "what is refused holds nothing";
  EXPECT_NE(HoldTokens(kBob, 1000), nullptr) << "every key has its own";
  most.reset();
  EXPECT_NE(HoldTokens(kAnn, 900), nullptr);
}

TEST_F(KeyGateTest, ARequestThatIsLargerThanTheLimitHasItsTurnAlone) {
  Limit({.tokens = 1000});
  const auto lease = Admit(kAnn);
  auto small = HoldTokens(kAnn, 1);
  EXPECT_EQ(HoldTokens(kAnn, 5000), nullptr);
  small.reset();
  auto large = HoldTokens(kAnn, 5000);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(HoldTokens(kAnn, 1), nullptr);
}

TEST_F(KeyGateTest, TokensOfWhomItDoesNotKnowAreNotHeld) {
  Limit({.tokens = 1});
  auto result = gate_->HoldTokens(0, 100);
  ASSERT_TRUE(std::holds_alternative<std::shared_ptr<void>>(result));
  EXPECT_EQ(std::get<std::shared_ptr<void>>(result), nullptr);
}

TEST_F(KeyGateTest, OtherKeysTakeTheirPlaceAndThoseWithTheSameNameKeepWhatTheyHaveUsed) {
  Limit({.requests = 1, .requests_per_minute = 10});
  auto ann = Admit(kAnn);
  auto bob = Admit(kBob);
  const std::string eve = "Bearer key-of-eve-0123456789";
  const std::string ann_later = "Bearer key-of-ann-9876543210";
  gate_->Replace(
      Keys({.requests = 1, .requests_per_minute = 10}, {{"ann", ann_later}, {"eve", eve}}));
  EXPECT_EQ(Admit(kBob), nullptr);
  EXPECT_EQ(refusal_.reason, KeyRefusal::Reason::kWrongKey);
  EXPECT_NE(Admit(eve), nullptr);
  EXPECT_EQ(Admit(ann_later), nullptr) << "her request is still at work";
  EXPECT_THAT(refusal_.message, HasSubstr("1 requests at a time"));
  ann.reset();
  bob.reset();
  EXPECT_NE(Admit(ann_later), nullptr);
}

TEST_F(KeyGateTest, AnotherLimitBeginsAnew) {
  Limit({});
  for (int i = 0; i < 50; ++i) EXPECT_NE(Admit(kAnn), nullptr);
  gate_->Replace(Keys({.requests_per_minute = 2}));
  EXPECT_NE(Admit(kAnn), nullptr) << "what was free is not charged afterwards";
  EXPECT_NE(Admit(kAnn), nullptr);
  EXPECT_EQ(Admit(kAnn), nullptr);
  gate_->Replace(Keys({.requests_per_minute = 2}));
  EXPECT_EQ(Admit(kAnn), nullptr) << "the same limit goes on";
  gate_->Replace(Keys({}));
  EXPECT_NE(Admit(kAnn), nullptr);
}

TEST_F(KeyGateTest, TokensOfRequestsAtWorkAreChargedAfterTheKeysWereReadAgain) {
  Limit({.tokens_per_minute = 60});
  const auto lease = Admit(kAnn);
  gate_->Replace(Keys({.tokens_per_minute = 60}));
  gate_->ChargeTokens(FairKey(kAnn, ""), 60);
  EXPECT_EQ(Admit(kAnn), nullptr);
  EXPECT_THAT(refusal_.message, HasSubstr("60 tokens in a minute"));
}

TEST_F(KeyGateTest, ALeaseMayOutliveTheGate) {
  Limit({.requests = 1});
  auto lease = Admit(kAnn);
  gate_.reset();
  lease.reset();
}

}  // namespace
}  // namespace quartet::gateway
