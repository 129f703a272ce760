#include "services/coordinator/rpc/engine_workers.h"

#include <utility>

namespace quartet::coordinator {

void EngineWorkers::Add(std::shared_ptr<WorkerStream> stream) {
  const uint64_t worker = stream->id();
  attached_[worker].stream = std::move(stream);
}

bool EngineWorkers::Remove(uint64_t worker) {
  return attached_.erase(worker) > 0;
}

void EngineWorkers::Send(uint64_t worker, v1::ToWorker message) {
  if (auto found = attached_.find(worker); found != attached_.end()) {
    found->second.stream->Send(std::move(message));
  }
}

bool EngineWorkers::End(uint64_t worker, const absl::Status& status) {
  const auto found = attached_.find(worker);
  if (found == attached_.end()) return false;
  found->second.stream->End(status);
  return true;
}

bool EngineWorkers::EndAfter(uint64_t worker, v1::ToWorker last, const absl::Status& status) {
  const auto found = attached_.find(worker);
  if (found == attached_.end()) return false;
  found->second.stream->EndAfter(std::move(last), status);
  return true;
}

void EngineWorkers::AbortAll(uint64_t epoch, const std::string& reason) {
  v1::ToWorker abort;
  abort.mutable_abort()->set_epoch(epoch);
  abort.mutable_abort()->set_reason(reason);
  for (auto& [worker, attached] : attached_) {
    attached.stream->EndAfter(abort, absl::UnavailableError(reason));
  }
  attached_.clear();
}

EngineWorkers::Load EngineWorkers::OnProgress(uint64_t worker, const v1::LoadProgress& progress) {
  if (auto found = attached_.find(worker); found != attached_.end()) {
    found->second.load = {progress.done_bytes(), progress.total_bytes()};
  }
  Load sum;
  for (const auto& [id, attached] : attached_) {
    sum.done_bytes += attached.load.done_bytes;
    sum.total_bytes += attached.load.total_bytes;
  }
  return sum;
}

}  // namespace quartet::coordinator
