#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_ABORT_NOTE_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_ABORT_NOTE_H_

#include <cstdint>

namespace quartet::simulation {

// The core asserts what it believes, and a failed assertion ends the process. While one of these
// lives, such an end writes to standard error which run it was and how to see it. One at a time.
class AbortNote {
 public:
  AbortNote(uint64_t seed, uint64_t steps);
  ~AbortNote();
  AbortNote(const AbortNote&) = delete;
  AbortNote& operator=(const AbortNote&) = delete;

 private:
  void (*previous_)(int);
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_ABORT_NOTE_H_
