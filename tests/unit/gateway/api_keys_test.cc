#include "services/gateway/access/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace quartet::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKey[] = "correct-horse-battery-staple";
// SHA-256 of sixteen zero bytes and kKey, by another program:
//   (head -c 16 /dev/zero; printf correct-horse-battery-staple) | sha256sum
constexpr char kSalt[] = "00000000000000000000000000000000";
constexpr char kDigest[] = "5230507947ec415bc99a001e309ce0e92002ceeae0481102c66f4b888f0f8fc7";

std::string Line(const std::string& name) {
  return absl::StrCat(name, ":", kSalt, ":", kDigest);
}

absl::StatusOr<ApiKeys> Parse(const std::string& text, const KeyLimits& defaults = {}) {
  return ApiKeys::Parse(text, "keys.txt", defaults);
}

TEST(ApiKeys, AKeyIsFoundByItsSaltedDigest) {
  const auto keys = Parse(Line("ann"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->Find(kKey), 0u);
  EXPECT_EQ(keys->name(0), "ann");
  EXPECT_EQ(keys->Find("correct-horse-battery-stapl"), std::nullopt);
  EXPECT_EQ(keys->Find(""), std::nullopt);
  EXPECT_EQ(keys->Find(kDigest), std::nullopt) << "what the file holds is no key";
  EXPECT_EQ(keys->Find(std::string(kApiKeyBytesMax + 1, 'x')), std::nullopt);
}

TEST(ApiKeys, AMadeLineHoldsTheKeyAndEachHasAnotherSalt) {
  const auto one = MakeApiKeyLine("ann", kKey);
  const auto two = MakeApiKeyLine("bob", kKey);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_THAT(*one, Not(HasSubstr(kKey)));
  EXPECT_NE(one->substr(4), two->substr(4));
  const auto keys = Parse(absl::StrCat("# people\n\n", *one, "\r\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->Find(kKey), 0u);
}

TEST(ApiKeys, LimitsStandBehindTheDigestAndElseAreTheServers) {
  const auto keys =
      Parse(absl::StrCat(Line("ann"), " requests=2 tokens-per-minute=0 tokens=900\n", Line("bob")),
            {.requests = 8, .requests_per_minute = 60, .tokens_per_minute = 5000});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->limits(0).requests, 2);
  EXPECT_EQ(keys->limits(0).tokens, 900);
  EXPECT_EQ(keys->limits(0).requests_per_minute, 60);
  EXPECT_EQ(keys->limits(0).tokens_per_minute, 0);
  EXPECT_EQ(keys->limits(1).requests, 8);
  EXPECT_EQ(keys->limits(1).tokens_per_minute, 5000);
}

TEST(ApiKeys, AWrongLineIsNamedByItsNumberAndNeverShown) {
  const std::string line = Line("ann");
  const std::pair<std::string, std::string> cases[] = {
      {"", "keys.txt holds no key"},
      {"# none\n", "keys.txt holds no key"},
      {std::string("\n") + kKey, "keys.txt line 2: it is not of the form name:salt:digest"},
      {absl::StrCat("ann:", kKey), "not of the form"},
      {absl::StrCat("a b:", kSalt, ":", kDigest), "not of the form"},
      {absl::StrCat("a/b:", kSalt, ":", kDigest), "the name must be 1 to 64 letters"},
      {absl::StrCat(":", kSalt, ":", kDigest), "the name must be"},
      {absl::StrCat("ann:00:", kDigest), "the salt must be 32 hex digits, not 2 characters"},
      {absl::StrCat("ann:", kSalt, ":", kKey), "the digest must be 64 hex digits, not 28"},
      {absl::StrCat("ann:", kSalt, ":", std::string(64, 'g')), "the digest must be"},
      {absl::StrCat(line, " speed=3"), "right would be requests=N"},
      {absl::StrCat(line, " requests"), "requests must be a whole number"},
      {absl::StrCat(line, " requests=-1"), "requests must be a whole number from 0"},
      {absl::StrCat(line, " tokens-per-minute=1.5"), "tokens-per-minute must be a whole number"},
      {absl::StrCat(line, "\n", line), "keys.txt line 2: a key of this name stands above"},
  };
  for (const auto& [text, error] : cases) {
    const auto keys = Parse(text);
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr(error)) << text;
    EXPECT_THAT(std::string(keys.status().message()), Not(HasSubstr(kKey))) << text;
  }
}

TEST(ApiKeys, KeysThatCouldBeGuessedOrNotSentAreNotTaken) {
  EXPECT_THAT(std::string(MakeApiKeyLine("ann", "hunter2").status().message()),
              HasSubstr("the key has 7 bytes; right would be 16 to 512"));
  EXPECT_THAT(std::string(MakeApiKeyLine("ann", "sixteen bytes and more").status().message()),
              HasSubstr("printable ASCII"));
  EXPECT_THAT(std::string(MakeApiKeyLine("a:b", kKey).status().message()), HasSubstr("the name"));
}

TEST(BearerKey, IsWhatStandsBehindTheScheme) {
  EXPECT_EQ(BearerKey("Bearer abc"), "abc");
  EXPECT_EQ(BearerKey("bearer  abc "), "abc");
  EXPECT_EQ(BearerKey("Bearer"), "");
  EXPECT_EQ(BearerKey("Basic abc"), "");
  EXPECT_EQ(BearerKey("abc"), "");
  EXPECT_EQ(BearerKey(""), "");
}

}  // namespace
}  // namespace quartet::gateway
