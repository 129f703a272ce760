#include "services/coordinator/rpc/engine.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "services/common/log.h"
#include "services/coordinator/core/step_collector.h"
#include "services/coordinator/membership/membership.h"
#include "services/coordinator/rpc/constraints.h"
#include "services/coordinator/rpc/convert.h"
#include "services/coordinator/rpc/engine_clients.h"
#include "services/coordinator/rpc/engine_metrics.h"
#include "services/coordinator/rpc/engine_workers.h"
#include "services/coordinator/rpc/inventory.h"
#include "services/coordinator/rpc/recorded_core.h"
#include "services/coordinator/rpc/unit_keys.h"

namespace quartet::coordinator {
namespace {

// A turn of the loop handles at most this many events before it looks at the next step.
constexpr int kEventsPerTurn = 256;
constexpr absl::Duration kIdleTurn = absl::Seconds(1);
// As transports do not say when they have written, buffers that are too full are looked at so
// often.
constexpr absl::Duration kFullBufferTurn = absl::Milliseconds(20);

TimeUs NowUs() {
  return absl::ToUnixMicros(absl::Now());
}

std::string KindOf(const StepPlan& plan) {
  bool prefill = false;
  bool decode = false;
  for (const PlanRow& row : plan.rows) {
    (row.kind == PlanRow::Kind::kPrefill ? prefill : decode) = true;
  }
  if (!prefill && !decode) return plan.commits.empty() ? "copy" : "commit";
  return prefill && decode ? "mixed" : prefill ? "prefill" : "decode";
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, Metrics* metrics, const StatusChannel* status,
       std::function<void(const std::string&)> on_fatal)
      : options_(options),
        // Of a client stream: submit, truncate, pause, gone. Of a worker: one message and gone.
        // And a shutdown and some wishes for a recording.
        events_(4 * options.max_client_streams() + 2 * options.max_workers + 8),
        metrics_(metrics, options.epoch),
        status_(status),
        on_fatal_(std::move(on_fatal)),
        membership_(
            Membership::Config{options.tensor_parallel_size,
                               PoolLimits{options.max_num_seqs, options.max_num_batched_tokens,
                                          options.max_model_len, 0, options.prefix_caching}}),
        collector_(options.tensor_parallel_size),
        clients_(options, &metrics_, &constraints_) {
    Publish();
  }

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }

  void Shutdown() {
    if (!thread_.joinable()) return;
    while (!events_.Push(ShutdownEvent{})) absl::SleepFor(absl::Milliseconds(1));
    thread_.join();
  }

  // A full queue has something to do first; whoever wants the recording asks again.
  void DumpFlight() { events_.Push(DumpFlightEvent{}); }

  EventQueue& events() { return events_; }
  const EngineOptions& options() const { return options_; }
  EngineSnapshot Snapshot() const {
    std::lock_guard<std::mutex> lock(snapshot_mutex_);
    EngineSnapshot snapshot = snapshot_;
    snapshot.vocabulary_digest = constraints_.vocabulary_digest();
    return snapshot;
  }
  absl::StatusOr<std::string> PutVocabulary(std::string_view bytes) {
    const EngineSnapshot snapshot = Snapshot();
    if (!snapshot.not_ready_reason.empty()) {
      return absl::UnavailableError(snapshot.not_ready_reason);
    }
    return constraints_.PutVocabulary(bytes, snapshot.vocab_size);
  }
  absl::StatusOr<grammar::Constraint> Constrain(const v1::Submit& submit) const {
    return constraints_.Create(submit);
  }
  void CountRefused(const std::string& reason) { metrics_.OnRefused(reason); }

 private:
  void Run() {
    while (!stopping_) {
      std::optional<Event> event = events_.Pop(NextDeadline());
      for (int i = 0; event.has_value(); ++i) {
        std::visit([this](auto& e) { On(e); }, *event);
        event = i < kEventsPerTurn && !stopping_ ? events_.TryPop() : std::nullopt;
      }
      if (stopping_) break;
      CheckStepDeadline();
      if (core_.has_value()) {
        clients_.PauseSlow(*core_);
        core_->ExpireDeadlines(NowUs());
      }
      DeliverOutputs();
      RunNextSteps();
      Publish();
    }
    for (Event& event : events_.Close()) {
      if (auto* submit = std::get_if<SubmitEvent>(&event)) {
        submit->stream->End(absl::UnavailableError(not_ready_reason_));
      } else if (auto* message = std::get_if<WorkerMessageEvent>(&event)) {
        message->stream->End(absl::UnavailableError(not_ready_reason_));
      }
    }
    Publish();
  }

  absl::Time NextDeadline() const {
    absl::Time deadline = absl::Now() + kIdleTurn;
    if (fatal_.empty() && !steps_.empty()) deadline = std::min(deadline, StepDeadline());
    if (clients_.has_full_buffers()) deadline = std::min(deadline, absl::Now() + kFullBufferTurn);
    if (!core_.has_value()) return deadline;
    const std::optional<TimeUs> expiry = core_->NextDeadline();
    return expiry.has_value() ? std::min(deadline, absl::FromUnixMicros(*expiry)) : deadline;
  }

  // ---- clients ---------------------------------------------------------------------------------

  // The names under which the prefix cache knows the request's prompt.
  absl::Status NameUnits(const std::string& salt, Request& request) const {
    if (core_->config().snapshots == 0) return absl::OkStatus();
    // All ranks run the same build, since the agreement hash covers what they draw; the ranks' own
    // settings (types of pages) last as long as the cache does.
    const absl::StatusOr<UnitKey> root =
        RootKey({.model_fingerprint = membership_.model()->checkpoint_digest,
                 .numerics_fingerprint = membership_.model()->build,
                 .salt = salt,
                 .adapter_digest = ""});
    if (!root.ok()) return root.status();
    absl::StatusOr<std::vector<UnitKey>> keys = UnitKeys(*root, request.prompt_ids, {});
    if (!keys.ok()) return keys.status();
    request.cache_root = *root;
    request.unit_keys = *std::move(keys);
    return absl::OkStatus();
  }

  void On(SubmitEvent& event) {
    if (!not_ready_reason_.empty()) {
      metrics_.OnRefused("not_ready");
      return event.stream->End(absl::UnavailableError(not_ready_reason_));
    }
    if (event.constraint.has_value() && !event.constraint->ok()) {
      metrics_.OnRefused("grammar");
      return event.stream->End(event.constraint->status());
    }
    Request request = ToRequest(event.submit);
    if (absl::Status status = NameUnits(event.submit.cache_salt(), request); !status.ok()) {
      return event.stream->End(status);
    }
    std::optional<UnitChain> units;
    if (request.has_keys()) {
      units.emplace(request.cache_root, request.unit_keys, request.prompt_ids);
    }
    SubmitOutcome outcome = core_->OnSubmit(std::move(request), NowUs());
    switch (outcome.kind) {
      case SubmitOutcome::Kind::kAccepted:
        metrics_.OnAccepted(event.submit.max_tokens());
        if (event.constraint.has_value()) {
          constraints_.Add(outcome.id, **std::move(event.constraint));
        }
        return clients_.Add(outcome.id, event.submit.request_id(), event.stream, std::move(units));
      case SubmitOutcome::Kind::kInvalid:
        metrics_.OnRefused("invalid");
        return event.stream->End(absl::InvalidArgumentError(outcome.message));
      case SubmitOutcome::Kind::kQueueFull:
      case SubmitOutcome::Kind::kTooLate: {
        metrics_.OnRefused(outcome.kind == SubmitOutcome::Kind::kQueueFull ? "queue_full"
                                                                           : "deadline");
        v1::EngineEvent rejected;
        rejected.mutable_rejected()->set_retry_after_ms(outcome.retry_after_ms);
        return event.stream->EndAfter(std::move(rejected),
                                      absl::ResourceExhaustedError(outcome.message));
      }
      case SubmitOutcome::Kind::kUnavailable:
        metrics_.OnRefused("not_ready");
        return event.stream->End(absl::UnavailableError(outcome.message));
    }
  }

  void On(TruncateEvent& event) {
    const std::optional<uint64_t> id = clients_.RequestOf(*event.stream);
    if (!id.has_value()) return;  // it has ended: the client's news crossed ours
    if (core_->OnTruncate(*id, event.n_tokens) == Core::TruncateOutcome::kBeyond) {
      clients_.Cancel(*core_, *id,
                      absl::InvalidArgumentError(absl::StrCat("truncate to ", event.n_tokens,
                                                              " tokens, but fewer were sampled")));
    }
  }

  void On(PauseEvent& event) { clients_.AskPause(*event.stream, event.stream->TakePaused()); }

  void On(ClientGoneEvent& event) {
    if (const std::optional<uint64_t> id = clients_.RequestOf(*event.stream); id.has_value()) {
      core_->OnCancel(*id);
    }
  }

  void DeliverOutputs() {
    if (!core_.has_value()) return;
    // As with plans: who has an answer finds its places free and itself counted.
    metrics_.OnLedger(core_->GetLedger());
    clients_.Deliver(*core_, NowUs(), stopping_);
  }

  // ---- workers ---------------------------------------------------------------------------------

  void On(WorkerMessageEvent& event) {
    const uint64_t worker = event.stream->id();
    const v1::FromWorker& message = event.message;
    if (!workers_.Has(worker) && !message.has_hello()) {
      return event.stream->End(absl::FailedPreconditionError("the first message must be a hello"));
    }
    switch (message.message_case()) {
      case v1::FromWorker::kHello:
        if (!fatal_.empty()) {
          return event.stream->End(absl::UnavailableError(fatal_));
        }
        workers_.Add(event.stream);
        Apply(membership_.OnHello(worker, ToWorkerFacts(message.hello())));
        status_->Progress("workers", membership_.ranks_taken(), options_.tensor_parallel_size);
        break;
      case v1::FromWorker::kProgress:
        OnProgress(worker, message.progress());
        break;
      case v1::FromWorker::kReady:
        if (message.ready().epoch() == options_.epoch) {
          Apply(membership_.OnReady(worker));
        } else {
          Refuse(worker, absl::StrCat("ready in epoch ", message.ready().epoch(),
                                      ", the engine is in ", options_.epoch));
        }
        break;
      case v1::FromWorker::kResult:
        OnResult(worker, message.result());
        break;
      case v1::FromWorker::kFailure:
        OnFailure(worker, message.failure());
        break;
      case v1::FromWorker::kInventory:
        if (!core_.has_value() && !inventory_.Add(worker, message.inventory())) {
          LogWarning(absl::StrCat(membership_.Name(worker),
                                  " has more cached objects on disk than ", Inventory::kMaxEntries,
                                  "; the rest is forgotten"));
        }
        break;
      case v1::FromWorker::kPong:
      case v1::FromWorker::kDump:
        break;
      case v1::FromWorker::MESSAGE_NOT_SET:
        Refuse(worker, "a message without content, perhaps of a newer protocol");
        break;
    }
    event.stream->ReadNext();
  }

  void On(WorkerGoneEvent& event) { Forget(event.stream->id(), event.why); }

  void Forget(uint64_t worker, const std::string& why) {
    if (!workers_.Remove(worker)) return;
    inventory_.Forget(worker);
    LogWarning(absl::StrCat(membership_.Name(worker), " left: ", why));
    Apply(membership_.OnGone(worker, why));
  }

  void On(DumpFlightEvent&) { WriteFlight("asked for by a signal"); }

  void On(ShutdownEvent&) {
    const std::string message = "the coordinator is shutting down";
    stopping_ = true;
    not_ready_reason_ = message;
    if (core_.has_value()) core_->FailAll(message);
    DeliverOutputs();
    workers_.AbortAll(options_.epoch, message);
  }

  void Apply(const std::vector<Membership::Action>& actions) {
    for (const Membership::Action& action : actions) {
      switch (action.kind) {
        case Membership::Action::Kind::kWelcome:
          Welcome(action.worker, action.rank);
          break;
        case Membership::Action::Kind::kSpare: {
          LogInfo(absl::StrCat(membership_.Name(action.worker), " waits: all ranks are taken"));
          v1::ToWorker message;
          message.mutable_spare();
          workers_.Send(action.worker, std::move(message));
          break;
        }
        case Membership::Action::Kind::kRefuse:
          Refuse(action.worker, action.message);
          break;
        case Membership::Action::Kind::kFatal:
          Fatal(action.message);
          break;
        case Membership::Action::Kind::kReady:
          BecomeReady();
          break;
      }
    }
    UpdateWaiting();
  }

  void Welcome(uint64_t worker, uint32_t rank) {
    const PoolPlan& pools = *membership_.pools();
    v1::ToWorker message;
    v1::Welcome* welcome = message.mutable_welcome();
    welcome->set_epoch(options_.epoch);
    welcome->set_rank(rank);
    welcome->set_tensor_parallel_size(options_.tensor_parallel_size);
    welcome->mutable_rendezvous()->set_segment_folder(options_.segment_folder);
    welcome->mutable_rendezvous()->set_segment_name(options_.segment_name);
    *welcome->mutable_pools() = ToProto(pools);
    welcome->set_max_num_batched_tokens(options_.max_num_batched_tokens);
    welcome->set_max_model_len(pools.max_model_len);
    LogInfo(absl::StrCat(membership_.Name(worker), " is welcomed in epoch ", options_.epoch));
    workers_.Send(worker, std::move(message));
  }

  void BecomeReady() {
    const PoolPlan& pools = *membership_.pools();
    const WorkerFacts& model = *membership_.model();
    const CoreConfig config = ToCoreConfig(options_, pools, model);
    if (const std::string error = ConfigError(config); !error.empty()) return Fatal(error);
    core_.emplace(config,
                  options_.flight_dir.empty() ? 0 : size_t{options_.flight_mib} * 1024 * 1024);
    AdoptInventory();
    metrics_.SetModel(model.model_name, config);
    not_ready_reason_.clear();
    Publish();
    LogInfo(absl::StrCat(
        "ready: model ", model.model_name, ", context ", pools.max_model_len, " tokens, ",
        pools.slots, " slots, ", pools.pages, " pages of ", pools.page_tokens, " tokens, ",
        pools.snapshots, " snapshots, ", pools.host.pages, " pages and ", pools.host.snapshots,
        " snapshots in host memory, ", config.num_speculative_tokens, " speculative tokens, ",
        options_.tensor_parallel_size, " ranks, epoch ", options_.epoch));
    status_->Ready();
  }

  void AdoptInventory() {
    if (core_->config().disk_pages == 0) return;
    std::vector<uint64_t> ranks;
    for (uint32_t rank = 0; rank < options_.tensor_parallel_size; ++rank) {
      ranks.push_back(membership_.WorkerOf(rank).value());
    }
    std::vector<CacheEntry> entries = inventory_.TakeCommon(ranks);
    const size_t found = entries.size();
    LogInfo(absl::StrCat("disk tier: ", core_->AdoptCached(std::move(entries)), " of ", found,
                         " pages and snapshots that all ranks have can be used again"));
  }

  void OnProgress(uint64_t worker, const v1::LoadProgress& progress) {
    if (!membership_.RankOf(worker).has_value() || membership_.ready()) return;
    const EngineWorkers::Load load = workers_.OnProgress(worker, progress);
    status_->Progress(progress.stage().empty() ? "loading weights" : progress.stage(),
                      static_cast<int64_t>(load.done_bytes),
                      static_cast<int64_t>(load.total_bytes));
  }

  void OnFailure(uint64_t worker, const v1::Failure& failure) {
    const std::string message =
        absl::StrCat(membership_.Name(worker), " cannot go on: ", failure.message());
    // A bad checkpoint is as bad for whoever would take the rank. A rank that was ready is in use.
    const std::optional<uint32_t> rank = membership_.RankOf(worker);
    if (failure.bad_checkpoint() || (rank.has_value() && membership_.ready())) {
      return Fatal(message);
    }
    LogError(message);
    if (workers_.End(worker, absl::AbortedError(failure.message()))) {
      Forget(worker, failure.message());
    }
  }

  void Refuse(uint64_t worker, const std::string& reason) {
    LogWarning(absl::StrCat("refused ", membership_.Name(worker), ": ", reason));
    v1::ToWorker message;
    message.mutable_refused()->set_reason(reason);
    if (workers_.EndAfter(worker, std::move(message), absl::FailedPreconditionError(reason))) {
      Forget(worker, absl::StrCat("it was refused: ", reason));
    }
  }

  void SendToRanks(const v1::ToWorker& message) {
    for (uint32_t rank = 0; rank < options_.tensor_parallel_size; ++rank) {
      if (auto worker = membership_.WorkerOf(rank)) workers_.Send(*worker, message);
    }
  }

  // ---- steps -----------------------------------------------------------------------------------

  // Until the workers hold as many as they may.
  void RunNextSteps() {
    while (core_.has_value() && fatal_.empty() && RunNextStep()) {
    }
  }

  bool RunNextStep() {
    const uint64_t stuck = core_->GetLedger().no_progress;
    std::optional<StepPlan> plan = core_->PlanStep(NowUs());
    if (core_->GetLedger().no_progress > stuck) {
      LogWarning(absl::StrCat("an admitted prompt had no row in ", kProgressPlans,
                              " plans with rows of other prompts"));
    }
    const std::optional<absl::Time> answered = std::exchange(step_answered_, std::nullopt);
    if (!plan.has_value()) return false;
    for (uint64_t seq_uid : plan->closes) {
      v1::ToWorker close;
      close.mutable_close()->set_seq_uid(seq_uid);
      SendToRanks(close);
    }
    for (const SequenceOpen& open : plan->opens) {
      v1::ToWorker message;
      *message.mutable_open() = ToProto(open);
      SendToRanks(message);
    }
    if (plan->is_step()) {
      collector_.Begin(plan->epoch, plan->step_id);
      const absl::Time began = absl::Now();
      if (constraints_.FillMasks(*plan)) {
        metrics_.OnMaskTime(absl::ToDoubleSeconds(absl::Now() - began));
      }
      steps_.push_back({plan->step_id, KindOf(*plan), plan->rows.size(), absl::Now()});
      v1::ToWorker message;
      *message.mutable_plan() = ToProto(*plan);
      // Counted before it leaves, so that who has the plan finds it counted.
      metrics_.OnPlan(*plan);
      metrics_.OnLedger(core_->GetLedger());
      SendToRanks(message);
      if (answered.has_value()) metrics_.OnHostTime(absl::ToDoubleSeconds(absl::Now() - *answered));
    }
    DeliverOutputs();  // who was admitted
    return true;
  }

  void OnResult(uint64_t worker, const v1::StepResult& result) {
    const std::optional<uint32_t> rank = membership_.RankOf(worker);
    if (!rank.has_value() || !core_.has_value()) return;
    StepCollector::Verdict verdict = collector_.Add(ToAnswer(result, *rank));
    switch (verdict.kind) {
      case StepCollector::Verdict::Kind::kWaiting:
        return;
      case StepCollector::Verdict::Kind::kIgnored:
        LogWarning(absl::StrCat("ignored a result of ", membership_.Name(worker), " for epoch ",
                                result.epoch(), ", step ", result.step_id()));
        return;
      case StepCollector::Verdict::Kind::kMismatch:
        metrics_.OnMismatch();
        return Fatal(verdict.message);
      case StepCollector::Verdict::Kind::kError:
        return Fatal(verdict.message);
      case StepCollector::Verdict::Kind::kComplete:
        break;
    }
    const absl::Time now = absl::Now();
    metrics_.OnStep(steps_.front().kind, steps_.front().rows,
                    absl::ToDoubleSeconds(now - StepBegan()));
    steps_.pop_front();
    last_answer_ = now;
    if (steps_.empty()) step_answered_ = now;
    constraints_.OnResult(verdict.outcome);
    core_->OnStepResult(verdict.outcome, NowUs());
  }

  // When the ranks could begin with the oldest step.
  absl::Time StepBegan() const { return std::max(steps_.front().sent, last_answer_); }
  absl::Time StepDeadline() const {
    return StepBegan() + absl::Milliseconds(options_.step_deadline_ms);
  }

  void CheckStepDeadline() {
    if (!fatal_.empty() || steps_.empty() || absl::Now() < StepDeadline()) return;
    std::vector<std::string> names;
    for (uint32_t rank : collector_.MissingRanks()) {
      auto worker = membership_.WorkerOf(rank);
      names.push_back(worker.has_value() ? membership_.Name(*worker) : absl::StrCat("rank ", rank));
    }
    Fatal(absl::StrCat(absl::StrJoin(names, ", "), " did not answer step ", steps_.front().id,
                       " within ", options_.step_deadline_ms, " ms (--step-deadline-ms)"));
  }

  // ---- ends ------------------------------------------------------------------------------------

  void Fatal(const std::string& message) {
    if (!fatal_.empty()) return;
    fatal_ = message;
    not_ready_reason_ = message;
    LogError(message);
    // Whoever asks from here on is told, and only then are the open streams answered.
    Publish();
    if (core_.has_value()) core_->FailAll(message);
    DeliverOutputs();
    workers_.AbortAll(options_.epoch, message);
    WriteFlight(message);
    status_->Error(message);
    on_fatal_(message);
  }

  void WriteFlight(const std::string& reason) {
    if (!core_.has_value() || options_.flight_dir.empty()) return;
    const absl::StatusOr<std::string> path = WriteRecording(
        options_.flight_dir, options_.epoch, ++recordings_, core_->Recording(reason));
    if (path.ok()) {
      LogInfo(absl::StrCat("wrote ", *path, ": what went into the core so far"));
    } else {
      LogError(std::string(path.status().message()));
    }
  }

  void UpdateWaiting() {
    if (!fatal_.empty() || stopping_ || core_.has_value()) return;
    const uint32_t size = options_.tensor_parallel_size;
    not_ready_reason_ = membership_.ranks_taken() < size
                            ? absl::StrCat("waiting for workers: ", membership_.ranks_taken(),
                                           " of ", size, " have come")
                            : absl::StrCat("loading weights: ", membership_.ranks_ready(), " of ",
                                           size, " ranks are ready");
  }

  void Publish() {
    if (not_ready_reason_.empty() && !core_.has_value()) UpdateWaiting();
    Ledger ledger;
    if (core_.has_value()) {
      ledger = core_->GetLedger();
      metrics_.OnLedger(ledger);
    }
    std::lock_guard<std::mutex> lock(snapshot_mutex_);
    snapshot_.ledger = ledger;
    snapshot_.not_ready_reason = not_ready_reason_;
    if (membership_.pools().has_value()) {
      snapshot_.max_model_len = membership_.pools()->max_model_len;
    }
    if (const WorkerFacts* model = membership_.model()) {
      snapshot_.vocab_size = model->vocab_size;
      snapshot_.checkpoint_digest = model->checkpoint_digest;
    }
  }

  const EngineOptions options_;
  EventQueue events_;
  EngineMetrics metrics_;
  const StatusChannel* const status_;
  const std::function<void(const std::string&)> on_fatal_;

  // Everything from here to the snapshot belongs to the engine thread.
  Membership membership_;
  std::optional<RecordedCore> core_;  // from ready on
  uint32_t recordings_ = 0;           // written
  StepCollector collector_;
  Constraints constraints_;
  EngineClients clients_;
  EngineWorkers workers_;
  Inventory inventory_;  // until ready
  struct SentStep {
    uint64_t id = 0;
    std::string kind;
    size_t rows = 0;
    absl::Time sent;
  };
  std::deque<SentStep> steps_;  // that are not answered, oldest first
  absl::Time last_answer_ = absl::InfinitePast();
  // Since when the workers have nothing to do; until there is a next plan, or nothing to do.
  std::optional<absl::Time> step_answered_;
  std::string fatal_;
  std::string not_ready_reason_;
  bool stopping_ = false;

  mutable std::mutex snapshot_mutex_;  // guards snapshot_
  EngineSnapshot snapshot_;
  std::thread thread_;
};

Engine::Engine(const EngineOptions& options, Metrics* metrics, const StatusChannel* status,
               std::function<void(const std::string&)> on_fatal)
    : impl_(std::make_unique<Impl>(options, metrics, status, std::move(on_fatal))) {}

Engine::~Engine() {
  Shutdown();
}

void Engine::Start() {
  impl_->Start();
}
void Engine::Shutdown() {
  impl_->Shutdown();
}
EventQueue& Engine::events() {
  return impl_->events();
}
EngineSnapshot Engine::Snapshot() const {
  return impl_->Snapshot();
}
const EngineOptions& Engine::options() const {
  return impl_->options();
}
absl::StatusOr<std::string> Engine::PutVocabulary(std::string_view bytes) {
  return impl_->PutVocabulary(bytes);
}
absl::StatusOr<grammar::Constraint> Engine::Constrain(const v1::Submit& submit) const {
  return impl_->Constrain(submit);
}
void Engine::DumpFlight() {
  impl_->DumpFlight();
}
void Engine::CountRefused(const std::string& reason) {
  impl_->CountRefused(reason);
}

}  // namespace quartet::coordinator
