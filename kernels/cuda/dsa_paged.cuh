#ifndef QUARTET_KERNELS_CUDA_DSA_PAGED_CUH_
#define QUARTET_KERNELS_CUDA_DSA_PAGED_CUH_

#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/dsa_params.h"

// Rows of a step and of the paged caches, as the DSA kernels address them.

namespace quartet::cuda {

struct RowPlace {
  StepSegment segment;
  int t;         // row inside the segment
  int position;  // inside the sequence
};
QUARTET_DEVICE RowPlace PlaceOfRow(const StepView& step, int row) {
  RowPlace place;
  place.segment = step.segments[step.row_segments[row]];
  place.t = row - place.segment.row_begin;
  place.position = place.segment.position + place.t;
  return place;
}

// `pages` is the sequence's table.
QUARTET_DEVICE unsigned char* PagedRow(const PagedRows& rows, const int32_t* pages, int index) {
  const int page = index / rows.page_rows;
  const int inside = index - page * rows.page_rows;
  return rows.data + pages[page] * rows.page_stride +
         static_cast<int64_t>(inside) * rows.width * StoredBytes(rows.form);
}

QUARTET_DEVICE void StoreElement(Stored form, unsigned char* row, int c, float v,
                                 SaturationCounters* saturation) {
  if (form == Stored::kF32) {
    reinterpret_cast<float*>(row)[c] = v;
  } else if (form == Stored::kF16) {
    reinterpret_cast<__half*>(row)[c] = ToHalf(v, saturation);
  } else {
    row[c] = ToE4m3(v, saturation);
  }
}

// Two values as FP16, saturated. Not counted where `saturation` is null: for blocks that round what
// another block rounds as well.
QUARTET_DEVICE uint32_t RoundPair(float low, float high, SaturationCounters* saturation) {
  if (saturation != nullptr) return ToHalf2(low, high, saturation);
  const auto clamp = [](float v) { return fabsf(v) > 65504.0f ? copysignf(65504.0f, v) : v; };
  return PackHalf2(clamp(low), clamp(high));
}
QUARTET_DEVICE uint4 RoundEight(const float4& a, const float4& b, SaturationCounters* saturation) {
  return make_uint4(RoundPair(a.x, a.y, saturation), RoundPair(a.z, a.w, saturation),
                    RoundPair(b.x, b.y, saturation), RoundPair(b.z, b.w, saturation));
}
QUARTET_DEVICE uint4 RoundEight(const float* from, SaturationCounters* saturation) {
  return RoundEight(reinterpret_cast<const float4*>(from)[0],
                    reinterpret_cast<const float4*>(from)[1], saturation);
}

QUARTET_DEVICE float LoadElement(Stored form, const unsigned char* row, int c) {
  if (form == Stored::kF32) return reinterpret_cast<const float*>(row)[c];
  if (form == Stored::kF16) return HalfToFloat(reinterpret_cast<const uint16_t*>(row)[c]);
  return E4m3ToFloat(row[c]);
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DSA_PAGED_CUH_
