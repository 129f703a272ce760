#include "services/gateway/http/http_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet::gateway {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST(RequestPath, LeavesOutHostAndQuery) {
  EXPECT_EQ(RequestPath("/a/b"), "/a/b");
  EXPECT_EQ(RequestPath("/a?b=/c?d"), "/a");
  EXPECT_EQ(RequestPath("http://host:1/a?b"), "/a");
  EXPECT_EQ(RequestPath("HTTP://host"), "/");
  EXPECT_EQ(RequestPath("*"), "*");
  EXPECT_EQ(RequestPath(""), "");
}

TEST(CorsHeaders, OnlyPagesOfKnownOriginsMayRead) {
  const std::vector<std::string> origins = {"https://a.example", "http://localhost:3000"};
  const CorsRequest known{.origin = "https://a.example"};
  EXPECT_THAT(CorsHeaders(origins, known),
              Contains(Pair("Access-Control-Allow-Origin", "https://a.example")));
  EXPECT_THAT(CorsHeaders(origins, known), Contains(Pair("Vary", "Origin")));
  for (const char* origin : {"", "https://b.example", "https://a.example.evil", "null"}) {
    EXPECT_THAT(CorsHeaders(origins, {.origin = origin}), IsEmpty()) << origin;
  }
  EXPECT_THAT(CorsHeaders({}, known), IsEmpty());
  EXPECT_THAT(CorsHeaders({"*"}, {.origin = "https://b.example"}),
              Contains(Pair("Access-Control-Allow-Origin", "*")));
}

TEST(PreflightHeaders, AllowWhatIsAskedForIfItIsPlain) {
  CorsRequest request{.method = "POST", .headers = "authorization, x-stainless-os"};
  EXPECT_THAT(PreflightHeaders(request, {"GET", "HEAD", "POST"}),
              Contains(Pair("Access-Control-Allow-Methods", "GET, HEAD, POST")));
  EXPECT_THAT(PreflightHeaders(request, {"POST"}),
              Contains(Pair("Access-Control-Allow-Headers", "authorization, x-stainless-os")));
  request.headers = "a\r\nSet-Cookie: b";
  EXPECT_THAT(PreflightHeaders(request, {"POST"}),
              Not(Contains(Key("Access-Control-Allow-Headers"))));
}

}  // namespace
}  // namespace quartet::gateway
