// The tree that a template is parsed into. Filled by the parser, then read only.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_AST_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/gateway/text/template/filters.h"
#include "services/gateway/text/template/tests.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// Names of variables are numbered, so that looking one up compares integers.
using Symbol = int;

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kLiteral,    // literal
  kName,       // symbol, name
  kList,       // children
  kDict,       // children: key, value, key, value, ...
  kAttribute,  // children[0].name
  kItem,       // children[0][children[1]]
  kSlice,      // children[0][children[1] : children[2] : children[3]]; any of the three may be null
  kCallName,   // name(children..., keywords...)
  kCallMethod,   // children[0].name(children[1...], keywords...)
  kFilter,       // children[0] | filter(children[1...], keywords...)
  kTest,         // children[0] is [not] test(children[1...])
  kNot,          // not children[0]
  kNegate,       // -children[0]
  kPlus,         // +children[0]
  kArithmetic,   // children[0] op children[1]
  kConcat,       // children joined as text
  kCompare,      // children[0] op children[1] and children[1] op children[2] ...
  kAnd,          // children[0] and children[1]
  kOr,           // children[0] or children[1]
  kConditional,  // children[1] if children[0] else children[2]; the last may be null
};

enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
enum class ArithmeticOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

struct Expr {
  ExprKind kind;
  int line;
  int depth = 1;
  Symbol symbol = -1;
  std::string name;
  Value literal;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<CompareOp> compare;
  ArithmeticOp arithmetic = ArithmeticOp::kAdd;
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
  bool negated = false;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct MacroParameter {
  Symbol symbol;
  std::string name;
  ExprPtr default_value;  // may be null
};

struct Macro {
  std::string name;
  Symbol symbol;
  std::vector<MacroParameter> parameters;
  Block body;
};

enum class StatementKind {
  kText,          // text
  kPrint,         // expr
  kIf,            // branches, otherwise
  kFor,           // targets, expr, filter, body, otherwise
  kSet,           // targets = expr
  kSetAttribute,  // targets[0].text = expr
  kSetBlock,      // targets[0] = the text that body renders
  kMacro,         // macro
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind;
  int line;
  std::string text;
  ExprPtr expr;
  ExprPtr filter;
  std::vector<Symbol> targets;
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block body;
  Block otherwise;
  std::unique_ptr<Macro> macro;
};

struct TemplateTree {
  std::string name;  // of the file, for messages
  Block body;
  std::vector<std::string> symbols;  // by Symbol
  absl::flat_hash_map<std::string, Symbol> symbol_ids;
  // Names that are read somewhere.
  std::vector<bool> read;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_AST_H_
