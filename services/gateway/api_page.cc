#include "services/gateway/api_page.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/value.h"

namespace quartet::gateway {
namespace {

using text::Value;

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--accent:#2563a8}
@media (prefers-color-scheme:dark){:root{--accent:#7db4ec}}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:0}
h2{margin-top:2.5rem;border-bottom:1px solid var(--line);padding-bottom:.3rem}
code,td:first-child{font-family:ui-monospace,monospace;font-size:.9em}
a{color:var(--accent);text-decoration:none}
a:hover{text-decoration:underline}
nav{columns:2;background:var(--soft);padding:.8rem 1rem;border-radius:.5rem}
nav a{display:block;font-family:ui-monospace,monospace;font-size:.9em}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line)}
th{font-weight:600}
summary{cursor:pointer;font-weight:600}
.method{display:inline-block;min-width:3.2rem;color:var(--accent);font-weight:700}
.needed{color:#c2410c}
)css";

constexpr std::string_view kRefPrefix = "#/components/";

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string TextOf(const Value& object, std::string_view key) {
  const Value value = object.Get(key);
  return value.is_string() ? Escaped(value.string()) : "";
}

std::string JsonOf(const Value& value) {
  std::string out;
  if (!text::AppendJson(value, {.spaces = false}, &out).ok()) return "";
  return Escaped(out);
}

Value::Entries EntriesOf(const Value& value) {
  return value.is_object() ? value.entries() : Value::Entries();
}

Value::List ListOf(const Value& value) {
  return value.is_list() ? value.list() : Value::List();
}

class PageWriter {
 public:
  explicit PageWriter(const Value& document)
      : document_(document), schemas_(document.Get("components").Get("schemas")) {}

  std::string Write() {
    const Value info = document_.Get("info");
    const std::string title = TextOf(info, "title");
    absl::StrAppend(
        &out_,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
        title, " API</title><style>", std::string(kStyle), "</style></head><body>\n<h1>", title,
        " API</h1>\n<p>Version ", TextOf(info, "version"),
        " · <a href=\"openapi.json\">openapi.json</a></p>\n<p>", TextOf(info, "description"),
        "</p>\n<nav>\n");
    ForEachOperation([this](const std::string& method, const std::string& path, const Value&) {
      absl::StrAppend(&out_, "<a href=\"#", Anchor(method, path), "\"><span class=\"method\">",
                      method, "</span> ", Escaped(path), "</a>\n");
    });
    out_ += "</nav>\n";
    ForEachOperation([this](const std::string& method, const std::string& path,
                            const Value& operation) { Operation(method, path, operation); });
    out_ += "<h2 id=\"schemas\">Schemas</h2>\n";
    for (const auto& [name, schema] : EntriesOf(schemas_)) {
      absl::StrAppend(&out_, "<details open id=\"", SchemaAnchor(name), "\"><summary>",
                      Escaped(name), "</summary>\n");
      Fields(schema);
      out_ += "</details>\n";
    }
    out_ += "</body></html>\n";
    return std::move(out_);
  }

 private:
  template <typename Fn>
  void ForEachOperation(Fn fn) const {
    for (const auto& [path, operations] : EntriesOf(document_.Get("paths"))) {
      for (const auto& [method, operation] : EntriesOf(operations)) {
        fn(absl::AsciiStrToUpper(method), path, operation);
      }
    }
  }

  static std::string Anchor(const std::string& method, const std::string& path) {
    std::string anchor = absl::StrCat(method, path);
    for (char& c : anchor) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '-';
    }
    return anchor;
  }
  static std::string SchemaAnchor(std::string_view name) {
    return absl::StrCat("schema-", std::string(name));
  }

  // What `value` refers to, or itself.
  Value Resolved(const Value& value) const {
    const Value ref = value.Get("$ref");
    if (!ref.is_string() || !ref.string().starts_with(kRefPrefix)) return value;
    const std::string target = ref.string().substr(kRefPrefix.size());
    const size_t slash = target.find('/');
    return document_.Get("components").Get(target.substr(0, slash)).Get(target.substr(slash + 1));
  }

  void Operation(const std::string& method, const std::string& path, const Value& operation) {
    absl::StrAppend(&out_, "<h2 id=\"", Anchor(method, path), "\"><span class=\"method\">", method,
                    "</span> ", Escaped(path), "</h2>\n<p>", TextOf(operation, "summary"));
    if (operation.Get("security").is_list()) out_ += " It asks for no API key.";
    out_ += "</p>\n";
    Parameters(operation.Get("parameters"));
    const Value body = operation.Get("requestBody").Get("content").Get("application/json");
    if (body.is_object()) {
      const Value schema = body.Get("schema");
      absl::StrAppend(&out_, "<h3>Body: ", TypeOf(schema), "</h3>\n");
    }
    Answers(operation.Get("responses"));
  }

  void Parameters(const Value& parameters) {
    if (ListOf(parameters).empty()) return;
    out_ += "<table><tr><th>Parameter</th><th>In</th><th>Type</th><th></th></tr>\n";
    for (const Value& item : parameters.list()) {
      const Value parameter = Resolved(item);
      absl::StrAppend(&out_, "<tr><td>", TextOf(parameter, "name"), "</td><td>",
                      TextOf(parameter, "in"), "</td><td>", TypeOf(parameter.Get("schema")),
                      "</td><td>", TextOf(parameter, "description"), "</td></tr>\n");
    }
    out_ += "</table>\n";
  }

  void Answers(const Value& responses) {
    out_ += "<table><tr><th>Answer</th><th>Content</th><th></th></tr>\n";
    for (const auto& [status, item] : EntriesOf(responses)) {
      const Value response = Resolved(item);
      std::vector<std::string> contents;
      for (const auto& [type, content] : EntriesOf(response.Get("content"))) {
        const std::string schema = TypeOf(content.Get("schema"));
        contents.push_back(
            absl::StrCat("<code>", Escaped(type), "</code>", schema.empty() ? "" : ": ", schema));
      }
      absl::StrAppend(&out_, "<tr><td>", Escaped(status), "</td><td>",
                      absl::StrJoin(contents, "<br>"), "</td><td>", TextOf(response, "description"),
                      "</td></tr>\n");
    }
    out_ += "</table>\n";
  }

  // In words; other schemas as links.
  std::string TypeOf(const Value& schema) const {
    if (const Value ref = schema.Get("$ref"); ref.is_string()) {
      const std::string name = ref.string().substr(ref.string().rfind('/') + 1);
      return absl::StrCat("<a href=\"#", SchemaAnchor(Escaped(name)), "\">", Escaped(name), "</a>");
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      const Value alternatives = schema.Get(key);
      if (!alternatives.is_list() || schema.Get("type").is_string()) continue;
      std::vector<std::string> types;
      for (const Value& one : alternatives.list()) types.push_back(TypeOf(one));
      return absl::StrJoin(types, " or ");
    }
    if (const Value values = schema.Get("enum"); values.is_list()) {
      std::vector<std::string> spelled;
      for (const Value& one : values.list()) {
        spelled.push_back(absl::StrCat("<code>", JsonOf(one), "</code>"));
      }
      return absl::StrJoin(spelled, ", ");
    }
    if (const Value value = schema.Get("const"); !value.is_undefined()) {
      return absl::StrCat("<code>", JsonOf(value), "</code>");
    }
    const Value type = schema.Get("type");
    std::vector<std::string> names;
    if (type.is_string()) names.push_back(type.string());
    if (type.is_list()) {
      for (const Value& one : type.list()) names.push_back(one.is_string() ? one.string() : "");
    }
    std::string out = Escaped(absl::StrJoin(names, " or "));
    if (const Value items = schema.Get("items"); items.is_object()) {
      absl::StrAppend(&out, " of ", TypeOf(items));
    }
    return out + Bounds(schema);
  }

  static std::string Bounds(const Value& schema) {
    const std::pair<const char*, const char*> kinds[] = {{"minimum", "at least "},
                                                         {"exclusiveMinimum", "above "},
                                                         {"maximum", "at most "},
                                                         {"minLength", "characters at least "},
                                                         {"maxLength", "characters at most "},
                                                         {"minItems", "items at least "},
                                                         {"maxItems", "items at most "},
                                                         {"maxProperties", "entries at most "},
                                                         {"pattern", "matching "}};
    std::vector<std::string> bounds;
    for (const auto& [key, words] : kinds) {
      const Value bound = schema.Get(key);
      if (bound.is_absent()) continue;
      bounds.push_back(
          absl::StrCat(words, bound.is_string() ? Escaped(bound.string()) : JsonOf(bound)));
    }
    return bounds.empty() ? "" : absl::StrCat("; ", absl::StrJoin(bounds, ", "));
  }

  void Fields(const Value& schema) {
    std::string rows;
    AppendRows(schema, "", &rows);
    if (rows.empty()) {
      absl::StrAppend(&out_, "<p>", TypeOf(schema), "</p>\n");
    } else {
      absl::StrAppend(&out_, "<table><tr><th>Field</th><th>Type</th><th></th></tr>\n", rows,
                      "</table>\n");
    }
  }

  // A row for each field, those of objects within by their path: "stream_options.include_usage".
  void AppendRows(const Value& schema, const std::string& prefix, std::string* rows) const {
    for (const Value& part : ListOf(schema.Get("allOf"))) {
      AppendRows(Resolved(part), prefix, rows);
    }
    const Value::List required = ListOf(schema.Get("required"));
    for (const auto& [name, field] : EntriesOf(schema.Get("properties"))) {
      const bool needed = std::ranges::any_of(required, [&name = name](const Value& one) {
        return one.is_string() && one.string() == name;
      });
      absl::StrAppend(rows, "<tr><td>", Escaped(prefix + name),
                      needed ? " <span class=\"needed\" title=\"required\">*</span>" : "",
                      "</td><td>", TypeOf(field), "</td><td>", TextOf(field, "description"),
                      "</td></tr>\n");
      AppendRows(field, absl::StrCat(prefix, name, "."), rows);
      AppendRows(field.Get("items"), absl::StrCat(prefix, name, "[]."), rows);
    }
  }

  const Value& document_;
  const Value schemas_;
  std::string out_;
};

}  // namespace

std::string ApiPage(std::string_view openapi_json) {
  const auto document = text::ParseJson(openapi_json);
  if (!document.ok() || !document->is_object()) return "";
  return PageWriter(*document).Write();
}

}  // namespace quartet::gateway
