#ifndef QUARTET_SERVICES_COORDINATOR_RPC_CONSTRAINTS_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_CONSTRAINTS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/quartet/v1/engine.pb.h"
#include "services/coordinator/core/types.h"
#include "services/grammar/constraint.h"

namespace quartet::coordinator {

// Holds constrained requests to their grammars: follows what they are told, and says for each row
// that samples what may be drawn. A constraint stays with its request while that waits, runs or has
// lost its place. Belongs to the engine's thread, but for what comes before a request is the
// engine's: the vocabulary and the making of a constraint.
class Constraints {
 public:
  // The bytes of a grammar::Vocabulary of `vocab_size` tokens; its digest. InvalidArgument if they
  // are something else, FailedPrecondition if another one was put before. Thread safe.
  absl::StatusOr<std::string> PutVocabulary(std::string_view bytes, uint32_t vocab_size);
  // Empty if there is none yet. Thread safe.
  std::string vocabulary_digest() const;

  // For a submit with a grammar. FailedPrecondition without a vocabulary, InvalidArgument if the
  // grammar is none or the request could go on after its answer has ended. Works out the first mask
  // and what makes the later ones quick: the first grammars of a process take tens of milliseconds.
  // Thread safe.
  absl::StatusOr<grammar::Constraint> Create(const v1::Submit& submit) const;
  void Add(uint64_t request, grammar::Constraint constraint);
  void Forget(uint64_t request) { open_.erase(request); }

  // The next tokens of the answer. FailedPrecondition if the grammar does not allow them. Nothing
  // happens if the request has no constraint.
  absl::Status Advance(uint64_t request, std::span<const int32_t> tokens);
  // Takes note of the drafts that the workers hold.
  void OnResult(const StepOutcome& outcome);
  // Gives masks to the rows that need them, and the plan its new hash. False if no row does. All
  // that was drawn before has gone through Advance.
  bool FillMasks(StepPlan& plan);

 private:
  struct Open {
    grammar::Constraint constraint;
    uint64_t seq_uid = 0;         // of its newest row with masks
    std::vector<int32_t> drafts;  // behind what that row drew
  };

  // What follows from the vocabulary. The maker outlives all constraints.
  struct Model {
    explicit Model(grammar::Vocabulary parsed);

    std::string digest;
    std::vector<int32_t> end_ids;  // sorted
    std::string end_mask;          // allows nothing but the end
    grammar::MaskMaker maker;
  };

  std::shared_ptr<Model> model() const;
  void Fill(const Model& model, Open& open, PlanRow& row) const;

  mutable std::mutex mutex_;      // guards the next
  std::shared_ptr<Model> model_;  // put once

  absl::flat_hash_map<uint64_t, Open> open_;      // by request
  absl::flat_hash_map<uint64_t, uint64_t> sent_;  // seq_uid of an unanswered row -> request
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_CONSTRAINTS_H_
