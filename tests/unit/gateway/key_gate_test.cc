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
  void Limit(const KeyLimits& limits) {
    std::string file;
    for (const auto& [name, header] : {std::pair("ann", kAnn), std::pair("bob", kBob)}) {
      absl::StrAppend(&file, *MakeApiKeyLine(name, BearerKey(header)), "\n");
    }
    gate_ =
        std::make_unique<KeyGate>(*ApiKeys::Parse(file, "keys", limits), [this] { return now_; });
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

TEST_F(KeyGateTest, ALeaseMayOutliveTheGate) {
  Limit({.requests = 1});
  auto lease = Admit(kAnn);
  gate_.reset();
  lease.reset();
}

}  // namespace
}  // namespace quartet::gateway
