#include "services/coordinator/rpc/convert.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace quartet::coordinator {
namespace {

Sampling ToSampling(const v1::SamplingParams& params) {
  Sampling sampling;
  sampling.temperature = params.temperature();
  sampling.top_p = params.top_p() == 0 ? 1 : params.top_p();
  sampling.top_k = params.top_k();
  sampling.min_p = params.min_p();
  sampling.seed = params.seed();
  sampling.seeded = params.seeded();
  sampling.choice = params.choice();
  sampling.presence_penalty = params.presence_penalty();
  sampling.frequency_penalty = params.frequency_penalty();
  sampling.repetition_penalty = params.repetition_penalty() == 0 ? 1 : params.repetition_penalty();
  for (const auto& [id, bias] : params.logit_bias()) sampling.logit_bias.emplace_back(id, bias);
  // A map comes in any order, and the core's input must not depend on it.
  std::sort(sampling.logit_bias.begin(), sampling.logit_bias.end());
  sampling.min_tokens = params.min_tokens();
  sampling.banned_ids.assign(params.banned_ids().begin(), params.banned_ids().end());
  return sampling;
}

void ToParams(const Sampling& sampling, v1::SamplingParams* params) {
  params->set_temperature(sampling.temperature);
  params->set_top_p(sampling.top_p);
  params->set_top_k(sampling.top_k);
  params->set_min_p(sampling.min_p);
  params->set_seed(sampling.seed);
  params->set_seeded(sampling.seeded);
  params->set_choice(sampling.choice);
  params->set_presence_penalty(sampling.presence_penalty);
  params->set_frequency_penalty(sampling.frequency_penalty);
  params->set_repetition_penalty(sampling.repetition_penalty);
  for (const auto& [id, bias] : sampling.logit_bias) (*params->mutable_logit_bias())[id] = bias;
  params->set_min_tokens(sampling.min_tokens);
  params->mutable_banned_ids()->Add(sampling.banned_ids.begin(), sampling.banned_ids.end());
}

ThinkingBudget ToBudget(const v1::ThinkingBudget& from) {
  return {.max_tokens = from.max_tokens(),
          .begin_id = from.begin_id(),
          .end_ids = {from.end_ids().begin(), from.end_ids().end()},
          .open = from.open()};
}

void ToProto(const ThinkingBudget& from, v1::ThinkingBudget* to) {
  to->set_max_tokens(from.max_tokens);
  to->set_begin_id(from.begin_id);
  to->mutable_end_ids()->Add(from.end_ids.begin(), from.end_ids.end());
  to->set_open(from.open);
}

TopLogprobs ToTop(const v1::TopLogprobs& from) {
  return {.ids = {from.ids().begin(), from.ids().end()},
          .logprobs = {from.logprobs().begin(), from.logprobs().end()}};
}

void ToProto(const TopLogprobs& from, v1::TopLogprobs* to) {
  to->mutable_ids()->Add(from.ids.begin(), from.ids.end());
  to->mutable_logprobs()->Add(from.logprobs.begin(), from.logprobs.end());
}

v1::Row::Kind ToKind(PlanRow::Kind kind) {
  switch (kind) {
    case PlanRow::Kind::kPrefill:
      return v1::Row::KIND_PREFILL;
    case PlanRow::Kind::kDecode:
      return v1::Row::KIND_DECODE;
    case PlanRow::Kind::kVerify:
      return v1::Row::KIND_VERIFY;
  }
  return v1::Row::KIND_UNSPECIFIED;
}

v1::Acceptance ToProto(Acceptance acceptance) {
  return acceptance == Acceptance::kCoupled ? v1::ACCEPTANCE_COUPLED : v1::ACCEPTANCE_REJECTION;
}

v1::Finished::Reason ToReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEndToken:
      return v1::Finished::REASON_END_TOKEN;
    case FinishReason::kStopId:
      return v1::Finished::REASON_STOP_ID;
    case FinishReason::kLength:
      return v1::Finished::REASON_LENGTH;
    case FinishReason::kTruncated:
      return v1::Finished::REASON_TRUNCATED;
  }
  return v1::Finished::REASON_UNSPECIFIED;
}

v1::Copy::Tier ToTier(CacheTier tier) {
  switch (tier) {
    case CacheTier::kDevice:
      return v1::Copy::TIER_DEVICE;
    case CacheTier::kHost:
      return v1::Copy::TIER_HOST;
    case CacheTier::kDisk:
      return v1::Copy::TIER_DISK;
    case CacheTier::kAbsent:
      break;
  }
  return v1::Copy::TIER_UNSPECIFIED;
}

CopyOutcome ToOutcome(const v1::CopyResult& copy) {
  switch (copy.kind()) {
    case v1::CopyResult::KIND_DONE:
      return CopyOutcome::kDone;
    case v1::CopyResult::KIND_CHECKSUM:
      return CopyOutcome::kChecksum;
    default:
      return CopyOutcome::kMissing;
  }
}

template <typename Repeated>
auto ToVector(const Repeated& repeated) {
  return std::vector<typename Repeated::value_type>(repeated.begin(), repeated.end());
}

}  // namespace

Request ToRequest(const v1::Submit& submit) {
  Request request;
  request.request_id = submit.request_id();
  request.prompt_ids = ToVector(submit.prompt_ids());
  request.sampling = ToSampling(submit.sampling());
  request.max_tokens = submit.max_tokens();
  request.end_ids = ToVector(submit.end_ids());
  request.stop_ids = ToVector(submit.stop_ids());
  request.first_padding_id = submit.first_padding_id();
  request.prompt_logprobs = submit.prompt_logprobs();
  request.logprobs = submit.logprobs();
  request.top_logprobs = submit.top_logprobs();
  request.prompt_top_logprobs = submit.prompt_top_logprobs();
  request.ignore_eos = submit.ignore_eos();
  if (submit.has_thinking()) request.thinking = ToBudget(submit.thinking());
  request.constrained = !submit.grammar().empty();
  request.fair_key = submit.fair_key();
  request.system_prefix_tokens = submit.system_prefix_tokens();
  request.cache_read_only = submit.cache_read_only();
  request.request_class = submit.request_class() == v1::Submit::REQUEST_CLASS_BATCH
                              ? RequestClass::kBatch
                              : RequestClass::kInteractive;
  request.first_token_deadline_ms = submit.first_token_deadline_ms();
  request.total_deadline_ms = submit.total_deadline_ms();
  return request;
}

WorkerFacts ToWorkerFacts(const v1::Hello& hello) {
  WorkerFacts facts;
  facts.device_uuid = hello.device_uuid();
  facts.build = hello.build();
  facts.host = hello.host();
  facts.previous_rank = hello.previous_rank();
  facts.checkpoint_digest = hello.checkpoint_digest();
  facts.model_name = hello.model().name();
  facts.vocab_size = hello.model().vocab_size();
  facts.num_layers = hello.model().num_layers();
  facts.max_position_embeddings = hello.model().max_position_embeddings();
  facts.hidden_size = hello.model().hidden_size();
  facts.num_mtp_layers = hello.model().num_mtp_layers();
  facts.schema_version = hello.schema_version();
  for (const v1::MemoryOffer& offer : hello.offers()) {
    facts.offers.push_back({offer.tensor_parallel_size(), offer.budget_bytes(),
                            offer.weight_bytes(), offer.slot_bytes(), offer.page_bytes(),
                            offer.activation_bytes_per_token(), offer.page_tokens(),
                            offer.snapshot_bytes(), offer.host_cache_bytes(),
                            offer.disk_cache_bytes()});
  }
  return facts;
}

CacheEntry ToCacheEntry(const v1::CacheEntry& entry) {
  const v1::UnitOrigin& origin = entry.origin();
  return {.kind = entry.kind() == v1::Copy::KIND_SNAPSHOT ? TierCopy::Kind::kSnapshot
                                                          : TierCopy::Kind::kPage,
          .place = entry.place(),
          .key = {entry.name().key_high(), entry.name().key_low()},
          .n_tokens = entry.name().n_tokens(),
          .origin = {.root = {origin.root_high(), origin.root_low()},
                     .parent = {origin.parent_high(), origin.parent_low()},
                     .tokens = ToVector(origin.tokens())}};
}

StepCollector::Answer ToAnswer(const v1::StepResult& result, uint32_t rank) {
  StepCollector::Answer answer;
  answer.epoch = result.epoch();
  answer.step_id = result.step_id();
  answer.rank = rank;
  answer.agreement_hash = result.agreement_hash();
  answer.error = result.error();
  if (result.rank() != rank) {
    answer.error = absl::StrCat("its result says that it is of rank ", result.rank());
  }
  for (const v1::RowResult& row : result.rows()) {
    answer.rows.push_back({row.seq_uid(), ToVector(row.tokens()), ToVector(row.logprobs()),
                           ToVector(row.target_logprobs()), ToVector(row.drafts()), row.error(),
                           ToTop(row.top()), ToTop(row.target_top())});
  }
  for (const v1::CopyResult& copy : result.copies()) answer.copies.push_back(ToOutcome(copy));
  return answer;
}

v1::PoolSizes ToProto(const PoolPlan& pools) {
  v1::PoolSizes sizes;
  sizes.set_slots(pools.slots);
  sizes.set_pages(pools.pages);
  sizes.set_snapshots(pools.snapshots);
  sizes.set_host_pages(pools.host.pages);
  sizes.set_host_snapshots(pools.host.snapshots);
  sizes.set_disk_pages(pools.disk.pages);
  sizes.set_disk_snapshots(pools.disk.snapshots);
  return sizes;
}

v1::SequenceOpen ToProto(const SequenceOpen& open) {
  v1::SequenceOpen message;
  message.set_seq_uid(open.seq_uid);
  message.set_slot(open.slot);
  ToParams(open.sampling, message.mutable_sampling());
  message.mutable_end_ids()->Add(open.end_ids.begin(), open.end_ids.end());
  message.set_first_padding_id(open.first_padding_id);
  message.set_prompt_tokens(open.prompt_tokens);
  message.set_acceptance(ToProto(open.acceptance));
  if (open.thinking.has_value()) ToProto(*open.thinking, message.mutable_thinking());
  if (open.resume.has_value()) {
    v1::Resume* resume = message.mutable_resume();
    resume->set_snapshot(open.resume->snapshot);
    resume->set_n_tokens(open.resume->n_tokens);
    resume->mutable_pages()->Add(open.resume->pages.begin(), open.resume->pages.end());
    resume->mutable_tokens()->Add(open.resume->tokens.begin(), open.resume->tokens.end());
  }
  return message;
}

v1::StepPlan ToProto(const StepPlan& plan) {
  v1::StepPlan message;
  message.set_epoch(plan.epoch);
  message.set_step_id(plan.step_id);
  message.set_deadline_ms(plan.deadline_ms);
  message.set_plan_hash(plan.plan_hash);
  for (const PlanRow& row : plan.rows) {
    v1::Row* out = message.add_rows();
    out->set_seq_uid(row.seq_uid);
    out->set_slot(row.slot);
    out->set_kind(ToKind(row.kind));
    out->mutable_tokens()->Add(row.tokens.begin(), row.tokens.end());
    out->set_from_device(row.from_device);
    out->set_position(row.position);
    out->set_n_tokens(row.n_tokens);
    out->set_draft_tokens(row.draft_tokens);
    out->mutable_new_pages()->Add(row.new_pages.begin(), row.new_pages.end());
    out->set_sample(row.sample);
    out->mutable_logprob_targets()->Add(row.logprob_targets.begin(), row.logprob_targets.end());
    out->set_want_logprob(row.want_logprob);
    out->set_top_logprobs(row.top_logprobs);
    out->set_target_top_logprobs(row.target_top_logprobs);
    for (const std::string& mask : row.allow_masks) out->add_allow_masks(mask);
    for (const SnapshotExport& snapshot : row.exports) {
      v1::Export* exported = out->add_exports();
      exported->set_offset(snapshot.offset);
      exported->set_snapshot(snapshot.snapshot);
    }
    out->set_draft(row.draft);
    out->set_mtp_next(row.mtp_next);
    out->set_draft_chain(row.draft_chain);
  }
  for (const Commit& commit : plan.commits) {
    v1::Commit* out = message.add_commits();
    out->set_seq_uid(commit.seq_uid);
    out->set_export_at(commit.export_at);
    out->set_snapshot(commit.snapshot);
  }
  for (const TierCopy& copy : plan.copies) {
    v1::Copy* out = message.add_copies();
    out->set_kind(copy.kind == TierCopy::Kind::kPage ? v1::Copy::KIND_PAGE
                                                     : v1::Copy::KIND_SNAPSHOT);
    out->set_from(ToTier(copy.from));
    out->set_from_place(copy.from_place);
    out->set_to(ToTier(copy.to));
    out->set_to_place(copy.to_place);
    out->mutable_name()->set_key_high(copy.key.high);
    out->mutable_name()->set_key_low(copy.key.low);
    out->mutable_name()->set_n_tokens(copy.n_tokens);
    if (copy.to != CacheTier::kDisk) continue;
    const UnitOrigin& origin = copy.origin;
    out->mutable_origin()->set_root_high(origin.root.high);
    out->mutable_origin()->set_root_low(origin.root.low);
    out->mutable_origin()->set_parent_high(origin.parent.high);
    out->mutable_origin()->set_parent_low(origin.parent.low);
    out->mutable_origin()->mutable_tokens()->Add(origin.tokens.begin(), origin.tokens.end());
  }
  return message;
}

v1::EngineEvent ToProto(const Output& output) {
  v1::EngineEvent event;
  if (output.kind == Output::Kind::kAdmitted) {
    event.mutable_admitted()->set_cached_tokens(output.cached_tokens);
  } else if (output.kind == Output::Kind::kTokens) {
    v1::Tokens* tokens = event.mutable_tokens();
    tokens->mutable_ids()->Add(output.tokens.begin(), output.tokens.end());
    tokens->mutable_logprobs()->Add(output.logprobs.begin(), output.logprobs.end());
    tokens->mutable_prompt_logprobs()->Add(output.prompt_logprobs.begin(),
                                           output.prompt_logprobs.end());
    if (!output.top.ids.empty()) ToProto(output.top, tokens->mutable_top());
    if (!output.prompt_top.ids.empty()) ToProto(output.prompt_top, tokens->mutable_prompt_top());
  } else {
    v1::Finished* finished = event.mutable_finished();
    finished->set_reason(ToReason(output.reason));
    finished->set_prompt_tokens(output.prompt_tokens);
    finished->set_completion_tokens(output.completion_tokens);
    finished->set_cached_tokens(output.cached_tokens);
    finished->set_stop_id(output.stop_id);
  }
  return event;
}

}  // namespace quartet::coordinator
