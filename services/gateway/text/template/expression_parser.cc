#include "services/gateway/text/template/expression_parser.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/template/methods.h"
#include "services/gateway/text/template/parser.h"

namespace quartet::text {

bool ParserState::TakeOperator(std::string_view op) {
  if (!AtOperator(op)) return false;
  Advance();
  return true;
}

bool ParserState::TakeWord(std::string_view word) {
  if (!AtWord(word)) return false;
  Advance();
  return true;
}

bool ParserState::ExpectOperator(std::string_view op) {
  if (TakeOperator(op)) return true;
  Fail(absl::StrCat("'", Av(op), "' is expected, ", Here(), " found"));
  return false;
}

ExprPtr ParserState::FailAt(int line, std::string_view what) {
  if (!failed()) error_ = absl::StrCat(tree_->name, ":", line, ": ", Av(what));
  return nullptr;
}

Symbol ParserState::SymbolOf(const std::string& name) {
  const auto [place, added] =
      tree_->symbol_ids.try_emplace(name, static_cast<Symbol>(tree_->symbols.size()));
  if (added) {
    tree_->symbols.push_back(name);
    tree_->read.push_back(false);
  }
  return place->second;
}

std::string ParserState::Here() const {
  switch (current().kind) {
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kBlockEnd:
    case Kind::kPrintEnd:
      return "the end of the tag";
    case Kind::kString:
      return "a string";
    default:
      return absl::StrCat("'", current().text, "'");
  }
}

namespace {

using Kind = TemplateToken::Kind;

class ExpressionParser {
 public:
  explicit ExpressionParser(ParserState& state) : s_(state) {}

  ExprPtr Conditional() {
    // Every way to nest expressions passes here or through Unary, so that these two bound the
    // recursion.
    if (++depth_ > kTemplateNestingMax) return TooDeep();
    const int line = s_.current().line;
    ExprPtr expr = Or();
    while (expr != nullptr && s_.TakeWord("if")) {
      ExprPtr condition = Or();
      ExprPtr otherwise;
      if (condition == nullptr) return nullptr;
      if (s_.TakeWord("else")) {
        otherwise = Conditional();
        if (otherwise == nullptr) return nullptr;
      }
      expr = Make(ExprKind::kConditional, line, std::move(condition), std::move(expr),
                  std::move(otherwise));
    }
    --depth_;
    return expr;
  }

  ExprPtr Or() {
    ExprPtr left = And();
    while (left != nullptr && s_.AtWord("or")) {
      const int line = Line();
      s_.Advance();
      left = Pair(ExprKind::kOr, line, std::move(left), And());
    }
    return left;
  }

 private:
  int Line() const { return s_.current().line; }

  ExprPtr TooDeep() {
    return s_.Fail(absl::StrCat("expressions are nested deeper than ", kTemplateNestingMax));
  }

  template <typename... Children>
  ExprPtr Make(ExprKind kind, int line, Children... children) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    (Add(expr.get(), std::move(children)), ...);
    if (s_.failed()) return nullptr;
    return expr;
  }

  // Chains like a + b + c nest without recursion here, but are evaluated recursively.
  void Add(Expr* parent, ExprPtr child) {
    if (child != nullptr) {
      parent->depth = std::max(parent->depth, child->depth + 1);
      if (parent->depth > kTemplateNestingMax) TooDeep();
    }
    parent->children.push_back(std::move(child));
  }

  ExprPtr Pair(ExprKind kind, int line, ExprPtr left, ExprPtr right) {
    if (left == nullptr || right == nullptr) return nullptr;
    return Make(kind, line, std::move(left), std::move(right));
  }

  ExprPtr And() {
    ExprPtr left = Not();
    while (left != nullptr && s_.AtWord("and")) {
      const int line = Line();
      s_.Advance();
      left = Pair(ExprKind::kAnd, line, std::move(left), Not());
    }
    return left;
  }

  ExprPtr Not() {
    if (!s_.AtWord("not")) return Comparison();
    if (++depth_ > kTemplateNestingMax) return TooDeep();
    const int line = Line();
    s_.Advance();
    ExprPtr operand = Not();
    --depth_;
    if (operand == nullptr) return nullptr;
    return Make(ExprKind::kNot, line, std::move(operand));
  }

  std::optional<CompareOp> TakeCompareOp() {
    struct Spelling {
      std::string_view text;
      CompareOp op;
    };
    constexpr Spelling kSpellings[] = {
        {"==", CompareOp::kEqual},     {"!=", CompareOp::kNotEqual},
        {"<=", CompareOp::kLessEqual}, {">=", CompareOp::kGreaterEqual},
        {"<", CompareOp::kLess},       {">", CompareOp::kGreater},
    };
    for (const Spelling& spelling : kSpellings) {
      if (s_.TakeOperator(spelling.text)) return spelling.op;
    }
    if (s_.TakeWord("in")) return CompareOp::kIn;
    if (s_.AtWord("not") && s_.next().kind == Kind::kName && s_.next().text == "in") {
      s_.Advance();
      s_.Advance();
      return CompareOp::kNotIn;
    }
    return std::nullopt;
  }

  ExprPtr Comparison() {
    const int line = Line();
    ExprPtr left = Sum();
    if (left == nullptr) return nullptr;
    std::optional<CompareOp> op = TakeCompareOp();
    if (!op) return left;
    ExprPtr chain = Make(ExprKind::kCompare, line, std::move(left));
    for (; op && chain != nullptr; op = TakeCompareOp()) {
      ExprPtr right = Sum();
      if (right == nullptr) return nullptr;
      Add(chain.get(), std::move(right));
      chain->compare.push_back(*op);
    }
    return chain;
  }

  ExprPtr ArithmeticPair(ArithmeticOp op, int line, ExprPtr left, ExprPtr right) {
    ExprPtr expr = Pair(ExprKind::kArithmetic, line, std::move(left), std::move(right));
    if (expr != nullptr) expr->arithmetic = op;
    return expr;
  }

  ExprPtr Sum() {
    ExprPtr left = Concatenation();
    while (left != nullptr && (s_.AtOperator("+") || s_.AtOperator("-"))) {
      const int line = Line();
      const auto op = s_.AtOperator("+") ? ArithmeticOp::kAdd : ArithmeticOp::kSubtract;
      s_.Advance();
      left = ArithmeticPair(op, line, std::move(left), Concatenation());
    }
    return left;
  }

  ExprPtr Concatenation() {
    const int line = Line();
    ExprPtr first = Product();
    if (first == nullptr || !s_.AtOperator("~")) return first;
    ExprPtr all = Make(ExprKind::kConcat, line, std::move(first));
    while (all != nullptr && s_.TakeOperator("~")) {
      ExprPtr part = Product();
      if (part == nullptr) return nullptr;
      Add(all.get(), std::move(part));
    }
    return all;
  }

  ExprPtr Product() {
    struct Spelling {
      std::string_view text;
      ArithmeticOp op;
    };
    constexpr Spelling kSpellings[] = {{"*", ArithmeticOp::kMultiply},
                                       {"/", ArithmeticOp::kDivide},
                                       {"//", ArithmeticOp::kFloorDivide},
                                       {"%", ArithmeticOp::kModulo}};
    ExprPtr left = Power();
    bool more = true;
    while (left != nullptr && more) {
      more = false;
      const int line = Line();
      for (const Spelling& spelling : kSpellings) {
        if (!s_.TakeOperator(spelling.text)) continue;
        left = ArithmeticPair(spelling.op, line, std::move(left), Power());
        more = true;
        break;
      }
    }
    return left;
  }

  ExprPtr Power() {
    ExprPtr left = Unary(true);
    while (left != nullptr && s_.AtOperator("**")) {
      const int line = Line();
      s_.Advance();
      left = ArithmeticPair(ArithmeticOp::kPower, line, std::move(left), Unary(true));
    }
    return left;
  }

  ExprPtr Unary(bool with_filters) {
    if (++depth_ > kTemplateNestingMax) return TooDeep();
    const int line = Line();
    ExprPtr expr;
    if (s_.AtOperator("-") || s_.AtOperator("+")) {
      const ExprKind kind = s_.AtOperator("-") ? ExprKind::kNegate : ExprKind::kPlus;
      s_.Advance();
      ExprPtr operand = Unary(false);
      if (operand != nullptr) expr = Make(kind, line, std::move(operand));
    } else {
      expr = Primary();
    }
    expr = Postfix(std::move(expr));
    if (with_filters) expr = FiltersAndTests(std::move(expr));
    --depth_;
    return expr;
  }

  ExprPtr Literal(int line, Value value) {
    ExprPtr expr = Make(ExprKind::kLiteral, line);
    if (expr != nullptr) expr->literal = std::move(value);
    return expr;
  }

  ExprPtr Primary() {
    const TemplateToken token = s_.current();
    switch (token.kind) {
      case Kind::kName:
        s_.Advance();
        return NameOrConstant(token);
      case Kind::kString: {
        std::string text;
        for (; s_.current().kind == Kind::kString; s_.Advance()) text += s_.current().text;
        return Literal(token.line, Value::String(std::move(text)));
      }
      case Kind::kInteger: {
        int64_t value = 0;
        if (!absl::SimpleAtoi(token.text, &value))
          return s_.Fail("an integer does not fit 64 bits");
        s_.Advance();
        return Literal(token.line, Value::Integer(value));
      }
      case Kind::kFloat: {
        double value = 0.0;
        if (!absl::SimpleAtod(token.text, &value)) return s_.Fail("a number cannot be read");
        s_.Advance();
        return Literal(token.line, Value::Float(value));
      }
      default:
        break;
    }
    if (s_.AtOperator("(")) return Parenthesis();
    if (s_.AtOperator("[")) return ListLiteral();
    if (s_.AtOperator("{")) return DictLiteral();
    return s_.Fail(absl::StrCat("an expression is expected, ", s_.Here(), " found"));
  }

  ExprPtr NameOrConstant(const TemplateToken& token) {
    const std::string& name = token.text;
    if (name == "true" || name == "True") return Literal(token.line, Value::Bool(true));
    if (name == "false" || name == "False") return Literal(token.line, Value::Bool(false));
    if (name == "none" || name == "None") return Literal(token.line, Value::None());
    for (const std::string_view reserved : {"and", "or", "not", "in", "is", "if", "else"}) {
      if (name == reserved) {
        return s_.FailAt(token.line, absl::StrCat("an expression is expected, '", name, "' found"));
      }
    }
    ExprPtr expr = Make(ExprKind::kName, token.line);
    if (expr == nullptr) return nullptr;
    expr->name = name;
    expr->symbol = s_.SymbolOf(name);
    s_.tree().read[static_cast<size_t>(expr->symbol)] = true;
    return expr;
  }

  // A parenthesised expression, or a tuple, which is treated as a list.
  ExprPtr Parenthesis() {
    const int line = Line();
    s_.Advance();
    if (s_.TakeOperator(")")) return Make(ExprKind::kList, line);
    ExprPtr first = Conditional();
    if (first == nullptr) return nullptr;
    if (!s_.AtOperator(",")) {
      if (!s_.ExpectOperator(")")) return nullptr;
      return first;
    }
    ExprPtr list = Make(ExprKind::kList, line, std::move(first));
    return RestOfList(std::move(list), ")");
  }

  ExprPtr ListLiteral() {
    ExprPtr list = Make(ExprKind::kList, Line());
    s_.Advance();
    if (s_.TakeOperator("]")) return list;
    ExprPtr first = Conditional();
    if (first == nullptr || list == nullptr) return nullptr;
    Add(list.get(), std::move(first));
    return RestOfList(std::move(list), "]");
  }

  ExprPtr RestOfList(ExprPtr list, std::string_view close) {
    while (list != nullptr && !s_.TakeOperator(close)) {
      if (!s_.ExpectOperator(",")) return nullptr;
      if (s_.TakeOperator(close)) break;
      ExprPtr item = Conditional();
      if (item == nullptr) return nullptr;
      Add(list.get(), std::move(item));
    }
    return list;
  }

  ExprPtr DictLiteral() {
    ExprPtr dict = Make(ExprKind::kDict, Line());
    s_.Advance();
    while (dict != nullptr && !s_.TakeOperator("}")) {
      if (!dict->children.empty()) {
        if (!s_.ExpectOperator(",")) return nullptr;
        if (s_.TakeOperator("}")) break;
      }
      ExprPtr key = Conditional();
      if (key == nullptr || !s_.ExpectOperator(":")) return nullptr;
      ExprPtr value = Conditional();
      if (value == nullptr) return nullptr;
      Add(dict.get(), std::move(key));
      Add(dict.get(), std::move(value));
    }
    return dict;
  }

  ExprPtr Postfix(ExprPtr expr) {
    while (expr != nullptr) {
      if (s_.AtOperator(".")) {
        expr = Attribute(std::move(expr));
      } else if (s_.AtOperator("[")) {
        expr = Subscript(std::move(expr));
      } else if (s_.AtOperator("(")) {
        expr = Call(std::move(expr));
      } else {
        return expr;
      }
    }
    return nullptr;
  }

  ExprPtr Attribute(ExprPtr object) {
    s_.Advance();
    const TemplateToken token = s_.current();
    if (token.kind == Kind::kInteger) {
      int64_t index = 0;
      if (!absl::SimpleAtoi(token.text, &index)) return s_.Fail("an index does not fit 64 bits");
      s_.Advance();
      ExprPtr number = Literal(token.line, Value::Integer(index));
      return Pair(ExprKind::kItem, token.line, std::move(object), std::move(number));
    }
    if (token.kind != Kind::kName) {
      return s_.Fail(absl::StrCat("a name is expected after '.', ", s_.Here(), " found"));
    }
    s_.Advance();
    ExprPtr expr = Make(ExprKind::kAttribute, token.line, std::move(object));
    if (expr != nullptr) expr->name = token.text;
    return expr;
  }

  // One bound of a slice; *given is false where nothing stands.
  ExprPtr Bound(bool* given) {
    *given = !s_.AtOperator(":") && !s_.AtOperator("]");
    return *given ? Conditional() : nullptr;
  }

  ExprPtr Subscript(ExprPtr object) {
    const int line = Line();
    s_.Advance();
    bool given = false;
    ExprPtr first = Bound(&given);
    if (s_.failed()) return nullptr;
    if (!s_.AtOperator(":")) {
      if (!given) return s_.Fail("an index is expected");
      if (!s_.ExpectOperator("]")) return nullptr;
      return Pair(ExprKind::kItem, line, std::move(object), std::move(first));
    }
    ExprPtr bounds[2];
    for (ExprPtr& bound : bounds) {
      if (!s_.TakeOperator(":")) break;
      bound = Bound(&given);
      if (s_.failed()) return nullptr;
    }
    if (!s_.ExpectOperator("]")) return nullptr;
    return Make(ExprKind::kSlice, line, std::move(object), std::move(first), std::move(bounds[0]),
                std::move(bounds[1]));
  }

  ExprPtr Call(ExprPtr callee) {
    const int line = callee->line;
    ExprPtr call;
    if (callee->kind == ExprKind::kName) {
      s_.calls.push_back({callee->name, line});
      call = Make(ExprKind::kCallName, line);
      if (call == nullptr) return nullptr;
      call->symbol = callee->symbol;
      call->name = callee->name;
    } else if (callee->kind == ExprKind::kAttribute) {
      if (!IsMethodName(callee->name)) {
        return s_.FailAt(line, absl::StrCat("the method '", callee->name, "' is not supported"));
      }
      call = Make(ExprKind::kCallMethod, line, std::move(callee->children[0]));
      if (call == nullptr) return nullptr;
      call->name = callee->name;
    } else {
      return s_.FailAt(line, "only names and methods can be called");
    }
    if (!Arguments(call.get())) return nullptr;
    return call;
  }

  // "(a, b, key=c)". Positional arguments are appended to the call's children.
  bool Arguments(Expr* call) {
    if (!s_.ExpectOperator("(")) return false;
    bool first = true;
    while (!s_.TakeOperator(")")) {
      if (!first) {
        if (!s_.ExpectOperator(",")) return false;
        if (s_.TakeOperator(")")) break;
      }
      first = false;
      if (s_.AtOperator("*") || s_.AtOperator("**")) {
        s_.Fail("arguments with * and ** are not supported");
        return false;
      }
      const bool keyword = s_.current().kind == Kind::kName && s_.next().kind == Kind::kOperator &&
                           s_.next().text == "=";
      const std::string name = s_.current().text;
      if (keyword) {
        s_.Advance();
        s_.Advance();
      } else if (!call->keywords.empty()) {
        s_.Fail("a positional argument cannot follow a named one");
        return false;
      }
      ExprPtr value = Conditional();
      if (value == nullptr) return false;
      if (keyword) {
        call->depth = std::max(call->depth, value->depth + 1);
        if (call->depth > kTemplateNestingMax) TooDeep();
        call->keywords.emplace_back(name, std::move(value));
      } else {
        Add(call, std::move(value));
      }
    }
    return !s_.failed();
  }

  ExprPtr FiltersAndTests(ExprPtr expr) {
    while (expr != nullptr) {
      if (s_.AtOperator("|")) {
        expr = Filter(std::move(expr));
      } else if (s_.AtWord("is")) {
        expr = Test(std::move(expr));
      } else if (s_.AtOperator("(")) {
        expr = Call(std::move(expr));
      } else {
        return expr;
      }
    }
    return nullptr;
  }

  ExprPtr Filter(ExprPtr value) {
    s_.Advance();
    const TemplateToken token = s_.current();
    if (token.kind != Kind::kName) return s_.Fail("the name of a filter is expected after '|'");
    const FilterFunction filter = FindFilter(token.text);
    if (filter == nullptr) {
      return s_.Fail(absl::StrCat("the filter '", token.text, "' is not supported"));
    }
    s_.Advance();
    ExprPtr expr = Make(ExprKind::kFilter, token.line, std::move(value));
    if (expr == nullptr) return nullptr;
    expr->filter = filter;
    expr->name = token.text;
    if (s_.AtOperator("(") && !Arguments(expr.get())) return nullptr;
    return expr;
  }

  // A test may take one argument without parentheses: "x is divisibleby 3".
  bool BareArgumentFollows() const {
    const TemplateToken& token = s_.current();
    switch (token.kind) {
      case Kind::kName:
        for (const std::string_view word : {"else", "or", "and", "if", "is", "in", "not"}) {
          if (token.text == word) return false;
        }
        return true;
      case Kind::kString:
      case Kind::kInteger:
      case Kind::kFloat:
        return true;
      default:
        return s_.AtOperator("[") || s_.AtOperator("{");
    }
  }

  ExprPtr Test(ExprPtr value) {
    s_.Advance();
    const bool negated = s_.TakeWord("not");
    const TemplateToken token = s_.current();
    if (token.kind != Kind::kName) return s_.Fail("the name of a test is expected after 'is'");
    const TestFunction test = FindTest(token.text);
    if (test == nullptr) {
      return s_.Fail(absl::StrCat("the test '", token.text, "' is not supported"));
    }
    s_.Advance();
    ExprPtr expr = Make(ExprKind::kTest, token.line, std::move(value));
    if (expr == nullptr) return nullptr;
    expr->test = test;
    expr->negated = negated;
    if (s_.AtOperator("(")) {
      if (!Arguments(expr.get())) return nullptr;
      if (!expr->keywords.empty()) return s_.FailAt(token.line, "tests take no named arguments");
    } else if (BareArgumentFollows()) {
      ExprPtr argument = Postfix(Primary());
      if (argument == nullptr) return nullptr;
      Add(expr.get(), std::move(argument));
    }
    return expr;
  }

  ParserState& s_;
  int depth_ = 0;
};

}  // namespace

ExprPtr ParseExpression(ParserState& state) {
  ExprPtr expr = ExpressionParser(state).Conditional();
  return state.failed() ? nullptr : std::move(expr);
}

ExprPtr ParseUnconditional(ParserState& state) {
  ExprPtr expr = ExpressionParser(state).Or();
  return state.failed() ? nullptr : std::move(expr);
}

}  // namespace quartet::text
