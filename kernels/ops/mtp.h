#ifndef QUARTET_KERNELS_OPS_MTP_H_
#define QUARTET_KERNELS_OPS_MTP_H_

#include <cstdint>

#include "kernels/ops/batch.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/weights.h"

namespace quartet::ops {

// The entry of the draft layer: x = [RMSNorm(emb(next); enorm), RMSNorm(h; hnorm)] eh_proj^T, the
// embedding half first. The embedding counts as zero where position == 0.
struct MtpEntryWeights {
  NormWeights enorm, hnorm;  // [hidden]
  LinearWeights eh_proj;     // [hidden, 2 hidden], replicated
};

class MtpEntry {
 public:
  virtual ~MtpEntry() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* embedding /*[rows, hidden], of the next tokens*/,
                   const float* h /*[rows, hidden]*/, const int32_t* positions /*[rows]*/, int rows,
                   float* x /*[rows, hidden]*/, Workspace workspace) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_MTP_H_
