#ifndef QUARTET_SHARD_WORKER_BENCH_MEMORY_TABLE_H_
#define QUARTET_SHARD_WORKER_BENCH_MEMORY_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace quartet::bench {

// Bytes in use on the first GPU, by all processes, as nvidia-smi sees them: it also knows what the
// driver takes before there is a context. In MiB steps. Ends the program where there is no
// nvidia-smi.
int64_t UsedDeviceBytes();

// Planned and really allocated bytes, item by item.
class MemoryTable {
 public:
  MemoryTable() : last_(UsedDeviceBytes()) {}

  // Whatever the device has lost since the last call belongs to this item. Items may come again.
  void Measure(const std::string& item);
  void Plan(const std::string& item, int64_t bytes) { Find(item).planned += bytes; }

  // Prints the table. Whether the total is as planned, within `share` of the plan.
  bool Print(double share) const;

 private:
  struct Item {
    std::string name;
    int64_t planned = 0;
    int64_t allocated = 0;
  };
  Item& Find(const std::string& name);

  int64_t last_ = 0;
  std::vector<Item> items_;
};

}  // namespace quartet::bench

#endif  // QUARTET_SHARD_WORKER_BENCH_MEMORY_TABLE_H_
