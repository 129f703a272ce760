// How much a gateway adds to a token's way, and what it needs for it, with very many streams open
// at once. The engine and the clients are this process, so that one clock tells both ends; the
// gateway is the real program. Some clients stop reading, which must not be felt by the others.
// Exit codes: 0 all bounds were kept, 1 one was not or the run failed, 2 for flags.

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/gateway/text/model_text.h"
#include "tests/load/gateway_process.h"
#include "tests/load/paced_engine.h"
#include "tests/load/stream_clients.h"
#include "tests/load/token_feed.h"

namespace quartet::load {
namespace {

using Seconds = std::chrono::duration<double>;

// What the gateway promises a reader whom it has paused, before it cuts him off.
constexpr Seconds kSlowReaderTimeout{30};
constexpr Seconds kTimerSlack{1};
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr absl::Duration kLook = absl::Milliseconds(20);
// What the gateway is started with. It serves a thousand connections, so it has to raise this.
constexpr rlim_t kGatewayOpenFiles = 256;
constexpr rlim_t kOtherOpenFiles = 64;

struct Flags {
  std::string gateway;
  std::string model;
  std::string log_file;
  uint32_t streams = 1000;
  uint32_t slow_streams = 50;
  double tokens_per_second = 2000;
  double seconds = 60;
  uint32_t step_ms = 10;
  uint32_t slow_tokens = 400;
  double slow_tokens_per_second = 20;
  double latency_ms_max = 20;
  double memory_mb_max = 300;
};

absl::Status SetOpenFiles(rlim_t soft) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (soft > limit.rlim_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the run needs ", soft, " open files and the limit is ", limit.rlim_max,
                     " (ulimit -Hn); raise it or ask for fewer --streams"));
  }
  limit.rlim_cur = soft;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError("setrlimit failed");
  return absl::OkStatus();
}

// Says tokens as an engine does: a step now and then, and in each step a token of some streams.
class Pacer {
 public:
  Pacer(const Flags& flags, PacedEngine* engine)
      : flags_(flags), engine_(engine), begin_(Clock::now()), thread_([this] { Run(); }) {}
  ~Pacer() {
    stopping_ = true;
    thread_.join();
  }
  Clock::time_point begin() const { return begin_; }

 private:
  // A group of streams that share a rate; they have their turns one after the other.
  struct Group {
    uint32_t first = 0;
    uint32_t size = 0;
    double per_second = 0;
    double told = 0;
    uint32_t next = 0;
  };

  void Run() {
    Group slow{.first = 0,
               .size = flags_.slow_streams,
               .per_second = flags_.slow_tokens_per_second * flags_.slow_streams};
    Group others{.first = flags_.slow_streams,
                 .size = flags_.streams - flags_.slow_streams,
                 .per_second = flags_.tokens_per_second};
    for (uint64_t step = 1; !stopping_; ++step) {
      std::this_thread::sleep_until(begin_ + step * std::chrono::milliseconds(flags_.step_ms));
      const double now_s = Seconds(Clock::now() - begin_).count();
      Tell(&slow, now_s);
      Tell(&others, now_s);
    }
  }

  // A turn of a stream that is paused or over is lost, as in an engine.
  void Tell(Group* group, double now_s) {
    for (; group->told + 1 <= group->per_second * now_s; ++group->told) {
      engine_->Say(group->first + group->next++ % group->size);
    }
  }

  const Flags flags_;
  PacedEngine* const engine_;
  const Clock::time_point begin_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

struct Measured {
  ProcessUsage ready;
  ProcessUsage open;
  ProcessUsage fed;
  ProcessUsage end;
  double gateway_wait_ms = 0;  // for a processor, in the mean, while it is fed
  double own_wait_ms = 0;
  double seconds = 0;  // first token said to last token read, of those that are not slow
  uint64_t tokens_in_measure = 0;    // all that were said meanwhile
  std::vector<double> latencies_ms;  // sorted
  uint32_t slow_paused = 0;
  uint32_t slow_whole = 0;
  uint32_t slow_cut = 0;
  std::vector<std::string> faults;
};

double MeanWaitMs(const CoreWaits& before, const CoreWaits& after) {
  if (after.turns <= before.turns) return 0;
  return 1000 * (after.seconds - before.seconds) / static_cast<double>(after.turns - before.turns);
}

// How busy the machine is, this run and everything else together.
double LoadAverage() {
  double average = 0;
  return getloadavg(&average, 1) == 1 ? average : 0;
}

double Percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

void CheckStreams(const Flags& flags, const TokenFeed& feed, const PacedEngine& engine,
                  const StreamClients& clients, Measured* measured) {
  for (size_t stream = 0; stream < feed.streams(); ++stream) {
    const StreamReport& report = clients.reports()[stream];
    const SeenStream seen = engine.seen(stream);
    const bool slow = stream < flags.slow_streams;
    const auto fault = [&](const std::string& what) {
      measured->faults.push_back(
          absl::StrCat("stream ", stream, slow ? " (slow)" : "", ": ", what));
    };
    if (!seen.fault.empty()) fault(seen.fault);
    if (!report.fault.empty()) {
      fault(report.fault);
    } else if (report.whole) {
      measured->slow_whole += slow ? 1 : 0;
    } else if (slow && seen.cancelled_at) {
      ++measured->slow_cut;
      if (seen.paused_for_at_cancel < kSlowReaderTimeout - kTimerSlack) {
        fault(absl::StrFormat("cut off %.1f s after its pause; %.0f s are its right",
                              Seconds(seen.paused_for_at_cancel).count(),
                              kSlowReaderTimeout.count()));
      }
    } else {
      fault(absl::StrCat("ended behind ", report.tokens, " of ", feed.tokens(stream), " tokens: ",
                         report.error.empty() ? "the connection was closed" : report.error));
    }
    if (slow && seen.pauses > 0) ++measured->slow_paused;
  }
}

// The parts of a run that last.
class Run {
 public:
  explicit Run(const Flags& flags) : flags_(flags) {}

  absl::StatusOr<Measured> Do() {
    if (absl::Status status = Start(); !status.ok()) return status;
    const auto open = [this] {
      return clients_->opened() == feed_->streams() && engine_->submitted() == feed_->streams();
    };
    if (absl::Status status = Await("all streams to open", kPatience, open); !status.ok()) {
      return status;
    }
    Measured measured{.ready = ready_};
    if (absl::Status status = Note(&measured.open); !status.ok()) return status;

    const CoreWaits gateway_waits = gateway_->Waits();
    const CoreWaits own_waits = WaitsForCores("self");
    const Pacer pacer(flags_, engine_.get());
    absl::Status status =
        Await("all streams that are not slow to end", absl::Seconds(flags_.seconds) + kPatience,
              [this] { return clients_->open_others() == 0; });
    if (!status.ok()) return status;
    if (status = Note(&measured.fed); !status.ok()) return status;
    measured.gateway_wait_ms = MeanWaitMs(gateway_waits, gateway_->Waits());
    measured.own_wait_ms = MeanWaitMs(own_waits, WaitsForCores("self"));
    measured.seconds = Seconds(clients_->last_token_at() - pacer.begin()).count();
    for (size_t stream = 0; stream < feed_->streams(); ++stream) {
      measured.tokens_in_measure += engine_->seen(stream).said;
    }

    clients_->ReadOn();
    status = Await("the slow streams to end", absl::Seconds(2 * flags_.seconds) + kPatience,
                   [this] { return clients_->open_slow() == 0; });
    if (!status.ok()) return status;
    if (status = Note(&measured.end); !status.ok()) return status;
    measured.latencies_ms = clients_->latencies_ms();
    std::sort(measured.latencies_ms.begin(), measured.latencies_ms.end());
    CheckStreams(flags_, *feed_, *engine_, *clients_, &measured);
    if (status = gateway_->Stop(kPatience); !status.ok()) return status;
    return measured;
  }

 private:
  absl::Status Start() {
    auto model = text::LoadModelText(flags_.model);
    if (!model.ok()) return model.status();
    std::vector<Word> words = PlainWords(*(*model)->tokenizer);
    if (words.size() < 16) {
      return absl::FailedPreconditionError(absl::StrCat("--model ", flags_.model, " has ",
                                                        words.size(),
                                                        " tokens that are a space "
                                                        "and small letters; the texts need 16"));
    }
    const uint32_t others = flags_.streams - flags_.slow_streams;
    std::vector<uint32_t> tokens(
        flags_.streams,
        static_cast<uint32_t>(std::ceil(flags_.tokens_per_second * flags_.seconds / others)));
    std::fill_n(tokens.begin(), flags_.slow_streams, flags_.slow_tokens);
    feed_ = std::make_unique<TokenFeed>(std::move(words), tokens);
    auto engine = PacedEngine::Start(feed_.get());
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);

    if (absl::Status status = SetOpenFiles(kGatewayOpenFiles); !status.ok()) return status;
    auto gateway = GatewayProcess::Start({.program = flags_.gateway,
                                          .model_dir = flags_.model,
                                          .coordinator = engine_->address(),
                                          .log_file = flags_.log_file},
                                         kPatience);
    if (!gateway.ok()) return gateway.status();
    gateway_ = *std::move(gateway);
    if (absl::Status status = SetOpenFiles(flags_.streams + kOtherOpenFiles); !status.ok()) {
      return status;
    }
    if (absl::Status status = Note(&ready_); !status.ok()) return status;
    clients_ =
        StreamClients::Start({.address = gateway_->http_address(),
                              .model = std::filesystem::path(flags_.model).filename().string(),
                              .slow_streams = flags_.slow_streams},
                             feed_.get());
    return absl::OkStatus();
  }

  template <typename Condition>
  absl::Status Await(const std::string& what, absl::Duration patience, const Condition& holds) {
    const Clock::time_point deadline = Clock::now() + absl::ToChronoNanoseconds(patience);
    while (!holds()) {
      gateway_->ReadLog(kLook);
      if (!gateway_->running()) return gateway_->Stop(absl::ZeroDuration());
      if (Clock::now() > deadline) {
        return absl::DeadlineExceededError(absl::StrFormat(
            "waited %s for %s: %u of %u are open at the client, %u submitted to the engine, %u and "
            "%u slow ones not ended",
            absl::FormatDuration(patience), what, clients_->opened(), feed_->streams(),
            engine_->submitted(), clients_->open_others(), clients_->open_slow()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Note(ProcessUsage* usage) {
    auto now = gateway_->Usage();
    if (!now.ok()) return now.status();
    *usage = *now;
    return absl::OkStatus();
  }

  const Flags flags_;
  std::unique_ptr<TokenFeed> feed_;
  std::unique_ptr<PacedEngine> engine_;
  std::unique_ptr<GatewayProcess> gateway_;
  std::unique_ptr<StreamClients> clients_;
  ProcessUsage ready_;
};

void Print(const Flags& flags, double load_before, const Measured& measured) {
  const auto row = [](const std::string& name, const std::string& value) {
    std::printf("%-46s %s\n", name.c_str(), value.c_str());
  };
  const std::vector<double>& ms = measured.latencies_ms;
  const double cpu_s = measured.fed.cpu_s - measured.open.cpu_s;
  row("machine: processors, load before and after",
      absl::StrFormat("%u  %.1f  %.1f", std::thread::hardware_concurrency(), load_before,
                      LoadAverage()));
  row("streams",
      absl::StrFormat("%u, of which %u read nothing", flags.streams, flags.slow_streams));
  row("tokens a second, readers: asked, read",
      absl::StrFormat("%.0f  %.0f", flags.tokens_per_second,
                      static_cast<double>(ms.size()) / measured.seconds));
  row("tokens of readers, seconds that they took",
      absl::StrFormat("%u  %.1f", ms.size(), measured.seconds));
  row("ms from said to read: p50 p90 p99 p99.9 max",
      absl::StrFormat("%.2f  %.2f  %.2f  %.2f  %.2f", Percentile(ms, 0.5), Percentile(ms, 0.9),
                      Percentile(ms, 0.99), Percentile(ms, 0.999), ms.empty() ? 0 : ms.back()));
  row("ms waited for a core, a turn: gateway, clients",
      absl::StrFormat("%.2f  %.2f", measured.gateway_wait_ms, measured.own_wait_ms));
  row("gateway MB: ready, all open, all fed, peak",
      absl::StrFormat("%.1f  %.1f  %.1f  %.1f", measured.ready.resident_mb,
                      measured.open.resident_mb, measured.fed.resident_mb,
                      measured.end.resident_peak_mb));
  row("gateway CPU: seconds, s per 1,000 tokens",
      absl::StrFormat("%.2f  %.3f", cpu_s,
                      1000 * cpu_s / static_cast<double>(measured.tokens_in_measure)));
  row("slow readers: paused, whole at last, cut off",
      absl::StrFormat("%u  %u  %u", measured.slow_paused, measured.slow_whole, measured.slow_cut));
}

// What was promised and not kept.
std::vector<std::string> Judge(const Flags& flags, const Measured& measured) {
  std::vector<std::string> faults = measured.faults;
  const double p99 = Percentile(measured.latencies_ms, 0.99);
  if (p99 > flags.latency_ms_max) {
    faults.push_back(
        absl::StrFormat("p99 is %.2f ms, over --latency-ms-max %.2f", p99, flags.latency_ms_max));
  }
  if (measured.end.resident_peak_mb > flags.memory_mb_max) {
    faults.push_back(absl::StrFormat("the gateway's memory was %.1f MB, over --memory-mb-max %.1f",
                                     measured.end.resident_peak_mb, flags.memory_mb_max));
  }
  if (measured.slow_paused < flags.slow_streams) {
    faults.push_back(absl::StrFormat(
        "only %u of %u slow readers were paused: either the gateway lets them pile up, or they "
        "were sent too little for a pause (--slow-tokens, --slow-tokens-per-second)",
        measured.slow_paused, flags.slow_streams));
  }
  return faults;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Many streams on one gateway");
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str();
  };
  option("--gateway", flags.gateway, "the program")->required()->check(CLI::ExistingFile);
  option("--model", flags.model, "folder whose tokenizer and template are used")
      ->required()
      ->check(CLI::ExistingDirectory);
  option("--gateway-log", flags.log_file, "file for the gateway's log; empty = none");
  option("--streams", flags.streams, "open at once, slow ones included")
      ->check(CLI::Range(2u, 1000u));
  option("--slow-streams", flags.slow_streams, "that read nothing until the others have ended");
  option("--tokens-per-second", flags.tokens_per_second, "of all streams that are not slow")
      ->check(CLI::Range(1.0, 1e6));
  option("--seconds", flags.seconds, "to feed them")->check(CLI::Range(1.0, 3600.0));
  option("--step-ms", flags.step_ms, "between the engine's steps, in which tokens come together")
      ->check(CLI::Range(1u, 1000u));
  option("--slow-tokens", flags.slow_tokens, "of each slow stream")->check(CLI::PositiveNumber);
  option("--slow-tokens-per-second", flags.slow_tokens_per_second, "of each slow stream");
  option("--latency-ms-max", flags.latency_ms_max, "p99 may be, at most");
  option("--memory-mb-max", flags.memory_mb_max, "the gateway's resident memory may be, at most");
  CLI11_PARSE(app, argc, argv);
  if (flags.slow_streams >= flags.streams) {
    std::fprintf(stderr, "--slow-streams is %u; it must be less than --streams, which is %u\n",
                 flags.slow_streams, flags.streams);
    return 2;
  }

  const double load_before = LoadAverage();
  const absl::StatusOr<Measured> measured = Run(flags).Do();
  if (!measured.ok()) {
    std::fprintf(stderr, "quartet-sse-load: %s\n", measured.status().ToString().c_str());
    return 1;
  }
  Print(flags, load_before, *measured);
  const std::vector<std::string> faults = Judge(flags, *measured);
  constexpr size_t kFaultsShown = 20;
  for (size_t i = 0; i < std::min(faults.size(), kFaultsShown); ++i) {
    std::printf("FAULT: %s\n", faults[i].c_str());
  }
  if (faults.size() > kFaultsShown) std::printf("... %zu faults in all\n", faults.size());
  return faults.empty() ? 0 : 1;
}

}  // namespace
}  // namespace quartet::load

int main(int argc, char** argv) {
  return quartet::load::Main(argc, argv);
}
