#include "services/gateway/text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quartet::text {
namespace {

using testing::ElementsAre;

std::array<int32_t, 256> ByteIds() {
  std::array<int32_t, 256> ids;
  for (int32_t byte = 0; byte < 256; ++byte) ids[byte] = 1000 + byte;
  return ids;
}

// Random merges, and what they give when the rule is followed word for word.
class RandomMerges {
 public:
  explicit RandomMerges(std::mt19937& random) : merges(ByteIds()) {
    std::vector<int32_t> known = {1000 + 'a', 1000 + 'b', 1000 + 'c'};
    for (int32_t rank = 0; rank < 60; ++rank) {
      const std::pair<int32_t, int32_t> pair = {known[random() % known.size()],
                                                known[random() % known.size()]};
      if (!rules_.try_emplace(pair, rank, rank).second) continue;
      merges.Add(pair.first, pair.second, rank, rank);
      known.push_back(rank);
    }
  }

  std::vector<int32_t> Expected(const std::string& bytes) const {
    std::vector<int32_t> ids;
    for (const char byte : bytes) ids.push_back(1000 + static_cast<unsigned char>(byte));
    while (true) {
      std::pair<int32_t, int32_t> best = {1 << 30, 0};  // rank, merged
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto rule = rules_.find({ids[i], ids[i + 1]});
        if (rule != rules_.end() && rule->second.first < best.first) {
          best = rule->second;
          at = i;
        }
      }
      if (best.first == 1 << 30) return ids;
      ids[at] = best.second;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }

  BpeMerges merges;

 private:
  std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>> rules_;
};

TEST(BpeMerges, MergeTheLowestRankFirstAndTheLeftmostOfEquals) {
  BpeMerges merges(ByteIds());
  merges.Add(1000 + 'b', 1000 + 'c', 0, 1);
  merges.Add(1000 + 'a', 1000 + 'b', 1, 2);
  merges.Add(1000 + 'a', 1000 + 'a', 2, 3);
  std::vector<int32_t> ids = {7};
  merges.Encode("abc", &ids);
  EXPECT_THAT(ids, ElementsAre(7, 1000 + 'a', 1));
  ids.clear();
  merges.Encode("aaab", &ids);
  EXPECT_THAT(ids, ElementsAre(3, 2));
  ids.clear();
  merges.Encode("aaa", &ids);
  EXPECT_THAT(ids, ElementsAre(3, 1000 + 'a'));
  merges.Encode("", &ids);
  EXPECT_EQ(ids.size(), 2u);
}

TEST(BpeMerges, TakeTheLaterRankOfAPairThatIsAddedAgain) {
  BpeMerges merges(ByteIds());
  merges.Add(1000 + 'a', 1000 + 'b', 0, 1);
  merges.Add(1000 + 'b', 1000 + 'c', 1, 2);
  merges.Add(1000 + 'a', 1000 + 'b', 2, 1);
  std::vector<int32_t> ids;
  merges.Encode("abc", &ids);
  EXPECT_THAT(ids, ElementsAre(1000 + 'a', 2));
}

TEST(BpeMerges, FollowTheRuleWhateverTheLength) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    const RandomMerges made(random);
    for (size_t size = 1; size < 200; ++size) {  // short ones and long ones have different methods
      std::string bytes;
      while (bytes.size() < size) bytes.push_back(static_cast<char>('a' + random() % 3));
      std::vector<int32_t> ids;
      made.merges.Encode(bytes, &ids);
      ASSERT_EQ(ids, made.Expected(bytes)) << bytes;
    }
  }
}

}  // namespace
}  // namespace quartet::text
