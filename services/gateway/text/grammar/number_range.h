// Numbers between bounds as parts of a grammar.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_NUMBER_RANGE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_NUMBER_RANGE_H_

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/gateway/text/grammar/json_text.h"
#include "services/grammar/builder.h"

namespace quartet::text {

// A decimal number, exactly.
struct Decimal {
  bool negative = false;  // never for zero
  std::string whole;      // digits without leading zeros: empty for 0.5
  std::string fraction;   // digits without trailing zeros

  // From the spelling of a JSON number. InvalidArgument beyond 60 digits before or behind the
  // point.
  static absl::StatusOr<Decimal> Parse(std::string_view spelling);
  bool zero() const { return whole.empty() && fraction.empty(); }
  Decimal Negated() const;
  std::strong_ordering operator<=>(const Decimal& other) const;
  bool operator==(const Decimal& other) const = default;
};

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  std::optional<NumberBound> low;
  std::optional<NumberBound> high;
  bool unlimited() const { return !low && !high; }
  bool Contains(const Decimal& number) const;
  // Makes it smaller if the bound lies inside.
  void RaiseLow(NumberBound bound);
  void LowerHigh(NumberBound bound);
};

// The integers in the range, of up to 18 digits.
grammar::Expr IntegersIn(const NumberRange& range, grammar::GrammarBuilder* builder,
                         JsonText* json);
// The numbers in the range, without exponents, of up to 18 digits before the point. There are as
// many digits behind the point as reading into a double cannot round across a bound.
grammar::Expr NumbersIn(const NumberRange& range, grammar::GrammarBuilder* builder, JsonText* json);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_GRAMMAR_NUMBER_RANGE_H_
