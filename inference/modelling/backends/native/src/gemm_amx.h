// The sums of a panel with a block of weights by matrix tiles: 16 rows × 16 outputs at a time (amx.h).
//
// A tile's instruction multiplies 16 words of each row with 16 words of each output, which is 32 inputs of bfloat16 or
// 64 of int8, in a clock for each row. The weights lie as it wants them: a step's 128 bytes are a line of two tiles.
// int4 has too small groups to gain: scaling their sums takes longer than the products.
#pragma once

#include <algorithm>
#include <optional>

#include "amx.h"
#include "gemm_panels.h"
#include "gemm_tile.h"

namespace blazr {

#ifdef BLAZR_AMX

// Products of one thread's panels. Tiles hold sums (0 to 3), activations and weights.
template <class F>
class MatrixTiles {
 public:
  // Without `used` nothing else may be called.
  explicit MatrixTiles(bool used) {
    if (used) tiles_.emplace();
  }

  // Adds the sums of a panel with a block over some units, as tile() does.
  void add(int rows, const TileArgs& t) {
    if constexpr (F::kLine == 0) {
      return;
    } else if constexpr (F::kGrouped) {
      configure(std::min(rows * F::kWords, kAmxRows));
      integers(rows, t);
    } else {
      configure(rows);
      if (rows > kAmxRows)
        halves<true>(rows, t);
      else
        halves<false>(rows, t);
    }
  }

 private:
  // Configuring takes 200 clocks, so the tiles stay as they are until the number of rows is another one.
  void configure(int rows) {
    if (rows == configured_) return;
    configured_ = rows;
    const int top = std::min(rows, kAmxRows), bottom = std::max(1, rows - top);
    TileConfig config;
    if constexpr (F::kGrouped) {
      for (int tile : {0, 1, 2, 3}) config.set(tile, top);
      for (int tile : {4, 5, 6, 7}) config.set(tile, F::kLine);
    } else {
      for (int tile : {0, 1, 4}) config.set(tile, top);
      for (int tile : {2, 3, 5}) config.set(tile, bottom);
      for (int tile : {6, 7}) config.set(tile, F::kLine);
    }
    tiles_->configure(config);
  }

  // bfloat16. kTwo: more than 16 rows.
  template <bool kTwo>
  static void halves(int rows, const TileArgs& t) {
    constexpr int64_t kSumLine = kBlock * sizeof(float), kHalf = kAmxRows * kBlock;
    stored_before();
    if (t.is_first) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kTwo) {
        _tile_zero(2);
        _tile_zero(3);
      }
    } else {
      _tile_loadd(0, t.sums, kSumLine);
      _tile_loadd(1, t.sums + kLanes, kSumLine);
      if constexpr (kTwo) {
        _tile_loadd(2, t.sums + kHalf, kSumLine);
        _tile_loadd(3, t.sums + kHalf + kLanes, kSumLine);
      }
    }
    const int64_t first = t.unit_begin * t.unit_steps, last = std::min(t.unit_end * t.unit_steps, t.depth);
    const uint8_t* w = t.weights + first * F::kStepBytes;
    const uint32_t* a = t.steps + first * rows;
    WeightsAhead ahead = t.ahead;
    const int64_t advance = F::kLine * t.advance;
    for (int64_t step = first; step < last; step += F::kLine, w += F::kLine * F::kStepBytes, a += F::kLine * rows) {
      if (t.is_read_once)
        prefetch_bytes<true>(ahead, advance);
      else
        prefetch_bytes<false>(ahead, advance);
      _tile_loadd(6, w, F::kStepBytes);
      _tile_loadd(7, w + kAmxLine, F::kStepBytes);
      _tile_loadd(4, a, kAmxLine);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kTwo) {
        _tile_loadd(5, a + kAmxRows * F::kLine, kAmxLine);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, t.sums, kSumLine);
    _tile_stored(1, t.sums + kLanes, kSumLine);
    if constexpr (kTwo) {
      _tile_stored(2, t.sums + kHalf, kSumLine);
      _tile_stored(3, t.sums + kHalf + kLanes, kSumLine);
    }
  }

  // What lies ahead of many steps (gemm_tile.h).
  template <bool kOnce>
  static void prefetch_bytes(WeightsAhead& ahead, int64_t bytes) {
    const uint8_t* end = ahead.at + bytes;
    for (; ahead.at < end; ahead.at += kPiece) ahead.prefetch<kOnce>();
    ahead.at = end;
  }

  // int8: exact sums of a group, which are scaled and added in float32.
  static void integers(int rows, const TileArgs& t) {
    alignas(64) int32_t whole[kMostRows * F::kWords][kBlock];
    const int lines = rows * F::kWords;
    WeightsAhead ahead = t.ahead;
    for (int64_t unit = t.unit_begin; unit < t.unit_end; ++unit) {
      const int64_t first = unit * t.unit_steps, steps = std::min(t.unit_steps, t.depth - first);
      prefetch_bytes<false>(ahead, steps * t.advance);
      add_group(lines, t.steps + first * lines, t.weights + first * F::kStepBytes, steps, whole);
      const int32_t* offsets = t.offsets + unit * rows;
      const float* scales = t.scales + unit * rows;
      for (int v = 0; v < kVectors; ++v) {
        const vf scale = load(t.weight_scales + unit * kBlock + v * kLanes);
        for (int row = 0; row < rows; ++row) {
          float* to = t.sums + row * kBlock + v * kLanes;
          vi upper, lower;
          std::memcpy(&upper, &whole[row][v * kLanes], sizeof upper);
          std::memcpy(&lower, &whole[rows + row][v * kLanes], sizeof lower);
          const vi sum = (upper << 8) + lower + offsets[row];
          const vf before = unit == 0 ? splat(0) : load(to);
          store(to, fused_multiply_add(__builtin_convertvector(sum, vf), scale * scales[row], before));
        }
      }
    }
  }

  // Sums over a group of rows of bytes, 16 at a time. The last 16 may overlap those before: one configuration serves
  // all panels of a product but the last. The usual group of two lines is read into tiles once.
  static void add_group(int rows, const uint32_t* a, const uint8_t* w, int64_t steps, int32_t (*whole)[kBlock]) {
    constexpr int64_t kSumLine = kBlock * sizeof(int32_t), kLineBytes = F::kLine * F::kStepBytes;
    const bool is_usual = steps == 2 * F::kLine;
    const int64_t next = F::kLine * rows;  // words to a panel's next line
    stored_before();
    if (is_usual) {
      _tile_loadd(4, w, F::kStepBytes);
      _tile_loadd(5, w + kAmxLine, F::kStepBytes);
      _tile_loadd(6, w + kLineBytes, F::kStepBytes);
      _tile_loadd(7, w + kLineBytes + kAmxLine, F::kStepBytes);
    }
    for (int begin = 0; begin < rows; begin += kAmxRows) {
      const int row = std::max(0, std::min(begin, rows - kAmxRows));
      const uint32_t* from = a + row * F::kLine;
      _tile_zero(0);
      _tile_zero(1);
      if (is_usual) {
        _tile_loadd(2, from, kAmxLine);
        _tile_dpbsud(0, 2, 4);
        _tile_dpbsud(1, 2, 5);
        _tile_loadd(3, from + next, kAmxLine);
        _tile_dpbsud(0, 3, 6);
        _tile_dpbsud(1, 3, 7);
      } else {
        for (int64_t step = 0; step < steps; step += F::kLine, from += next) {
          const uint8_t* line = w + step * F::kStepBytes;
          _tile_loadd(2, from, kAmxLine);
          _tile_loadd(4, line, F::kStepBytes);
          _tile_dpbsud(0, 2, 4);
          _tile_loadd(5, line + kAmxLine, F::kStepBytes);
          _tile_dpbsud(1, 2, 5);
        }
      }
      _tile_stored(0, whole[row], kSumLine);
      _tile_stored(1, whole[row] + kLanes, kSumLine);
    }
  }

  std::optional<Tiles> tiles_;
  int configured_ = 0;
};

#else

template <class F>
class MatrixTiles {
 public:
  explicit MatrixTiles(bool) {}
  void add(int, const TileArgs&) {}
};

#endif

}  // namespace blazr
