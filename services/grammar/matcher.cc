#include "services/grammar/matcher.h"

#include <utility>

namespace quartet::grammar {
namespace {

constexpr size_t kFramesMax = 1 << 14;

}  // namespace

Matcher::Matcher(std::shared_ptr<const LoadedGrammar> grammar)
    : grammar_(std::move(grammar)),
      machine_(std::make_shared<Machine>(grammar_->grammar)),
      state_{machine_->Start()} {}

bool Matcher::AdvanceBytes(std::string_view bytes) {
  if (state_.ended) return false;
  const size_t frames = machine_->frames();
  Readings now = state_.readings;
  Readings next;
  for (const char byte : bytes) {
    machine_->Step(now, static_cast<uint8_t>(byte), &next);
    std::swap(now, next);
    if (now.empty()) {
      machine_->Rewind(frames);
      return false;
    }
  }
  machine_->Prune(&now);
  state_.readings = std::move(now);
  return true;
}

bool Matcher::Advance(int32_t token) {
  const Vocabulary& vocabulary = *grammar_->vocabulary;
  if (state_.ended || !vocabulary.Has(token)) return false;
  if (vocabulary.IsEnd(token)) {
    if (!MayEnd()) return false;
    state_ = {{}, true};
    return true;
  }
  const TokenText& text = vocabulary.token(token);
  switch (text.kind) {
    case TokenText::Kind::kNone:
      return false;
    case TokenText::Kind::kText:
      return !text.bytes.empty() && AdvanceBytes(text.bytes);
    case TokenText::Kind::kMarker:
    case TokenText::Kind::kSpecial:
      break;
  }
  std::optional<uint32_t> name;
  const auto found = grammar_->token_names.find(token);
  if (found != grammar_->token_names.end()) name = found->second;
  Readings next;
  machine_->StepAdded(state_.readings, name, text.bytes,
                      text.kind == TokenText::Kind::kMarker ? kMarkersAreText : kSpecialsAreText,
                      &next);
  if (next.empty()) return false;
  machine_->Prune(&next);
  state_.readings = std::move(next);
  return true;
}

std::shared_ptr<const Mask> Matcher::MaskOf(const State& state, MaskMaker* maker) const {
  if (state.ended) return std::make_shared<const Mask>(grammar_->vocabulary->EmptyMask());
  return maker->MaskOf(*grammar_, machine_.get(), state.readings);
}

void Matcher::Compact() {
  if (machine_->frames() < kFramesMax) return;
  auto fresh = std::make_shared<Machine>(grammar_->grammar);
  state_.readings = fresh->Import(*machine_, state_.readings);
  machine_ = std::move(fresh);
}

}  // namespace quartet::grammar
