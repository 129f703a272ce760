// docs/openapi.json describes what the gateway serves: no more and no less.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "services/gateway/api_page.h"
#include "services/gateway/edge.h"
#include "services/gateway/openapi_document.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using text::Value;

// Method in capitals and path; a route that takes one more segment ends with '/'.
using Operations = std::set<std::pair<std::string, std::string>>;

Value Document() {
  const auto document = text::ParseJson(OpenApiDocument());
  EXPECT_TRUE(document.ok()) << document.status();
  return document.ok() ? *document : Value();
}

TEST(OpenApi, NamesTheRoutesAndNoOthers) {
  Operations served;
  for (const HttpRoute& route : GatewayRoutes(nullptr)) served.emplace(route.method, route.path);
  Operations described;
  for (const auto& [path, operations] : Document().Get("paths").entries()) {
    for (const auto& [method, operation] : operations.entries()) {
      described.emplace(absl::AsciiStrToUpper(method), path.substr(0, path.find('{')));
    }
  }
  EXPECT_EQ(described, served);
}

TEST(OpenApi, SaysWhatIsOpenAndWhatTakesJson) {
  for (const HttpRoute& route : GatewayRoutes(nullptr)) {
    const Value paths = Document().Get("paths");
    for (const auto& [path, operations] : paths.entries()) {
      if (path.substr(0, path.find('{')) != route.path) continue;
      const Value operation = operations.Get(absl::AsciiStrToLower(route.method));
      EXPECT_EQ(operation.Get("security").is_list(), IsOpenPath(route.path)) << path;
      EXPECT_EQ(operation.Get("requestBody").is_object(), route.json_body) << path;
      EXPECT_TRUE(operation.Get("operationId").is_string()) << path;
    }
  }
}

// Collects the targets of all references below `value`.
void References(const Value& value, std::set<std::string>* out) {
  if (value.is_list()) {
    for (const Value& item : value.list()) References(item, out);
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.entries()) {
      if (key == "$ref" && item.is_string()) out->insert(item.string());
      References(item, out);
    }
  }
}

TEST(OpenApi, EveryReferenceHasATargetAndEveryTargetAReference) {
  const Value document = Document();
  std::set<std::string> used;
  References(document, &used);
  std::set<std::string> defined;
  const Value components = document.Get("components");
  for (const auto& [kind, entries] : components.entries()) {
    if (kind == "securitySchemes") continue;
    for (const auto& [name, entry] : entries.entries()) {
      defined.insert("#/components/" + kind + "/" + name);
    }
  }
  EXPECT_EQ(used, defined);
}

TEST(ApiPage, HasEveryOperationAndSchemaAndEveryLinkATarget) {
  const std::string page = ApiPage(OpenApiDocument());
  const Value document = Document();
  for (const auto& [path, operations] : document.Get("paths").entries()) {
    for (const auto& [method, operation] : operations.entries()) {
      EXPECT_THAT(page, HasSubstr("<span class=\"method\">" + absl::AsciiStrToUpper(method) +
                                  "</span> " + path + "</h2>"));
    }
  }
  for (const auto& [name, schema] : document.Get("components").Get("schemas").entries()) {
    EXPECT_THAT(page, HasSubstr("id=\"schema-" + name + "\""));
  }
  const std::string link = "href=\"#";
  int links = 0;
  for (size_t at = 0; (at = page.find(link, at)) != std::string::npos; ++links) {
    at += link.size();
    const std::string target = page.substr(at, page.find('"', at) - at);
    EXPECT_THAT(page, HasSubstr("id=\"" + target + "\""));
  }
  EXPECT_GT(links, 50);
}

TEST(ApiPage, NeedsNothingFromOutsideAndRunsNoScript) {
  const std::string page = ApiPage(OpenApiDocument());
  for (const char* part : {"<script", "http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
}

TEST(ApiPage, ShowsFieldsWithinFieldsAndEscapesText) {
  const std::string page =
      ApiPage(R"({"info":{"title":"<T> & Co"},"paths":{},"components":{"schemas":
      {"S":{"type":"object","required":["a"],"properties":{"a":{"type":"object","properties":
      {"b":{"type":["integer","null"],"minimum":1,"description":"\"why\""}}},
      "l":{"type":"array","items":{"type":"object","properties":{"c":{"enum":["x",2]}}}}}}}}})");
  EXPECT_THAT(page, HasSubstr("<h1>&lt;T&gt; &amp; Co API</h1>"));
  EXPECT_THAT(page, HasSubstr("<td>a <span class=\"needed\" title=\"required\">*</span></td>"));
  EXPECT_THAT(page, HasSubstr("<td>a.b</td><td>integer or null; at least 1</td>"
                              "<td>&quot;why&quot;</td>"));
  EXPECT_THAT(page, HasSubstr("<td>l[].c</td><td><code>&quot;x&quot;</code>, <code>2</code></td>"));
  EXPECT_EQ(ApiPage("no JSON"), "");
}

}  // namespace
}  // namespace quartet::gateway
