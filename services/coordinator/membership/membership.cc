#include "services/coordinator/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quartet::coordinator {
namespace {

constexpr uint32_t kSchemaVersion = 1;

std::string PossibleSizes(const WorkerFacts& facts) {
  std::vector<uint32_t> sizes;
  for (const MemoryOffer& offer : facts.offers) sizes.push_back(offer.tensor_parallel_size);
  std::sort(sizes.begin(), sizes.end());
  return sizes.empty() ? "none" : absl::StrJoin(sizes, ", ");
}

}  // namespace

const MemoryOffer* Membership::OfferOf(const WorkerFacts& facts) const {
  for (const MemoryOffer& offer : facts.offers) {
    if (offer.tensor_parallel_size == config_.tensor_parallel_size) return &offer;
  }
  return nullptr;
}

std::string Membership::MismatchWithEngine(const WorkerFacts& facts) const {
  if (facts.schema_version != kSchemaVersion) {
    return absl::StrCat("the worker speaks version ", facts.schema_version,
                        " of the worker protocol, the coordinator version ", kSchemaVersion);
  }
  if (!model_.has_value()) return "";
  if (facts.checkpoint_digest != model_->checkpoint_digest) {
    return absl::StrCat("the worker has another checkpoint (digest ", facts.checkpoint_digest,
                        ") than the engine (digest ", model_->checkpoint_digest,
                        "); all ranks must read the same files");
  }
  if (facts.vocab_size != model_->vocab_size ||
      facts.max_position_embeddings != model_->max_position_embeddings) {
    return "the worker reads other model facts from the same checkpoint than the first rank did; "
           "all ranks must run the same build";
  }
  return "";
}

std::optional<uint32_t> Membership::FreeRank(int32_t previous) const {
  if (previous >= 0 && static_cast<size_t>(previous) < ranks_.size() &&
      !ranks_[previous].worker.has_value()) {
    return static_cast<uint32_t>(previous);
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].worker.has_value()) return rank;
  }
  return std::nullopt;
}

std::vector<Membership::Action> Membership::OnHello(uint64_t worker, WorkerFacts facts) {
  std::vector<Action> actions;
  if (workers_.contains(worker)) {
    actions.push_back({Action::Kind::kRefuse, worker, 0, "a second hello on the same stream"});
    return actions;
  }
  if (std::string mismatch = MismatchWithEngine(facts); !mismatch.empty()) {
    actions.push_back({Action::Kind::kRefuse, worker, 0, std::move(mismatch)});
    return actions;
  }
  // What the coordinator was asked to do does not go with this checkpoint: no other worker with the
  // same one could help, so the engine ends unless it runs already.
  std::string impossible;
  if (OfferOf(facts) == nullptr) {
    impossible = absl::StrCat("tensor-parallel size ", config_.tensor_parallel_size,
                              " is not possible for this model; possible: ", PossibleSizes(facts));
  }
  PoolLimits limits = config_.limits;
  limits.max_position_embeddings = facts.max_position_embeddings;
  if (impossible.empty()) {
    absl::StatusOr<uint32_t> length = ResolveMaxModelLen(limits);
    if (!length.ok()) impossible = std::string(length.status().message());
  }
  if (!impossible.empty()) {
    actions.push_back({Action::Kind::kRefuse, worker, 0, impossible});
    if (workers_.empty()) actions.push_back({Action::Kind::kFatal, 0, 0, impossible});
    return actions;
  }
  if (!model_.has_value()) model_ = facts;
  workers_.emplace(worker, std::move(facts));
  Place(worker, actions);
  WelcomeWhenComplete(actions);
  return actions;
}

void Membership::Place(uint64_t worker, std::vector<Action>& actions) {
  const WorkerFacts& facts = workers_.at(worker);
  const std::optional<uint32_t> rank = FreeRank(facts.previous_rank);
  if (!rank.has_value()) {
    spares_.push_back(worker);
    actions.push_back({Action::Kind::kSpare, worker, 0, ""});
    return;
  }
  if (pools_.has_value()) {
    PoolLimits limits = config_.limits;
    limits.max_position_embeddings = facts.max_position_embeddings;
    if (absl::Status fits = FitsPools(*OfferOf(facts), *pools_, limits); !fits.ok()) {
      actions.push_back({Action::Kind::kRefuse, worker, 0, std::string(fits.message())});
      workers_.erase(worker);
      return;
    }
  }
  ranks_[*rank].worker = worker;
}

void Membership::WelcomeWhenComplete(std::vector<Action>& actions) {
  std::vector<MemoryOffer> offers;
  for (const Rank& rank : ranks_) {
    if (!rank.worker.has_value()) {
      if (!pools_.has_value()) return;
      continue;
    }
    offers.push_back(*OfferOf(workers_.at(*rank.worker)));
  }
  if (!pools_.has_value()) {
    PoolLimits limits = config_.limits;
    limits.max_position_embeddings = model_->max_position_embeddings;
    absl::StatusOr<PoolPlan> plan = PlanPools(offers, limits);
    if (!plan.ok()) {
      const std::string message(plan.status().message());
      for (Rank& rank : ranks_) {
        actions.push_back({Action::Kind::kRefuse, *rank.worker, 0, message});
        workers_.erase(*rank.worker);
        rank = Rank{};
      }
      actions.push_back({Action::Kind::kFatal, 0, 0, message});
      return;
    }
    pools_ = *plan;
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].worker.has_value() || ranks_[rank].welcomed) continue;
    ranks_[rank].welcomed = true;
    actions.push_back({Action::Kind::kWelcome, *ranks_[rank].worker, rank, ""});
  }
}

std::vector<Membership::Action> Membership::OnReady(uint64_t worker) {
  std::vector<Action> actions;
  const std::optional<uint32_t> rank = RankOf(worker);
  if (!rank.has_value() || !ranks_[*rank].welcomed) {
    actions.push_back({Action::Kind::kRefuse, worker, 0, "ready without a welcome"});
    return actions;
  }
  ranks_[*rank].ready = true;
  if (!ready_ && ranks_ready() == ranks_.size()) {
    ready_ = true;
    actions.push_back({Action::Kind::kReady, 0, 0, ""});
  }
  return actions;
}

std::vector<Membership::Action> Membership::OnGone(uint64_t worker, const std::string& why) {
  std::vector<Action> actions;
  if (!workers_.contains(worker)) return actions;
  const std::string name = Name(worker);
  const std::optional<uint32_t> rank = RankOf(worker);
  workers_.erase(worker);
  spares_.erase(std::remove(spares_.begin(), spares_.end(), worker), spares_.end());
  if (!rank.has_value()) return actions;

  const bool was_ready = ranks_[*rank].ready;
  ranks_[*rank] = Rank{};
  if (was_ready) {
    // The others hold a communicator with it; a new group needs a new epoch.
    actions.push_back({Action::Kind::kFatal, 0, 0, absl::StrCat(name, " is lost: ", why)});
    return actions;
  }
  if (workers_.empty()) {
    // Nobody is left to agree with: the next worker may bring another checkpoint.
    model_.reset();
    pools_.reset();
    return actions;
  }
  while (!spares_.empty() && !ranks_[*rank].worker.has_value()) {
    const uint64_t spare = spares_.front();
    spares_.erase(spares_.begin());
    Place(spare, actions);
  }
  WelcomeWhenComplete(actions);
  return actions;
}

std::optional<uint32_t> Membership::RankOf(uint64_t worker) const {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].worker == worker) return rank;
  }
  return std::nullopt;
}

std::optional<uint64_t> Membership::WorkerOf(uint32_t rank) const {
  return rank < ranks_.size() ? ranks_[rank].worker : std::nullopt;
}

uint32_t Membership::ranks_taken() const {
  return static_cast<uint32_t>(std::count_if(
      ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.worker.has_value(); }));
}

uint32_t Membership::ranks_ready() const {
  return static_cast<uint32_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ready; }));
}

std::string Membership::Name(uint64_t worker) const {
  auto facts = workers_.find(worker);
  const std::string device = facts == workers_.end() ? "unknown" : facts->second.device_uuid;
  const std::optional<uint32_t> rank = RankOf(worker);
  return rank.has_value() ? absl::StrCat("rank ", *rank, " (", device, ")")
                          : absl::StrCat("a spare worker (", device, ")");
}

}  // namespace quartet::coordinator
