#include "services/gateway/text/value.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/strings/charconv.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "services/gateway/text/absl_strings.h"

namespace quartet::text {

struct Value::ListRep {
  List items;
  int depth;
  size_t weight;
};

struct Value::ObjectRep {
  Entries entries;
  // Positions in order of their keys; empty for small objects, which are searched one by one.
  std::vector<uint32_t> by_key;
  int depth;
  size_t weight;
};

namespace {

constexpr size_t kSmallObject = 12;

// Sharing can make a value weigh more than any number of bytes that exists; sums stop here.
constexpr size_t kWeightMax = size_t{1} << 60;

size_t AddWeights(size_t a, size_t b) {
  return std::min(a + b, kWeightMax);
}

std::vector<uint32_t> SortByKey(const Value::Entries& entries) {
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return entries[a].first < entries[b].first; });
  return order;
}

void MergeRepeatedKeys(Value::Entries* entries) {
  const std::vector<uint32_t> order = SortByKey(*entries);
  std::vector<bool> drop(entries->size(), false);
  bool any = false;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && (*entries)[order[end]].first == (*entries)[order[begin]].first) {
      drop[order[end]] = true;
      any = true;
      ++end;
    }
    // The order is stable, so the last of equal keys is the last one given.
    if (end - begin > 1) {
      (*entries)[order[begin]].second = (*entries)[order[end - 1]].second;
    }
    begin = end;
  }
  if (!any) return;
  Value::Entries kept;
  kept.reserve(entries->size());
  for (size_t i = 0; i < entries->size(); ++i) {
    if (!drop[i]) kept.push_back(std::move((*entries)[i]));
  }
  *entries = std::move(kept);
}

double ParseDouble(std::string_view token) {
  double value = 0.0;
  const absl::from_chars_result result =
      absl::from_chars(token.data(), token.data() + token.size(), value);
  // Out of range leaves the largest finite value or the smallest; only overflow matters here.
  if (result.ec == std::errc::result_out_of_range && std::fabs(value) > 1.0) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return value;
}

// As Python's repr: the shortest digits that read back as the same double, and always a point or an
// exponent.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text;
  for (int digits = 1; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*e", digits - 1, value);
    if (ParseDouble(text) == value) break;
  }
  const size_t e = text.find('e');
  int exponent = 0;
  std::string_view exponent_text = std::string_view(text).substr(e + 1);
  if (!exponent_text.empty() && exponent_text[0] == '+') exponent_text.remove_prefix(1);
  (void)absl::SimpleAtoi(Av(exponent_text), &exponent);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  const std::string sign = std::signbit(value) ? "-" : "";
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (count > 1) mantissa += "." + digits.substr(1);
    return absl::StrFormat("%s%se%s%02d", sign, mantissa, exponent < 0 ? "-" : "+",
                           std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(-exponent - 1, '0') + digits;
  if (count <= exponent + 1) {
    return sign + digits + std::string(exponent + 1 - count, '0') + ".0";
  }
  return sign + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

}  // namespace

Value Value::None() {
  return Value(Data(NoneTag{}));
}
Value Value::Bool(bool value) {
  return Value(Data(value));
}
Value Value::Integer(int64_t value) {
  return Value(Data(IntegerRep{value, nullptr}));
}
Value Value::Float(double value) {
  return Value(Data(FloatRep{value, nullptr}));
}

Value Value::NumberToken(std::string_view token) {
  int64_t integer = 0;
  if (token.find_first_of(".eE") == std::string_view::npos &&
      absl::SimpleAtoi(Av(token), &integer)) {
    // "-0" is the only integer whose spelling would be lost.
    return Value(Data(
        IntegerRep{integer, token == "-0" ? std::make_shared<const std::string>(token) : nullptr}));
  }
  return Value(Data(FloatRep{ParseDouble(token), std::make_shared<const std::string>(token)}));
}

Value Value::String(std::string value) {
  return Value(Data(std::make_shared<const std::string>(std::move(value))));
}

Value Value::MakeList(List items) {
  int depth = 0;
  size_t weight = 2;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    weight = AddWeights(weight, item.weight() + 2);
  }
  return Value(Data(std::make_shared<const ListRep>(ListRep{std::move(items), depth + 1, weight})));
}

Value Value::MakeObject(Entries entries) {
  if (entries.size() > 1) MergeRepeatedKeys(&entries);
  int depth = 0;
  size_t weight = 2;
  for (const auto& [key, value] : entries) {
    depth = std::max(depth, value.depth());
    weight = AddWeights(weight, key.size() + value.weight() + 6);
  }
  std::vector<uint32_t> by_key;
  if (entries.size() > kSmallObject) by_key = SortByKey(entries);
  return Value(Data(std::make_shared<const ObjectRep>(
      ObjectRep{std::move(entries), std::move(by_key), depth + 1, weight})));
}

Value Value::Opaque(std::shared_ptr<OpaqueValue> value) {
  return Value(Data(std::move(value)));
}

bool Value::boolean() const {
  return std::get<bool>(data_);
}
int64_t Value::integer() const {
  return std::get<IntegerRep>(data_).value;
}

double Value::number() const {
  if (const auto* integer = std::get_if<IntegerRep>(&data_)) {
    return static_cast<double>(integer->value);
  }
  return std::get<FloatRep>(data_).value;
}

const std::string& Value::string() const& {
  return *std::get<std::shared_ptr<const std::string>>(data_);
}

const Value::List& Value::list() const& {
  return std::get<std::shared_ptr<const ListRep>>(data_)->items;
}

const Value::Entries& Value::entries() const& {
  return std::get<std::shared_ptr<const ObjectRep>>(data_)->entries;
}

const std::shared_ptr<OpaqueValue>& Value::opaque() const {
  return std::get<std::shared_ptr<OpaqueValue>>(data_);
}

const Value* Value::Find(std::string_view key) const {
  const auto* rep = std::get_if<std::shared_ptr<const ObjectRep>>(&data_);
  if (rep == nullptr) return nullptr;
  const Entries& entries = (*rep)->entries;
  const std::vector<uint32_t>& by_key = (*rep)->by_key;
  if (by_key.empty()) {
    for (const Entry& entry : entries) {
      if (entry.first == key) return &entry.second;
    }
    return nullptr;
  }
  const auto found = std::lower_bound(
      by_key.begin(), by_key.end(), key,
      [&](uint32_t i, std::string_view wanted) { return entries[i].first < wanted; });
  if (found == by_key.end() || entries[*found].first != key) return nullptr;
  return &entries[*found].second;
}

Value Value::Get(std::string_view key) const {
  const Value* found = Find(key);
  return found == nullptr ? Value() : *found;
}

std::string Value::NumberText() const {
  if (const auto* integer = std::get_if<IntegerRep>(&data_)) {
    return integer->spelling ? *integer->spelling : std::to_string(integer->value);
  }
  const FloatRep& rep = std::get<FloatRep>(data_);
  return rep.spelling ? *rep.spelling : FloatText(rep.value);
}

bool Value::has_spelling() const {
  if (const auto* integer = std::get_if<IntegerRep>(&data_)) return integer->spelling != nullptr;
  if (const auto* number = std::get_if<FloatRep>(&data_)) return number->spelling != nullptr;
  return false;
}

int Value::depth() const {
  if (const auto* list = std::get_if<std::shared_ptr<const ListRep>>(&data_)) {
    return (*list)->depth;
  }
  if (const auto* object = std::get_if<std::shared_ptr<const ObjectRep>>(&data_)) {
    return (*object)->depth;
  }
  return 0;
}

size_t Value::weight() const {
  if (const auto* list = std::get_if<std::shared_ptr<const ListRep>>(&data_)) {
    return (*list)->weight;
  }
  if (const auto* object = std::get_if<std::shared_ptr<const ObjectRep>>(&data_)) {
    return (*object)->weight;
  }
  return is_string() ? string().size() + 2 : 8;
}

bool Value::Truthy() const {
  switch (type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return boolean();
    case Type::kInteger:
      return integer() != 0;
    case Type::kFloat:
      return number() != 0.0;
    case Type::kString:
      return !string().empty();
    case Type::kList:
      return !list().empty();
    case Type::kObject:
      return !entries().empty();
    case Type::kOpaque:
      return true;
  }
  return false;
}

bool Value::Equals(const Value& other) const {
  const auto numeric = [](const Value& v) -> std::optional<double> {
    if (v.is_bool()) return v.boolean() ? 1.0 : 0.0;
    if (v.is_number()) return v.number();
    return std::nullopt;
  };
  if (is_integer() && other.is_integer()) return integer() == other.integer();
  const std::optional<double> a = numeric(*this);
  const std::optional<double> b = numeric(other);
  if (a.has_value() || b.has_value()) return a.has_value() && b.has_value() && *a == *b;
  if (type() != other.type()) return false;
  switch (type()) {
    case Type::kString:
      return string() == other.string();
    case Type::kList: {
      const List& x = list();
      const List& y = other.list();
      return x.size() == y.size() &&
             std::equal(x.begin(), x.end(), y.begin(),
                        [](const Value& p, const Value& q) { return p.Equals(q); });
    }
    case Type::kObject: {
      if (entries().size() != other.entries().size()) return false;
      for (const Entry& entry : entries()) {
        const Value* found = other.Find(entry.first);
        if (found == nullptr || !entry.second.Equals(*found)) return false;
      }
      return true;
    }
    case Type::kOpaque:
      return opaque() == other.opaque();
    default:
      return true;  // both undefined or both none
  }
}

std::string_view Value::TypeName() const {
  switch (type()) {
    case Type::kUndefined:
      return "undefined";
    case Type::kNone:
      return "null";
    case Type::kBool:
      return "boolean";
    case Type::kInteger:
      return "integer";
    case Type::kFloat:
      return "number";
    case Type::kString:
      return "string";
    case Type::kList:
      return "array";
    case Type::kObject:
      return "object";
    case Type::kOpaque:
      return opaque()->type_name();
  }
  return "unknown";
}

}  // namespace quartet::text
