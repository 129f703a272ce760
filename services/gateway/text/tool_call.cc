#include "services/gateway/text/tool_call.h"

#include "services/gateway/text/json.h"
#include "services/gateway/text/tags.h"
#include "services/gateway/text/unicode.h"

namespace quartet::text {
namespace {

// What AppendJsonString writes, without the quotes.
std::string Escaped(std::string_view text) {
  std::string quoted;
  AppendJsonString(text, &quoted);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

bool ToolCallParser::Feed(std::string_view* text, std::vector<TextPiece>* out) {
  std::string skipped;
  while (true) {
    switch (state_) {
      case State::kName: {
        const std::string_view tag = Advance({kKeyOpen, kCallClose}, text, &name_, out);
        JudgeName(!tag.empty(), out);
        if (tag.empty()) return false;
        if (tag == kCallClose) {
          EndCall(out);
          return true;
        }
        state_ = State::kKey;
        break;
      }
      case State::kArguments: {
        const std::string_view tag = Advance({kKeyOpen, kCallClose}, text, &skipped, out);
        if (tag.empty()) return false;
        if (tag == kCallClose) {
          EndCall(out);
          return true;
        }
        state_ = State::kKey;
        break;
      }
      case State::kKey: {
        if (Advance({kKeyClose}, text, &key_, out).empty()) return false;
        state_ = State::kKeyDone;
        break;
      }
      case State::kKeyDone: {
        const std::string_view tag =
            Advance({kValueOpen, kKeyOpen, kCallClose}, text, &skipped, out);
        if (tag.empty()) return false;
        if (tag == kCallClose) {
          EndCall(out);
          return true;
        }
        if (tag == kValueOpen) {
          BeginValue();
          state_ = State::kValue;
        } else {
          key_.clear();
          state_ = State::kKey;
        }
        break;
      }
      case State::kValue: {
        const std::string_view tag = Advance({kValueClose}, text, &value_, out);
        PassOnString(out);
        if (tag.empty()) return false;
        closing_ = tag;
        state_ = State::kValueDone;
        break;
      }
      case State::kValueDone: {
        const size_t space = text->size() - StripLeft(*text).size();
        closing_.append(text->substr(0, space));
        Take(space, text, out);
        if (text->empty() || MayBecome(*text, kKeyOpen) || MayBecome(*text, kCallClose)) {
          return false;
        }
        if (text->starts_with(kKeyOpen) || text->starts_with(kCallClose)) {
          EndValue(out);
          state_ = State::kArguments;
        } else {
          value_ += closing_;
          state_ = State::kValue;
        }
        break;
      }
    }
  }
}

void ToolCallParser::Finish(OutputEnd end, std::string_view rest, std::vector<TextPiece>* out) {
  const bool stop = end == OutputEnd::kStop;
  if (verdict_ == Verdict::kOpen && stop) {
    AppendPiece(TextKind::kContent, block_, 0, out);
    verdict_ = Verdict::kContent;
  }
  if (verdict_ == Verdict::kContent) AppendPiece(TextKind::kContent, rest, 0, out);
  if (verdict_ != Verdict::kCall) return;

  bool inside_value = state_ == State::kValue;
  if (state_ == State::kValueDone) {
    if (rest.empty()) {
      EndValue(out);
    } else {
      inside_value = true;
      value_ += closing_;
    }
  }
  if (inside_value) {
    value_ += rest;
    PassOnString(out);
  } else if (stop) {
    EndCall(out);
  }
}

std::string_view ToolCallParser::Advance(std::initializer_list<std::string_view> tags,
                                         std::string_view* from, std::string* to,
                                         std::vector<TextPiece>* out) {
  const TagMatch match = FirstTag(*from, tags);
  to->append(from->substr(0, match.at));
  Take(match.at + match.tag.size(), from, out);
  return match.tag;
}

void ToolCallParser::Take(size_t bytes, std::string_view* from, std::vector<TextPiece>* out) {
  const std::string_view taken = from->substr(0, bytes);
  if (verdict_ == Verdict::kOpen) block_ += taken;
  if (verdict_ == Verdict::kContent) AppendPiece(TextKind::kContent, taken, 0, out);
  from->remove_prefix(bytes);
}

void ToolCallParser::JudgeName(bool complete, std::vector<TextPiece>* out) {
  if (verdict_ != Verdict::kOpen) return;
  const std::string_view name = Strip(name_);
  if (complete ? !tools_->Has(name) : !tools_->MayBecomeName(name_)) {
    verdict_ = Verdict::kContent;
    AppendPiece(TextKind::kContent, block_, 0, out);
  } else if (complete) {
    verdict_ = Verdict::kCall;
    AppendPiece(TextKind::kCallName, name, call_, out);
    name_ = std::string(name);
  }
  if (verdict_ != Verdict::kOpen) block_.clear();
}

void ToolCallParser::BeginValue() {
  value_.clear();
  string_open_ = false;
  key_ = std::string(Strip(key_));
  counts_ = verdict_ == Verdict::kCall && keys_.insert(key_).second;
  if (counts_) types_ = tools_->ArgumentTypes(name_, key_);
}

// What is there of the value, if it need not be held.
void ToolCallParser::PassOnString(std::vector<TextPiece>* out) {
  if (!counts_) {
    value_.clear();
  } else if (types_.OnlyString() && !value_.empty()) {
    std::string text = string_open_ ? "" : KeyJson() + "\"";
    string_open_ = true;
    text += Escaped(value_);
    value_.clear();
    AppendPiece(TextKind::kCallArguments, text, call_, out);
  }
}

void ToolCallParser::EndValue(std::vector<TextPiece>* out) {
  if (counts_) {
    AppendPiece(TextKind::kCallArguments,
                string_open_ ? "\"" : KeyJson() + ArgumentJson(types_, value_), call_, out);
  }
  value_.clear();
  key_.clear();
}

void ToolCallParser::EndCall(std::vector<TextPiece>* out) {
  if (verdict_ != Verdict::kCall) return;
  AppendPiece(TextKind::kCallArguments, any_argument_ ? "}" : "{}", call_, out);
  AppendPiece(TextKind::kCallEnd, "", call_, out);
}

std::string ToolCallParser::KeyJson() {
  std::string text = any_argument_ ? ", " : "{";
  any_argument_ = true;
  AppendJsonString(key_, &text);
  return text + ": ";
}

}  // namespace quartet::text
