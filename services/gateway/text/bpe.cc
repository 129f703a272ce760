#include "services/gateway/text/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace quartet::text {
namespace {

// Up to here looking at all pairs for each merge is faster than keeping them in a heap.
constexpr size_t kShortBytesMax = 64;

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

size_t BytesKey(uint8_t left, uint8_t right) {
  return (static_cast<size_t>(left) << 8) | right;
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
  int32_t merged;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

constexpr int32_t kNone = -1;
constexpr int32_t kMergedAway = -1;

}  // namespace

BpeMerges::BpeMerges(const std::array<int32_t, 256>& byte_ids)
    : byte_ids_(byte_ids), byte_merges_(256 * 256) {
  for (int byte = 0; byte < 256; ++byte) bytes_[byte_ids_[byte]] = static_cast<uint8_t>(byte);
}

void BpeMerges::Add(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  merges_[PairKey(left, right)] = Merge{rank, merged};
  const auto left_byte = bytes_.find(left);
  const auto right_byte = bytes_.find(right);
  if (left_byte != bytes_.end() && right_byte != bytes_.end()) {
    byte_merges_[BytesKey(left_byte->second, right_byte->second)] = Merge{rank, merged};
  }
}

BpeMerges::Merge BpeMerges::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? Merge{} : found->second;
}

const BpeMerges::Merge& BpeMerges::FindBytes(char left, char right) const {
  return byte_merges_[BytesKey(static_cast<uint8_t>(left), static_cast<uint8_t>(right))];
}

void BpeMerges::Encode(std::string_view bytes, std::vector<int32_t>* out) const {
  if (bytes.empty()) return;
  if (bytes.size() <= kShortBytesMax) {
    EncodeShort(bytes, out);
  } else {
    EncodeLong(bytes, out);
  }
}

void BpeMerges::EncodeShort(std::string_view bytes, std::vector<int32_t>* out) const {
  size_t count = bytes.size();
  std::array<int32_t, kShortBytesMax> ids;
  // Of each token with the next one; ranks by themselves, because all are looked at each time.
  std::array<int32_t, kShortBytesMax> ranks;
  std::array<int32_t, kShortBytesMax> merged;
  for (size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<uint8_t>(bytes[i])];
  const auto set_pair = [&](size_t i, const Merge& merge) {
    ranks[i] = merge.rank;
    merged[i] = merge.merged;
  };
  for (size_t i = 0; i + 1 < count; ++i) set_pair(i, FindBytes(bytes[i], bytes[i + 1]));

  while (count > 1) {
    const auto pairs_end = ranks.begin() + (count - 1);
    const auto best = std::min_element(ranks.begin(), pairs_end);
    if (*best == kNoRank) break;
    const size_t at = static_cast<size_t>(best - ranks.begin());
    ids[at] = merged[at];
    std::copy(ids.begin() + at + 2, ids.begin() + count, ids.begin() + at + 1);
    std::copy(best + 1, pairs_end, best);
    std::copy(merged.begin() + at + 1, merged.begin() + count - 1, merged.begin() + at);
    --count;
    if (at > 0) set_pair(at - 1, Find(ids[at - 1], ids[at]));
    if (at + 1 < count) set_pair(at, Find(ids[at], ids[at + 1]));
  }
  out->insert(out->end(), ids.begin(), ids.begin() + count);
}

void BpeMerges::EncodeLong(std::string_view bytes, std::vector<int32_t>* out) const {
  const int32_t count = static_cast<int32_t>(bytes.size());
  std::vector<Node> nodes(bytes.size());
  for (int32_t i = 0; i < count; ++i) {
    nodes[i] = {byte_ids_[static_cast<uint8_t>(bytes[i])], i - 1, i + 1 < count ? i + 1 : kNone};
  }

  std::vector<Candidate> candidates;
  candidates.reserve(bytes.size());
  const auto candidate = [&](int32_t left, const Merge& merge) {
    return Candidate{merge.rank, left, nodes[left].id, nodes[nodes[left].next].id, merge.merged};
  };
  for (int32_t i = 0; i + 1 < count; ++i) {
    const Merge& merge = FindBytes(bytes[i], bytes[i + 1]);
    if (merge.rank != kNoRank) candidates.push_back(candidate(i, merge));
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> queue(
      std::greater<Candidate>(), std::move(candidates));
  const auto offer = [&](int32_t left) {
    if (left == kNone || nodes[left].next == kNone) return;
    const Merge merge = Find(nodes[left].id, nodes[nodes[left].next].id);
    if (merge.rank != kNoRank) queue.push(candidate(left, merge));
  };

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& left = nodes[best.left];
    // Entries go stale when one of their tokens has merged with another neighbour since.
    if (left.id != best.left_id || left.next == kNone || nodes[left.next].id != best.right_id) {
      continue;
    }
    Node& right = nodes[left.next];
    left.id = best.merged;
    left.next = right.next;
    if (right.next != kNone) nodes[right.next].previous = best.left;
    right.id = kMergedAway;
    offer(left.previous);
    offer(best.left);
  }
  for (int32_t i = 0; i != kNone; i = nodes[i].next) out->push_back(nodes[i].id);
}

}  // namespace quartet::text
