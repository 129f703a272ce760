#include <algorithm>

#include "services/coordinator/core/core.h"

// What speculation adds to a plan: drafts to verify, and how many to make for the next step.

namespace quartet::coordinator {

// Takes what the rows that the plan has already left of the step's budget and of the pages: nobody
// waits or gives up its place for drafts. So a step that is full of prompts verifies none.
void Core::AddDrafts() {
  const uint32_t longest = config_.num_speculative_tokens;
  if (longest == 0) return;
  uint32_t decode_tokens = 0;
  for (const DraftRow& row : draft_) {
    if (!row.sequence->prefills()) decode_tokens += 1 + row.sequence->next_drafts();
  }
  for (DraftRow& row : draft_) {
    Sequence& sequence = *row.sequence;
    const uint32_t end = sequence.next_position() + row.n_tokens;
    if (end < sequence.tokens.size()) continue;  // nothing is drawn
    const bool decodes = !sequence.prefills();
    const uint32_t left = sequence.tokens_left(config_.max_model_len);
    const uint32_t others = decode_tokens - (decodes ? 1 + sequence.next_drafts() : 0);
    uint32_t drafts = decodes ? std::min({sequence.next_drafts(), left - 1, budget_}) : 0;
    // This step says one token at least, and the last one needs no draft.
    uint32_t chain =
        config_.spec_dynamic ? sequence.draft_length.Choose(decode_cost_, others) : longest;
    chain = std::min(chain, left - std::min(left, 2u));

    // The first draft of a chain needs no place of its own, each further one does.
    const auto room = [&](uint32_t wanted) {
      return GrowPagesIfFree(sequence, std::min<uint64_t>(wanted, config_.max_model_len));
    };
    const uint32_t places = room(end + drafts + std::max(chain, 1u) - 1);
    drafts = std::min(drafts, places - end);
    chain = std::min(chain, places - end - drafts + 1);

    row.drafts = drafts;
    row.chain = chain;
    row.n_tokens += drafts;
    budget_ -= drafts;
  }
}

// How many of so many tokens its pages hold, after taking what is free.
uint32_t Core::GrowPagesIfFree(Sequence& sequence, uint64_t tokens) {
  while (sequence.pages.size() < PagesFor(tokens)) {
    const std::optional<uint32_t> page = TakePage();
    if (!page.has_value()) break;
    sequence.pages.push_back(*page);
  }
  return static_cast<uint32_t>(
      std::min<uint64_t>(tokens, uint64_t{sequence.pages.size()} * config_.page_tokens));
}

}  // namespace quartet::coordinator
