#include "services/gateway/text/template/interpreter.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/template/functions.h"
#include "services/gateway/text/template/methods.h"
#include "services/gateway/text/template/operators.h"
#include "services/gateway/text/template/runtime.h"

namespace quartet::text {
namespace {

// Statements and expressions being run inside one another. Each takes a few hundred bytes of stack.
constexpr int kRunDepthMax = 2000;

class MacroValue final : public OpaqueValue {
 public:
  explicit MacroValue(const Macro* macro) : macro_(macro) {}
  std::string_view type_name() const override { return "macro"; }
  const Macro& macro() const { return *macro_; }

 private:
  const Macro* macro_;  // of the tree, which outlives the rendering
};

class MethodValue final : public OpaqueValue {
 public:
  std::string_view type_name() const override { return "method"; }
};

// The variable "loop".
class LoopValue final : public OpaqueValue {
 public:
  explicit LoopValue(const Value::List& items) : items_(items) {}
  std::string_view type_name() const override { return "loop"; }
  void set_index(size_t index) { index_ = index; }

  Value Get(std::string_view name) const {
    const int64_t index = static_cast<int64_t>(index_);
    const int64_t size = static_cast<int64_t>(items_.size());
    if (name == "index0") return Value::Integer(index);
    if (name == "index") return Value::Integer(index + 1);
    if (name == "revindex0") return Value::Integer(size - index - 1);
    if (name == "revindex") return Value::Integer(size - index);
    if (name == "first") return Value::Bool(index == 0);
    if (name == "last") return Value::Bool(index + 1 == size);
    if (name == "length") return Value::Integer(size);
    if (name == "previtem") return index > 0 ? items_[index_ - 1] : Value();
    if (name == "nextitem") return index + 1 < size ? items_[index_ + 1] : Value();
    return {};
  }

 private:
  const Value::List items_;
  size_t index_ = 0;
};

enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const TemplateTree& tree, const Value& variables, const TemplateLimits& limits,
              size_t bytes_max)
      : tree_(tree),
        variables_(variables),
        limits_(limits),
        runtime_(tree.name, limits, bytes_max),
        frames_(1) {
    const auto loop = tree.symbol_ids.find("loop");
    if (loop != tree.symbol_ids.end()) loop_symbol_ = loop->second;
  }

  absl::StatusOr<std::string> Run() {
    std::string out;
    Execute(tree_.body, &out);
    if (runtime_.failed()) return runtime_.status();
    return out;
  }

 private:
  using Frame = std::vector<std::pair<Symbol, Value>>;

  class DepthGuard {
   public:
    explicit DepthGuard(Interpreter* owner) : owner_(owner) {
      if (++owner_->depth_ > kRunDepthMax) owner_->runtime_.FailLimit("nests too deep");
    }
    ~DepthGuard() { --owner_->depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    Interpreter* owner_;
  };

  bool failed() const { return runtime_.failed(); }

  // --- Variables. A macro sees its own frames and the template's, not those of its caller.

  Value Lookup(Symbol symbol) {
    for (size_t i = frames_.size(); i > macro_base_; --i) {
      for (const auto& [name, value] : frames_[i - 1]) {
        if (name == symbol) return value;
      }
    }
    if (macro_base_ > 0) {
      for (const auto& [name, value] : frames_[0]) {
        if (name == symbol) return value;
      }
    }
    return variables_.Get(tree_.symbols[static_cast<size_t>(symbol)]);
  }

  void Assign(Symbol symbol, Value value) {
    for (auto& [name, old] : frames_.back()) {
      if (name == symbol) {
        old = std::move(value);
        return;
      }
    }
    frames_.back().emplace_back(symbol, std::move(value));
  }

  void AssignTargets(const std::vector<Symbol>& targets, Value value) {
    if (targets.size() == 1) return Assign(targets[0], std::move(value));
    if (!value.is_list() || value.list().size() != targets.size()) {
      runtime_.Fail(absl::StrCat(targets.size(), " values are needed, found a value of type ",
                                 Av(value.TypeName())));
      return;
    }
    for (size_t i = 0; i < targets.size(); ++i) Assign(targets[i], value.list()[i]);
  }

  // --- Statements

  bool Append(std::string_view text, std::string* out) {
    if (out->size() + text.size() > runtime_.bytes_max()) {
      runtime_.FailLimit(absl::StrCat("makes more than ", runtime_.bytes_max(), " bytes"));
      return false;
    }
    out->append(text);
    return runtime_.Charge(text.size() / 256);
  }

  Flow Execute(const Block& block, std::string* out) {
    DepthGuard guard(this);
    for (const auto& statement : block) {
      if (failed()) return Flow::kNext;
      const Flow flow = Execute(*statement, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow Execute(const Statement& statement, std::string* out) {
    if (!runtime_.Charge(1)) return Flow::kNext;
    runtime_.set_line(statement.line);
    switch (statement.kind) {
      case StatementKind::kText:
        Append(statement.text, out);
        return Flow::kNext;
      case StatementKind::kPrint: {
        const Value value = Evaluate(*statement.expr);
        if (failed()) return Flow::kNext;
        if (value.is_string()) {
          Append(value.string(), out);
        } else {
          Append(PrintValue(value), out);
        }
        return Flow::kNext;
      }
      case StatementKind::kIf:
        return If(statement, out);
      case StatementKind::kFor:
        For(statement, out);
        return Flow::kNext;
      case StatementKind::kSet:
        if (Value value = Evaluate(*statement.expr); !failed()) {
          AssignTargets(statement.targets, std::move(value));
        }
        return Flow::kNext;
      case StatementKind::kSetAttribute:
        SetAttribute(statement);
        return Flow::kNext;
      case StatementKind::kSetBlock: {
        std::string text;
        frames_.emplace_back();
        const Flow flow = Execute(statement.body, &text);
        frames_.pop_back();
        if (!failed()) Assign(statement.targets[0], runtime_.NewString(std::move(text)));
        return flow;
      }
      case StatementKind::kMacro:
        Assign(statement.macro->symbol,
               Value::Opaque(std::make_shared<MacroValue>(statement.macro.get())));
        return Flow::kNext;
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Flow If(const Statement& statement, std::string* out) {
    for (const auto& [condition, body] : statement.branches) {
      const bool holds = Evaluate(*condition).Truthy();
      if (failed()) return Flow::kNext;
      if (holds) return Execute(body, out);
    }
    return Execute(statement.otherwise, out);
  }

  void For(const Statement& statement, std::string* out) {
    const Value iterated = Evaluate(*statement.expr);
    if (failed()) return;
    Value::List items = Iterate(runtime_, iterated);
    if (statement.filter != nullptr) items = FilterItems(statement, std::move(items));
    if (failed()) return;
    if (items.empty()) {
      Execute(statement.otherwise, out);
      return;
    }
    const auto loop = std::make_shared<LoopValue>(items);
    for (size_t i = 0; i < items.size() && !failed(); ++i) {
      if (!runtime_.Charge(1)) return;
      loop->set_index(i);
      frames_.emplace_back();
      if (loop_symbol_ >= 0) Assign(loop_symbol_, Value::Opaque(loop));
      AssignTargets(statement.targets, items[i]);
      const Flow flow = failed() ? Flow::kBreak : Execute(statement.body, out);
      frames_.pop_back();
      if (flow == Flow::kBreak) return;
    }
  }

  Value::List FilterItems(const Statement& statement, Value::List items) {
    Value::List kept;
    for (Value& item : items) {
      if (!runtime_.Charge(1)) return {};
      frames_.emplace_back();
      AssignTargets(statement.targets, item);
      const bool keep = !failed() && Evaluate(*statement.filter).Truthy();
      frames_.pop_back();
      if (failed()) return {};
      if (keep) kept.push_back(std::move(item));
    }
    return kept;
  }

  void SetAttribute(const Statement& statement) {
    const Value object = Lookup(statement.targets[0]);
    auto* target =
        object.is_opaque() ? dynamic_cast<NamespaceValue*>(object.opaque().get()) : nullptr;
    if (target == nullptr) {
      runtime_.Fail(absl::StrCat("'", tree_.symbols[static_cast<size_t>(statement.targets[0])],
                                 "' is no namespace; only attributes of a namespace can be set"));
      return;
    }
    Value value = Evaluate(*statement.expr);
    if (failed()) return;
    if (value.is_opaque()) {
      runtime_.Fail("a namespace cannot hold a macro or a namespace");
      return;
    }
    target->Set(statement.text, std::move(value));
  }

  // --- Expressions

  Value Evaluate(const Expr& expr) {
    DepthGuard guard(this);
    if (!runtime_.Charge(1)) return {};
    switch (expr.kind) {
      case ExprKind::kLiteral:
        return expr.literal;
      case ExprKind::kName:
        return Lookup(expr.symbol);
      case ExprKind::kNot:
        return Value::Bool(!Evaluate(*expr.children[0]).Truthy());
      case ExprKind::kAnd: {
        Value left = Evaluate(*expr.children[0]);
        return left.Truthy() ? Evaluate(*expr.children[1]) : left;
      }
      case ExprKind::kOr: {
        Value left = Evaluate(*expr.children[0]);
        return left.Truthy() ? left : Evaluate(*expr.children[1]);
      }
      case ExprKind::kConditional:
        return Conditional(expr);
      case ExprKind::kCompare:
        return Comparison(expr);
      case ExprKind::kCallName:
        return CallName(expr);
      default:
        return OnOperands(expr);
    }
  }

  Value Conditional(const Expr& expr) {
    const bool holds = Evaluate(*expr.children[0]).Truthy();
    if (failed()) return {};
    if (holds) return Evaluate(*expr.children[1]);
    return expr.children[2] == nullptr ? Value() : Evaluate(*expr.children[2]);
  }

  // a < b < c compares neighbours and stops at the first that fails.
  Value Comparison(const Expr& expr) {
    Value left = Evaluate(*expr.children[0]);
    for (size_t i = 0; i < expr.compare.size(); ++i) {
      Value right = Evaluate(*expr.children[i + 1]);
      if (failed()) return {};
      runtime_.set_line(expr.line);
      if (!Compare(runtime_, expr.compare[i], left, right) || failed()) return Value::Bool(false);
      left = std::move(right);
    }
    return Value::Bool(true);
  }

  // Everything that needs all its operands first.
  Value OnOperands(const Expr& expr) {
    Value::List operands;
    operands.reserve(expr.children.size());
    for (const ExprPtr& child : expr.children) {
      operands.push_back(child == nullptr ? Value() : Evaluate(*child));
      if (failed()) return {};
    }
    runtime_.set_line(expr.line);
    switch (expr.kind) {
      case ExprKind::kList:
        return runtime_.NewList(std::move(operands));
      case ExprKind::kDict:
        return MakeDict(operands);
      case ExprKind::kAttribute:
        return GetAttribute(*expr.children[0], operands[0], expr.name);
      case ExprKind::kItem:
        if (operands[0].is_undefined()) return UndefinedUse(*expr.children[0]);
        return Item(operands[0], operands[1]);
      case ExprKind::kSlice:
        if (operands[0].is_undefined()) return UndefinedUse(*expr.children[0]);
        return Slice(operands);
      case ExprKind::kNegate:
        if (operands[0].is_integer() || operands[0].is_bool()) {
          return Arithmetic(runtime_, ArithmeticOp::kSubtract, Value::Integer(0), operands[0]);
        }
        return Arithmetic(runtime_, ArithmeticOp::kMultiply, Value::Float(-1.0), operands[0]);
      case ExprKind::kPlus:
        return Arithmetic(runtime_, ArithmeticOp::kAdd, Value::Integer(0), operands[0]);
      case ExprKind::kArithmetic:
        return Arithmetic(runtime_, expr.arithmetic, operands[0], operands[1]);
      case ExprKind::kConcat: {
        std::string text;
        for (const Value& operand : operands) {
          if (operand.is_string()) {
            text += operand.string();
          } else {
            text += PrintValue(operand);
          }
        }
        return runtime_.NewString(std::move(text));
      }
      default:
        return WithArguments(expr, std::move(operands));
    }
  }

  // Filters, tests and methods: the first operand is what they are applied to.
  Value WithArguments(const Expr& expr, Value::List operands) {
    TemplateArguments arguments;
    const Value subject = std::move(operands[0]);
    arguments.positional.assign(std::make_move_iterator(operands.begin() + 1),
                                std::make_move_iterator(operands.end()));
    if (!Keywords(expr, &arguments)) return {};
    runtime_.set_line(expr.line);
    switch (expr.kind) {
      case ExprKind::kFilter:
        return expr.filter(runtime_, subject, arguments);
      case ExprKind::kTest:
        return Value::Bool(expr.test(runtime_, subject, arguments) != expr.negated);
      default:
        if (subject.is_undefined()) return UndefinedUse(*expr.children[0]);
        return CallMethod(runtime_, subject, expr.name, arguments);
    }
  }

  bool Keywords(const Expr& expr, TemplateArguments* arguments) {
    for (const auto& [name, value] : expr.keywords) {
      arguments->keyword.emplace_back(name, Evaluate(*value));
      if (failed()) return false;
    }
    return true;
  }

  Value UndefinedUse(const Expr& expr) {
    if (expr.kind == ExprKind::kName || expr.kind == ExprKind::kAttribute) {
      return runtime_.Fail(absl::StrCat("'", expr.name, "' is undefined"));
    }
    return runtime_.Fail("a value is undefined");
  }

  Value MakeDict(const Value::List& operands) {
    Value::Entries entries;
    for (size_t i = 0; i + 1 < operands.size(); i += 2) {
      if (!operands[i].is_string()) return runtime_.Fail("keys of a mapping must be strings");
      entries.emplace_back(operands[i].string(), operands[i + 1]);
    }
    return runtime_.NewObject(std::move(entries));
  }

  Value GetAttribute(const Expr& object_expr, const Value& object, const std::string& name) {
    if (object.is_undefined()) return UndefinedUse(object_expr);
    if (object.is_opaque()) {
      const OpaqueValue* opaque = object.opaque().get();
      if (const auto* space = dynamic_cast<const NamespaceValue*>(opaque)) return space->Get(name);
      if (const auto* loop = dynamic_cast<const LoopValue*>(opaque)) return loop->Get(name);
      return {};
    }
    if (HasMethod(object, name)) return Value::Opaque(std::make_shared<MethodValue>());
    return object.Get(name);
  }

  Value Item(const Value& container, const Value& key) {
    if (container.is_opaque() && key.is_string()) {
      const OpaqueValue* opaque = container.opaque().get();
      if (const auto* loop = dynamic_cast<const LoopValue*>(opaque)) return loop->Get(key.string());
      if (const auto* space = dynamic_cast<const NamespaceValue*>(opaque)) {
        return space->Get(key.string());
      }
    }
    return GetItem(runtime_, container, key);
  }

  Value Slice(const Value::List& operands) {
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      const Value& bound = operands[i + 1];
      if (bound.is_absent()) continue;
      if (!bound.is_integer()) return runtime_.Fail("the bounds of a slice must be integers");
      bounds[i] = bound.integer();
    }
    return GetSlice(runtime_, operands[0], bounds[0], bounds[1], bounds[2].value_or(1));
  }

  Value CallName(const Expr& expr) {
    const Value callee = Lookup(expr.symbol);
    TemplateArguments arguments;
    for (const ExprPtr& child : expr.children) {
      arguments.positional.push_back(Evaluate(*child));
      if (failed()) return {};
    }
    if (!Keywords(expr, &arguments)) return {};
    runtime_.set_line(expr.line);
    if (callee.is_opaque()) {
      if (const auto* macro = dynamic_cast<const MacroValue*>(callee.opaque().get())) {
        return CallMacro(macro->macro(), arguments);
      }
    }
    if (callee.is_undefined() && IsTemplateFunction(expr.name)) {
      return CallTemplateFunction(runtime_, expr.name, arguments);
    }
    if (callee.is_undefined()) return runtime_.Fail(absl::StrCat("'", expr.name, "' is undefined"));
    return runtime_.Fail(absl::StrCat("'", expr.name, "' cannot be called"));
  }

  Value CallMacro(const Macro& macro, const TemplateArguments& arguments) {
    if (arguments.positional.size() > macro.parameters.size()) {
      return runtime_.Fail(absl::StrCat("the macro '", macro.name, "' takes at most ",
                                        macro.parameters.size(), " arguments, got ",
                                        arguments.positional.size()));
    }
    for (const auto& [name, value] : arguments.keyword) {
      bool known = false;
      for (const MacroParameter& parameter : macro.parameters)
        known = known || parameter.name == name;
      if (!known) {
        return runtime_.Fail(
            absl::StrCat("the macro '", macro.name, "' has no parameter '", name, "'"));
      }
    }
    if (++macro_depth_ > limits_.macro_depth_max) {
      runtime_.FailLimit(absl::StrCat("calls macros deeper than ", limits_.macro_depth_max));
    }
    const size_t outer_base = std::exchange(macro_base_, frames_.size());
    frames_.emplace_back();
    for (size_t i = 0; i < macro.parameters.size() && !failed(); ++i) {
      const MacroParameter& parameter = macro.parameters[i];
      Value value;
      if (const Value* given = arguments.Get(i, parameter.name)) {
        value = *given;
      } else if (parameter.default_value != nullptr) {
        value = Evaluate(*parameter.default_value);
      }
      Assign(parameter.symbol, std::move(value));
    }
    std::string text;
    if (!failed()) Execute(macro.body, &text);
    frames_.resize(macro_base_);
    macro_base_ = outer_base;
    --macro_depth_;
    return failed() ? Value() : runtime_.NewString(std::move(text));
  }

  const TemplateTree& tree_;
  const Value& variables_;
  const TemplateLimits& limits_;
  TemplateRuntime runtime_;
  std::vector<Frame> frames_;
  size_t macro_base_ = 0;  // index of the first frame of the macro being run; 0 outside of macros
  int macro_depth_ = 0;
  int depth_ = 0;
  Symbol loop_symbol_ = -1;
};

}  // namespace

absl::StatusOr<std::string> RunTemplate(const TemplateTree& tree, const Value& variables,
                                        const TemplateLimits& limits) {
  const size_t bytes_max = limits.output_bytes_base + 4 * variables.weight();
  return Interpreter(tree, variables, limits, bytes_max).Run();
}

}  // namespace quartet::text
