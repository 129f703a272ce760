#include <cstddef>
#include <cstdint>
#include <string_view>

#include "services/coordinator/rpc/flight_log.h"

// Whatever a file holds, it is read or refused.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)quartet::coordinator::DecodeFlightLog(
      std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
