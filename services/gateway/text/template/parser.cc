#include "services/gateway/text/template/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/template/expression_parser.h"
#include "services/gateway/text/template/functions.h"
#include "services/gateway/text/template/lexer.h"

namespace quartet::text {
namespace {

using Kind = TemplateToken::Kind;
using StatementPtr = std::unique_ptr<Statement>;

class StatementParser {
 public:
  explicit StatementParser(ParserState& state) : s_(state) {}

  void Template() {
    s_.tree().body = Body({});
    if (!s_.failed() && s_.current().kind != Kind::kEnd) s_.Fail("unexpected tag");
    for (const ParserState::Call& call : s_.calls) {
      const bool known = IsTemplateFunction(call.name) ||
                         std::find(macros_.begin(), macros_.end(), call.name) != macros_.end();
      if (!known) {
        s_.FailAt(call.line, absl::StrCat("there is no macro or function '", call.name, "'"));
      }
    }
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  StatementPtr Make(StatementKind kind, int line) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  void EndOfTag() {
    if (s_.current().kind != Kind::kBlockEnd) {
      s_.Fail(absl::StrCat("the end of the tag is expected, ", s_.Here(), " found"));
      return;
    }
    s_.Advance();
  }

  // Statements up to a block tag that starts with one of `ends`; that word is then current. Without
  // ends: to the end.
  Block Body(Words ends) {
    Block block;
    if (++depth_ > kTemplateNestingMax) {
      s_.Fail(absl::StrCat("blocks are nested deeper than ", kTemplateNestingMax));
    }
    while (!s_.failed()) {
      const TemplateToken token = s_.current();
      if (token.kind == Kind::kEnd) {
        if (ends.size() > 0) s_.Fail(absl::StrCat("'", Av(*std::prev(ends.end())), "' is missing"));
        break;
      }
      if (token.kind == Kind::kText) {
        StatementPtr text = Make(StatementKind::kText, token.line);
        text->text = token.text;
        block.push_back(std::move(text));
        s_.Advance();
      } else if (token.kind == Kind::kPrintBegin) {
        s_.Advance();
        StatementPtr print = Make(StatementKind::kPrint, token.line);
        print->expr = ParseExpression(s_);
        if (!s_.failed() && s_.current().kind != Kind::kPrintEnd) {
          s_.Fail(absl::StrCat("'}}' is expected, ", s_.Here(), " found"));
        }
        s_.Advance();
        block.push_back(std::move(print));
      } else {
        s_.Advance();
        if (std::any_of(ends.begin(), ends.end(), [&](auto word) { return s_.AtWord(word); }))
          break;
        BlockTag(&block);
      }
    }
    --depth_;
    return block;
  }

  void BlockTag(Block* block) {
    const TemplateToken token = s_.current();
    const std::string& word = token.text;
    if (token.kind != Kind::kName) {
      s_.Fail(absl::StrCat("the name of a block is expected, ", s_.Here(), " found"));
      return;
    }
    s_.Advance();
    if (word == "if") {
      block->push_back(If(token.line));
    } else if (word == "for") {
      block->push_back(For(token.line));
    } else if (word == "set") {
      block->push_back(Set(token.line));
    } else if (word == "macro") {
      block->push_back(MacroBlock(token.line));
    } else if (word == "break" || word == "continue") {
      if (loops_ == 0) s_.FailAt(token.line, absl::StrCat("'", word, "' stands outside of a loop"));
      block->push_back(
          Make(word == "break" ? StatementKind::kBreak : StatementKind::kContinue, token.line));
      EndOfTag();
    } else if (word == "generation") {
      // Marks text for training; the text itself is rendered as if the tags were not there.
      EndOfTag();
      for (StatementPtr& statement : Body({"endgeneration"}))
        block->push_back(std::move(statement));
      s_.Advance();
      EndOfTag();
    } else {
      s_.FailAt(token.line, absl::StrCat("the block '", word, "' is not supported"));
    }
  }

  StatementPtr If(int line) {
    StatementPtr statement = Make(StatementKind::kIf, line);
    while (!s_.failed()) {
      ExprPtr condition = ParseExpression(s_);
      EndOfTag();
      Block body = Body({"elif", "else", "endif"});
      statement->branches.emplace_back(std::move(condition), std::move(body));
      if (!s_.TakeWord("elif")) break;
    }
    if (s_.TakeWord("else")) {
      EndOfTag();
      statement->otherwise = Body({"endif"});
    }
    s_.Advance();
    EndOfTag();
    return statement;
  }

  // "name" or "name, name".
  std::vector<Symbol> Targets() {
    std::vector<Symbol> targets;
    const bool parenthesis = s_.TakeOperator("(");
    do {
      if (s_.current().kind != Kind::kName) {
        s_.Fail(absl::StrCat("the name of a variable is expected, ", s_.Here(), " found"));
        return {};
      }
      targets.push_back(s_.SymbolOf(s_.current().text));
      s_.Advance();
    } while (s_.TakeOperator(","));
    if (parenthesis) s_.ExpectOperator(")");
    return targets;
  }

  StatementPtr For(int line) {
    StatementPtr statement = Make(StatementKind::kFor, line);
    statement->targets = Targets();
    if (!s_.failed() && !s_.TakeWord("in")) s_.Fail("'in' is expected");
    statement->expr = ParseUnconditional(s_);
    if (s_.TakeWord("if")) statement->filter = ParseExpression(s_);
    if (s_.AtWord("recursive")) s_.Fail("recursive loops are not supported");
    EndOfTag();
    ++loops_;
    ++scopes_;
    statement->body = Body({"else", "endfor"});
    --scopes_;
    --loops_;
    if (s_.TakeWord("else")) {
      EndOfTag();
      statement->otherwise = Body({"endfor"});
    }
    s_.Advance();
    EndOfTag();
    return statement;
  }

  StatementPtr Set(int line) {
    StatementPtr statement = Make(StatementKind::kSet, line);
    statement->targets = Targets();
    if (s_.failed()) return statement;
    if (s_.TakeOperator(".")) {
      statement->kind = StatementKind::kSetAttribute;
      statement->text = s_.current().text;
      if (s_.current().kind != Kind::kName || statement->targets.size() != 1) {
        s_.Fail("the name of an attribute is expected after '.'");
      }
      s_.Advance();
    }
    if (s_.TakeOperator("=")) {
      statement->expr = ParseExpression(s_);
      if (s_.AtOperator(",")) s_.Fail("put parentheses around a list of values");
      EndOfTag();
      return statement;
    }
    if (statement->kind == StatementKind::kSetAttribute || statement->targets.size() != 1) {
      s_.Fail("'=' is expected");
    }
    if (s_.AtOperator("|")) s_.Fail("filters on a set block are not supported");
    statement->kind = StatementKind::kSetBlock;
    EndOfTag();
    ++scopes_;
    statement->body = Body({"endset"});
    --scopes_;
    s_.Advance();
    EndOfTag();
    return statement;
  }

  StatementPtr MacroBlock(int line) {
    StatementPtr statement = Make(StatementKind::kMacro, line);
    if (scopes_ > 0)
      s_.FailAt(line, "a macro inside a loop, a macro or a set block is not supported");
    auto macro = std::make_unique<Macro>();
    macro->name = s_.current().text;
    if (s_.current().kind != Kind::kName) s_.Fail("the name of the macro is expected");
    macro->symbol = s_.SymbolOf(macro->name);
    macros_.push_back(macro->name);
    s_.Advance();
    s_.ExpectOperator("(");
    while (!s_.failed() && !s_.TakeOperator(")")) {
      if (!macro->parameters.empty() && !s_.ExpectOperator(",")) break;
      if (s_.current().kind != Kind::kName) {
        s_.Fail("the name of a parameter is expected");
        break;
      }
      MacroParameter parameter{s_.SymbolOf(s_.current().text), s_.current().text, nullptr};
      s_.Advance();
      if (s_.TakeOperator("=")) parameter.default_value = ParseExpression(s_);
      macro->parameters.push_back(std::move(parameter));
    }
    EndOfTag();
    ++scopes_;
    const int outer_loops = std::exchange(loops_, 0);
    macro->body = Body({"endmacro"});
    loops_ = outer_loops;
    --scopes_;
    s_.Advance();
    s_.TakeWord(macro->name);  // {% endmacro name %}
    EndOfTag();
    statement->macro = std::move(macro);
    return statement;
  }

  ParserState& s_;
  int depth_ = 0;
  int loops_ = 0;   // loops around, up to the next macro
  int scopes_ = 0;  // loops, macros and set blocks around
  std::vector<std::string> macros_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const TemplateTree>> ParseTemplate(std::string_view source,
                                                                  std::string_view name) {
  absl::StatusOr<std::vector<TemplateToken>> tokens = TokenizeTemplate(source, name);
  if (!tokens.ok()) return tokens.status();
  auto tree = std::make_unique<TemplateTree>();
  tree->name = std::string(name);
  ParserState state(*std::move(tokens), tree.get());
  StatementParser(state).Template();
  if (state.failed()) return absl::InvalidArgumentError(state.error());
  return tree;
}

}  // namespace quartet::text
