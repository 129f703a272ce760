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

void AddCacheAndDrafts(Scenario& scenario) {
  coordinator::CoreConfig& config = scenario.config;
  config.page_tokens = 64;
  config.pages *= 4;
  config.snapshots = 64;
  config.page_bytes = 1;
  config.snapshot_bytes = 10;
  config.snapshot_policy.unit_tokens = 64;
  config.snapshot_policy.block_tokens = 256;
  config.num_speculative_tokens = 3;
}

ClientScript Patient(uint64_t seed, uint32_t prompt_tokens, uint32_t max_tokens, TimeUs gap_us) {
  ClientScript client;
  client.gap_us = gap_us;
  client.request = MakeRequest(seed, prompt_tokens, max_tokens, 1000);
  return client;
}

Scenario CachedConversations() {
  Scenario scenario = SmallEngine();
  AddCacheAndDrafts(scenario);
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    clients.push_back(Patient(seed, 300, 90, seed * 20000));
    const coordinator::Request shared = MakeRequest(99, 200, 1, 1000);
    std::copy(shared.prompt_ids.begin(), shared.prompt_ids.end(),
              clients.back().request.prompt_ids.begin());
    clients.back().request.stop_ids = {7, 77, 777};
    clients.back().domain = 0;
    clients.back().turns = 10;
    clients.back().turn_tokens = 40;
  }
  clients[1].truncate_token = 50;
  clients[1].truncate_to = 30;
  clients[1].truncate_after_us = 1000;
  scenario.next_client = Clients(std::move(clients));
  return scenario;
}

Scenario TieredConversations() {
  Scenario scenario = CachedConversations();
  coordinator::CoreConfig& config = scenario.config;
  config.max_model_len = 2048;
  config.pages = 48;
  config.snapshots = 12;
  config.host_pages = 400;
  config.host_snapshots = 100;
  config.disk_pages = 400;
  config.disk_snapshots = 100;
  config.copy_bytes_per_step = 40;
  return scenario;
}

std::vector<int32_t> AloneText(const HashModel& model, const ClientScript& client, uint32_t n) {
  LoneRun alone(model, client.request.prompt_ids, client.request.sampling,
                client.request.first_padding_id);
  std::vector<int32_t> text;
  for (uint32_t i = 0; i < n; ++i) text.push_back(alone.Token(alone.prompt_tokens() + i));
  return text;
}

}  // namespace quartet::simulation
