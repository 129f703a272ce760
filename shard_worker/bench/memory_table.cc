#include "shard_worker/bench/memory_table.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace quartet::bench {
namespace {

double Mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

void PrintRow(const char* item, int64_t planned, int64_t allocated) {
  std::printf("%-24s %12.1f %12.1f %+10.1f", item, Mib(planned), Mib(allocated),
              Mib(allocated - planned));
  if (planned > 0) {
    std::printf(" %+8.2f %%", 100 * (static_cast<double>(allocated) / planned - 1));
  }
  std::printf("\n");
}

}  // namespace

int64_t UsedDeviceBytes() {
  const std::unique_ptr<FILE, decltype(&pclose)> pipe(
      popen("nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits", "r"),
      &pclose);
  long long mib = 0;
  if (pipe == nullptr || std::fscanf(pipe.get(), "%lld", &mib) != 1) {
    std::fprintf(stderr, "nvidia-smi does not tell the memory in use on GPU 0\n");
    std::exit(1);
  }
  return static_cast<int64_t>(mib) << 20;
}

MemoryTable::Item& MemoryTable::Find(const std::string& name) {
  for (Item& item : items_) {
    if (item.name == name) return item;
  }
  return items_.emplace_back(Item{.name = name});
}

void MemoryTable::Measure(const std::string& item) {
  const int64_t used = UsedDeviceBytes();
  Find(item).allocated += used - last_;
  last_ = used;
}

bool MemoryTable::Print(double share) const {
  std::printf("%-24s %12s %12s %10s\n", "MiB", "planned", "allocated", "more");
  Item total;
  for (const Item& item : items_) {
    PrintRow(item.name.c_str(), item.planned, item.allocated);
    total.planned += item.planned;
    total.allocated += item.allocated;
  }
  PrintRow("total", total.planned, total.allocated);
  const double off = static_cast<double>(total.allocated - total.planned);
  return std::fabs(off) <= share * static_cast<double>(total.planned);
}

}  // namespace quartet::bench
