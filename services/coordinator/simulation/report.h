#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_REPORT_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_REPORT_H_

#include <cstdint>
#include <string>

#include "services/coordinator/simulation/simulation.h"

namespace quartet::simulation {

// The sum of many runs.
struct Totals {
  uint64_t runs = 0;
  TimeUs time_us = 0;  // virtual
  Tally tally;
  uint64_t faults[kFaultKinds] = {};
  uint64_t tier_faults[kTierFaultKinds] = {};

  void Add(const Result& result);
};

// A table for people.
std::string Summary(const Totals& totals);

// What broke, on which step of which seed, below the end of the trace.
std::string DescribeFailure(uint64_t seed, const Result& result);

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_REPORT_H_
