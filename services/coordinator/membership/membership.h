#ifndef QUARTET_SERVICES_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_
#define QUARTET_SERVICES_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "services/coordinator/membership/pool_plan.h"

namespace quartet::coordinator {

// What a worker says when it dials in.
struct WorkerFacts {
  std::string device_uuid;
  std::string build;
  std::string host;
  int32_t previous_rank = -1;
  std::string checkpoint_digest;
  std::string model_name;
  uint32_t vocab_size = 0;
  uint32_t num_layers = 0;
  uint32_t max_position_embeddings = 0;
  uint32_t hidden_size = 0;
  uint32_t num_mtp_layers = 0;  // 0 = it makes no drafts
  uint32_t schema_version = 0;
  std::vector<MemoryOffer> offers;
};

// Who has which rank, when membership is static: the size of the group is fixed, workers come by
// themselves, the lowest free rank is given. The pools are planned once all ranks are taken. A rank
// that is lost before it was ready goes to a spare or to whoever dials in next; one that is lost
// later ends the engine. Pure: no socket, no clock. Not thread safe.
class Membership {
 public:
  struct Config {
    uint32_t tensor_parallel_size = 1;
    PoolLimits limits;  // max_position_embeddings is taken from the workers
  };

  // What has to be told to whom, in order.
  struct Action {
    enum class Kind {
      kWelcome,  // `worker` gets `rank`; pools() is known
      kSpare,    // `worker` waits
      kRefuse,   // `worker` does not fit: `message`; it is forgotten
      kFatal,    // the engine cannot run: `message`
      kReady,    // all ranks are ready; once
    };
    Kind kind;
    uint64_t worker = 0;
    uint32_t rank = 0;
    std::string message;
  };

  explicit Membership(Config config) : config_(config), ranks_(config.tensor_parallel_size) {}

  // `worker` is a number that the caller gave the connection.
  std::vector<Action> OnHello(uint64_t worker, WorkerFacts facts);
  std::vector<Action> OnReady(uint64_t worker);
  // The connection is gone. `why` goes into the message if that ends the engine.
  std::vector<Action> OnGone(uint64_t worker, const std::string& why);

  std::optional<uint32_t> RankOf(uint64_t worker) const;
  // The worker that has this rank, if any.
  std::optional<uint64_t> WorkerOf(uint32_t rank) const;
  uint32_t ranks_taken() const;
  uint32_t ranks_ready() const;
  bool ready() const { return ready_; }
  const std::optional<PoolPlan>& pools() const { return pools_; }
  // Facts of the checkpoint that the engine serves; nothing before the first worker.
  const WorkerFacts* model() const { return model_.has_value() ? &*model_ : nullptr; }
  // For people: "rank 2 (cpu-host-123)".
  std::string Name(uint64_t worker) const;

 private:
  struct Rank {
    std::optional<uint64_t> worker;
    bool welcomed = false;
    bool ready = false;
  };

  std::string MismatchWithEngine(const WorkerFacts& facts) const;
  std::optional<uint32_t> FreeRank(int32_t previous) const;
  const MemoryOffer* OfferOf(const WorkerFacts& facts) const;
  void Place(uint64_t worker, std::vector<Action>& actions);
  void WelcomeWhenComplete(std::vector<Action>& actions);

  const Config config_;
  std::vector<Rank> ranks_;
  std::map<uint64_t, WorkerFacts> workers_;  // ranked ones and spares
  std::vector<uint64_t> spares_;             // in order of arrival
  std::optional<WorkerFacts> model_;
  std::optional<PoolPlan> pools_;
  bool ready_ = false;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_
