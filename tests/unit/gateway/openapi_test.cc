// docs/openapi.json describes what the gateway serves: no more and no less.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "services/gateway/edge.h"
#include "services/gateway/openapi_document.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

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

}  // namespace
}  // namespace quartet::gateway
