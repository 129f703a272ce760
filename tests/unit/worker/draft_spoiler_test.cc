#include "shard_worker/executor/draft_spoiler.h"

#include <gmock/gmock.h>

namespace quartet {
namespace {

using testing::HasSubstr;

TEST(DraftSpoilerTest, ReadsARateAndAPlace) {
  const auto any = DraftSpoiler::Parse("0.25");
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ(any->rate, 0.25);
  EXPECT_EQ(any->place, 0);
  const auto second = DraftSpoiler::Parse("1@2");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->rate, 1);
  EXPECT_EQ(second->place, 2);
  for (const char* bad : {"", "x", "-0.1", "1.5", "nan", "0.5@", "0.5@0", "0.5@x", "@1"}) {
    EXPECT_THAT(std::string(DraftSpoiler::Parse(bad).status().message()),
                HasSubstr("expected RATE or RATE@PLACE"))
        << bad;
  }
}

TEST(DraftSpoilerTest, SpoilsItsShareAndAlwaysToAnotherIdThatMayBeDrawn) {
  const DraftSpoiler spoiler = {.rate = 0.3};
  const ops::SampleParams sampling = {.seed = 5, .first_banned = 40};
  int spoiled = 0;
  for (int position = 0; position < 10'000; ++position) {
    const int32_t draft = position % 40;
    const int32_t got = spoiler.Spoil(sampling, 64, position, 1, draft);
    EXPECT_TRUE(got >= 0 && got < 40) << got;
    spoiled += got != draft;
    EXPECT_EQ(spoiler.Spoil(sampling, 64, position, 1, draft), got);
  }
  EXPECT_NEAR(spoiled, 3000, 200);
}

TEST(DraftSpoilerTest, ElsewhereThanAtItsPlaceDraftsStay) {
  const DraftSpoiler spoiler = {.rate = 1, .place = 2};
  EXPECT_EQ(spoiler.Spoil({}, 64, 7, 1, 3), 3);
  EXPECT_NE(spoiler.Spoil({}, 64, 7, 2, 3), 3);
  EXPECT_EQ(spoiler.Spoil({}, 64, 7, 3, 3), 3);
  EXPECT_EQ(DraftSpoiler().Spoil({}, 64, 7, 2, 3), 3);
}

}  // namespace
}  // namespace quartet
