#include "services/coordinator/core/free_pool.h"

#include <cassert>

namespace quartet::coordinator {

FreePool::FreePool(uint32_t size) : taken_(size, false) {
  free_.reserve(size);
  for (uint32_t place = size; place > 0; --place) free_.push_back(place - 1);
}

std::optional<uint32_t> FreePool::Take() {
  if (free_.empty()) return std::nullopt;
  const uint32_t place = free_.back();
  free_.pop_back();
  assert(!taken_[place]);
  taken_[place] = true;
  return place;
}

void FreePool::TakePlaces(std::span<const uint32_t> places) {
  for (const uint32_t place : places) {
    assert(place < taken_.size() && !taken_[place]);
    taken_[place] = true;
  }
  std::erase_if(free_, [this](uint32_t place) { return taken_[place]; });
}

void FreePool::Return(uint32_t place) {
  assert(place < taken_.size() && taken_[place]);
  taken_[place] = false;
  free_.push_back(place);
}

}  // namespace quartet::coordinator
