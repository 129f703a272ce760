#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_format.h"
#include "services/cli/commands.h"
#include "services/cli/terminal.h"
#include "services/coordinator/rpc/flight_log.h"
#include "services/coordinator/simulation/abort_note.h"
#include "services/coordinator/simulation/replay.h"
#include "services/coordinator/simulation/report.h"
#include "services/coordinator/simulation/scenario.h"
#include "services/coordinator/simulation/simulation.h"

namespace quartet::cli {
namespace {

struct SimFlags {
  uint64_t seed = 1;
  uint64_t runs = 1;
  uint64_t steps = 400;
  simulation::Tiers tiers = simulation::Tiers::kAsDrawn;
  bool trace = false;
  std::string replay;
};

int RunReplay(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    std::cerr << "quartet: cannot read --replay " << path << "\n";
    return 1;
  }
  const absl::StatusOr<coordinator::FlightLog> log = coordinator::DecodeFlightLog(bytes);
  if (!log.ok()) {
    std::cerr << "quartet: --replay " << path << ": " << log.status().message() << "\n";
    return 1;
  }
  std::cout << absl::StrFormat("%-10s %s\n%-10s %d\n", "written", Printable(log->header.reason),
                               "epoch", log->header.config.epoch);
  const absl::StatusOr<simulation::ReplayResult> result = simulation::Replay(*log);
  if (!result.ok()) {
    std::cerr << "quartet: --replay " << path << ": " << result.status().message() << "\n";
    return 1;
  }
  const coordinator::Ledger& ledger = result->ledger;
  std::cout << absl::StrFormat("%-10s %d, of which %d plans\n", "events", result->events,
                               result->plans)
            << absl::StrFormat(
                   "%-10s %d, running %d, waiting %d, finished %d, cancelled %d, "
                   "failed %d\n",
                   "requests", ledger.accepted, ledger.running, ledger.waiting, ledger.finished,
                   ledger.cancelled, ledger.failed)
            << std::flush;
  if (!result->difference.empty()) {
    std::cerr << "quartet: the plans differ at " << result->difference << "\n";
    return 1;
  }
  std::cout << "All plans are the same.\n";
  return 0;
}

int RunSim(const SimFlags& flags) {
  if (!flags.replay.empty()) return RunReplay(flags.replay);
  simulation::Trace::Listener listener;
  if (flags.trace) {
    listener = [](const simulation::TraceEvent& event) {
      std::cout << simulation::Format(event) << "\n";
    };
  }
  simulation::Totals totals;
  uint64_t digest = 0;
  for (uint64_t seed = flags.seed; seed - flags.seed < flags.runs; ++seed) {
    const simulation::AbortNote note(seed, flags.steps);
    simulation::Scenario scenario = simulation::RandomScenario(seed, flags.tiers);
    if (flags.trace || flags.runs == 1) {
      std::cout << "seed " << seed << ": " << simulation::Describe(scenario) << "\n";
    }
    simulation::Simulation simulation(std::move(scenario), listener);
    const simulation::Result result = simulation.Run(flags.steps);
    digest = simulation::Mix(digest ^ result.digest);
    if (!result.ok()) {
      std::cout << std::flush;
      std::cerr << simulation::DescribeFailure(seed, result);
      return 1;
    }
    totals.Add(result);
  }
  std::cout << simulation::Summary(totals) << absl::StrFormat("%-10s %016x\n", "digest", digest);
  return 0;
}

}  // namespace

void AddSimCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<SimFlags>();
  CLI::App* sim = app.add_subcommand(
      "sim",
      "Run the scheduler in a simulated cluster, in virtual time and with faults; exit code 1 if "
      "an invariant does not hold");
  sim->add_option("--seed", flags->seed, "The run; the same seed is the same run")
      ->capture_default_str();
  sim->add_option("--runs", flags->runs, "So many seeds, from --seed on")
      ->check(CLI::Range(uint64_t{1}, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  sim->add_option("--steps", flags->steps, "Steps of each run before its clients stop coming")
      ->check(CLI::Range(uint64_t{1}, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  const std::map<std::string, simulation::Tiers> tiers = {{"drawn", simulation::Tiers::kAsDrawn},
                                                          {"device", simulation::Tiers::kDevice},
                                                          {"host", simulation::Tiers::kHost},
                                                          {"disk", simulation::Tiers::kDisk}};
  sim->add_option("--tiers", flags->tiers,
                  "The lowest tier of the prefix cache, where there is a cache: device, host or "
                  "disk; drawn: as the seed has it")
      ->transform(CLI::CheckedTransformer(tiers))
      ->default_str("drawn");
  sim->add_option("--replay", flags->replay,
                  "Give a recording (--flight-dir) to the scheduler again instead, and see that it "
                  "plans the same");
  sim->add_flag("--trace", flags->trace, "Print what happens, a line each");
  sim->callback([flags, chosen] { *chosen = [flags] { return RunSim(*flags); }; });
}

}  // namespace quartet::cli
