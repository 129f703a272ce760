#ifndef QUARTET_SERVICES_CLI_SUPERVISOR_H_
#define QUARTET_SERVICES_CLI_SUPERVISOR_H_

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "services/cli/child.h"
#include "services/cli/stage_view.h"

namespace quartet::cli {

// The processes of one node. The coordinator is started first; the others when it listens.
struct ClusterSpec {
  ChildSpec coordinator;
  std::vector<ChildSpec> workers;
  ChildSpec gateway;
};

// Starts a cluster, watches it, and takes it down: gateway first (it lets open answers end), then
// coordinator, then workers. Single-threaded: everything happens in Run(), which must be called on
// the process's main thread, because the kernel ends the children when the thread that started them
// ends.
class Supervisor {
 public:
  // Messages for people go to `out`, what went wrong to `err`.
  Supervisor(ClusterSpec spec, std::ostream& out, std::ostream& err, bool live, bool colour);
  ~Supervisor();

  // Returns the program's exit code: 0 after SIGINT or SIGTERM, 1 when a child failed or died.
  int Run();

 private:
  enum class Role { kCoordinator, kWorker, kGateway };
  struct Member {
    Role role = Role::kWorker;
    std::unique_ptr<Child> child;
    bool ready = false;
    std::map<std::string, double> stages;          // fraction done of each
    std::map<std::string, std::string> addresses;  // by name
    std::string error;                             // what its error event said
  };

  static const char* RoleName(Role role);
  bool Start(Role role, const ChildSpec& spec);
  bool StartTheRest();
  // Waits for something to happen, at most until `deadline`, and takes it in.
  void Pump(absl::Time deadline);
  void ReadSignals();
  void TakeEvents(Member& member);
  void TakeEvent(Member& member, const StatusEvent& event);
  void ShowProgress(Role role, const std::string& stage);
  void NoteDeath(const Member& member);
  void AnnounceAddresses();
  int FailBeforeServing();
  int FailWhileServing();
  void Stop(absl::Duration time);
  void StopRole(Role role, absl::Time deadline);
  bool AnyRunning(Role role) const;
  bool AllReady(Role role) const;
  double Elapsed() const;
  const Member* Find(Role role) const;

  ClusterSpec spec_;
  std::ostream& err_;
  StageView view_;
  const absl::Time started_;
  std::vector<std::unique_ptr<Member>> members_;
  int signal_fd_ = -1;
  int stop_signals_ = 0;  // The second one means: at once.
  absl::Time last_stop_signal_;
  bool stopping_ = false;
  const Member* first_error_ = nullptr;  // By its error event.
  const Member* first_death_ = nullptr;
};

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_SUPERVISOR_H_
