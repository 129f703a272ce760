#include "kernels/cuda/nccl.h"

// Takes the place of nccl.cc where the build has found no nccl.h.

namespace quartet::cuda {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError("this program was built without NCCL");
}

}  // namespace

absl::StatusOr<NcclId> MakeNcclId() {
  return Absent();
}

absl::StatusOr<std::string> NcclVersion() {
  return Absent();
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Join(Device&, const NcclId&,
                                                                         int, int, absl::Duration) {
  return Absent();
}

}  // namespace quartet::cuda
