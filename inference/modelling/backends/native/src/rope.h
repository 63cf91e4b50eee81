// Rows of heads between a projection and attention: norm, rotation, the cache's rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "simd.h"

namespace blazr {

// The cosines and sines of a step, (T, 1, D) float32 each; the sine of the first of a pair is negative.
struct Rotation {
  const float *cos = nullptr, *sin = nullptr;
  int64_t width = 0;  // D; 0: no rotation
  bool interleaved = false;
};

Rotation rotation_of(
    const std::optional<at::Tensor>& cos, const std::optional<at::Tensor>& sin, bool interleaved, int64_t rows,
    int64_t head_width);

// RMSNorm of a head or of all heads of a row together.
struct RowNorm {
  std::vector<float> weight;  // empty: weightless
  float eps = 0, offset = 0;
  enum { kNone, kPerHead, kOverAll } over = kNone;
};

RowNorm row_norm_of(const std::optional<at::Tensor>& weight, int64_t over, double eps, double offset, int64_t width);

// One head, float32, in place: the first `rotation.width` values are turned by row `row`. Both buffers have room for
// 16 values more than the head's width.
void rotate_head(float* head, float* scratch, const Rotation& rotation, int64_t row);

void check_slots(const at::Tensor& slots, int64_t rows);

}  // namespace blazr
