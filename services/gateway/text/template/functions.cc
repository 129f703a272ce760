#include "services/gateway/text/template/functions.h"

#include <array>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/template/operators.h"

namespace quartet::text {
namespace {

using R = TemplateRuntime;
using A = TemplateArguments;

// A template that counts further is wrong; the list has to be built.
constexpr int64_t kRangeMax = 1'000'000;

Value Range(R& r, const A& a) {
  if (!r.CheckArguments(a, 3, "range")) return {};
  std::array<int64_t, 3> numbers{};
  for (size_t i = 0; i < a.positional.size(); ++i) {
    if (!a.positional[i].is_integer()) return r.Fail("range needs integers");
    numbers[i] = a.positional[i].integer();
  }
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 1;
  switch (a.positional.size()) {
    case 0:
      return r.Fail("range needs an argument");
    case 1:
      end = numbers[0];
      break;
    case 3:
      step = numbers[2];
      [[fallthrough]];
    default:
      begin = numbers[0];
      end = numbers[1];
  }
  if (step == 0) return r.Fail("range needs a step other than 0");
  Value::List out;
  int64_t i = begin;
  while (step > 0 ? i < end : i > end) {
    if (static_cast<int64_t>(out.size()) >= kRangeMax) {
      return r.FailLimit(absl::StrCat("asks for a range of more than ", kRangeMax, " numbers"));
    }
    out.push_back(Value::Integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return r.NewList(std::move(out));
}

Value Namespace(R& r, const A& a) {
  if (!a.positional.empty()) return r.Fail("namespace takes named arguments only");
  auto made = std::make_shared<NamespaceValue>();
  for (const auto& [key, value] : a.keyword) {
    if (value.is_opaque()) return r.Fail("a namespace cannot hold a macro or a namespace");
    made->Set(key, value);
  }
  return Value::Opaque(std::move(made));
}

Value Dict(R& r, const A& a) {
  if (!a.positional.empty()) return r.Fail("dict takes named arguments only");
  return r.NewObject(a.keyword);
}

Value RaiseException(R& r, const A& a) {
  return r.Raise(a.positional.empty() ? "the chat template refuses this input"
                                      : PrintValue(a.positional[0]));
}

Value StrftimeNow(R& r, const A& a) {
  if (a.positional.size() != 1 || !a.positional[0].is_string()) {
    return r.Fail("strftime_now needs a format");
  }
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 256> out;
  const size_t bytes =
      std::strftime(out.data(), out.size(), a.positional[0].string().c_str(), &local);
  return r.NewString(std::string(out.data(), bytes));
}

struct Entry {
  std::string_view name;
  Value (*function)(R&, const A&);
};

constexpr Entry kFunctions[] = {
    {"dict", Dict},   {"namespace", Namespace},      {"raise_exception", RaiseException},
    {"range", Range}, {"strftime_now", StrftimeNow},
};

}  // namespace

Value NamespaceValue::Get(std::string_view name) const {
  for (const auto& [key, value] : entries_) {
    if (key == name) return value;
  }
  return {};
}

void NamespaceValue::Set(std::string_view name, Value value) {
  for (auto& [key, old] : entries_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  entries_.emplace_back(std::string(name), std::move(value));
}

bool IsTemplateFunction(std::string_view name) {
  for (const Entry& entry : kFunctions) {
    if (entry.name == name) return true;
  }
  return false;
}

Value CallTemplateFunction(TemplateRuntime& runtime, std::string_view name,
                           const TemplateArguments& arguments) {
  for (const Entry& entry : kFunctions) {
    if (entry.name == name) return entry.function(runtime, arguments);
  }
  return runtime.Fail("unknown function");
}

}  // namespace quartet::text
