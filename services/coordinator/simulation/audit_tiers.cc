#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "services/coordinator/simulation/auditor.h"

// The books of the cache's tiers: which text lies at which place under which name, what each copy
// may read and write, and whether the ranks' memory agrees.

namespace quartet::simulation {

using coordinator::CacheTier;
using coordinator::CopyOutcome;
using coordinator::StepPlan;
using coordinator::TierLedger;

namespace {

constexpr uint64_t kRestoresMax = 4;  // of one prompt (core_cache.cc)

const char* Name(CacheTier tier) {
  switch (tier) {
    case CacheTier::kDevice:
      return "the device";
    case CacheTier::kHost:
      return "the host";
    case CacheTier::kDisk:
      return "the disk";
    case CacheTier::kAbsent:
      break;
  }
  return "no tier";
}

const char* Name(TierCopy::Kind kind) {
  return kind == TierCopy::Kind::kPage ? "page " : "snapshot ";
}

std::string Name(const TierCopy& copy) {
  return absl::StrCat("copy of ", Name(copy.kind), copy.from_place, " of ", Name(copy.from), " to ",
                      copy.to_place, " of ", Name(copy.to));
}

bool IsUp(const TierCopy& copy) {
  return copy.from > copy.to;
}

}  // namespace

const std::vector<Auditor::Content>* Auditor::ContentsOf(CacheTier tier,
                                                         TierCopy::Kind kind) const {
  const TierContent* content = nullptr;
  if (tier == CacheTier::kDevice) content = &device_;
  if (tier == CacheTier::kHost) content = &host_;
  if (tier == CacheTier::kDisk) content = &disk_;
  if (content == nullptr) return nullptr;
  return kind == TierCopy::Kind::kPage ? &content->pages : &content->snapshots;
}

void Auditor::OnAdopt(const std::vector<coordinator::CacheEntry>& entries) {
  tally_.adopted += entries.size();
  for (const coordinator::CacheEntry& entry : entries) {
    std::vector<Content>& contents = *ContentsOf(CacheTier::kDisk, entry.kind);
    const auto named = named_.find(entry.key);
    if (entry.place >= contents.size() || named == named_.end() ||
        named->second.tokens != entry.n_tokens) {
      return Violate(absl::StrCat("I15: the disks hold ", Name(entry.kind), entry.place, " of ",
                                  entry.n_tokens, " tokens, which nobody stored"));
    }
    contents[entry.place] = named->second;
    contents[entry.place].adopted = true;
  }
}

void Auditor::OnUnitKeys(uint64_t id, const std::vector<UnitKey>& keys) {
  const auto found = lives_.find(id);
  if (found == lives_.end()) return;
  Life& life = *found->second;
  life.names.insert(life.names.end(), keys.begin(), keys.end());
  // What was written before it had a name.
  for (std::vector<Content>* contents : {&device_.pages, &device_.snapshots}) {
    for (Content& content : *contents) {
      const size_t unit = content.tokens / config_.page_tokens;
      if (content.pending == id && unit <= life.names.size()) content.name = life.names[unit - 1];
    }
  }
}

void Auditor::OnCopies(const StepPlan& plan) {
  if (plan.copies.empty()) return CheckRestores(plan);
  if (copies_step_ != 0) return Violate("I10: copies are planned while others are in flight");
  copies_step_ = plan.step_id;
  copies_.clear();
  for (const TierCopy& copy : plan.copies) {
    if (copy.from == CacheTier::kDevice && copy.to == CacheTier::kDevice) {
      OnComparison(copy);
      continue;
    }
    if (const std::string error = CopyError(copy); !error.empty()) {
      return Violate(absl::StrCat(error, " (", Name(copy), ")"));
    }
    Content content = (*ContentsOf(copy.from, copy.kind))[copy.from_place];
    named_.try_emplace(copy.key, content);
    content.restored = content.restored || copy.to == CacheTier::kDevice;
    copies_.push_back({.copy = copy, .content = content});
  }
  for (const CopyInFlight& in_flight : copies_) {
    (*ContentsOf(in_flight.copy.to, in_flight.copy.kind))[in_flight.copy.to_place] = {};
  }
  CheckRestores(plan);
}

// They come behind all copies, and nothing moves.
void Auditor::OnComparison(const TierCopy& copy) {
  const std::vector<Content>& snapshots = device_.snapshots;
  const auto holds = [&](uint32_t place) {
    return place < snapshots.size() && snapshots[place].tokens == copy.n_tokens;
  };
  if (copy.kind != TierCopy::Kind::kSnapshot || !holds(copy.from_place) || !holds(copy.to_place) ||
      !snapshots[copy.from_place].IsText(snapshots[copy.to_place])) {
    Violate(absl::StrCat("I2: what is compared is of different texts (", Name(copy), ")"));
  }
  ++tally_.comparisons;
}

std::string Auditor::CopyError(const TierCopy& copy) const {
  const int distance = static_cast<int>(copy.from) - static_cast<int>(copy.to);
  const std::vector<Content>* from = ContentsOf(copy.from, copy.kind);
  const std::vector<Content>* to = ContentsOf(copy.to, copy.kind);
  if (from == nullptr || to == nullptr || (distance != 1 && distance != -1)) {
    return "I10: the tiers are no neighbours";
  }
  if (copy.from_place >= from->size() || copy.to_place >= to->size()) {
    return "I3: a place does not exist";
  }
  for (const auto& [other, content, worst] : copies_) {
    if (other.kind != copy.kind) continue;
    if (other.to == copy.to && other.to_place == copy.to_place) return "I3: it is written twice";
    if (other.to == copy.from && other.to_place == copy.from_place) {
      return "I3: it is read while a copy writes it";
    }
    if (other.from == copy.to && other.from_place == copy.to_place) {
      return "I3: it is written while a copy reads it";
    }
  }
  if (copy.to == CacheTier::kDevice) {
    const bool page = copy.kind == TierCopy::Kind::kPage;
    if (page && page_users_[copy.to_place] != 0) return "I3: a sequence has the page";
    if (!page && std::ranges::find(resumed_from_, copy.to_place) != resumed_from_.end()) {
      return "I3: a sequence begins with the snapshot";
    }
  }
  const Content& content = (*from)[copy.from_place];
  if (content.tokens == 0 || content.tokens != copy.n_tokens || content.name != copy.key) {
    return absl::StrCat("I2: it has the name of other ", copy.n_tokens, " tokens than lie there");
  }
  if (content.pending != 0) return "I7: it is of an answer that may still be cut";
  const auto named = named_.find(copy.key);
  if (named != named_.end() && !named->second.IsText(content)) {
    return "I2: it has the name of another text";
  }
  return copy.to == CacheTier::kDisk ? OriginError(copy, content) : "";
}

// What the disk is told about a unit leads to it and to no other.
std::string Auditor::OriginError(const TierCopy& copy, const Content& content) const {
  const coordinator::UnitOrigin& origin = copy.origin;
  uint64_t state = HashModel::kEmptyState;
  if (content.tokens > config_.page_tokens) {
    const auto parent = named_.find(origin.parent);
    if (parent == named_.end() || parent->second.tokens + config_.page_tokens != content.tokens) {
      return "I15: its origin has another parent";
    }
    state = parent->second.state;
  }
  for (const int32_t token : origin.tokens) state = HashModel::Absorb(state, token);
  if (origin.root != content.domain || state != content.state) {
    return "I15: its origin is another text's";
  }
  return "";
}

bool Auditor::IsCopied(TierCopy::Kind kind, uint32_t device_place) const {
  return copies_step_ != 0 && std::ranges::any_of(copies_, [&](const CopyInFlight& in_flight) {
           const TierCopy& copy = in_flight.copy;
           return copy.kind == kind &&
                  ((copy.from == CacheTier::kDevice && copy.from_place == device_place) ||
                   (copy.to == CacheTier::kDevice && copy.to_place == device_place));
         });
}

// Who waits for a prefix to come back does so for a few tries, each through two tiers at most.
void Auditor::CheckRestores(const StepPlan& plan) {
  if (!plan.rows.empty() || std::ranges::none_of(plan.copies, IsUp)) {
    restore_only_steps_ = 0;
    return;
  }
  const uint64_t path = config_.max_model_len / config_.page_tokens + 1;
  // One whose request has left comes to its end.
  if (++restore_only_steps_ > (lives_.size() + 1) * kRestoresMax * 2 * path) {
    Violate(absl::StrCat("I9: ", lives_.size(), " requests wait, and ", restore_only_steps_,
                         " steps did nothing but copy for them"));
  }
}

void Auditor::ApplyCopies() {
  copies_step_ = 0;
  bool path_ends = false;  // of the one that comes up
  for (CopyInFlight& in_flight : copies_) {
    const TierCopy& copy = in_flight.copy;
    const bool done = in_flight.worst == CopyOutcome::kDone;
    const bool checksum = in_flight.worst == CopyOutcome::kChecksum;
    ++tally_.copies_to[static_cast<int>(copy.to)];
    tally_.copies_missing += !done && !checksum;
    tally_.copies_checksum += checksum;
    if (done) (*ContentsOf(copy.to, copy.kind))[copy.to_place] = in_flight.content;
    if (!IsUp(copy) || path_ends) continue;
    path_ends = !done;
    TierLedger& books = copy.from == CacheTier::kHost ? books_.host_tier : books_.disk_tier;
    const bool page = copy.kind == TierCopy::Kind::kPage;
    (page ? books.pages_restored : books.snapshots_restored) += done;
    (page ? books.pages_checksum_failed : books.snapshots_checksum_failed) += checksum;
  }
}

// What has just come to the device.
void Auditor::CheckArrived(const std::vector<SimWorker>& workers) {
  for (const CopyInFlight& in_flight : copies_) {
    if (in_flight.copy.to != CacheTier::kDevice) continue;
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      CheckDevice(workers[rank], rank, in_flight.copy.kind, in_flight.copy.to_place);
    }
  }
  copies_.clear();
}

void Auditor::CheckDevice(const SimWorker& worker, size_t rank, TierCopy::Kind kind,
                          uint32_t place) {
  const Content& content = (*ContentsOf(CacheTier::kDevice, kind))[place];
  if (content.tokens == 0) return;
  const bool holds = kind == TierCopy::Kind::kPage
                         ? worker.PageEntries(place) == content.entries
                         : worker.SnapshotState(place) == std::pair(content.state, content.tokens);
  if (holds) return;
  Violate(absl::StrCat("I15: rank ", rank, " holds something else in ", Name(kind), place,
                       " than the text of ", content.tokens, " tokens whose name it has"));
}

void Auditor::CheckTiers(const std::vector<SimWorker>& workers) {
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    for (uint32_t page = 0; page < config_.pages; ++page) {
      CheckDevice(workers[rank], rank, TierCopy::Kind::kPage, page);
    }
    for (uint32_t snapshot = 0; snapshot < config_.snapshots; ++snapshot) {
      CheckDevice(workers[rank], rank, TierCopy::Kind::kSnapshot, snapshot);
    }
    CheckLower(workers[rank].host(), rank, "in host memory");
    CheckLower(workers[rank].disk().records(), rank, "on its disk");
  }
}

// Whatever has a name and a good checksum would be given back, so it must be what the name says.
void Auditor::CheckLower(const SimTier& held, size_t rank, const char* tier) {
  for (const TierCopy::Kind kind : {TierCopy::Kind::kPage, TierCopy::Kind::kSnapshot}) {
    for (const StoredObject& object : held.Of(kind)) {
      if (object.n_tokens == 0 || !object.intact()) continue;
      const auto named = named_.find(object.key);
      if (named != named_.end() && named->second.tokens == object.n_tokens &&
          object.data ==
              (kind == TierCopy::Kind::kPage ? named->second.entries : named->second.state)) {
        continue;
      }
      return Violate(absl::StrCat("I15: rank ", rank, " has a ", Name(kind), tier,
                                  " that is not what its name says"));
    }
  }
}

void Auditor::CheckTierLedger(const char* tier, const TierLedger& says, const TierLedger& books,
                              const TierContent& content) {
  const auto check = [&](const char* name, uint64_t value, uint64_t least, uint64_t most) {
    if (least <= value && value <= most) return;
    Violate(absl::StrCat("I14: the ledger says ", value, " ", tier, " ", name, ", the books ",
                         least, least == most ? "" : absl::StrCat(" to ", most)));
  };
  const auto filled = [](const std::vector<Content>& contents) {
    return static_cast<uint64_t>(
        std::ranges::count_if(contents, [](const Content& c) { return c.tokens > 0; }));
  };
  check("pages", says.pages, 0, filled(content.pages));
  check("snapshots", says.snapshots, 0, filled(content.snapshots));
  check("page places", says.pages_size, content.pages.size(), content.pages.size());
  check("snapshot places", says.snapshots_size, content.snapshots.size(), content.snapshots.size());
  check("pages restored", says.pages_restored, books.pages_restored, books.pages_restored);
  check("snapshots restored", says.snapshots_restored, 0, books.snapshots_restored);
  check("damaged pages", says.pages_checksum_failed, books.pages_checksum_failed,
        books.pages_checksum_failed);
  check("damaged snapshots", says.snapshots_checksum_failed, books.snapshots_checksum_failed,
        books.snapshots_checksum_failed);
}

}  // namespace quartet::simulation
