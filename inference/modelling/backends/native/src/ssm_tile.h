// A tile of a float32 matrix product that stays in registers: kRows rows, kVectors vectors of columns.
#pragma once

#include <type_traits>

#include "simd.h"

namespace blazr {

constexpr int kTileRows = 6;

template <int kRows, int kVectors>
struct Tile {
  vf values[kRows][kVectors] = {};

  // += A (kRows, depth) · B (depth, kVectors · kLanes), A with any two strides.
  inline __attribute__((always_inline)) void multiply(
      const float* a, int64_t row_stride, int64_t depth_stride, const float* b, int64_t b_stride, int64_t depth) {
    vf sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = values[r][v];
    for (int64_t k = 0; k < depth; ++k) {
      vf row[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) row[v] = load(b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const vf factor = splat(a[r * row_stride + k * depth_stride]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * row[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) values[r][v] = sums[r][v];
  }

  inline void scale_rows(const float* factors) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) values[r][v] *= factors[r];
  }

  inline void read(const float* from, int64_t stride, float factor) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) values[r][v] = load(from + r * stride + v * kLanes) * factor;
  }

  inline void write(float* to, int64_t stride) const {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(to + r * stride + v * kLanes, values[r][v]);
  }
};

// Call `body` with the numbers of rows and of vectors of a tile as constants.
template <typename Body>
inline void with_tile(int64_t rows, int64_t vectors, Body&& body) {
  with_constant<kTileVectors>(
      vectors, [&](auto vectors_) { with_constant<kTileRows>(rows, [&](auto rows_) { body(rows_, vectors_); }); });
}

}  // namespace blazr
