#include "services/cli/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/cli/terminal.h"

namespace quartet::cli {
namespace {

// From the first SIGTERM to the last SIGKILL. The gateway may use nearly all of it to finish open
// answers; once it has gone the others have nothing to finish.
constexpr absl::Duration kStopTime = absl::Seconds(15);
// While nothing is served yet there are no answers to finish.
constexpr absl::Duration kStopTimeEarly = absl::Seconds(3);
// What each of the later roles is sure to have of that.
constexpr absl::Duration kStopReserve = absl::Milliseconds(250);
// How long the others may go on after a death, so that open requests get their error.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);
// From a child's error message to its exit.
constexpr absl::Duration kExitTime = absl::Seconds(1);
// Terminals and service managers may send a process and its group one signal each: that is one
// wish.
constexpr absl::Duration kSameStop = absl::Milliseconds(500);
constexpr absl::Duration kNoDeadline = absl::Minutes(1);
constexpr size_t kLastLines = 12;

// An address to listen on is not always one to connect to.
std::string Reachable(const std::string& address) {
  if (absl::StartsWith(address, "0.0.0.0:")) return absl::StrCat("127.0.0.1", address.substr(7));
  if (absl::StartsWith(address, "[::]:")) return absl::StrCat("[::1]", address.substr(4));
  return address;
}

}  // namespace

const char* Supervisor::RoleName(Role role) {
  switch (role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kWorker:
      return "shard workers";
    case Role::kGateway:
      return "gateway";
  }
  return "";
}

Supervisor::Supervisor(ClusterSpec spec, std::ostream& out, std::ostream& err, bool live,
                       bool colour)
    : spec_(std::move(spec)), err_(err), view_(out, live, colour), started_(absl::Now()) {}

Supervisor::~Supervisor() {
  if (signal_fd_ >= 0) close(signal_fd_);
}

double Supervisor::Elapsed() const {
  return absl::ToDoubleSeconds(absl::Now() - started_);
}

int Supervisor::Run() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, number);
  // A closed terminal means stop, but not under nohup, which has it ignored.
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  // Whoever read this program's output may go; the cluster goes on.
  signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (!Start(Role::kCoordinator, spec_.coordinator)) return FailBeforeServing();

  bool all_started = false;
  bool serving = false;
  while (true) {
    Pump(absl::Now() + kNoDeadline);
    if (stop_signals_ > 0) {
      view_.Line("stopping");
      Stop(serving ? kStopTime : kStopTimeEarly);
      view_.Line("stopped");
      return 0;
    }
    if (first_error_ != nullptr || first_death_ != nullptr) {
      return serving ? FailWhileServing() : FailBeforeServing();
    }
    const Member* coordinator = Find(Role::kCoordinator);
    const bool listens = std::any_of(coordinator->addresses.begin(), coordinator->addresses.end(),
                                     [](const auto& entry) { return entry.first != "admin"; });
    if (!all_started && (listens || coordinator->ready)) {
      all_started = true;
      if (!StartTheRest()) return FailBeforeServing();
    }
    if (!serving && AllReady(Role::kCoordinator) && AllReady(Role::kWorker) &&
        AllReady(Role::kGateway)) {
      serving = true;
      AnnounceAddresses();
    }
  }
}

bool Supervisor::Start(Role role, const ChildSpec& spec) {
  absl::StatusOr<std::unique_ptr<Child>> child = Child::Spawn(spec);
  if (!child.ok()) {
    err_ << "quartet: " << child.status().message() << "\n" << std::flush;
    return false;
  }
  auto member = std::make_unique<Member>();
  member->role = role;
  member->child = *std::move(child);
  members_.push_back(std::move(member));
  return true;
}

bool Supervisor::StartTheRest() {
  return std::all_of(spec_.workers.begin(), spec_.workers.end(),
                     [this](const ChildSpec& worker) { return Start(Role::kWorker, worker); }) &&
         Start(Role::kGateway, spec_.gateway);
}

void Supervisor::Pump(absl::Time deadline) {
  std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0}};
  for (const auto& member : members_) {
    if (member->child->status_fd() >= 0) fds.push_back({member->child->status_fd(), POLLIN, 0});
    if (member->child->output_fd() >= 0) fds.push_back({member->child->output_fd(), POLLIN, 0});
  }
  const int64_t wait_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
  poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(wait_ms, 0, 60'000)));
  ReadSignals();
  for (const auto& member : members_) {
    TakeEvents(*member);
    member->child->ReadOutput();
    if (!member->child->Reap()) continue;
    TakeEvents(*member);  // What it sent between the reading above and its end.
    NoteDeath(*member);
  }
}

void Supervisor::ReadSignals() {
  signalfd_siginfo info{};
  while (read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    const absl::Time now = absl::Now();
    if (stop_signals_ == 0 || now - last_stop_signal_ > kSameStop) ++stop_signals_;
    last_stop_signal_ = now;
  }
}

void Supervisor::TakeEvents(Member& member) {
  for (const StatusEvent& event : member.child->ReadEvents()) TakeEvent(member, event);
}

void Supervisor::TakeEvent(Member& member, const StatusEvent& event) {
  const char* who = RoleName(member.role);
  switch (event.kind) {
    case StatusEvent::Kind::kListening:
      member.addresses[event.name] = event.address;
      break;
    case StatusEvent::Kind::kProgress:
      member.stages[event.stage] =
          event.total > 0 ? static_cast<double>(event.done) / static_cast<double>(event.total)
                          : -1.0;
      if (!stopping_) ShowProgress(member.role, event.stage);
      break;
    case StatusEvent::Kind::kReady:
      member.ready = true;
      if (!stopping_ && AllReady(member.role)) view_.Done(who, "ready", Elapsed());
      break;
    case StatusEvent::Kind::kError:
      member.error = event.message;
      if (first_error_ == nullptr && !stopping_) first_error_ = &member;
      break;
  }
}

void Supervisor::ShowProgress(Role role, const std::string& stage) {
  // The coordinator sums up its workers' stages; here they report for themselves.
  const bool workers_report_it =
      std::any_of(members_.begin(), members_.end(), [&stage](const auto& member) {
        return member->role == Role::kWorker && member->stages.count(stage) != 0;
      });
  if (role == Role::kCoordinator && workers_report_it) return;
  double sum = 0;
  size_t members = 0;
  bool known = true;
  for (const auto& member : members_) {
    if (member->role != role) continue;
    ++members;
    const auto entry = member->stages.find(stage);
    if (entry == member->stages.end()) continue;
    if (entry->second < 0) known = false;
    sum += entry->second;
  }
  const char* who = RoleName(role);
  const double fraction = known ? sum / static_cast<double>(members) : -1.0;
  if (fraction >= 1.0) {
    view_.Done(who, stage, Elapsed());
  } else {
    view_.Progress(who, stage, fraction, Elapsed());
  }
}

void Supervisor::NoteDeath(const Member& member) {
  if (first_death_ == nullptr && !stopping_) first_death_ = &member;
}

bool Supervisor::AnyRunning(Role role) const {
  return std::any_of(members_.begin(), members_.end(), [role](const auto& member) {
    return member->role == role && member->child->running();
  });
}

bool Supervisor::AllReady(Role role) const {
  size_t ready = 0;
  for (const auto& member : members_) {
    if (member->role == role && member->ready) ++ready;
  }
  return ready == (role == Role::kWorker ? spec_.workers.size() : 1);
}

const Supervisor::Member* Supervisor::Find(Role role) const {
  for (const auto& member : members_) {
    if (member->role == role) return member.get();
  }
  return nullptr;
}

void Supervisor::AnnounceAddresses() {
  const Member* gateway = Find(Role::kGateway);
  const auto http = gateway->addresses.find("http");
  const auto grpc = gateway->addresses.find("grpc");
  view_.Line("");
  if (http != gateway->addresses.end()) {
    view_.Line(absl::StrCat("HTTP  http://", Reachable(http->second)));
  }
  if (grpc != gateway->addresses.end()) {
    view_.Line(absl::StrCat("gRPC  ", Reachable(grpc->second)));
  }
  if (http != gateway->addresses.end()) {
    view_.Line(absl::StrCat("metrics  http://", Reachable(http->second), "/metrics"));
  }
  view_.Line("");
  view_.Line("Ctrl-C stops it.");
}

int Supervisor::FailBeforeServing() {
  const Member* member = first_error_ != nullptr ? first_error_ : first_death_;
  if (member != nullptr) {
    view_.Line("");
    err_ << "quartet: " << member->child->title() << ": ";
    if (!member->error.empty()) {
      err_ << Printable(member->error) << "\n";
    } else {
      err_ << member->child->HowItEnded() << " before it was ready; its last log lines:\n";
      for (const std::string& line : member->child->LastLines(kLastLines)) {
        err_ << "  | " << line << "\n";
      }
    }
    err_ << std::flush;
  }
  Stop(kStopTimeEarly);
  return 1;
}

int Supervisor::FailWhileServing() {
  // An error message announces an exit: wait for it, so that the report can say how it ended.
  const Member* member = first_death_ != nullptr ? first_death_ : first_error_;
  const absl::Time exit_deadline = absl::Now() + kExitTime;
  while (member->child->running() && absl::Now() < exit_deadline) Pump(exit_deadline);
  // Who was killed is the cause; who exits with a code may be its victim that was seen first.
  for (const auto& other : members_) {
    if (member->child->running() || member->child->KilledBySignal()) break;
    if (!other->child->running() && other->child->KilledBySignal()) member = other.get();
  }

  view_.Line("");
  err_ << "quartet: " << member->child->title() << " (process " << member->child->pid() << ") "
       << (member->child->running() ? std::string("failed") : member->child->HowItEnded());
  if (!member->error.empty()) err_ << ": " << Printable(member->error);
  err_ << "\n";
  const std::vector<std::string> lines = member->child->LastLines(kLastLines);
  if (!lines.empty()) err_ << "its last log lines:\n";
  for (const std::string& line : lines) err_ << "  | " << line << "\n";
  err_ << "quartet: stopping the others\n" << std::flush;

  const absl::Time answer_deadline = absl::Now() + kAnswerTime;
  while (absl::Now() < answer_deadline && stop_signals_ == 0) Pump(answer_deadline);
  Stop(kStopTime);
  return 1;
}

void Supervisor::Stop(absl::Duration time) {
  stopping_ = true;
  const absl::Time end = absl::Now() + time;
  StopRole(Role::kGateway, end - 2 * kStopReserve);
  StopRole(Role::kCoordinator, end - kStopReserve);
  StopRole(Role::kWorker, end);
}

void Supervisor::StopRole(Role role, absl::Time deadline) {
  for (const auto& member : members_) {
    if (member->role == role) member->child->Signal(SIGTERM);
  }
  // A second Ctrl-C means now.
  while (AnyRunning(role) && absl::Now() < deadline && stop_signals_ < 2) Pump(deadline);
  for (const auto& member : members_) {
    if (member->role != role || !member->child->running()) continue;
    err_ << "quartet: " << member->child->title() << " has not stopped and is killed\n"
         << std::flush;
    member->child->Signal(SIGKILL);
  }
  // After SIGKILL the end is certain.
  while (AnyRunning(role)) Pump(absl::Now() + absl::Milliseconds(100));
}

}  // namespace quartet::cli
