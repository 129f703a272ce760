#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cctype>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "services/common/admin_server.h"
#include "services/common/log.h"
#include "services/common/metrics.h"
#include "services/common/process.h"
#include "services/common/status_channel.h"
#include "services/coordinator/rpc/engine.h"
#include "services/coordinator/rpc/segment_files.h"
#include "services/coordinator/rpc/server.h"

// quartet-coordinator: owns the requests of one engine and tells its shard workers what to do.
// Exit codes: 0 after SIGTERM or SIGINT, 1 when it could not start or could not go on, 2 for flags.

namespace quartet::coordinator {
namespace {

constexpr absl::Duration kAnswerTime = absl::Seconds(3);
// Calls are answered by then; this is for connections whose peer is slow to close.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(100);

// Of a SnapshotPolicy, in the words of --snapshot-policy.
std::vector<std::string> SnapshotReasons() {
  return {"boundary", "last", "turn", "branch", "system"};
}

SnapshotPolicy ToPolicy(const std::vector<std::string>& reasons) {
  const auto has = [&reasons](const char* reason) {
    return std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
  };
  SnapshotPolicy policy;
  policy.boundary = has("boundary");
  policy.last = has("last");
  policy.turn = has("turn");
  policy.branch = has("branch");
  policy.system_prefix = has("system");
  return policy;
}

struct Flags {
  std::vector<std::string> listen = {"127.0.0.1:7000"};
  std::string listen_admin;
  std::string log_level = "info";
  int status_fd = -1;
  bool die_with_parent = false;
  std::vector<std::string> snapshot_policy = SnapshotReasons();
  EngineOptions engine;
};

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "host";
  return name;
}

std::string LimitsLine(const Flags& flags) {
  const EngineOptions& options = flags.engine;
  return absl::StrCat(
      "limits: tensor_parallel_size=", options.tensor_parallel_size, " max_model_len=",
      options.max_model_len == 0 ? std::string("min(131072, model)")
                                 : absl::StrCat(options.max_model_len),
      " max_num_seqs=", options.max_num_seqs,
      " max_num_batched_tokens=", options.max_num_batched_tokens,
      " prefill_chunk=", options.prefill_chunk,
      " prefix_caching=", options.prefix_caching ? "on" : "off",
      " snapshot_policy=", absl::StrJoin(flags.snapshot_policy, ","),
      " num_speculative_tokens=", options.num_speculative_tokens,
      " spec_dynamic=", options.spec_dynamic ? "on" : "off",
      " spec_sampling=", options.spec_sampling, " steps_in_flight=", options.steps_in_flight,
      " max_queued_requests=", options.max_queued_requests,
      " max_queued_tokens=", options.max_queued_tokens,
      " step_deadline_ms=", options.step_deadline_ms,
      " prefill_quantum_ms=", options.prefill_quantum_ms,
      " min_decode_share=", options.min_decode_share, " max_overtakes=", options.max_overtakes,
      " max_wait_s=", options.max_wait_s, " queue_timeout_s=", options.queue_timeout_s,
      " total_timeout_s=", options.total_timeout_s, " flight_dir=", options.flight_dir,
      " flight_mib=", options.flight_mib, " stream_buffer_bytes=", options.stream_buffer_bytes,
      " slow_client_timeout_ms=", options.slow_client_timeout_ms,
      " client_streams=", options.max_client_streams(), " workers=", options.max_workers,
      " epoch=", options.epoch);
}

int Fail(const StatusChannel& status, const std::string& message) {
  LogError(message);
  status.Error(message);
  return 1;
}

int Run(Flags flags) {
  const StatusChannel status(flags.status_fd);
  if (std::string error = OptionsError(flags.engine); !error.empty()) return Fail(status, error);

  // Grows with every start, so that no two lives of an engine share an epoch.
  flags.engine.epoch = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));

  std::unique_ptr<Metrics> metrics = MakeMetrics();
  // The segment's name needs the bound address, and the engine needs the name: the name is made
  // from the address as given, and from the process when the port is left to the system.
  std::string identity = absl::StrCat(HostName(), "-", flags.listen.front());
  if (absl::EndsWith(flags.listen.front(), ":0")) absl::StrAppend(&identity, "-", getpid());
  const std::string prefix = SegmentPrefix(identity);
  if (absl::Status prepared = PrepareSegmentFolder(flags.engine.segment_folder, prefix);
      !prepared.ok()) {
    return Fail(status, std::string(prepared.message()));
  }
  flags.engine.segment_name = absl::StrCat(prefix, flags.engine.epoch);

  std::atomic<bool> failed{false};
  Engine engine(flags.engine, metrics.get(), &status, [&failed](const std::string&) {
    failed = true;
    RequestShutdown();
  });
  const auto expose = [&metrics] { return metrics->Expose(); };
  auto server = StartServer(flags.listen, &engine, expose);
  if (!server.ok()) return Fail(status, std::string(server.status().message()));

  std::unique_ptr<AdminServer> admin;
  if (!flags.listen_admin.empty()) {
    auto started = StartAdminServer(
        flags.listen_admin,
        AdminHandlers{expose, [&engine] { return engine.Snapshot().not_ready_reason; }});
    if (!started.ok()) {
      return Fail(status, absl::StrCat("--listen-admin ", flags.listen_admin, ": ",
                                       started.status().message()));
    }
    admin = *std::move(started);
  }
  LogInfo(LimitsLine(flags));
  engine.Start();
  for (const std::string& address : (*server)->addresses()) {
    LogInfo(absl::StrCat("gateways and workers may dial ", address));
    status.Listening("grpc", address);
  }
  if (admin != nullptr) status.Listening("admin", admin->address());

  const int signal = WaitForShutdown([&engine] { engine.DumpFlight(); });
  if (signal != 0) LogInfo(absl::StrCat("signal ", signal, ": shutting down"));
  engine.Shutdown();
  (*server)->AwaitAnswered(kAnswerTime);
  (*server)->Shutdown(kShutdownGrace);
  return failed ? 1 : 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  EngineOptions& engine = flags.engine;
  CLI::App app("Quartet coordinator: requests, plans and results of one engine");
  const auto option = [&app](const char* name, auto& value, const char* help) {
    std::string variable = absl::StrCat("QUARTET_", name + 2);
    for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    return app.add_option(name, value, help)->envname(variable)->capture_default_str();
  };
  option("--listen", flags.listen,
         "host:port or unix:/path for gateways and workers; several with commas")
      ->delimiter(',');
  option("--listen-admin", flags.listen_admin, "host:port of /metrics, /livez, /readyz");
  option("--log-level", flags.log_level, "debug, info, warning or error");
  option("--status-fd", flags.status_fd, "file descriptor for progress events; -1 = none");
  app.add_flag("!--no-prefix-caching", engine.prefix_caching,
               "compute every prompt from its first token on")
      ->envname("QUARTET_NO_PREFIX_CACHING");
  option("--snapshot-policy", flags.snapshot_policy,
         "where the prefix cache takes snapshots, with commas: boundary (every 2,304 tokens), last "
         "(of a prompt), turn (its end), branch (where prompts part), system (a marked prefix)")
      ->delimiter(',')
      ->check(CLI::IsMember(SnapshotReasons()));
  option(
      "--num-speculative-tokens", engine.num_speculative_tokens,
      "drafts of a sequence in a step, 0 to 3, if the model has an MTP layer; 0 = no speculation");
  option("--spec-dynamic", engine.spec_dynamic, "fewer drafts where that is faster: true or false");
  option("--spec-sampling", engine.spec_sampling,
         "which drafts are accepted: rejection, or coupled (a seed's text is as without drafts)");
  option("--steps-in-flight", engine.steps_in_flight,
         "plans that workers hold at once: with 2 they need not wait for the next one")
      ->check(CLI::Range(1, 2));
  app.add_flag("--die-with-parent", flags.die_with_parent, "end when the parent process ends")
      ->envname("QUARTET_DIE_WITH_PARENT");
  option("--tensor-parallel-size", engine.tensor_parallel_size, "number of shard workers");
  option("--max-model-len", engine.max_model_len,
         "context in tokens; 0 = min(131072, what the model has)");
  option("--max-num-seqs", engine.max_num_seqs, "sequences that run at once");
  option("--max-num-batched-tokens", engine.max_num_batched_tokens, "tokens of one step");
  option("--prefill-chunk", engine.prefill_chunk,
         "most prompt tokens of one sequence in a step, a multiple of 64; 0 = the token budget");
  option("--prefill-quantum-ms", engine.prefill_quantum_ms,
         "how long a step may take that computes prompts while others decode; 0 = any time");
  option("--min-decode-share", engine.min_decode_share,
         "share of the time that belongs to steps without prompts while sequences decode");
  option("--max-overtakes", engine.max_overtakes,
         "how often shorter prompts of the same key may pass a prompt");
  option("--max-wait-s", engine.max_wait_s, "a prompt that waited so long is not passed any more");
  option("--queue-timeout-s", engine.queue_timeout_s,
         "how long a request may wait for its place; 0 = for ever");
  option("--total-timeout-s", engine.total_timeout_s,
         "how long a request may take as a whole; 0 = for ever");
  option("--max-queued-requests", engine.max_queued_requests, "requests that may wait");
  option("--max-queued-tokens", engine.max_queued_tokens, "prompt tokens that may wait");
  option("--segment-folder", engine.segment_folder,
         "folder of the ranks' shared memory; every local rank must see it");
  option("--step-deadline-ms", engine.step_deadline_ms, "a rank that needs longer is lost");
  option("--flight-dir", engine.flight_dir,
         "folder for recordings of what went into the scheduler, written when the engine fails and "
         "on SIGUSR1, for `quartet sim --replay`; they hold prompts and answers as token ids; "
         "empty = none");
  option("--flight-mib", engine.flight_mib, "memory for the recording; the oldest part goes first")
      ->check(CLI::Range(1u, 4096u));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  engine.snapshot_policy = ToPolicy(flags.snapshot_policy);
  if (flags.die_with_parent) DieWithParent();
  if (!InitLogging("coordinator", flags.log_level)) {
    return Fail(StatusChannel(flags.status_fd),
                absl::StrCat("--log-level is ", flags.log_level,
                             "; it must be debug, info, warning or error"));
  }
  BlockShutdownSignals();
  return Run(std::move(flags));
}

}  // namespace
}  // namespace quartet::coordinator

int main(int argc, char** argv) {
  return quartet::coordinator::Main(argc, argv);
}
