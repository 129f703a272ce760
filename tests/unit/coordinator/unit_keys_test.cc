#include "services/coordinator/rpc/unit_keys.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;

// The first 16 bytes of the hash.
std::string Hex(const UnitKey& key) {
  std::string hex;
  for (uint64_t word : {key.high, key.low}) {
    for (int i = 0; i < 8; ++i) {
      for (int shift : {4, 0}) hex += "0123456789abcdef"[(word >> (8 * i + shift)) & 15];
    }
  }
  return hex;
}

std::vector<std::string> Hex(const std::vector<UnitKey>& keys) {
  std::vector<std::string> hex;
  for (const UnitKey& key : keys) hex.push_back(Hex(key));
  return hex;
}

UnitKey Root(const KeyDomain& domain = {}) {
  return RootKey(domain).value();
}

std::vector<UnitKey> Keys(std::span<const int32_t> tokens,
                          const std::vector<ImageSpan>& images = {}, const UnitKey& root = Root()) {
  return UnitKeys(root, tokens, images).value();
}

std::vector<int32_t> Text(size_t n) {
  std::vector<int32_t> text(n);
  for (size_t i = 0; i < n; ++i) text[i] = static_cast<int32_t>(i * 31 % 997);
  return text;
}

std::string Digest(std::mt19937_64& random) {
  std::string digest(32, '\0');
  for (char& byte : digest) byte = static_cast<char>(random());
  return digest;
}

// A text of n tokens with placeholders (id 9) where the images stand.
std::vector<int32_t> TextWithImages(size_t n, const std::vector<ImageSpan>& images) {
  std::vector<int32_t> text = Text(n);
  for (const ImageSpan& image : images) {
    std::fill_n(text.begin() + static_cast<int64_t>(image.first_token), image.n_tokens, 9);
  }
  return text;
}

// The expected values of the next two tests come from Python:
//   u32, u64 = lambda x: struct.pack('<I', x), lambda x: struct.pack('<Q', x)
//   s = lambda b: u64(len(b)) + b
//   root = sha256(s(b'quartet prefix root') + u32(1) + s(model) + s(numerics) + s(salt) +
//   s(adapter)) unit = sha256(s(b'quartet prefix unit') + previous + u64(256) + 256 times
//   u32(token) +
//                 u64(number of images) + for each s(digest) + u64(offset in it) + u64(place in
//                 unit))
// each cut to its first 16 bytes.
TEST(UnitKeys, AreWhatAnotherProgramComputes) {
  EXPECT_EQ(Hex(Root()), "57b7e0c4d25a50cdd2b47ed105befad0");
  const UnitKey root =
      Root({.model_fingerprint = "glm", .numerics_fingerprint = "k1 fp8 tp4", .salt = "tenant a"});
  EXPECT_EQ(Hex(root), "92ec2adfac7f2065c5feaead480ad447");
  EXPECT_THAT(Hex(Keys(Text(512), {}, root)),
              ElementsAre("12e0fae77eb6e0bcd629bc0f6ede4768", "3ea70198cc3d281acfc90d900cabb8aa"));
}

TEST(UnitKeys, WithImagesAreWhatAnotherProgramComputes) {
  std::string digest(32, '\0');
  for (int i = 0; i < 32; ++i) digest[i] = static_cast<char>(i);
  const std::string reversed(digest.rbegin(), digest.rend());
  const UnitKey root =
      Root({.model_fingerprint = "glm", .numerics_fingerprint = "k1 fp8 tp4", .salt = "tenant a"});
  EXPECT_THAT(Hex(Keys(Text(512), {{digest, 200, 300}, {reversed, 502, 10}}, root)),
              ElementsAre("55b9adc37e39cfafba5a4cc57b7eaa00", "14ce51e7488eb37c35d27736f8c6be92"));
}

TEST(UnitKeys, OnlyFullUnitsHaveOne) {
  EXPECT_TRUE(Keys(Text(0)).empty());
  EXPECT_TRUE(Keys(Text(255)).empty());
  EXPECT_EQ(Keys(Text(256)).size(), 1u);
  EXPECT_EQ(Keys(Text(1000)).size(), 3u);
}

TEST(UnitKeys, ADifferentTokenChangesItsUnitAndAllBehindIt) {
  const std::vector<UnitKey> keys = Keys(Text(1280));
  std::vector<int32_t> text = Text(1280);
  text[600] ^= 1;
  const std::vector<UnitKey> other = Keys(text);
  EXPECT_EQ(other[0], keys[0]);
  EXPECT_EQ(other[1], keys[1]);
  for (size_t unit : {2, 3, 4}) EXPECT_NE(other[unit], keys[unit]);
}

TEST(UnitKeys, OfASequenceThatGrowsAreThoseOfTheWhole) {
  std::mt19937_64 random(3);
  const std::vector<ImageSpan> images = {{Digest(random), 250, 20}, {Digest(random), 700, 600}};
  const std::vector<int32_t> text = TextWithImages(1536, images);
  const std::vector<UnitKey> keys = Keys(text, images);
  UnitKey previous = Root();
  for (size_t unit = 0; unit < 6; ++unit) {
    previous =
        NextUnitKey(previous, std::span(text).subspan(unit * 256, 256), unit * 256, images).value();
    EXPECT_EQ(previous, keys[unit]);
  }
}

TEST(UnitChain, InAnyPiecesNamesTheUnitsOfTheWhole) {
  std::mt19937_64 random(4);
  const std::vector<ImageSpan> images = {{Digest(random), 100, 400}};
  const std::vector<int32_t> text = TextWithImages(3000, images);
  const std::vector<UnitKey> whole = Keys(text, images);
  for (const size_t prompt : {0, 1, 255, 256, 257, 600, 2999}) {
    const auto known = std::span(text).first(prompt);
    std::vector<UnitKey> keys = UnitKeys(Root(), known, images).value();
    UnitChain chain(Root(), keys, known, images);
    for (size_t at = prompt; at < text.size();) {
      const size_t piece = std::min<size_t>(1 + random() % 300, text.size() - at);
      const std::vector<UnitKey> more = chain.Append(std::span(text).subspan(at, piece)).value();
      keys.insert(keys.end(), more.begin(), more.end());
      at += piece;
    }
    EXPECT_EQ(keys, whole) << "a prompt of " << prompt;
  }
}

TEST(UnitKeys, EachPartOfTheDomainCountsAndStaysWhereItIs) {
  std::set<UnitKey> roots;
  roots.insert(Root());
  roots.insert(Root({.model_fingerprint = "x"}));
  roots.insert(Root({.numerics_fingerprint = "x"}));
  roots.insert(Root({.salt = "x"}));
  roots.insert(Root({.adapter_digest = "x"}));
  roots.insert(Root({.numerics_fingerprint = "ab", .salt = "c"}));
  roots.insert(Root({.numerics_fingerprint = "a", .salt = "bc"}));
  roots.insert(Root({.salt = std::string("x\0", 2)}));
  EXPECT_EQ(roots.size(), 8u);
}

// Case O14: two pictures, one cache key.
TEST(UnitKeys, O14AHundredThousandImagesHaveAHundredThousandKeys) {
  std::mt19937_64 random(14);
  std::vector<ImageSpan> image = {{"", 100, 100}};
  const std::vector<int32_t> text = TextWithImages(256, image);
  std::vector<UnitKey> keys;
  while (keys.size() < 99'999) {
    // Every other digest differs from the one before in a single bit.
    if (keys.size() % 2 == 0) {
      image[0].digest = Digest(random);
    } else {
      image[0].digest[random() % 32] ^= static_cast<char>(1 << random() % 8);
    }
    keys.push_back(Keys(text, image)[0]);
  }
  keys.push_back(Keys(text)[0]);
  std::ranges::sort(keys);
  EXPECT_EQ(std::ranges::adjacent_find(keys), keys.end());
}

TEST(UnitKeys, O14AnImageCountsFromTheFirstUnitThatItTouches) {
  std::mt19937_64 random(15);
  const std::vector<ImageSpan> a = {{Digest(random), 300, 500}};
  std::vector<ImageSpan> b = a;
  b[0].digest = Digest(random);
  const std::vector<int32_t> text = TextWithImages(1280, a);
  const std::vector<UnitKey> with_a = Keys(text, a);
  const std::vector<UnitKey> with_b = Keys(text, b);
  EXPECT_EQ(with_a[0], with_b[0]);
  for (size_t unit = 1; unit < 5; ++unit) EXPECT_NE(with_a[unit], with_b[unit]);
}

TEST(UnitKeys, O14OrderCropAndPlaceOfImagesCount) {
  std::mt19937_64 random(16);
  const std::string a = Digest(random), b = Digest(random);
  const std::vector<int32_t> text = TextWithImages(256, {{a, 10, 50}, {b, 60, 50}});
  std::set<UnitKey> keys;
  keys.insert(Keys(text, {{a, 10, 50}, {b, 60, 50}})[0]);
  keys.insert(Keys(text, {{b, 10, 50}, {a, 60, 50}})[0]);
  keys.insert(Keys(text, {{a, 10, 50}, {a, 60, 50}})[0]);
  keys.insert(Keys(text, {{a, 10, 50}})[0]);
  // Placeholders that are no image beside one that is: which of them it is counts.
  keys.insert(Keys(text, {{a, 20, 50}})[0]);
  keys.insert(Keys(text, {})[0]);
  EXPECT_EQ(keys.size(), 6u);

  // The same image, the same tokens, another part of it in the unit.
  const std::vector<int32_t> placeholders(512, 9);
  EXPECT_NE(
      NextUnitKey(Root(), std::span(placeholders).first(256), 256, {{{a, 0, 512}}}).value(),
      NextUnitKey(Root(), std::span(placeholders).first(256), 256, {{{a, 128, 512}}}).value());
}

TEST(UnitKeys, O14DifferentSaltsNeverMeet) {
  std::set<UnitKey> keys;
  size_t expected = 0;
  for (int tenant = 0; tenant < 200; ++tenant) {
    const UnitKey root = Root({.salt = "tenant " + std::to_string(tenant)});
    keys.insert(root);
    for (const UnitKey& key : Keys(Text(2560), {}, root)) keys.insert(key);
    expected += 11;
  }
  EXPECT_EQ(keys.size(), expected);
}

}  // namespace
}  // namespace quartet::coordinator
