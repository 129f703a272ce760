#include "services/coordinator/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::simulation {

using coordinator::Core;
using coordinator::CoreConfig;
using coordinator::FinishReason;
using coordinator::Output;
using coordinator::PlanRow;
using coordinator::Request;
using coordinator::SequenceOpen;
using coordinator::StepCollector;
using coordinator::StepPlan;
using coordinator::SubmitOutcome;
using Kind = TraceEvent::Kind;

namespace {

constexpr uint64_t kLinkStream = 5;
// The index is looked through once in so many turns, which costs as much as the cache is large.
constexpr uint64_t kTurnsPerIndexCheck = 16;

std::string EndName(const Output& output) {
  if (output.kind == Output::Kind::kCancelled) return "cancelled";
  if (output.kind == Output::Kind::kFailed) return absl::StrCat("failed, ", output.message);
  if (output.kind == Output::Kind::kExpired) return "deadline";
  switch (output.reason) {
    case FinishReason::kEndToken:
      return "end token";
    case FinishReason::kStopId:
      return "stop id";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kTruncated:
      return "truncated";
  }
  return "";
}

std::string RowName(const PlanRow& row) {
  std::string name = row.kind == PlanRow::Kind::kPrefill  ? "prefill"
                     : row.kind == PlanRow::Kind::kVerify ? "verify"
                                                          : "decode";
  for (const coordinator::SnapshotExport& exported : row.exports) {
    absl::StrAppend(&name, " with snapshot ", exported.snapshot);
  }
  return name;
}

std::string CopyName(const TierCopy& copy) {
  constexpr const char* kTiers[] = {"nowhere", "device", "host", "disk"};
  return absl::StrCat(copy.kind == TierCopy::Kind::kPage ? "page from " : "snapshot from ",
                      kTiers[static_cast<int>(copy.from)], " to ",
                      kTiers[static_cast<int>(copy.to)]);
}

const char* Name(StepCollector::Verdict::Kind verdict) {
  switch (verdict) {
    case StepCollector::Verdict::Kind::kWaiting:
      return "others are missing";
    case StepCollector::Verdict::Kind::kIgnored:
      return "ignored";
    case StepCollector::Verdict::Kind::kComplete:
      return "complete";
    case StepCollector::Verdict::Kind::kMismatch:
      return "mismatch";
    case StepCollector::Verdict::Kind::kError:
      return "error";
  }
  return "";
}

}  // namespace

Simulation::Simulation(Scenario scenario, Trace::Listener listener)
    : scenario_(std::move(scenario)),
      links_(scenario_.seed, kLinkStream),
      trace_(std::move(listener)),
      auditor_(scenario_.model),
      next_epoch_(scenario_.config.epoch),
      collector_(scenario_.ranks) {
  const CoreConfig& config = scenario_.config;
  for (uint32_t rank = 0; rank < scenario_.ranks; ++rank) {
    disks_.emplace_back(config.disk_pages, config.disk_snapshots, scenario_.cost.disk_write_us);
  }
}

Result Simulation::Run(uint64_t max_steps) {
  max_steps_ = max_steps;
  if (std::string error = coordinator::ConfigError(scenario_.config); !error.empty()) {
    auditor_.Violate("the scenario is none: " + error);
  }
  events_.Push(now_, Ready{});
  ScheduleArrival();
  // As in production, a turn takes in all news and then looks at the next step.
  while (auditor_.violation().empty() && !(events_.empty() && !collector_.waiting())) {
    const bool deadline_first =
        collector_.waiting() && (events_.empty() || StepDeadline() < events_.next_time());
    now_ = deadline_first ? StepDeadline() : events_.next_time();
    while (!events_.empty() && events_.next_time() == now_ && auditor_.violation().empty()) {
      Event event = events_.Pop();
      std::visit([this](auto& e) { On(e); }, event);
    }
    if (auditor_.violation().empty()) Turn();
  }
  if (auditor_.violation().empty() && core_.has_value()) {
    auditor_.CheckIdle(core_->GetLedger(), workers_);
    auditor_.CheckTiers(workers_);
    if (std::string error = core_->CheckIndex(); !error.empty()) auditor_.Violate(error);
  }

  Result result;
  result.violation = auditor_.violation();
  result.violation_step = auditor_.tally().steps;
  if (!result.ok()) result.trace_tail = trace_.Tail();
  result.digest = trace_.digest();
  result.time_us = now_;
  result.tally = auditor_.tally();
  std::copy(std::begin(faults_), std::end(faults_), std::begin(result.faults));
  std::copy(std::begin(tier_faults_), std::end(tier_faults_), std::begin(result.tier_faults));
  return result;
}

// ---- clients -----------------------------------------------------------------------------------

void Simulation::ScheduleArrival() {
  if (LastSteps() || !scenario_.next_client) return;
  std::optional<ClientScript> client = scenario_.next_client();
  if (!client.has_value()) return;
  const TimeUs time = now_ + client->gap_us;
  events_.Push(time, Arrival{std::make_unique<ClientScript>(*std::move(client)), false});
}

void Simulation::On(Arrival& event) {
  if (!event.retry) ScheduleArrival();
  if (!LastSteps()) Submit(std::move(event.client));
}

void Simulation::Submit(std::unique_ptr<ClientScript> script) {
  const auto prompt = static_cast<uint32_t>(script->request.prompt_ids.size());
  ClientRecord* record = nullptr;
  if (keep_records_) {
    record = records_.emplace_back(std::make_unique<ClientRecord>()).get();
    record->seed = script->request.sampling.seed;
    record->submitted = now_;
    record->refused = true;  // until it is accepted
  }
  if (!core_.has_value()) {
    return Note({.kind = Kind::kRefuse, .a = prompt, .note = "no engine is ready"});
  }
  std::optional<UnitNames> names;
  if (script->domain.has_value()) {
    names.emplace(*script->domain, scenario_.config.page_tokens);
    script->request.cache_root = names->root();
    script->request.unit_keys = names->Append(script->request.prompt_ids);
  }
  const SubmitOutcome outcome = core_->OnSubmit(script->request, now_);
  auditor_.OnSubmit(script->request, outcome);
  if (outcome.kind != SubmitOutcome::Kind::kAccepted) {
    if (record != nullptr) record->retry_after_ms = outcome.retry_after_ms;
    return Note({.kind = Kind::kRefuse, .a = prompt, .note = outcome.message});
  }
  Note({.kind = Kind::kSubmit, .who = outcome.id, .a = prompt, .b = script->request.max_tokens});
  Client& client = clients_[outcome.id];
  client.script = std::move(script);
  client.number = next_client_++;
  client.request = outcome.id;
  client.names = std::move(names);
  client.record = record;
  if (record != nullptr) record->refused = false;
  request_of_[client.number] = outcome.id;
  const coordinator::Request& request = client.script->request;
  for (const uint32_t ms : {request.first_token_deadline_ms, request.total_deadline_ms,
                            scenario_.config.queue_timeout_ms, scenario_.config.total_timeout_ms}) {
    if (ms != 0) events_.Push(now_ + TimeUs{ms} * 1000, Look{});
  }
  if (client.script->leaves == ClientScript::Leaves::kAfterSubmit) {
    events_.Push(now_ + client.script->leave_after_us, Leave{client.number});
  }
}

Simulation::Client* Simulation::FindClient(uint64_t number) {
  auto request = request_of_.find(number);
  return request == request_of_.end() ? nullptr : &clients_.at(request->second);
}

void Simulation::Cancel(Client& client, const char* why) {
  Note({.kind = Kind::kCancel, .who = client.request, .note = why});
  client.left = true;
  auditor_.OnCancel(client.request);
  if (!scenario_.bugs.deaf_to_cancel) core_->OnCancel(client.request);
}

void Simulation::On(Leave& event) {
  if (Client* client = FindClient(event.client)) Cancel(*client, "it left");
}

void Simulation::On(Truncate& event) {
  Client* client = FindClient(event.client);
  if (client == nullptr) return;  // it has ended: the client's news crossed the engine's
  Note({.kind = Kind::kTruncate, .who = client->request, .a = event.n_tokens});
  const Core::TruncateOutcome outcome = core_->OnTruncate(client->request, event.n_tokens);
  auditor_.OnTruncate(client->request, event.n_tokens, outcome);
  if (outcome == Core::TruncateOutcome::kBeyond) Cancel(*client, "truncated beyond its answer");
}

void Simulation::DeliverOutputs() {
  if (!core_.has_value()) return;
  std::vector<Output> outputs = core_->TakeOutputs();
  if (scenario_.bugs.outputs) scenario_.bugs.outputs(outputs);
  for (Output& output : outputs) Deliver(output);
}

void Simulation::Deliver(Output& output) {
  auditor_.OnOutput(output, now_);
  switch (output.kind) {
    case Output::Kind::kAdmitted:
      Note({.kind = Kind::kAdmitted, .who = output.id});
      break;
    case Output::Kind::kTokens:
      Note({.kind = Kind::kTokens,
            .who = output.id,
            .a = static_cast<uint64_t>(output.tokens.empty() ? 0 : output.tokens.front()),
            .b = output.tokens.size(),
            .c = output.completion_tokens});
      break;
    default:
      Note({.kind = Kind::kEnd,
            .who = output.id,
            .a = output.completion_tokens,
            .note = EndName(output)});
  }
  auto client = clients_.find(output.id);
  if (client == clients_.end()) return;
  NameAnswer(client->second, output);
  React(client->second, output);
  if (!output.terminal()) return;
  request_of_.erase(client->second.number);
  clients_.erase(client);
}

void Simulation::NameAnswer(Client& client, const Output& output) {
  if (!client.names.has_value() || output.tokens.empty()) return;
  std::vector<UnitKey> keys = client.names->Append(output.tokens);
  if (scenario_.bugs.names) scenario_.bugs.names(keys);
  auditor_.OnUnitKeys(client.request, keys);
  core_->OnUnitKeys(client.request, keys);
}

// The next turn of a conversation: what was said, as far as it counts, and something more.
void Simulation::GoOn(Client& client, const Output& end) {
  ClientScript& script = *client.script;
  if (end.kind != Output::Kind::kFinished || script.turns == 0) return;
  Request& request = script.request;
  std::vector<int32_t>& text = request.prompt_ids;
  text.insert(text.end(), client.told.begin(), client.told.begin() + end.completion_tokens);
  const uint64_t seed = Mix(request.sampling.seed);
  const Request more =
      MakeRequest(seed, script.turn_tokens, 1, static_cast<uint32_t>(scenario_.config.vocab_size));
  text.insert(text.end(), more.prompt_ids.begin(), more.prompt_ids.end());
  if (text.size() + std::max(request.max_tokens, 1u) > scenario_.config.max_model_len) return;
  request.sampling.seed = seed;
  --script.turns;
  events_.Push(now_ + script.think_us, Arrival{std::move(client.script), true});
}

void Simulation::React(Client& client, const Output& output) {
  ClientScript& script = *client.script;
  ClientRecord* record = client.record;
  if (output.kind == Output::Kind::kAdmitted) {
    if (script.leaves == ClientScript::Leaves::kAfterAdmission) {
      events_.Push(now_ + script.leave_after_us, Leave{client.number});
    }
    return;
  }
  if (output.terminal()) {
    if (record != nullptr) record->end = output;
    // A client that lost its engine asks again, and should get the same text.
    if (output.kind == Output::Kind::kFailed && script.retries > 0 && engine_ending_) {
      --script.retries;
      events_.Push(now_ + 2 * scenario_.restart_us, Arrival{std::move(client.script), true});
      return;
    }
    return GoOn(client, output);
  }
  for (const int32_t token : output.tokens) {
    client.told.push_back(token);
    client.read_until = std::max(client.read_until, now_) + script.read_us;
    if (record != nullptr) {
      record->tokens.push_back(token);
      record->token_times.push_back(now_);
    }
    if (script.leaves == ClientScript::Leaves::kAfterToken &&
        client.told.size() == script.leave_token) {
      events_.Push(now_ + script.leave_after_us, Leave{client.number});
    }
    if (client.told.size() == script.truncate_token) {
      events_.Push(now_ + script.truncate_after_us, Truncate{client.number, script.truncate_to});
    }
  }
}

void Simulation::PauseSlowClients() {
  std::vector<uint64_t> slow;
  for (auto& [request, client] : clients_) {
    if (client.script->read_us == 0 || client.left) continue;
    const TimeUs read_us = client.script->read_us;
    const bool was_paused = client.paused_since.has_value();
    const TimeUs limit = scenario_.slow_client_tokens / (was_paused ? 4 : 1);
    const bool paused = (client.read_until - now_ + read_us - 1) / read_us > limit;
    if (paused != was_paused) {
      Note({.kind = Kind::kPause, .who = request, .a = paused});
      client.paused_since = paused ? std::optional(now_) : std::nullopt;
      if (!scenario_.bugs.deaf_to_pause) core_->OnPause(request, paused);
      auditor_.OnPause(request, paused);
    }
    if (!paused) continue;
    const TimeUs too_long = *client.paused_since + scenario_.slow_client_us;
    if (now_ >= too_long) {
      slow.push_back(request);
    } else if (client.look_at <= now_) {
      const TimeUs has_read = client.read_until - scenario_.slow_client_tokens / 4 * read_us;
      client.look_at = std::min(too_long, std::max(has_read, now_ + 1));
      events_.Push(client.look_at, Look{});
    }
  }
  for (const uint64_t request : slow) Cancel(clients_.at(request), "it does not read");
  if (!slow.empty()) DeliverOutputs();
}

bool Simulation::AnyPaused() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const auto& entry) { return entry.second.paused_since.has_value(); });
}

void Simulation::EndRun() {
  // Some finish by themselves, with nobody new; the rest need not be waited for.
  if (auditor_.tally().steps < max_steps_ + max_steps_ / 8 || clients_.empty()) return;
  for (auto& [request, client] : clients_) Cancel(client, "the run ends");
  DeliverOutputs();
}

// ---- the engine --------------------------------------------------------------------------------

void Simulation::Turn() {
  CheckStepDeadline();
  if (core_.has_value()) core_->ExpireDeadlines(now_);
  DeliverOutputs();
  if (!core_.has_value()) return;
  EndRun();
  PauseSlowClients();
  bool planned = true;
  while (core_->can_plan() && planned && auditor_.violation().empty()) {
    if (core_->steps_in_flight() == 0) auditor_.CheckStates(workers_);
    planned = auditor_.violation().empty() && RunNextStep();
  }
  coordinator::Ledger ledger = core_->GetLedger();
  if (scenario_.bugs.ledger) scenario_.bugs.ledger(ledger);
  if (auditor_.violation().empty()) auditor_.CheckBooks(ledger);
  std::string error = core_->CheckInvariants();
  if (error.empty() && ++turns_ % kTurnsPerIndexCheck == 0) {
    error = core_->CheckIndex();
    if (core_->steps_in_flight() == 0) auditor_.CheckTiers(workers_);
  }
  if (!error.empty()) auditor_.Violate(error);
}

void Simulation::On(Ready&) {
  CoreConfig config = scenario_.config;
  config.epoch = next_epoch_++;
  Note({.kind = Kind::kReady, .a = config.epoch});
  auditor_.OnEngine(config, scenario_.ranks);
  core_.emplace(config);
  collector_ = StepCollector(scenario_.ranks);
  busy_until_ = answered_at_ = now_;
  last_answer_at_.assign(scenario_.ranks, now_);
  end_expected_ = false;
  engine_ending_ = false;
  workers_.clear();
  for (uint32_t rank = 0; rank < scenario_.ranks; ++rank) {
    workers_.emplace_back(scenario_.model, config, rank, std::move(disks_[rank]));
    if (scenario_.bugs.blind_workers) workers_.back().BelieveEverything();
  }
  Adopt();
}

bool Simulation::RunNextStep() {
  std::optional<StepPlan> plan = core_->PlanStep(now_);
  if (scenario_.bugs.plan) scenario_.bugs.plan(plan);
  if (!plan.has_value()) {
    // Nothing is to do, or all that has a place waits for its client or for the step in flight.
    if (auditor_.open_requests() > 0 && !AnyPaused() && !collector_.waiting()) {
      auditor_.Violate(absl::StrCat("I9: ", auditor_.open_requests(),
                                    " requests are open and nothing is planned"));
    }
    return false;
  }
  TracePlan(*plan);
  auditor_.OnPlan(*plan);
  if (auditor_.violation().empty()) Execute(*std::move(plan));
  DeliverOutputs();  // who was admitted
  return true;
}

void Simulation::TracePlan(const StepPlan& plan) {
  uint64_t tokens = 0;
  for (const PlanRow& row : plan.rows) tokens += row.n_tokens;
  Note({.kind = Kind::kPlan,
        .step = plan.step_id,
        .a = plan.rows.size(),
        .b = tokens,
        .c = plan.plan_hash});
  for (const uint64_t uid : plan.closes) Note({.kind = Kind::kClose, .a = uid});
  for (const SequenceOpen& open : plan.opens) {
    Note({.kind = Kind::kOpen, .a = open.seq_uid, .b = open.slot, .c = open.sampling.seed});
    if (!open.resume.has_value()) continue;
    Note({.kind = Kind::kResume,
          .a = open.seq_uid,
          .b = open.resume->n_tokens,
          .c = open.resume->snapshot});
  }
  for (const coordinator::Commit& commit : plan.commits) {
    Note({.kind = Kind::kCommit,
          .step = plan.step_id,
          .a = commit.seq_uid,
          .b = commit.export_at,
          .c = commit.snapshot});
  }
  for (const TierCopy& copy : plan.copies) {
    Note({.kind = Kind::kCopy,
          .step = plan.step_id,
          .a = copy.from_place,
          .b = copy.to_place,
          .c = copy.n_tokens,
          .note = CopyName(copy)});
  }
  for (const PlanRow& row : plan.rows) {
    Note({.kind = Kind::kRow,
          .step = plan.step_id,
          .a = row.seq_uid,
          .b = row.position,
          .c = row.n_tokens,
          .note = RowName(row)});
  }
}

// The ranks' states change here, and their answers come later: what a rank is told between a plan
// and its result it does behind it.
void Simulation::Execute(StepPlan plan) {
  if (plan.is_step()) {
    collector_.Begin(plan.epoch, plan.step_id);
    sent_at_.push_back(now_);
  }
  // The ranks begin when they are through with the step before.
  const TimeUs begin = std::max(now_, busy_until_);
  const TimeUs step_us = scenario_.cost.StepUs(plan);
  for (SimWorker& worker : workers_) {
    const auto rank = static_cast<uint32_t>(&worker - workers_.data());
    std::optional<StepPlan> changed;
    if (scenario_.bugs.sent) scenario_.bugs.sent(rank, changed.emplace(plan));
    const StepPlan& told = changed.has_value() ? *changed : plan;
    for (const uint64_t uid : told.closes) worker.Close(uid);
    for (const SequenceOpen& open : told.opens) worker.Open(open);
    if (!worker.breach().empty()) return auditor_.Violate("I3: " + worker.breach());
    if (!plan.is_step()) continue;
    const Fault fault =
        scenario_.fault ? scenario_.fault(plan.epoch, plan.step_id, rank) : Fault::kNone;
    const std::vector<TierFault> tier_faults = DrawTierFaults(told, rank);
    Answer answer = worker.Execute(told, now_, tier_faults);
    const TimeUs waited_us = std::max<TimeUs>(worker.copies_ready() - now_, 0);
    const bool slow = std::ranges::find(tier_faults, TierFault::kSlow) != tier_faults.end();
    Send(std::move(answer), fault, begin - now_ + step_us + waited_us, slow);
  }
  if (!plan.is_step()) return;
  busy_until_ = begin + step_us;
  sent_ = std::move(plan);
}

void Simulation::Send(Answer answer, Fault fault, TimeUs step_us, bool slow) {
  // One rank has nobody to disagree with.
  if (fault == Fault::kWrongHash && scenario_.ranks == 1) fault = Fault::kNone;
  // Only the answer to the last plan can be had again.
  const bool alone = scenario_.config.steps_in_flight == 1;
  if (fault == Fault::kLostThenRepeated && !alone) fault = Fault::kLate;
  if (fault != Fault::kNone) {
    Note({.kind = Kind::kFault, .step = answer.step_id, .a = answer.rank, .note = Name(fault)});
    ++faults_[static_cast<int>(fault)];
    end_expected_ = end_expected_ || EndsEngine(fault);
  }
  const uint64_t epoch = answer.epoch;
  // A rank's answers come in order.
  TimeUs& last = last_answer_at_[answer.rank];
  const TimeUs on_time = std::max(now_ + step_us + 2 * Link(), last + 1);
  const TimeUs deadline = now_ + TimeUs{scenario_.config.step_deadline_ms} * 1000;
  const auto spread = static_cast<uint32_t>((deadline - now_) / 2);
  const TimeUs late = on_time + links_.Below(spread);
  const bool is_late = slow || fault == Fault::kLate || fault == Fault::kLostThenRepeated;
  last = is_late ? late : on_time;
  switch (fault) {
    case Fault::kNone:
      events_.Push(slow ? late : on_time, Answered{std::move(answer)});
      return;
    case Fault::kLate:
      events_.Push(late, Answered{std::move(answer)});
      return;
    case Fault::kLostThenRepeated:
      events_.Push(late, PlanAgain{epoch, answer.rank});
      return;
    case Fault::kDoubled: {
      // The copy may come in this step, in a later one, or to the engine after this one.
      const TimeUs again =
          on_time +
          links_.Below(static_cast<uint32_t>(links_.Permille(800) ? 4 * step_us : 2 * spread));
      events_.Push(again, Answered{answer});
      events_.Push(on_time, Answered{std::move(answer)});
      return;
    }
    case Fault::kStepError:
      answer.error = "the device is gone";
      events_.Push(on_time, Answered{std::move(answer)});
      return;
    case Fault::kWrongHash:
      answer.agreement_hash ^= 1;
      events_.Push(on_time, Answered{std::move(answer)});
      return;
    case Fault::kFrozen: {
      // When it thaws, the next engine is there.
      const TimeUs thaw =
          scenario_.restart_us + links_.Below(static_cast<uint32_t>(scenario_.restart_us));
      last = deadline + thaw;
      events_.Push(last, Answered{std::move(answer)});
      return;
    }
    case Fault::kKilled:
      events_.Push(now_ + links_.Below(static_cast<uint32_t>(step_us + 1)),
                   WorkerGone{epoch, answer.rank});
      return;
  }
}

void Simulation::On(PlanAgain& event) {
  if (!core_.has_value() || event.epoch != core_->config().epoch) return;
  Answer answer = workers_[event.rank].Execute(sent_);
  events_.Push(now_ + Link(), Answered{std::move(answer)});
}

void Simulation::On(WorkerGone& event) {
  if (!core_.has_value() || event.epoch != core_->config().epoch) return;
  EndEngine(absl::StrCat("rank ", event.rank, " left"));
}

void Simulation::On(Answered& event) {
  if (!core_.has_value()) return;
  auditor_.OnAnswer(event.answer);
  if (scenario_.bugs.answer) scenario_.bugs.answer(event.answer);
  const Answer& answer = event.answer;
  TraceEvent note = {
      .kind = Kind::kAnswer, .step = answer.step_id, .a = answer.rank, .b = answer.agreement_hash};
  StepCollector::Verdict verdict = collector_.Add(std::move(event.answer));
  note.note = Name(verdict.kind);
  Note(std::move(note));
  switch (verdict.kind) {
    case StepCollector::Verdict::Kind::kWaiting:
    case StepCollector::Verdict::Kind::kIgnored:
      return;
    case StepCollector::Verdict::Kind::kMismatch:
    case StepCollector::Verdict::Kind::kError:
      return EndEngine(verdict.message);
    case StepCollector::Verdict::Kind::kComplete:
      break;
  }
  sent_at_.pop_front();
  answered_at_ = now_;
  const bool taken = core_->OnStepResult(verdict.outcome, now_);
  auditor_.OnApplied(verdict.outcome.epoch, verdict.outcome.step_id, taken);
}

TimeUs Simulation::StepDeadline() const {
  return std::max(sent_at_.front(), answered_at_) +
         TimeUs{scenario_.config.step_deadline_ms} * 1000;
}

void Simulation::CheckStepDeadline() {
  if (!core_.has_value() || !collector_.waiting() || now_ < StepDeadline()) return;
  std::string missing;
  for (const uint32_t rank : collector_.MissingRanks()) absl::StrAppend(&missing, " ", rank);
  EndEngine(absl::StrCat("no answer of ranks", missing, " within the deadline"));
}

void Simulation::EndEngine(const std::string& message) {
  Note({.kind = Kind::kEngineEnd, .a = core_->config().epoch, .note = message});
  if (!end_expected_) {
    return auditor_.Violate("the engine ends, and nothing happened to it: " + message);
  }
  DeliverOutputs();  // of this turn, from before
  engine_ending_ = true;
  core_->FailAll(message);
  auditor_.OnEngineEnd(message);
  DeliverOutputs();
  auditor_.CheckBooks(core_->GetLedger());
  if (auditor_.open_requests() != 0) {
    auditor_.Violate("I8: the engine has ended, and requests are open");
  }
  core_.reset();
  LeaveDisks();
  collector_ = StepCollector(scenario_.ranks);
  sent_at_.clear();
  events_.Push(now_ + scenario_.restart_us, Ready{});
}

}  // namespace quartet::simulation
