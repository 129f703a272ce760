#include "services/gateway/text/grammar/number_range.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"

namespace quartet::text {
namespace {

using grammar::CharSet;
using grammar::Expr;

constexpr size_t kWholeDigitsMax = 18;
constexpr size_t kDigitsMax = 60;
// A double keeps so many digits apart.
constexpr size_t kDoubleDigits = 15;

// Digits of the same length as `digits`, all nines or zeros.
std::string Filled(size_t length, char digit) {
  return std::string(length, digit);
}

// Whole numbers as digits, without leading zeros; zero is empty.
std::strong_ordering CompareWhole(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() <=> b.size();
  return a.compare(b) <=> 0;
}

std::string PlusOne(std::string whole) {
  for (size_t i = whole.size(); i-- > 0;) {
    if (whole[i] != '9') {
      ++whole[i];
      return whole;
    }
    whole[i] = '0';
  }
  return "1" + whole;
}

std::string MinusOne(std::string whole) {  // of at least 1
  for (size_t i = whole.size(); i-- > 0;) {
    if (whole[i] != '0') {
      --whole[i];
      break;
    }
    whole[i] = '9';
  }
  whole.erase(0, whole.find_first_not_of('0'));
  return whole;
}

class RangeWriter {
 public:
  RangeWriter(grammar::GrammarBuilder* builder, JsonText* json)
      : builder_(*builder), json_(*json) {}

  // Whole numbers from `low` to `high`, with any digits behind the point if `fractions`.
  Expr Whole(const std::string& low, const std::string& high, bool fractions) {
    if (CompareWhole(low, high) > 0) return builder_.Never();
    std::vector<Expr> ways;
    const auto add = [&](Expr whole, size_t length) {
      digits_ = DigitsBehind(length);
      ways.push_back(fractions ? builder_.Seq({whole, Fraction(nullptr, nullptr)}) : whole);
    };
    if (low.empty()) add(builder_.Literal("0"), 1);
    for (size_t length = std::max<size_t>(1, low.size()); length <= high.size(); ++length) {
      const std::string least = "1" + Filled(length - 1, '0');
      const std::string most = Filled(length, '9');
      add(SameLength(low.size() == length ? low : least, high.size() == length ? high : most),
          length);
    }
    return builder_.Alt(std::move(ways));
  }

  // Not negative numbers between bounds that are not negative.
  Expr Between(const NumberBound& low, const NumberBound& high) {
    const std::string& from = low.value.whole;
    const std::string& to = high.value.whole;
    const Limit least{low.value.fraction, low.exclusive};
    const Limit most{high.value.fraction, high.exclusive};
    const auto edge = [&](const std::string& whole, const Limit* below, const Limit* above) {
      digits_ = DigitsBehind(whole.size());
      if (below != nullptr) digits_ = std::max(digits_, below->digits.size() + 1);
      if (above != nullptr) digits_ = std::max(digits_, above->digits.size() + 1);
      return builder_.Seq({builder_.Literal(whole.empty() ? "0" : whole), Fraction(below, above)});
    };
    if (from == to) return edge(from, &least, &most);
    std::vector<Expr> ways = {edge(from, &least, nullptr), edge(to, nullptr, &most)};
    ways.push_back(Whole(PlusOne(from), MinusOne(to), /*fractions=*/true));
    return builder_.Alt(std::move(ways));
  }

 private:
  struct Limit {
    std::string digits;  // behind the point
    bool exclusive;
    Limit Rest() const { return {digits.empty() ? "" : digits.substr(1), exclusive}; }
    char first() const { return digits.empty() ? '0' : digits[0]; }
    bool zero() const { return digits.find_first_not_of('0') == std::string::npos; }
  };

  Expr Digits(char first, char last, uint32_t min, uint32_t max) {
    return json_.Characters(CharSet::Of(static_cast<char32_t>(first), static_cast<char32_t>(last)),
                            min, max, TextForm::kRaw);
  }

  // How many digits behind the point a double can still tell from a bound.
  static size_t DigitsBehind(size_t whole_digits) {
    return whole_digits < kDoubleDigits ? kDoubleDigits - whole_digits : 1;
  }

  Expr SameLength(const std::string& low, const std::string& high) {
    const auto length = static_cast<uint32_t>(low.size());
    if (length == 0) return builder_.Empty();
    if (low == Filled(length, '0') && high == Filled(length, '9')) {
      return Digits('0', '9', length, length);
    }
    if (low[0] == high[0]) {
      return builder_.Seq(
          {builder_.Literal(low.substr(0, 1)), SameLength(low.substr(1), high.substr(1))});
    }
    std::vector<Expr> ways = {builder_.Seq({builder_.Literal(low.substr(0, 1)),
                                            SameLength(low.substr(1), Filled(length - 1, '9'))}),
                              builder_.Seq({builder_.Literal(high.substr(0, 1)),
                                            SameLength(Filled(length - 1, '0'), high.substr(1))})};
    if (high[0] - low[0] > 1) {
      ways.push_back(
          builder_.Seq({Digits(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1), 1, 1),
                        Digits('0', '9', length - 1, length - 1)}));
    }
    return builder_.Alt(std::move(ways));
  }

  // A point and digits, or nothing, between limits of which either may be absent.
  Expr Fraction(const Limit* low, const Limit* high) {
    const Expr some = builder_.Seq({builder_.Literal("."), SomeDigits(low, high, digits_)});
    return ZeroIsIn(low, high) ? builder_.Optional(some) : some;
  }

  static bool ZeroIsIn(const Limit* low, const Limit* high) {
    const bool not_below = low == nullptr || (low->zero() && !low->exclusive);
    const bool not_above = high == nullptr || !high->zero() || !high->exclusive;
    return not_below && not_above;
  }

  // 1 to `left` digits.
  Expr SomeDigits(const Limit* low, const Limit* high, size_t left) {
    if (left == 0) return builder_.Never();
    if (low != nullptr && low->zero() && !low->exclusive) low = nullptr;
    if (low == nullptr && high == nullptr) {
      return Digits('0', '9', 1, static_cast<uint32_t>(left));
    }
    const char least = low == nullptr ? '0' : low->first();
    const char most = high == nullptr ? '9' : high->first();
    if (least > most) return builder_.Never();
    std::vector<Expr> ways;
    const auto tight = [&](char digit) {
      const bool at_low = low != nullptr && digit == least;
      const bool at_high = high != nullptr && digit == most;
      const Limit low_rest = at_low ? low->Rest() : Limit{"", false};
      const Limit high_rest = at_high ? high->Rest() : Limit{"", false};
      const Limit* below = at_low ? &low_rest : nullptr;
      const Limit* above = at_high ? &high_rest : nullptr;
      const Expr more = SomeDigits(below, above, left - 1);
      ways.push_back(builder_.Seq({builder_.Literal(std::string(1, digit)),
                                   ZeroIsIn(below, above) ? builder_.Optional(more) : more}));
    };
    char free_first = least;
    char free_last = most;
    if (low != nullptr) {
      tight(least);
      ++free_first;
    }
    if (high != nullptr) {
      if (low == nullptr || most != least) tight(most);
      --free_last;
    }
    if (free_first <= free_last) {
      ways.push_back(builder_.Seq({Digits(free_first, free_last, 1, 1),
                                   Digits('0', '9', 0, static_cast<uint32_t>(left - 1))}));
    }
    return builder_.Alt(std::move(ways));
  }

  grammar::GrammarBuilder& builder_;
  JsonText& json_;
  size_t digits_ = 1;  // behind the point, at most
};

NumberBound Zero(bool exclusive) {
  return {Decimal{}, exclusive};
}

NumberBound Largest() {
  return {Decimal{false, Filled(kWholeDigitsMax, '9'), ""}, false};
}

// The range cut into magnitudes: those of the negative numbers, and the others.
struct Magnitudes {
  std::optional<std::pair<NumberBound, NumberBound>> negative;
  std::optional<std::pair<NumberBound, NumberBound>> positive;
};

bool Possible(const NumberBound& low, const NumberBound& high) {
  if (low.value == high.value) return !low.exclusive && !high.exclusive;
  return low.value < high.value;
}

Magnitudes Cut(const NumberRange& range) {
  const auto mirrored = [](const NumberBound& bound) {
    return NumberBound{bound.value.Negated(), bound.exclusive};
  };
  const auto magnitudes =
      [](NumberBound low, NumberBound high) -> std::optional<std::pair<NumberBound, NumberBound>> {
    if (low.value.negative) low = Zero(false);
    if (high.value > Largest().value) high = Largest();
    if (high.value.negative || !Possible(low, high)) return std::nullopt;
    return std::pair(std::move(low), std::move(high));
  };
  Magnitudes cut;
  cut.positive = magnitudes(range.low.value_or(Zero(false)), range.high.value_or(Largest()));
  cut.negative = magnitudes(range.high ? mirrored(*range.high) : Zero(false),
                            range.low ? mirrored(*range.low) : Largest());
  return cut;
}

}  // namespace

absl::StatusOr<Decimal> Decimal::Parse(std::string_view spelling) {
  Decimal decimal;
  std::string_view rest = spelling;
  if (rest.starts_with('-')) {
    decimal.negative = true;
    rest.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = rest.find_first_of("eE"); e != std::string_view::npos) {
    if (!absl::SimpleAtoi(Av(rest.substr(e + 1)), &exponent) ||
        std::abs(exponent) > static_cast<int>(kDigitsMax)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the exponent of ", Av(spelling), " is not between -", kDigitsMax, " and ", kDigitsMax));
    }
    rest = rest.substr(0, e);
  }
  const size_t point = rest.find('.');
  std::string digits(rest.substr(0, point));
  std::string behind(point == std::string_view::npos ? "" : rest.substr(point + 1));
  for (; exponent > 0; --exponent) {
    digits.push_back(behind.empty() ? '0' : behind.front());
    if (!behind.empty()) behind.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    behind.insert(behind.begin(), digits.empty() ? '0' : digits.back());
    if (!digits.empty()) digits.pop_back();
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  behind.erase(behind.find_last_not_of('0') + 1);
  if (digits.size() > kDigitsMax || behind.size() > kDigitsMax) {
    return absl::InvalidArgumentError(absl::StrCat(Av(spelling.substr(0, 80)), " has more than ",
                                                   kDigitsMax, " digits on one side"));
  }
  decimal.whole = std::move(digits);
  decimal.fraction = std::move(behind);
  if (decimal.zero()) decimal.negative = false;
  return decimal;
}

Decimal Decimal::Negated() const {
  Decimal negated = *this;
  negated.negative = !negative && !zero();
  return negated;
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (negative != other.negative) {
    return negative ? std::strong_ordering::less : std::strong_ordering::greater;
  }
  std::strong_ordering order = CompareWhole(whole, other.whole);
  if (order == 0) order = fraction.compare(other.fraction) <=> 0;
  return negative ? 0 <=> order : order;
}

bool NumberRange::Contains(const Decimal& number) const {
  const auto inside = [&](const NumberBound& bound, std::strong_ordering way) {
    const std::strong_ordering order = number <=> bound.value;
    return order == way || (order == 0 && !bound.exclusive);
  };
  return (!low || inside(*low, std::strong_ordering::greater)) &&
         (!high || inside(*high, std::strong_ordering::less));
}

void NumberRange::RaiseLow(NumberBound bound) {
  const bool tighter =
      !low || bound.value > low->value || (bound.value == low->value && bound.exclusive);
  if (tighter) low = std::move(bound);
}

void NumberRange::LowerHigh(NumberBound bound) {
  const bool tighter =
      !high || bound.value < high->value || (bound.value == high->value && bound.exclusive);
  if (tighter) high = std::move(bound);
}

Expr IntegersIn(const NumberRange& range, grammar::GrammarBuilder* builder, JsonText* json) {
  RangeWriter writer(builder, json);
  const auto whole = [&](const std::pair<NumberBound, NumberBound>& bounds, bool zero) {
    const auto& [low, high] = bounds;
    std::string first = low.value.whole;
    if (!low.value.fraction.empty() || low.exclusive) first = PlusOne(first);
    if (!zero && first.empty()) first = "1";
    std::string last = high.value.whole;
    if (high.value.fraction.empty() && high.exclusive) {
      if (last.empty()) return builder->Never();
      last = MinusOne(last);
    }
    return writer.Whole(first, last, /*fractions=*/false);
  };
  const Magnitudes cut = Cut(range);
  std::vector<Expr> ways;
  if (cut.positive) ways.push_back(whole(*cut.positive, true));
  if (cut.negative) {
    ways.push_back(builder->Seq({builder->Literal("-"), whole(*cut.negative, false)}));
  }
  return builder->Alt(std::move(ways));
}

Expr NumbersIn(const NumberRange& range, grammar::GrammarBuilder* builder, JsonText* json) {
  RangeWriter writer(builder, json);
  const Magnitudes cut = Cut(range);
  std::vector<Expr> ways;
  if (cut.positive) ways.push_back(writer.Between(cut.positive->first, cut.positive->second));
  if (cut.negative) {
    ways.push_back(builder->Seq(
        {builder->Literal("-"), writer.Between(cut.negative->first, cut.negative->second)}));
  }
  return builder->Alt(std::move(ways));
}

}  // namespace quartet::text
