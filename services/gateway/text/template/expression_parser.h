// The part of the template parser that reads expressions.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_

#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/template/ast.h"
#include "services/gateway/text/template/lexer.h"

namespace quartet::text {

// The words of a template with a position in them, the tree being filled, and the first error.
// Errors stick: after one, parsing functions return nullptr or empty results.
class ParserState {
 public:
  using Kind = TemplateToken::Kind;

  ParserState(std::vector<TemplateToken> tokens, TemplateTree* tree)
      : tokens_(std::move(tokens)), tree_(tree) {}

  const TemplateToken& current() const { return tokens_[position_]; }
  const TemplateToken& next() const {
    return tokens_[position_ + 1 < tokens_.size() ? position_ + 1 : position_];
  }
  void Advance() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }
  bool AtOperator(std::string_view op) const {
    return current().kind == Kind::kOperator && current().text == op;
  }
  bool AtWord(std::string_view word) const {
    return current().kind == Kind::kName && current().text == word;
  }
  bool TakeOperator(std::string_view op);
  bool TakeWord(std::string_view word);
  bool ExpectOperator(std::string_view op);

  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }
  // Returns nullptr, as an expression.
  ExprPtr Fail(std::string_view what) { return FailAt(current().line, what); }
  ExprPtr FailAt(int line, std::string_view what);

  Symbol SymbolOf(const std::string& name);
  TemplateTree& tree() { return *tree_; }

  // The current word for messages.
  std::string Here() const;

  // Calls of plain names, to be checked against the macros once all of them are known.
  struct Call {
    std::string name;
    int line;
  };
  std::vector<Call> calls;

 private:
  std::vector<TemplateToken> tokens_;
  size_t position_ = 0;
  TemplateTree* tree_;
  std::string error_;
};

// A whole expression, conditional included.
ExprPtr ParseExpression(ParserState& state);
// The same without "a if b else c": what stands after "in" of a loop.
ExprPtr ParseUnconditional(ParserState& state);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_
