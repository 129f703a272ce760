#ifndef QUARTET_KERNELS_CUDA_STEP_PARAMS_H_
#define QUARTET_KERNELS_CUDA_STEP_PARAMS_H_

#include <cstdint>

// What the rows of a step mean, as kernels see it: ops::Segment in device memory. Kernels read
// every position, slot and page from here and never from launch parameters, so that a captured
// graph can be replayed for the next step.

namespace quartet::cuda {

struct StepSegment {
  int32_t row_begin;
  int32_t rows;
  int32_t slot;
  int32_t position;    // of the first row
  int32_t page_begin;  // the segment's page table begins at StepView::pages + page_begin
  int32_t page_count;
  int32_t window;  // the rows may be taken back
  int32_t commit;  // rows of earlier windows that are to stay
  int32_t more;    // the next segment goes on with the sequence
};

struct StepView {
  const int32_t* ids;           // [rows]: tokens
  const int32_t* positions;     // [rows]: inside their sequences
  const int32_t* row_segments;  // [rows]: which segment a row belongs to
  const StepSegment* segments;  // [segments]
  const int32_t* pages;         // all page tables, one after the other
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_STEP_PARAMS_H_
