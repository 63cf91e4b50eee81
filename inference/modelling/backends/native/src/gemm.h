// Products of rows with packed weights: the loops around the tiles (gemm_layout.h, gemm_panels.h, gemm_tile.h).
//
// Whatever the number of rows, each result is made by the same operations in the same order along K: integers are
// exact within a group, and one float32 accumulator takes the groups in turn. So a row's result is the same in any
// batch, to the bit.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>

#include "gemm_amx.h"
#include "gemm_panels.h"
#include "gemm_tile.h"
#include "read_ahead.h"
#include "work.h"

namespace blazr {

constexpr int64_t kTileBytes = 16384;          // of a block, that stay in the first cache while the panels pass
constexpr int64_t kPanelBytes = 262144;        // of activations, that stay in the second cache while the blocks pass
constexpr int64_t kTiledPanelBytes = 1 << 20;  // the same on processors with matrix tiles, where it has 2 MB
constexpr int64_t kRowsAtOnce = 240;           // whose sums stay there
constexpr int64_t kTiledRowsAtOnce = 256;
constexpr int64_t kBlocksAtOnce = 8;    // the same of blocks
constexpr int64_t kScaledInputs = 512;  // whose scales are multiplied out at once

// Sums of the panels [panel_begin, panel_end) with the blocks [block_begin, block_end), at most kBlocksAtOnce of them.
// sums: [blocks][rows][32]. `on`: the end of this thread's part of the matrix, and what it reads then. All along, what
// lies further on is asked for: in the processor's own order by one panel, which reads as fast as memory gives, and by
// several, whose arithmetic takes longer, as it lies, kTileBytes ahead.
template <class F>
void multiply(
    const Matrix& w, const Panels& panels, int64_t panel_begin, int64_t panel_end, int64_t block_begin,
    int64_t block_end, const ReadOn& on, float* sums) {
  using V = typename F::Values;
  const int64_t first_row = panels.start(panel_begin), rows = panels.start(panel_end) - first_row, units = w.units();
  const int64_t count = panel_end - panel_begin;
  TileArgs t;
  t.depth = panels.depth * panels.words / V::kWords;
  t.matrix = &w;
  t.products = nullptr;
  t.unit_steps = ceil_div(w.unit, V::kPerStep);
  const int64_t unit_bytes = ceil_div(w.unit, F::kPerStep) * F::kStepBytes;
  // Of the inputs a run whose activations stay in the second cache, and within a block parts that stay in the first
  // one while the panels pass. One panel goes through a block from end to end, but where scales are multiplied out.
  const int64_t panel_bytes = panels.line ? kTiledPanelBytes : kPanelBytes;
  const int64_t run = count == 1 ? units : std::max<int64_t>(1, panel_bytes / (rows * V::kWords * t.unit_steps * 4));
  const bool has_factors = F::kGrouped && w.form->has_factors;
  const int64_t fits = count == 1 ? units : std::max<int64_t>(1, kTileBytes / unit_bytes);
  const int64_t part = kExpands<F> ? 1 : has_factors ? std::min(fits, kScaledInputs / w.unit) : fits;
  t.advance = ceil_div(unit_bytes / t.unit_steps, count);
  const ReadOrder& order = read_order();
  t.in_pages = count == 1 && order.in_pages;
  t.is_read_once = rows == 1 && !t.in_pages;
  t.ahead = {nullptr, count == 1 ? order.offsets : nullptr, on.end, on.next - on.end};
  const int64_t lead = t.in_pages ? 0 : rows == 1 ? kAhead : kTileBytes;  // of one panel
  const uint8_t* end_of_run = w.data + block_end * w.block_bytes;
  const uint8_t* after = end_of_run == on.end ? on.next : end_of_run;
  MatrixTiles<V> matrix_tiles(panels.line > 0);
  alignas(64) float values[kExpands<F> ? kMostUnit * kBlock : 1], unit_sums[kExpands<F> ? kMostRows * kBlock : 1];
  alignas(64) float products[F::kGrouped ? kScaledInputs / kLeastUnit * 2 * kBlock : 1];
  for (int64_t begin = 0; begin < units; begin += run) {
    const int64_t end = std::min(begin + run, units);
    for (int64_t block = block_begin; block < block_end; ++block) {
      const uint8_t* weights = w.data + block * w.block_bytes;
      t.weights = weights;
      t.weight_scales = w.scales + block * w.block_scales();
      const uint8_t* behind = block + 1 < block_end ? weights + w.block_bytes + begin * unit_bytes
                              : end < units         ? w.data + block_begin * w.block_bytes + end * unit_bytes
                                                    : after;
      for (t.unit_begin = begin; t.unit_begin < end; t.unit_begin = t.unit_end) {
        t.unit_end = std::min(t.unit_begin + part, end);
        t.is_first = t.unit_begin == 0;
        if (has_factors) {
          const int64_t group = t.unit_begin / w.units_per_scale, end_group = ceil_div(t.unit_end, w.units_per_scale);
          if (w.form->has_offsets)
            multiply_out<2 * kBlock>(w, t.weight_scales, group, end_group, products);
          else
            multiply_out<kBlock>(w, t.weight_scales, group, end_group, products);
          t.products = products - group * w.form->scale_line();
        }
        if constexpr (kExpands<F>) {
          const int64_t first = t.unit_begin * w.unit, inputs = std::min(w.unit, padded_inputs<F>(w.inputs) - first);
          expand<V>(weights + first * kBlock, inputs / 2, values);
          t.weights = reinterpret_cast<const uint8_t*>(values) - t.unit_begin * t.unit_steps * V::kStepBytes;
          t.is_first = true;
        }
        const int64_t here = t.unit_begin * unit_bytes, at = here + kTileBytes;
        const int64_t stop = std::min(end * unit_bytes, w.block_bytes);
        const uint8_t* ahead = count == 1 ? weights + here + lead : at < stop ? weights + at : behind + (at - stop);
        const int64_t piece = t.advance * t.unit_steps * (t.unit_end - t.unit_begin);
        for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
          const int64_t start = panels.start(panel);
          t.steps = panels.first_step(panel);
          t.scales = panels.scales + start * panels.units;
          t.offsets = panels.offsets + start * panels.units;
          t.totals = panels.totals + start * panels.units;
          float* to = sums + ((block - block_begin) * rows + start - first_row) * kBlock;
          t.sums = kExpands<F> ? unit_sums : to;
          t.ahead.at = ahead + (panel - panel_begin) * piece;
          if (panels.line)
            matrix_tiles.add(panels.size(panel), t);
          else
            tile_of<V>(panels.size(panel), t);
          if constexpr (kExpands<F>) add_scaled(unit_sums, panels.size(panel), t, to);
        }
      }
    }
  }
}

// Their code is large and the same for a product and for experts: gemm_multiply.cpp and gemm_coded.cpp have it.
#define BLAZR_MULTIPLY(F) \
  template void multiply<F>(const Matrix&, const Panels&, int64_t, int64_t, int64_t, int64_t, const ReadOn&, float*)
extern BLAZR_MULTIPLY(Coded<2>);
extern BLAZR_MULTIPLY(Coded<3>);
extern BLAZR_MULTIPLY(Coded<4>);
extern BLAZR_MULTIPLY(Coded<5>);
extern BLAZR_MULTIPLY(Coded<6>);
extern BLAZR_MULTIPLY(Coded<8>);
extern BLAZR_MULTIPLY(Float8<Half>);
extern BLAZR_MULTIPLY(Float8<Single>);
extern BLAZR_MULTIPLY(Half);
extern BLAZR_MULTIPLY(Single);

// Panels whose sums with a run of blocks stay in the second cache.
inline int64_t panels_at_once(const Panels& panels) {
  return (panels.line ? kTiledRowsAtOnce : kRowsAtOnce) / panels.most;
}

// How a product is cut into tasks: runs of blocks × runs of panels.
struct Cut {
  int64_t blocks_each, block_tasks, panels_each, panel_tasks;

  Cut(int64_t blocks, const Panels& panels) {
    const int64_t count = std::max<int64_t>(panels.count, 1);
    panels_each = std::min(count, panels_at_once(panels));
    panel_tasks = ceil_div(count, panels_each);
    // Several tasks for each thread, so that they end together.
    const int64_t wanted = ceil_div(blocks * panel_tasks, 8 * at::get_num_threads());
    blocks_each = std::min(kBlocksAtOnce, wanted);
    block_tasks = ceil_div(blocks, blocks_each);
  }
  int64_t count() const { return block_tasks * panel_tasks; }
};

// A buffer of each thread that grows and stays.
inline float* thread_buffer(int64_t values) {
  thread_local at::Tensor buffer;
  if (!buffer.defined() || buffer.numel() < values) buffer = at::empty({values}, at::kFloat);
  return buffer.data_ptr<float>();
}

// A view of packed tensors after checking that they have the memory that their sizes promise.
Matrix packed_matrix(
    const at::Tensor& data, const std::optional<at::Tensor>& scales, int64_t format, int64_t outputs, int64_t inputs,
    int64_t group);

// A panel from its rows of x (rows, K).
template <class F, typename T>
void fill_from(const T* x, int64_t row_stride, const Matrix& w, const Panels& panels, int64_t panel) {
  const T* rows[kMostRows];
  for (int column = 0; column < panels.size(panel); ++column)
    rows[column] = x + (panels.start(panel) + column) * row_stride;
  fill_panel<F>(rows, w, panels, panel);
}

// x (rows, K) into panels' memory, which it returns.
template <class F, typename T>
at::Tensor fill_panels(const T* x, int64_t row_stride, const Matrix& w, Panels& panels) {
  at::Tensor memory = at::empty({panels.bytes()}, at::kByte);
  panels.place(memory.data_ptr());
  const bool parallel = panels.rows * w.inputs > 32768;
  share(panels.count, parallel, [&](int64_t panel) { fill_from<F>(x, row_stride, w, panels, panel); });
  return memory;
}

}  // namespace blazr
