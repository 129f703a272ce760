#include "tests/simulation/scripted.h"

#include <algorithm>
#include <utility>

namespace quartet::simulation {

uint64_t ScriptedRun::SeqOf(uint64_t seed) const {
  const auto open = std::find_if(events.begin(), events.end(), [seed](const TraceEvent& e) {
    return e.kind == TraceEvent::Kind::kOpen && e.c == seed;
  });
  return open == events.end() ? 0 : open->a;
}

std::vector<TraceEvent> ScriptedRun::Of(TraceEvent::Kind kind) const {
  std::vector<TraceEvent> found;
  std::copy_if(events.begin(), events.end(), std::back_inserter(found),
               [kind](const TraceEvent& e) { return e.kind == kind; });
  return found;
}

ScriptedRun RunScript(Scenario scenario, uint64_t max_steps) {
  ScriptedRun run;
  Simulation simulation(std::move(scenario),
                        [&run](const TraceEvent& event) { run.events.push_back(event); });
  simulation.KeepRecords();
  run.result = simulation.Run(max_steps);
  run.clients = simulation.TakeRecords();
  return run;
}

Scenario SmallEngine() {
  Scenario scenario;
  scenario.ranks = 2;
  scenario.config.vocab_size = 1000;
  scenario.config.max_model_len = 4096;
  scenario.config.slots = 4;
  scenario.config.pages = 64;
  scenario.config.max_num_batched_tokens = 128;
  return scenario;
}

ClientScript Patient(uint64_t seed, uint32_t prompt_tokens, uint32_t max_tokens, TimeUs gap_us) {
  ClientScript client;
  client.gap_us = gap_us;
  client.request = MakeRequest(seed, prompt_tokens, max_tokens, 1000);
  return client;
}

std::vector<int32_t> AloneText(const HashModel& model, const ClientScript& client, uint32_t n) {
  LoneRun alone(model, client.request.prompt_ids, client.request.sampling,
                client.request.first_padding_id);
  std::vector<int32_t> text;
  for (uint32_t i = 0; i < n; ++i) text.push_back(alone.Token(alone.prompt_tokens() + i));
  return text;
}

}  // namespace quartet::simulation
