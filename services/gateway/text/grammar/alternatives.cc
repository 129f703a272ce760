#include "services/gateway/text/grammar/alternatives.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace quartet::text {
namespace {

constexpr int kDepthMax = 8;
// Comparisons for one oneOf. What is not compared may be alike.
constexpr int kComparisonsMax = 20'000;
constexpr uint32_t kItemsComparedMax = 16;
constexpr uint8_t kNumeric = Wanted::kInteger | Wanted::kNumber;

bool Overlap(uint32_t a_min, uint32_t a_max, uint32_t b_min, uint32_t b_max) {
  return a_min <= b_max && b_min <= a_max;
}

bool Overlap(const NumberRange& a, const NumberRange& b) {
  NumberRange both = a;
  if (b.low) both.RaiseLow(*b.low);
  if (b.high) both.LowerHigh(*b.high);
  if (!both.low || !both.high) return true;
  if (both.low->value != both.high->value) return both.low->value < both.high->value;
  return !both.low->exclusive && !both.high->exclusive;
}

const Wanted::Property* FindProperty(const Wanted& wanted, const std::string& name) {
  const auto found =
      std::find_if(wanted.properties.begin(), wanted.properties.end(),
                   [&](const Wanted::Property& property) { return property.name == name; });
  return found == wanted.properties.end() ? nullptr : &*found;
}

Goal ItemAt(const Wanted& wanted, size_t index) {
  if (index < wanted.prefix_items.size()) return wanted.prefix_items[index];
  return wanted.items.value_or(Goal{});
}

class Comparer {
 public:
  explicit Comparer(SchemaReader* reader) : reader_(*reader) {}

  // Whether it is certain that no answer to the goal `made` satisfies `other` too.
  absl::StatusOr<bool> Apart(const Goal& made, const Goal& other, int depth) {
    if (depth > kDepthMax || ++comparisons_ > kComparisonsMax) return false;
    const absl::StatusOr<Goal> a = reader_.Expand(made);
    if (!a.ok()) return a.status();
    const absl::StatusOr<Goal> b = reader_.Expand(other);
    if (!b.ok()) return b.status();
    for (const bool of_made : {true, false}) {
      const auto alternatives = reader_.FindAlternatives(of_made ? *a : *b);
      if (!alternatives.ok()) return alternatives.status();
      if (!alternatives->has_value()) continue;
      for (const Goal& goal : (*alternatives)->goals) {
        const absl::StatusOr<bool> apart =
            of_made ? Apart(goal, *b, depth + 1) : Apart(*a, goal, depth + 1);
        if (!apart.ok() || !*apart) return apart;
      }
      return true;
    }
    const absl::StatusOr<Wanted> wanted = reader_.Want(*a);
    if (!wanted.ok()) return wanted.status();
    const absl::StatusOr<Wanted> allowed = reader_.Want(*b);
    if (!allowed.ok()) return allowed.status();
    return Differ(*wanted, *allowed, depth);
  }

 private:
  // An answer is made by `a`. The question is what `b` allows.
  absl::StatusOr<bool> Differ(const Wanted& a, const Wanted& b, int depth) {
    const auto common = static_cast<uint8_t>(a.types & b.types_allowed);
    if (common == 0) return true;
    if (a.has_values) {
      return std::none_of(a.values.begin(), a.values.end(),
                          [&](const Value& value) { return MayBe(value, b, b.types_allowed); });
    }
    if (b.has_values) {
      return std::none_of(b.values.begin(), b.values.end(),
                          [&](const Value& value) { return MayBe(value, a, a.types); });
    }
    if ((common & (Wanted::kNull | Wanted::kBoolean)) != 0) return false;
    if ((common & kNumeric) != 0 && Overlap(a.range, b.range)) return false;
    if ((common & Wanted::kString) != 0 &&
        Overlap(a.length_min, a.length_max, b.length_min, b.length_max)) {
      return false;
    }
    if ((common & Wanted::kArray) != 0) {
      const absl::StatusOr<bool> differ = ItemsDiffer(a, b, depth);
      if (!differ.ok() || !*differ) return differ;
    }
    if ((common & Wanted::kObject) != 0) {
      const absl::StatusOr<bool> differ = MembersDiffer(a, b, depth);
      if (!differ.ok() || !*differ) return differ;
    }
    return true;
  }

  bool MayBe(const Value& value, Wanted wanted, uint8_t types) const {
    wanted.types = types;
    const absl::StatusOr<bool> satisfies = reader_.Satisfies(value, wanted, "#");
    if (satisfies.ok() && !*satisfies) return false;
    return !wanted.has_values ||
           std::any_of(wanted.values.begin(), wanted.values.end(),
                       [&](const Value& other) { return other.Equals(value); });
  }

  absl::StatusOr<bool> ItemsDiffer(const Wanted& a, const Wanted& b, int depth) {
    if (!Overlap(a.items_min, a.items_max, b.items_min, b.items_max)) return true;
    const uint32_t certain = std::min(std::max(a.items_min, b.items_min), kItemsComparedMax);
    for (uint32_t i = 0; i < certain; ++i) {
      const absl::StatusOr<bool> apart = Apart(ItemAt(a, i), ItemAt(b, i), depth + 1);
      if (!apart.ok() || *apart) return apart;
    }
    return false;
  }

  absl::StatusOr<bool> MembersDiffer(const Wanted& a, const Wanted& b, int depth) {
    std::set<std::string> certain;
    for (const Wanted* wanted : {&a, &b}) {
      for (const Wanted::Property& property : wanted->properties) {
        if (property.required) certain.insert(property.name);
      }
    }
    for (const std::string& name : certain) {
      const Wanted::Property* made = FindProperty(a, name);
      const Wanted::Property* other = FindProperty(b, name);
      if (made == nullptr && !a.others) return true;  // it is not made, and the other needs it
      const absl::StatusOr<bool> apart =
          Apart(made != nullptr ? made->goal : *a.others,
                other != nullptr ? other->goal : b.others.value_or(Goal{}), depth + 1);
      if (!apart.ok() || *apart) return apart;
    }
    return false;
  }

  SchemaReader& reader_;
  int comparisons_ = 0;
};

}  // namespace

absl::StatusOr<std::optional<std::vector<Goal>>> AlternativesOf(const Goal& expanded,
                                                                SchemaReader* reader) {
  absl::StatusOr<std::optional<SchemaReader::Alternatives>> found =
      reader->FindAlternatives(expanded);
  if (!found.ok()) return found.status();
  if (!found->has_value()) return std::nullopt;
  std::vector<Goal>& goals = (*found)->goals;
  if ((*found)->one_of == nullptr || reader->options().ignore_unsupported) return std::move(goals);
  Comparer comparer(reader);
  for (size_t i = 0; i < goals.size(); ++i) {
    for (size_t j = 0; j < goals.size(); ++j) {
      if (i == j) continue;
      const absl::StatusOr<bool> apart = comparer.Apart(goals[i], goals[j], 0);
      if (!apart.ok()) return apart.status();
      if (*apart) continue;
      return reader->Wrong(
          *(*found)->one_of, "oneOf",
          absl::StrCat("has alternatives ", std::min(i, j), " and ", std::max(i, j),
                       ", of which one value may satisfy both; make them differ, for example by a "
                       "required property with a const of its own, or use anyOf"));
    }
  }
  return std::move(goals);
}

}  // namespace quartet::text
