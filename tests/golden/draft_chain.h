#ifndef QUARTET_TESTS_GOLDEN_DRAFT_CHAIN_H_
#define QUARTET_TESTS_GOLDEN_DRAFT_CHAIN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tests/golden/mini_model.h"

namespace quartet {

inline int32_t Argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct DraftChain {
  std::vector<float> prefill_hidden;  // [T, H]
  std::vector<float> logits;          // [3, V]
  std::vector<float> hidden;          // [3, H]
  std::vector<int32_t> tokens;        // [3]
};

// The draft layer over a whole prompt, whose trunk had the rows `hidden` [T, H] and whose next
// tokens are `next` [T], then drafts chained on each other.
inline DraftChain DraftThree(ModelRank& rank, const std::vector<int32_t>& next,
                             const std::vector<float>& hidden, int slot,
                             const std::vector<int32_t>& pages, bool share) {
  using enum Model::DraftSelection;
  DraftChain chain;
  Model& model = *rank.model;
  const Activations& a = model.activations();
  int position = 0;
  int rows = static_cast<int>(next.size());
  std::vector<int32_t> ids = next;
  std::vector<float> in = hidden;
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(rank.backend->CopyIn(a.mtp_h, in.data(), in.size() * sizeof(float)).ok());
    const Model::DraftSelection selection = !share ? kRecompute : step == 0 ? kKeepLast : kShared;
    const absl::Status status =
        model.Draft(ids, {{MakeSegment(0, rows, slot, position, pages)}}, selection);
    EXPECT_TRUE(status.ok()) << status;
    if (step == 0) chain.prefill_hidden = rank.Fetch(a.mtp_o, rows * kHidden);
    const float* last = a.mtp_o + (rows - 1) * kHidden;
    in = rank.Fetch(last, kHidden);
    const std::vector<float> logits = AllLogits(model, last, 1);
    chain.hidden.insert(chain.hidden.end(), in.begin(), in.end());
    chain.logits.insert(chain.logits.end(), logits.begin(), logits.end());
    chain.tokens.push_back(Argmax(logits));
    ids = {chain.tokens.back()};
    position += rows;
    rows = 1;
  }
  return chain;
}

}  // namespace quartet

#endif  // QUARTET_TESTS_GOLDEN_DRAFT_CHAIN_H_
