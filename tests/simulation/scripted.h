#ifndef QUARTET_TESTS_SIMULATION_SCRIPTED_H_
#define QUARTET_TESTS_SIMULATION_SCRIPTED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "services/coordinator/simulation/simulation.h"

namespace quartet::simulation {

// A run whose clients a test has written down, with everything that happened in it.
struct ScriptedRun {
  Result result;
  std::vector<TraceEvent> events;
  std::vector<std::unique_ptr<ClientRecord>> clients;  // in order of arrival

  // Where the sequence number of the client with this seed comes first; 0 if it was never opened.
  uint64_t SeqOf(uint64_t seed) const;
  // Events of one kind, in order.
  std::vector<TraceEvent> Of(TraceEvent::Kind kind) const;
};

ScriptedRun RunScript(Scenario scenario, uint64_t max_steps = 10000);

// Two ranks, four slots, a budget of 128 tokens and room for everybody.
Scenario SmallEngine();

// The same with a prefix cache of units of 64 tokens, blocks of four of them, and three drafts.
void AddCacheAndDrafts(Scenario& scenario);

// A client that comes `gap_us` after the one before it and waits for its whole answer.
ClientScript Patient(uint64_t seed, uint32_t prompt_tokens, uint32_t max_tokens, TimeUs gap_us = 0);

// Conversations that begin alike and go on, with drafts and a prefix cache of small units; one
// answer is cut by its client.
Scenario CachedConversations();

// The same on a device that holds a few of them, above host memory and a disk that hold all.
Scenario TieredConversations();

// What the request of a client says alone.
std::vector<int32_t> AloneText(const HashModel& model, const ClientScript& client, uint32_t n);

}  // namespace quartet::simulation

#endif  // QUARTET_TESTS_SIMULATION_SCRIPTED_H_
