#include "services/gateway/text/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace quartet::text {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// A token in a doubly linked list over the array that holds them.
struct Node {
  int32_t id;
  int32_t previous;
  int32_t next;
};

struct Candidate {
  int32_t rank;
  int32_t left;  // index of the left node
  int32_t left_id;
  int32_t right_id;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

constexpr int32_t kNone = -1;
constexpr int32_t kMergedAway = -1;

}  // namespace

void BpeMerges::Add(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  merges_[PairKey(left, right)] = Merge{rank, merged};
}

const BpeMerges::Merge* BpeMerges::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeMerges::Encode(std::string_view bytes, std::vector<int32_t>* out) const {
  const int32_t count = static_cast<int32_t>(bytes.size());
  if (count == 0) return;
  std::vector<Node> nodes(bytes.size());
  for (int32_t i = 0; i < count; ++i) {
    nodes[i] = {byte_ids[static_cast<unsigned char>(bytes[i])], i - 1,
                i + 1 < count ? i + 1 : kNone};
  }

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> queue;
  const auto offer = [&](int32_t left) {
    if (left == kNone || nodes[left].next == kNone) return;
    const int32_t right_id = nodes[nodes[left].next].id;
    if (const Merge* merge = Find(nodes[left].id, right_id)) {
      queue.push({merge->rank, left, nodes[left].id, right_id});
    }
  };
  for (int32_t i = 0; i < count; ++i) offer(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& left = nodes[best.left];
    // Entries go stale when one of their tokens has merged with another neighbour since.
    if (left.id != best.left_id || left.next == kNone || nodes[left.next].id != best.right_id) {
      continue;
    }
    const Merge* merge = Find(best.left_id, best.right_id);
    Node& right = nodes[left.next];
    left.id = merge->merged;
    left.next = right.next;
    if (right.next != kNone) nodes[right.next].previous = best.left;
    right.id = kMergedAway;
    offer(left.previous);
    offer(best.left);
  }
  for (int32_t i = 0; i != kNone; i = nodes[i].next) out->push_back(nodes[i].id);
}

}  // namespace quartet::text
