#include "services/coordinator/rpc/constraints.h"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/coordinator/core/plan_hash.h"

namespace quartet::coordinator {
namespace {

std::string Digest(std::string_view bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

// As Row.allow_masks has it (worker.proto).
std::string WireMask(const grammar::Mask& mask) {
  return {reinterpret_cast<const char*>(mask.data()), mask.size() * sizeof(mask[0])};
}

}  // namespace

Constraints::Model::Model(grammar::Vocabulary parsed)
    : end_ids(parsed.end_ids()),
      maker(std::make_shared<const grammar::Vocabulary>(std::move(parsed))) {}

std::shared_ptr<Constraints::Model> Constraints::model() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return model_;
}

absl::StatusOr<std::string> Constraints::PutVocabulary(std::string_view bytes,
                                                       uint32_t vocab_size) {
  const std::string digest = Digest(bytes);
  if (digest == vocabulary_digest()) return digest;
  absl::StatusOr<grammar::Vocabulary> parsed = grammar::Vocabulary::Parse(bytes);
  if (!parsed.ok()) return parsed.status();
  if (parsed->size() != vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary: it has ", parsed->size(), " tokens, the model has ", vocab_size));
  }
  grammar::Mask ends = parsed->EmptyMask();
  for (const int32_t id : parsed->end_ids()) grammar::Allow(id, &ends);
  auto model = std::make_shared<Model>(*std::move(parsed));
  model->digest = digest;
  model->end_mask = WireMask(ends);
  std::lock_guard<std::mutex> lock(mutex_);
  if (model_ == nullptr) model_ = std::move(model);
  if (model_->digest == digest) return digest;
  return absl::FailedPreconditionError(
      absl::StrCat("vocabulary: its digest is ", digest, ", and the engine has one with ",
                   model_->digest, "; all gateways of an engine must have the same tokenizer"));
}

std::string Constraints::vocabulary_digest() const {
  const std::shared_ptr<const Model> known = model();
  return known == nullptr ? "" : known->digest;
}

absl::StatusOr<grammar::Constraint> Constraints::Create(const v1::Submit& submit) const {
  const std::shared_ptr<Model> known = model();
  if (known == nullptr) {
    return absl::FailedPreconditionError(
        "grammar: the engine has no vocabulary yet (PutVocabulary)");
  }
  // An answer that has ended by its grammar has no next token.
  const auto is_end = [&](int32_t id) {
    return std::find(submit.end_ids().begin(), submit.end_ids().end(), id) !=
           submit.end_ids().end();
  };
  if (submit.ignore_eos() || !std::ranges::all_of(known->end_ids, is_end)) {
    return absl::InvalidArgumentError(
        "grammar: every end token of the vocabulary must be in end_ids, and ignore_eos be false");
  }
  absl::StatusOr<grammar::Constraint> constraint =
      grammar::Constraint::Create(submit.grammar(), &known->maker);
  if (!constraint.ok()) {
    return absl::Status(constraint.status().code(),
                        absl::StrCat("grammar: ", constraint.status().message()));
  }
  constraint->MaskAt(0);
  return constraint;
}

void Constraints::Add(uint64_t request, grammar::Constraint constraint) {
  open_.emplace(request, Open{.constraint = std::move(constraint), .drafts = {}});
}

absl::Status Constraints::Advance(uint64_t request, std::span<const int32_t> tokens) {
  const auto found = open_.find(request);
  if (found == open_.end()) return absl::OkStatus();
  return found->second.constraint.Advance(tokens);
}

void Constraints::OnResult(const StepOutcome& outcome) {
  if (sent_.empty()) return;
  for (const RowOutcome& row : outcome.rows) {
    const auto sent = sent_.find(row.seq_uid);
    if (sent == sent_.end()) continue;
    const auto found = open_.find(sent->second);
    sent_.erase(sent);
    // It may have lost its place, and have been admitted again, since.
    if (found != open_.end() && found->second.seq_uid == row.seq_uid) {
      found->second.drafts = row.drafts;
    }
  }
}

bool Constraints::FillMasks(StepPlan& plan) {
  bool any = false;
  const std::shared_ptr<const Model> known = model();
  for (PlanRow& row : plan.rows) {
    if (row.masked_id == 0) continue;
    any = true;
    Fill(*known, open_.at(row.masked_id), row);
    sent_[row.seq_uid] = row.masked_id;
  }
  if (any) plan.plan_hash = PlanHash(plan);
  return any;
}

void Constraints::Fill(const Model& model, Open& open, PlanRow& row) const {
  std::vector<int32_t> drafts;
  if (row.draft_tokens > 0 && open.seq_uid == row.seq_uid) drafts = std::move(open.drafts);
  open.seq_uid = row.seq_uid;
  open.drafts.clear();
  drafts.resize(std::min<size_t>(drafts.size(), row.draft_tokens));
  const size_t accepted = open.constraint.AcceptedDrafts(drafts);
  for (size_t position = 0; position <= row.draft_tokens; ++position) {
    // Behind a draft that is not accepted, or that ends the answer, nobody is told what is drawn;
    // but something must be.
    const bool behind_end = position > 0 && position <= accepted &&
                            std::ranges::binary_search(model.end_ids, drafts[position - 1]);
    const bool counts = position <= accepted && !behind_end;
    row.allow_masks.push_back(counts ? WireMask(*open.constraint.MaskAt(position))
                                     : model.end_mask);
  }
}

}  // namespace quartet::coordinator
