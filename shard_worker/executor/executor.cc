#include "shard_worker/executor/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard_worker/executor/agreement_hash.h"

namespace quartet {
namespace {

PlanLimits MakePlanLimits(const ExecutorOptions& options, const Model& model, const Pools& pools) {
  PlanLimits limits;
  limits.pages = pools.options().pages;
  limits.snapshots = pools.options().snapshots;
  limits.max_rows = model.limits().max_rows;
  limits.max_model_len = options.max_model_len;
  limits.max_draft_tokens = model.has_mtp() ? pools.options().draft_tokens : 0;
  limits.vocab_size = model.config().vocab_size;
  return limits;
}

SequenceTable::Limits MakeTableLimits(const PlanLimits& limits, const Pools& pools) {
  return {
      .slots = pools.options().slots,
      .pages = pools.options().pages,
      .pages_per_sequence = static_cast<int>(
          (limits.max_model_len + limits.max_draft_tokens + kTokensPerPage - 1) / kTokensPerPage),
      .max_model_len = limits.max_model_len,
      .vocab_size = limits.vocab_size};
}

uint64_t Agreement(const v1::StepPlan& plan, const v1::StepResult& result,
                   const CheckedPlan& checked) {
  AgreementHash hash;
  hash.Add(plan.plan_hash());
  hash.Add(plan.epoch());
  hash.Add(plan.step_id());
  for (const CheckedCommit& commit : checked.commits) {
    hash.Add(commit.commit->seq_uid());
    hash.Add(static_cast<uint64_t>(commit.sequence->absorbed));
  }
  for (int i = 0; i < result.rows_size(); ++i) {
    const v1::RowResult& row = result.rows(i);
    hash.Add(row.seq_uid());
    hash.Add(static_cast<uint64_t>(checked.rows[i].sequence->absorbed));
    hash.Add(static_cast<uint64_t>(checked.rows[i].sequence->pending));
    hash.Add(row.tokens_size());
    for (const int32_t token : row.tokens()) hash.Add(static_cast<uint64_t>(token));
    hash.Add(row.drafts_size());
    for (const int32_t token : row.drafts()) hash.Add(static_cast<uint64_t>(token));
    hash.Add(row.error().empty() ? 0 : 1);
  }
  return hash.value();
}

}  // namespace

Executor::Executor(const ExecutorOptions& options, Model& model, Pools& pools,
                   const LowerTiers& tiers)
    : options_(options),
      model_(model),
      pools_(pools),
      limits_(MakePlanLimits(options, model, pools)),
      table_(MakeTableLimits(limits_, pools)),
      snapshot_tokens_(limits_.snapshots),
      copies_(pools, tiers, snapshot_tokens_) {
  ids_.reserve(limits_.max_rows);
  segments_.reserve(pools.options().slots + kMaxInnerExports);
  logit_rows_.reserve(limits_.max_rows);
}

absl::Status Executor::Open(const v1::SequenceOpen& open) {
  absl::Status status = CheckSnapshot(open);
  status = table_.Open(open, std::move(status));
  if (!status.ok()) return status;
  if (open.has_resume()) {
    pools_.Restore(static_cast<int>(open.resume().snapshot()), static_cast<int>(open.slot()));
  }
  Sequence& sequence = *table_.Find(open.seq_uid());
  if (sequence.sampling.penalises()) {
    model_.backend().row_sampler().ClearCounts(pools_.token_counts(static_cast<int>(open.slot())),
                                               limits_.vocab_size);
  }
  return Say(sequence, 0,
             {open.resume().tokens().data(), static_cast<size_t>(open.resume().tokens_size())});
}

// A live state must be of as many tokens as the sequence says.
absl::Status Executor::CheckSnapshot(const v1::SequenceOpen& open) const {
  if (!open.has_resume()) return absl::OkStatus();
  const v1::Resume& resume = open.resume();
  if (resume.snapshot() >= snapshot_tokens_.size()) {
    return absl::OutOfRangeError(absl::StrCat("snapshot ", resume.snapshot(),
                                              " does not exist; the worker has ",
                                              snapshot_tokens_.size(), " snapshots"));
  }
  const int64_t tokens = snapshot_tokens_[resume.snapshot()];
  if (tokens == resume.n_tokens()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("resume at ", resume.n_tokens(),
                                                    " tokens, but snapshot ", resume.snapshot(),
                                                    " holds the state after ", tokens));
}

absl::Status Executor::Close(const v1::SequenceClose& close) {
  return table_.Close(close.seq_uid());
}

v1::StepResult Executor::Refused(const v1::StepPlan& plan, const absl::Status& status) {
  ++stats_.refused_plans;
  v1::StepResult result;
  result.set_epoch(options_.epoch);
  result.set_step_id(plan.step_id());
  result.set_rank(options_.rank);
  result.set_error(absl::StrCat("step ", plan.step_id(), ": ", status.message()));
  return result;
}

absl::StatusOr<v1::StepResult> Executor::Execute(const v1::StepPlan& plan) {
  if (!broken_.ok()) return broken_;
  if (plan.epoch() != options_.epoch) {
    return Refused(plan, absl::FailedPreconditionError(
                             absl::StrCat("the plan is of epoch ", plan.epoch(),
                                          ", this worker is in epoch ", options_.epoch)));
  }
  if (plan.step_id() == last_step_ && last_step_ != 0) return last_result_;
  if (plan.step_id() != last_step_ + 1) {
    return Refused(plan, absl::FailedPreconditionError(
                             absl::StrCat("expected step id ", last_step_ + 1,
                                          last_step_ == 0 ? "" : " (or the last one again)")));
  }
  const absl::StatusOr<CheckedPlan> checked = CheckPlan(plan, table_, limits_);
  if (!checked.ok()) return Refused(plan, checked.status());
  if (absl::Status s = copies_.Check(plan, table_); !s.ok()) return Refused(plan, s);

  const auto begin = std::chrono::steady_clock::now();
  v1::StepResult result;
  result.set_epoch(options_.epoch);
  result.set_step_id(plan.step_id());
  result.set_rank(options_.rank);
  absl::Status status = copies_.Run(plan, result);
  if (status.ok()) status = Commit(checked->commits);
  if (status.ok()) status = Run(checked->rows, result);
  if (!status.ok()) {
    broken_ = absl::Status(status.code(),
                           absl::StrCat("step ", plan.step_id(), " failed: ", status.message()));
    return broken_;
  }
  result.set_agreement_hash(Agreement(plan, result, *checked));
  for (const v1::RowResult& row : result.rows()) stats_.failed_rows += !row.error().empty();
  if (options_.rank != 0) result.clear_rows();
  result.set_device_time_us(std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::steady_clock::now() - begin)
                                .count());
  last_step_ = plan.step_id();
  last_result_ = result;
  ++stats_.steps;
  return result;
}

absl::Status Executor::Commit(std::span<const CheckedCommit> commits) {
  // First up to where a snapshot is due, then the rest.
  std::vector<CheckedCommit> exports;
  segments_.clear();
  const auto add = [&](Sequence& sequence, int64_t tokens) {
    segments_.push_back(
        {.slot = static_cast<int>(sequence.slot),
         .position = static_cast<int>(sequence.absorbed - sequence.pending + tokens),
         .commit = static_cast<int>(tokens)});
    sequence.pending -= static_cast<int>(tokens);
  };
  for (const CheckedCommit& c : commits) {
    const int64_t tokens =
        int64_t{c.commit->export_at()} - (c.sequence->absorbed - c.sequence->pending);
    if (c.commit->export_at() == 0 || tokens < 1 || tokens > c.sequence->pending) continue;
    exports.push_back(c);
    // What failed leaves nothing that could be resumed.
    snapshot_tokens_[c.commit->snapshot()] = 0;
    if (c.sequence->failure.ok()) add(*c.sequence, tokens);
  }
  if (!segments_.empty()) {
    if (absl::Status s = model_.Commit(segments_); !s.ok()) return s;
  }
  for (const CheckedCommit& c : exports) {
    if (!c.sequence->failure.ok()) continue;
    pools_.Export(static_cast<int>(c.sequence->slot), static_cast<int>(c.commit->snapshot()));
    snapshot_tokens_[c.commit->snapshot()] = c.commit->export_at();
  }
  segments_.clear();
  for (const CheckedCommit& c : commits) {
    if (c.sequence->failure.ok() && c.sequence->pending > 0) add(*c.sequence, c.sequence->pending);
  }
  return segments_.empty() ? absl::OkStatus() : model_.Commit(segments_);
}

// Puts the row's tokens and its segment behind those of the step.
Executor::Live Executor::Begin(const CheckedRow& checked, v1::RowResult* result) {
  const v1::Row& row = *checked.row;
  Sequence& sequence = *checked.sequence;
  Live entry;
  entry.checked = checked;
  entry.row_begin = static_cast<int>(ids_.size());
  entry.rows = static_cast<int>(row.n_tokens());
  entry.result = result;
  entry.at_prefix_end = std::exchange(sequence.at_prefix_end, false);
  if (row.from_device()) {
    ids_.push_back(sequence.last_token);
    if (entry.window()) {
      entry.drafts = std::min(entry.rows - 1, static_cast<int>(sequence.drafts.size()));
      ids_.insert(ids_.end(), sequence.drafts.begin(), sequence.drafts.begin() + entry.drafts);
      ids_.resize(entry.row_begin + entry.rows, 0);
    }
  } else {
    ids_.insert(ids_.end(), row.tokens().begin(), row.tokens().end());
  }
  sequence.drafts.clear();
  entry.segment = static_cast<int>(segments_.size());
  AddSegments(entry);
  return entry;
}

// One, and one more behind each snapshot that is taken inside of the row.
void Executor::AddSegments(const Live& entry) {
  const Sequence& sequence = *entry.checked.sequence;
  ops::Segment segment = {.row_begin = entry.row_begin,
                          .rows = entry.rows,
                          .slot = static_cast<int>(sequence.slot),
                          .position = static_cast<int>(sequence.absorbed),
                          .pages = sequence.pages,
                          .window = entry.window(),
                          .commit = sequence.pending};
  int done = 0;
  for (const v1::Export& e : entry.checked.row->exports()) {
    const int rows = static_cast<int>(e.offset()) - done;
    if (rows == segment.rows) break;
    segments_.push_back(segment);
    segments_.back().rows = rows;
    segments_.back().more = true;
    inner_exports_.push_back(static_cast<int>(e.snapshot()));
    segment.row_begin += rows;
    segment.position += rows;
    segment.rows -= rows;
    segment.commit = 0;
    done += rows;
  }
  segments_.push_back(segment);
}

absl::Status Executor::Run(std::span<const CheckedRow> rows, v1::StepResult& result) {
  std::vector<Live> live;
  live.reserve(rows.size());
  // Live rows point at their results, so all results exist before.
  for (const CheckedRow& checked : rows) result.add_rows()->set_seq_uid(checked.row->seq_uid());

  ids_.clear();
  segments_.clear();
  inner_exports_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const v1::Row& row = *rows[i].row;
    Sequence& sequence = *rows[i].sequence;
    table_.AppendPages(sequence,
                       {row.new_pages().data(), static_cast<size_t>(row.new_pages_size())});
    if (!sequence.failure.ok()) {
      result.mutable_rows(i)->set_error(std::string(sequence.failure.message()));
      continue;
    }
    live.push_back(Begin(rows[i], result.mutable_rows(i)));
  }
  if (live.empty()) return absl::OkStatus();

  if (absl::Status s = model_.Trunk(ids_, segments_, inner_exports_); !s.ok()) return s;
  if (absl::Status s = ScoreTargets(live); !s.ok()) return s;
  if (absl::Status s = Draw(live); !s.ok()) return s;
  for (const Live& entry : live) {
    Sequence& sequence = *entry.checked.sequence;
    sequence.absorbed += entry.kept;
    sequence.pending = entry.window() ? entry.kept : 0;
    (entry.checked.row->kind() == v1::Row::KIND_PREFILL ? stats_.prefill_tokens
                                                        : stats_.decode_tokens) += entry.kept;
  }
  if (absl::Status s = Draft(live); !s.ok()) return s;
  for (const Live& entry : live) Export(entry);
  return absl::OkStatus();
}

// The row that fills a page keeps its hidden row with the slot: a snapshot may be taken there, now
// or when the row's window is committed.
void Executor::Export(const Live& entry) {
  const Sequence& sequence = *entry.checked.sequence;
  const int slot = static_cast<int>(sequence.slot);
  const int64_t filled = sequence.absorbed - sequence.absorbed % kTokensPerPage;
  const int64_t behind = sequence.absorbed - filled;  // rows after the one that filled it
  if (sequence.failure.ok() && behind < entry.kept) {
    const int64_t row = entry.row_begin + entry.kept - 1 - behind;
    pools_.KeepHidden(slot, model_.activations().h + row * model_.config().hidden);
  }
  for (const v1::Export& e : entry.checked.row->exports()) {
    const auto snapshot = static_cast<int>(e.snapshot());
    const int64_t behind_it = entry.rows - static_cast<int64_t>(e.offset());
    // What failed leaves nothing that could be resumed.
    snapshot_tokens_[snapshot] = sequence.failure.ok() ? sequence.absorbed - behind_it : 0;
    if (!sequence.failure.ok()) continue;
    if (behind_it == 0) {
      pools_.Export(slot, snapshot);
    } else {  // the trunk has taken the rest
      const int64_t row = entry.row_begin + static_cast<int64_t>(e.offset()) - 1;
      pools_.ExportHidden(model_.activations().h + row * model_.config().hidden, snapshot);
    }
  }
}

// A row whose logits hold a NaN or nothing finite fails its sequence, not its neighbours.
void Executor::Fail(Live& entry, int64_t position) {
  Sequence& sequence = *entry.checked.sequence;
  sequence.failure =
      absl::InternalError(absl::StrCat("sequence ", sequence.uid, ": the logits at position ",
                                       position, " hold a NaN or no finite value"));
  entry.result->clear_tokens();
  entry.result->clear_logprobs();
  entry.result->clear_target_logprobs();
  entry.result->clear_top();
  entry.result->clear_target_top();
  entry.result->set_error(std::string(sequence.failure.message()));
}

// These tokens, the first of which stands at `position`, are part of what the sequence has said.
absl::Status Executor::Say(Sequence& sequence, int64_t position, std::span<const int32_t> tokens) {
  const SequenceSampling& sampling = sequence.sampling;
  if (!sampling.needs_text() || tokens.empty()) return absl::OkStatus();
  const auto prompt =
      static_cast<size_t>(sampling.PromptPart(position, static_cast<int64_t>(tokens.size())));
  const auto output = tokens.subspan(prompt);
  for (const int32_t token : output) sampling.Say(token, sequence.reasoning);
  if (!sampling.penalises()) return absl::OkStatus();
  const ops::RowSampler& sampler = model_.backend().row_sampler();
  uint32_t* counts = pools_.token_counts(static_cast<int>(sequence.slot));
  absl::Status status = sampler.AddCounts(counts, tokens.first(prompt), ops::TokenOrigin::kPrompt);
  if (!status.ok()) return status;
  return sampler.AddCounts(counts, output, ops::TokenOrigin::kOutput);
}

namespace {

void AddTop(const ops::SampleResult& result, uint32_t count, v1::TopLogprobs* to) {
  for (uint32_t i = 0; i < count; ++i) {
    to->add_ids(result.top[i].token);
    to->add_logprobs(result.top[i].logprob);
  }
}

}  // namespace

absl::Status Executor::ScoreTargets(std::vector<Live>& live) {
  std::vector<ops::ScoreParams> targets;
  logit_rows_.clear();
  for (const Live& entry : live) {
    const v1::Row& row = *entry.checked.row;
    for (int i = 0; i < row.logprob_targets_size(); ++i) {
      logit_rows_.push_back(entry.row_begin + i);
      targets.push_back({row.logprob_targets(i), static_cast<int>(row.target_top_logprobs())});
    }
  }
  if (targets.empty()) return absl::OkStatus();
  std::vector<ops::SampleResult> scores(targets.size());
  if (absl::Status s = model_.Score(model_.activations().h, logit_rows_, targets, scores);
      !s.ok()) {
    return s;
  }
  size_t at = 0;
  for (Live& entry : live) {
    const v1::Row& row = *entry.checked.row;
    for (int i = 0; i < row.logprob_targets_size(); ++i, ++at) {
      if (!entry.checked.sequence->failure.ok()) continue;
      if (std::isnan(scores[at].logprob)) {
        Fail(entry, entry.checked.sequence->absorbed + i);
      } else {
        entry.result->add_target_logprobs(scores[at].logprob);
        if (row.target_top_logprobs() == 0) continue;
        AddTop(scores[at], row.target_top_logprobs(), entry.result->mutable_target_top());
      }
    }
  }
  return absl::OkStatus();
}

// The draws of a row that samples: of a window one behind each of its tokens.
void Executor::AddDraws(const Live& entry) {
  const v1::Row& row = *entry.checked.row;
  const Sequence& sequence = *entry.checked.sequence;
  const bool tests = sequence.acceptance == v1::ACCEPTANCE_REJECTION;
  const auto tokens = std::span<const int32_t>(ids_).subspan(entry.row_begin, entry.rows);
  const int first = entry.window() ? 0 : entry.rows - 1;
  Reasoning reasoning = sequence.reasoning;
  for (int i = first; i < entry.rows; ++i) {
    // What a window stands on is said when it is accepted.
    if (entry.window()) sequence.sampling.Say(tokens[i], reasoning);
    logit_rows_.push_back(entry.row_begin + i);
    ops::SampleParams& draw =
        draws_.emplace_back(sequence.sampling.At(sequence.absorbed + i + 1, reasoning));
    if (tests && i < entry.drafts) draw.draft = tokens[i + 1];
    if (sequence.sampling.penalises()) {
      draw.counts = pools_.token_counts(static_cast<int>(sequence.slot));
      if (entry.window()) draw.uncounted = tokens.first(i + 1);
    }
    if (row.want_logprob()) draw.top = static_cast<int>(row.top_logprobs());
    const int mask = i - first;
    if (mask < row.allow_masks_size() && !row.allow_masks(mask).empty() && draw.forced < 0) {
      const std::string& bytes = row.allow_masks(mask);
      const size_t words = bytes.size() / sizeof(uint32_t);
      uint32_t* to = masks_.data() + masks_.size();
      masks_.resize(masks_.size() + words);  // room was made: nothing moves
      std::memcpy(to, bytes.data(), bytes.size());
      draw.allowed = {to, words};
    }
  }
}

absl::Status Executor::Draw(std::vector<Live>& live) {
  std::vector<Live*> drawing;
  logit_rows_.clear();
  draws_.clear();
  masks_.clear();
  size_t mask_bytes = 0;
  for (const Live& entry : live) {
    for (const std::string& mask : entry.checked.row->allow_masks()) mask_bytes += mask.size();
  }
  masks_.reserve(mask_bytes / sizeof(uint32_t));
  for (Live& entry : live) {
    Sequence& sequence = *entry.checked.sequence;
    if (!entry.window()) entry.kept = entry.rows;
    if (!sequence.failure.ok()) continue;
    if (!entry.window()) {
      absl::Status s = Say(sequence, sequence.absorbed,
                           std::span<const int32_t>(ids_).subspan(entry.row_begin, entry.rows));
      if (!s.ok()) return s;
    }
    if (!entry.checked.row->sample()) continue;
    AddDraws(entry);
    drawing.push_back(&entry);
  }
  if (drawing.empty()) return absl::OkStatus();
  drawn_.resize(draws_.size());
  if (absl::Status s = model_.Draw(model_.activations().h, logit_rows_, draws_, drawn_); !s.ok()) {
    return s;
  }
  size_t at = 0;
  for (Live* entry : drawing) {
    const size_t count = entry->window() ? entry->rows : 1;
    Accept(*entry, std::span(drawn_).subspan(at, count));
    at += count;
    if (!entry->window()) continue;
    Sequence& sequence = *entry->checked.sequence;
    absl::Status s = Say(sequence, sequence.absorbed,
                         std::span<const int32_t>(ids_).subspan(entry->row_begin, entry->kept));
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

// Takes the tokens that were drawn, up to the first that is not the row's draft: what comes behind
// it follows a token that was rejected.
void Executor::Accept(Live& entry, std::span<const ops::SampleResult> drawn) {
  Sequence& sequence = *entry.checked.sequence;
  const int first = entry.rows - static_cast<int>(drawn.size());
  for (int i = first; i < entry.rows; ++i) {
    const ops::SampleResult& result = drawn[i - first];
    if (!result.finite || result.token < 0) {
      entry.kept = entry.window() ? 0 : entry.rows;
      return Fail(entry, sequence.absorbed + i);
    }
    entry.kept = i + 1;
    entry.drawn = result.token;
    entry.result->add_tokens(result.token);
    if (entry.checked.row->want_logprob()) {
      const uint32_t top = entry.checked.row->top_logprobs();
      entry.result->add_logprobs(result.logprob);
      if (top > 0) AddTop(result, top, entry.result->mutable_top());
    }
    if (i >= entry.drafts || result.token != ids_[entry.row_begin + i + 1]) break;
    ++stats_.accepted_tokens;
  }
  sequence.last_token = entry.drawn;
}

v1::DumpReply Executor::Dump(const v1::Dump& request) {
  v1::DumpReply reply;
  reply.set_seq_uid(request.seq_uid());
  reply.set_slots_used(table_.slots_used());
  reply.set_pages_used(table_.pages_used());
  const Sequence* sequence = table_.Find(request.seq_uid());
  if (sequence == nullptr || !sequence->owns_slot) return reply;
  reply.set_tokens(static_cast<uint32_t>(sequence->absorbed));
  reply.set_pending_tokens(static_cast<uint32_t>(sequence->pending));

  const ModelConfig& config = model_.config();
  const auto store = [&](int layer, const char* part, const AgreementHash& hash) {
    (*reply.mutable_state_hashes())[absl::StrCat("layer", layer, ".", part)] = hash.value();
  };
  std::vector<std::byte> bytes;
  const auto add = [&](AgreementHash& hash, const void* data, size_t size) {
    bytes.resize(size);
    // What cannot be read hashes as zeros; the next step reports the fault itself.
    if (!model_.backend().CopyOut(bytes.data(), data, size).ok()) bytes.assign(size, std::byte{0});
    hash.AddBytes(bytes.data(), size);
  };
  const int layers = static_cast<int>(config.layers + config.mtp_layers);
  for (int layer = 0; layer < layers; ++layer) {
    if (layer < config.layers && config.attention[layer] == AttentionKind::kKda) {
      const ops::KdaState state = pools_.kda_state(layer);
      AgreementHash recurrent;
      add(recurrent, state.recurrent + sequence->slot * state.recurrent_slot_stride,
          pools_.recurrent_floats() * sizeof(float));
      store(layer, "recurrent", recurrent);
      AgreementHash conv;
      add(conv, state.conv + sequence->slot * state.conv_slot_stride,
          pools_.conv_floats() * sizeof(float));
      store(layer, "conv", conv);
      continue;
    }
    if (layer == config.layers) continue;  // the draft layer's rows end in scratch
    const ops::KvLayer kv = pools_.kv(layer);
    const int64_t row_bytes = pools_.latent_row_bytes();
    AgreementHash latent;
    for (int64_t p = 0; p < sequence->absorbed; p += kTokensPerPage) {
      const int64_t page = sequence->pages[p / kTokensPerPage];
      add(latent, kv.data + page * kv.page_stride + kv.latent_offset,
          std::min(kTokensPerPage, sequence->absorbed - p) * row_bytes);
    }
    store(layer, "latent", latent);
  }
  return reply;
}

}  // namespace quartet
