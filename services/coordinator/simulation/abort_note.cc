#include "services/coordinator/simulation/abort_note.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

namespace quartet::simulation {
namespace {

// Written before, since a signal handler may not format. A handler can reach nothing else.
char note[160];

void WriteNote(int) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, note, std::strlen(note));
}

}  // namespace

AbortNote::AbortNote(uint64_t seed, uint64_t steps) {
  std::snprintf(note, sizeof(note),
                "An assertion failed in seed %llu; see: quartet sim --seed %llu --steps %llu "
                "--trace\n",
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(steps));
  previous_ = std::signal(SIGABRT, WriteNote);
}

AbortNote::~AbortNote() {
  std::signal(SIGABRT, previous_);
}

}  // namespace quartet::simulation
