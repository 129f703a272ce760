#ifndef QUARTET_KERNELS_OPS_EMBEDDING_H_
#define QUARTET_KERNELS_OPS_EMBEDDING_H_

#include <cstdint>

#include "kernels/ops/batch.h"
#include "kernels/ops/weights.h"

namespace quartet::ops {

// A rank holds the rows [vocab_begin, vocab_begin + table.rows) of the vocabulary.
struct EmbeddingWeights {
  DenseMatrix table;  // [vocab / tp, hidden]
  int64_t vocab_begin = 0;
};

// x[r] = table[ids[r]] where this rank holds the id, else zeros: the sum over ranks is the
// embedding, exactly.
class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual void Run(const int32_t* ids /*[rows]*/, int rows, float* x /*[rows, hidden]*/) const = 0;
};

// The head's slice of the vocabulary: logits = h W^T, FP32, no scale.
struct HeadWeights {
  LinearWeights weight;  // [vocab / tp, hidden]
};

class Head {
 public:
  virtual ~Head() = default;
  virtual int64_t vocab_local() const = 0;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* h /*[rows, hidden]*/, int rows,
                   float* logits /*[rows, vocab / tp]*/, Workspace workspace) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_EMBEDDING_H_
