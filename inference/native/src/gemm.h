// Products of rows with packed weights: the layouts, the tiles in registers, and the loops around them.
//
// A weight (N, K) lies in blocks of 32 outputs; within a block, step by step along K, 128 bytes hold what the lanes of
// two instructions need, so that a product with one row reads one stream from the first byte to the last:
//   int8   [N/32][K/4][32][4]  bytes, offset 128 (vpdpbusd wants one unsigned operand)
//   int4   [N/32][K/8][32][4]  two nibbles, offset 8: the low ones are k 0 to 3 of each eight, the high ones 4 to 7
//   bf16   [N/32][K/2][32][2]
//   float  [N/32][K][32]
// int8 and int4 have a bfloat16 scale for each output and group along K: [N/32][groups][32].
//
// Activations are put into panels of a few rows, four bytes of each row side by side: [steps][rows]. For int8 and int4
// they are quantised to signed bytes per row and group on the way, by the group's greatest magnitude.
//
// Whatever the number of rows, each result is made by the same instructions in the same order along K: integers are
// exact within a group, and one float32 accumulator takes the groups in turn. So a row's result is the same in any
// batch, to the bit.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "simd.h"
#include "work.h"

namespace blazr {

constexpr int64_t kBlock = 32;          // outputs in a block
constexpr int kVectors = 2;             // of 16 lanes
constexpr int64_t kTileBytes = 16384;   // of a block, that stay in the first cache while the panels pass
constexpr int64_t kPanelBytes = 262144; // of activations, that stay in the second cache while the blocks pass
constexpr int64_t kRowsAtOnce = 240;    // whose sums stay there
constexpr int64_t kBlocksAtOnce = 8;    // the same of blocks
#ifdef __AVX512F__
constexpr bool kWide = true;  // 32 registers of 16 lanes
#else
constexpr bool kWide = false;
#endif
constexpr int64_t kAhead = 4096;        // bytes that a product with one row asks for in advance

enum Format : int64_t { kInt8 = 0, kInt4 = 1, kBf16 = 2, kFloat = 3 };

struct Matrix {
  const uint8_t* data;
  const bf16* scales;
  int64_t outputs, inputs;
  int64_t unit;         // inputs in a group; for bf16 and float, those between two looks at the loop's end
  int64_t block_bytes;

  int64_t blocks() const { return ceil_div(outputs, kBlock); }
  int64_t units() const { return ceil_div(inputs, unit); }
};

// --- formats ---------------------------------------------------------------------------------------------------

template <bool kFour>
struct Integer {
  static constexpr bool kGrouped = true;
  static constexpr int kPerStep = 4;                       // inputs in four bytes of activations
  static constexpr int64_t kStepBytes = kFour ? 64 : 128;  // of a block's weights
  static constexpr int64_t kAlign = kFour ? 8 : 4;         // inputs are padded to a multiple of it
  static constexpr int32_t kOffset = kFour ? 8 : 128;
  static constexpr int kPanel = kWide ? 8 : 2;  // most rows in a panel
  static constexpr int64_t kUsualSteps = kFour ? 8 : 32;   // of a group
};

struct Half {
  static constexpr bool kGrouped = false;
  static constexpr int kPerStep = 2;
  static constexpr int64_t kStepBytes = 128;
  static constexpr int64_t kAlign = 2;
  static constexpr int kPanel = kWide ? 12 : 2;
};

struct Single {
  static constexpr bool kGrouped = false;
  static constexpr int kPerStep = 1;
  static constexpr int64_t kStepBytes = 128;
  static constexpr int64_t kAlign = 1;
  static constexpr int kPanel = kWide ? 12 : 2;
};

template <typename Body>
inline void with_format(int64_t format, Body&& body) {
  switch (format) {
    case kInt8:
      return body(Integer<false>{});
    case kInt4:
      return body(Integer<true>{});
    case kBf16:
      return body(Half{});
    default:
      TORCH_CHECK(format == kFloat, "packed weights: format ", format, " is unknown");
      return body(Single{});
  }
}

template <class F>
int64_t padded_inputs(int64_t inputs) {
  return ceil_div(inputs, F::kAlign) * F::kAlign;
}

template <class F>
int64_t steps_of(int64_t inputs) {
  return padded_inputs<F>(inputs) / F::kPerStep;
}

template <class F>
int64_t block_bytes_of(int64_t inputs) {
  return steps_of<F>(inputs) * F::kStepBytes;
}

constexpr int64_t kPlainUnit = 256;  // of the formats without groups

// --- activations -----------------------------------------------------------------------------------------------

// Rows in panels; the sizes differ by at most one.
struct Panels {
  uint32_t* steps = nullptr;    // panel p from start(p) · depth: [depth][size(p)]
  float* scales = nullptr;      // panel p from start(p) · units: [units][size(p)]
  int32_t* offsets = nullptr;   // alike: what the weights' offset adds to the sum, negated
  int64_t rows = 0, depth = 0, units = 0;
  int64_t count = 0, base = 0, extra = 0;

  Panels(int64_t rows_, int most, int64_t depth_, int64_t units_) : rows(rows_), depth(depth_), units(units_) {
    count = ceil_div(rows, most);
    base = count ? rows / count : 0;
    extra = count ? rows % count : 0;
  }
  int64_t start(int64_t panel) const { return panel * base + std::min(panel, extra); }
  int size(int64_t panel) const { return static_cast<int>(base + (panel < extra)); }
  int64_t bytes() const { return rows * (depth * 4 + units * 8); }
  void place(void* memory) {
    steps = static_cast<uint32_t*>(memory);
    scales = reinterpret_cast<float*>(steps + rows * depth);
    offsets = reinterpret_cast<int32_t*>(scales + rows * units);
  }
};

typedef int8_t vb __attribute__((vector_size(16)));

// To the nearest whole number, ties to even; |x| at most 2^21.
inline vi to_integers(vf x) {
#ifdef __AVX512F__
  return std::bit_cast<vi>(_mm512_maskz_cvtps_epi32(0xffff, std::bit_cast<__m512>(x)));
#else
  const vf magic = splat(12582912.0f);
  return __builtin_convertvector((x + magic) - magic, vi);
#endif
}

inline int32_t sum(vi values) {
#ifdef __AVX512F__
  return _mm512_reduce_add_epi32(std::bit_cast<__m512i>(values));
#else
  int32_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += values[lane];
  return total;
#endif
}

inline int32_t greatest_of(vi values) {
#ifdef __AVX512F__
  return _mm512_reduce_max_epi32(std::bit_cast<__m512i>(values));
#else
  int32_t found = values[0];
  for (int lane = 1; lane < kLanes; ++lane) found = std::max(found, values[lane]);
  return found;
#endif
}

// The greatest magnitude; infinity and NaN, whose bits are the greatest, survive.
template <typename T>
inline float greatest_magnitude(const T* from, int64_t count) {
  vi greatest = {};
  int64_t i = 0;
  auto take = [&](vf values) {
    vi bits = std::bit_cast<vi>(values) & 0x7fffffff;
    greatest = bits > greatest ? bits : greatest;
  };
  for (; i + kLanes <= count; i += kLanes) take(load(from + i));
  if (i < count) take(load_part(from + i, count - i));
  return std::bit_cast<float>(greatest_of(greatest));
}

constexpr int64_t kMostGroup = 4096;  // inputs
constexpr float kTiny = 1e-30f;  // magnitudes below count as 0: their reciprocal would overflow

// Words of `width` rows step by step: to[step][row]. There are sixteen pointers, those from `width` on to any such row.
inline void interleave(const uint32_t* const* rows, int width, int64_t steps, uint32_t* to) {
  if (width == 1) {
    std::memcpy(to, rows[0], steps * sizeof *to);
    return;
  }
  if constexpr (!kWide) {  // panels are too narrow for whole blocks
    for (int row = 0; row < width; ++row)
      for (int64_t step = 0; step < steps; ++step) to[step * width + row] = rows[row][step];
    return;
  }
  const uint32_t* end = to + steps * width;
  for (int64_t step = 0; step < steps; step += kLanes) {
    vu block[kLanes];
    const int64_t left = std::min<int64_t>(kLanes, steps - step);
    if (left == kLanes) {
      for (int row = 0; row < kLanes; ++row) std::memcpy(&block[row], rows[row] + step, sizeof block[row]);
    } else {
      for (int row = 0; row < kLanes; ++row) {
        block[row] = vu{};
        std::memcpy(&block[row], rows[row] + step, left * sizeof *to);
      }
    }
    transpose(block);
    for (int64_t i = 0; i < left; ++i, to += width) {
      // What a whole vector writes too much, the next one writes over.
      if (end - to >= kLanes)
        std::memcpy(to, &block[i], sizeof block[i]);
      else
        std::memcpy(to, &block[i], width * sizeof *to);
    }
  }
}

struct QuantisedGroup {
  float scale;
  int32_t total;  // of the whole numbers
};

// Values of a row that share a scale to signed bytes, padded to a multiple of 16.
template <typename T>
inline QuantisedGroup quantise_group(const T* from, int64_t count, uint32_t* to) {
  const float greatest = greatest_magnitude(from, count);
  const float inverse = greatest < kTiny ? 0.0f : 127.0f / greatest;
  vi total = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const vf values = (i + kLanes <= count ? load(from + i) : load_part(from + i, count - i)) * inverse;
    const vi whole = to_integers(values);
    total += whole;
    const vb bytes = __builtin_convertvector(whole, vb);
    std::memcpy(to + i / 4, &bytes, sizeof bytes);
  }
  return {greatest < kTiny ? 0.0f : greatest / 127.0f, sum(total)};
}

// The rows of a panel into its place.
template <class F, typename T>
void fill_panel(const T* const* rows, const Matrix& w, const Panels& panels, int64_t panel) {
  const int width = panels.size(panel);
  uint32_t* steps = panels.steps + panels.start(panel) * panels.depth;
  const uint32_t* words[kLanes];
  if constexpr (F::kGrouped) {
    float* scales = panels.scales + panels.start(panel) * panels.units;
    int32_t* offsets = panels.offsets + panels.start(panel) * panels.units;
    uint32_t quantised[F::kPanel * kMostGroup / 4];
    const int64_t at_once = std::max<int64_t>(1, kMostGroup / 4 / w.unit), stride = at_once * w.unit / 4;
    for (int row = 0; row < kLanes; ++row) words[row] = quantised + (row < width ? row : 0) * stride;
    for (int64_t begin = 0; begin < panels.units; begin += at_once) {
      const int64_t end = std::min(begin + at_once, panels.units);
      for (int row = 0; row < width; ++row) {
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t first = unit * w.unit, count = std::min(w.unit, w.inputs - first);
          uint32_t* to = quantised + row * stride + (unit - begin) * w.unit / 4;
          const auto [scale, total] = quantise_group(rows[row] + first, count, to);
          scales[unit * width + row] = scale;
          offsets[unit * width + row] = -F::kOffset * total;
        }
      }
      // Groups are multiples of 16, so only the last one is padded.
      const int64_t first = begin * w.unit, count = std::min(end * w.unit, w.inputs) - first;
      interleave(words, width, padded_inputs<F>(count) / 4, steps + first / 4 * width);
    }
  } else {
    constexpr int kPer = F::kPerStep;
    const int64_t whole = w.inputs / kPer;
    for (int row = 0; row < kLanes; ++row) words[row] = reinterpret_cast<const uint32_t*>(rows[row < width ? row : 0]);
    interleave(words, width, whole, steps);
    for (int row = 0; row < width && whole < panels.depth; ++row) {
      T values[kPer] = {};
      std::memcpy(values, rows[row] + whole * kPer, (w.inputs - whole * kPer) * sizeof(T));
      std::memcpy(steps + whole * width + row, values, 4);
    }
  }
}

// --- tiles -----------------------------------------------------------------------------------------------------

struct TileArgs {
  const uint32_t* steps;    // of the panel, from its first step
  const float* scales;
  const int32_t* offsets;
  int64_t depth;            // steps of the whole panel
  const uint8_t* weights;   // of the block, from its first step
  const bf16* weight_scales;
  int64_t unit_begin, unit_end, unit_steps;
  float* sums;              // [rows][32]
  bool is_first;            // the sums start at 0
  const uint8_t* ahead;     // what is read later, asked for in pieces, one a step
  int64_t advance;          // bytes of a piece
};

inline vi splat_bits(uint32_t word) { return vi{} + static_cast<int32_t>(word); }

// acc + Σ of four unsigned weights × four signed activations in each lane.
inline vi dot_bytes(vi acc, vi weights, vi activations) {
#ifdef __AVX512VNNI__
  auto result = _mm512_dpbusd_epi32(
      std::bit_cast<__m512i>(acc), std::bit_cast<__m512i>(weights), std::bit_cast<__m512i>(activations));
  return std::bit_cast<vi>(result);
#else
  for (int shift = 0; shift < 32; shift += 8) acc += ((weights >> shift) & 255) * ((activations << (24 - shift)) >> 24);
  return acc;
#endif
}

inline vf fused_multiply_add(vf a, vf b, vf c) {
#ifdef __AVX512F__
  auto result =
      _mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b), std::bit_cast<__m512>(c));
  return std::bit_cast<vf>(result);
#else
  return a * b + c;
#endif
}

// acc + Σ of two weights × two activations in each lane.
inline vf dot_halves(vf acc, vi weights, vi activations) {
#ifdef __AVX512BF16__
  auto result = _mm512_dpbf16_ps(
      std::bit_cast<__m512>(acc), std::bit_cast<__m512bh>(weights), std::bit_cast<__m512bh>(activations));
  return std::bit_cast<vf>(result);
#else
  vi low_w = weights << 16, high_w = weights & ~0xffff, low_a = activations << 16, high_a = activations & ~0xffff;
  acc = fused_multiply_add(std::bit_cast<vf>(low_w), std::bit_cast<vf>(low_a), acc);
  return fused_multiply_add(std::bit_cast<vf>(high_w), std::bit_cast<vf>(high_a), acc);
#endif
}

inline vi load_bits(const uint8_t* from) {
  vi out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

// A step's weights of a product with one row, asked for in advance and as read once: they pass through the first cache
// and, when they leave, don't push what the operators and Python between the products need out of the others.
inline void ask_ahead(const uint8_t* weights) {
  __builtin_prefetch(weights + kAhead, 0, 0);
  __builtin_prefetch(weights + kAhead + 64, 0, 0);
}

// The same with several rows, for the second cache: the panels share what lies ahead, a piece of at most 128 bytes a step.
template <int kSteps = 1>
inline void ask_for(const uint8_t*& ahead, int64_t advance) {
  __builtin_prefetch(ahead, 0, 2);
  __builtin_prefetch(ahead + 64, 0, 2);
  ahead += kSteps * advance;
}

// A group's integer sums of R rows.
template <class F, int R>
inline void add_group(
    vi (&acc)[R][kVectors], const uint32_t* a, const uint8_t* w, int64_t steps, const uint8_t*& ahead, int64_t advance) {
  constexpr bool kFour = F::kStepBytes == 64;
  // Of one row, the sums of high nibbles are made where these lie, sixteen times too great: one shift for a whole
  // group. Of several, it is the instructions of each row that count, and there are no registers for more sums.
  constexpr bool kShiftSums = kFour && R == 1;
  vi high_sums[kShiftSums ? R : 1][kVectors] = {};
  for (int64_t step = 0; step < steps; step += kFour ? 2 : 1, a += kFour ? 2 * R : R, w += 128) {
    if (R == 1)
      ask_ahead(w);
    else
      ask_for<kFour ? 2 : 1>(ahead, advance);
    vi values[kVectors], high[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      values[v] = load_bits(w + v * 64);
      if constexpr (kFour) {
        high[v] = kShiftSums ? values[v] & static_cast<int32_t>(0xf0f0f0f0) : (values[v] >> 4) & 0x0f0f0f0f;
        values[v] &= 0x0f0f0f0f;
      }
    }
    for (int r = 0; r < R; ++r) {
      const vi broadcast = splat_bits(a[r]);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = dot_bytes(acc[r][v], values[v], broadcast);
    }
    if constexpr (kFour) {
      for (int r = 0; r < R; ++r) {
        const vi broadcast = splat_bits(a[R + r]);
        for (int v = 0; v < kVectors; ++v) {
          vi& sum = kShiftSums ? high_sums[r][v] : acc[r][v];
          sum = dot_bytes(sum, high[v], broadcast);
        }
      }
    }
  }
  if constexpr (kShiftSums) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) acc[r][v] += high_sums[r][v] >> 4;
  }
}

// The sums of R rows (a panel's) with a block, over some units.
template <class F, int R>
void tile(const TileArgs& t) {
  vf sums[R][kVectors];
  if (t.is_first) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(0);
  } else {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = load(t.sums + r * kBlock + v * kLanes);
  }
  const uint8_t* ahead = t.ahead;
  const int64_t advance = t.advance;
  for (int64_t unit = t.unit_begin; unit < t.unit_end; ++unit) {
    const int64_t first = unit * t.unit_steps, last = std::min(first + t.unit_steps, t.depth);
    const uint32_t* a = t.steps + first * R;
    const uint8_t* w = t.weights + first * F::kStepBytes;
    if constexpr (F::kGrouped) {
      vi acc[R][kVectors];
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) acc[r][v] = vi{} + t.offsets[unit * R + r];
      if (last - first == F::kUsualSteps) {
        add_group<F, R>(acc, a, w, F::kUsualSteps, ahead, advance);  // unrolled
      } else {
        add_group<F, R>(acc, a, w, last - first, ahead, advance);
      }
      for (int v = 0; v < kVectors; ++v) {
        const vf scale = load(t.weight_scales + unit * kBlock + v * kLanes);
        for (int r = 0; r < R; ++r)
          sums[r][v] = fused_multiply_add(
              __builtin_convertvector(acc[r][v], vf), scale * t.scales[unit * R + r], sums[r][v]);
      }
    } else {
      for (int64_t step = first; step < last; ++step, a += R, w += 128) {
        if (R == 1)
          ask_ahead(w);
        else
          ask_for(ahead, advance);
        vi values[kVectors];
        for (int v = 0; v < kVectors; ++v) values[v] = load_bits(w + v * 64);
        for (int r = 0; r < R; ++r) {
          const vi broadcast = splat_bits(a[r]);
          for (int v = 0; v < kVectors; ++v) {
            if constexpr (F::kPerStep == 2)
              sums[r][v] = dot_halves(sums[r][v], values[v], broadcast);
            else
              sums[r][v] =
                  fused_multiply_add(std::bit_cast<vf>(values[v]), std::bit_cast<vf>(broadcast), sums[r][v]);
          }
        }
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) store(t.sums + r * kBlock + v * kLanes, sums[r][v]);
}

template <class F, int R = F::kPanel>
inline void tile_of(int rows, const TileArgs& t) {
  if constexpr (R > 1) {
    if (rows < R) return tile_of<F, R - 1>(rows, t);
  }
  tile<F, R>(t);
}

// Sums of the panels [panel_begin, panel_end) with the blocks [block_begin, block_end), at most kBlocksAtOnce of them.
// sums: [blocks][rows][32]. `after`: what this thread reads next. All along, what lies kTileBytes further on is asked for.
template <class F>
void multiply(
    const Matrix& w, const Panels& panels, int64_t panel_begin, int64_t panel_end, int64_t block_begin,
    int64_t block_end, const uint8_t* after, float* sums) {
  const int64_t first_row = panels.start(panel_begin), rows = panels.start(panel_end) - first_row, units = w.units();
  const int64_t count = panel_end - panel_begin;
  TileArgs t;
  t.depth = panels.depth;
  t.unit_steps = ceil_div(w.unit, F::kPerStep);
  const int64_t unit_bytes = t.unit_steps * F::kStepBytes;
  // Of the inputs a run whose activations stay in the second cache, and within a block parts that stay in the first
  // one while the panels pass. One panel goes through a block from end to end.
  const int64_t run = count == 1 ? units : std::max<int64_t>(1, kPanelBytes / (rows * t.unit_steps * 4));
  const int64_t part = count == 1 ? units : std::max<int64_t>(1, kTileBytes / unit_bytes);
  t.advance = ceil_div(F::kStepBytes, count);
  for (int64_t begin = 0; begin < units; begin += run) {
    const int64_t end = std::min(begin + run, units);
    for (int64_t block = block_begin; block < block_end; ++block) {
      t.weights = w.data + block * w.block_bytes;
      t.weight_scales = w.scales + block * units * kBlock;
      const uint8_t* behind = block + 1 < block_end ? t.weights + w.block_bytes + begin * unit_bytes
                              : end < units         ? w.data + block_begin * w.block_bytes + end * unit_bytes
                                                    : after;
      for (t.unit_begin = begin; t.unit_begin < end; t.unit_begin = t.unit_end) {
        t.unit_end = std::min(t.unit_begin + part, end);
        t.is_first = t.unit_begin == 0;
        const int64_t at = t.unit_begin * unit_bytes + kTileBytes, stop = std::min(end * unit_bytes, w.block_bytes);
        const uint8_t* ahead = at < stop ? t.weights + at : behind + (at - stop);
        const int64_t piece = t.advance * t.unit_steps * (t.unit_end - t.unit_begin);
        for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
          const int64_t start = panels.start(panel);
          t.steps = panels.steps + start * panels.depth;
          t.scales = panels.scales + start * panels.units;
          t.offsets = panels.offsets + start * panels.units;
          t.sums = sums + ((block - block_begin) * rows + start - first_row) * kBlock;
          t.ahead = ahead + (panel - panel_begin) * piece;
          tile_of<F>(panels.size(panel), t);
        }
      }
    }
  }
}

// --- loops -----------------------------------------------------------------------------------------------------

// How a product is cut into tasks: runs of blocks × runs of panels.
struct Cut {
  int64_t blocks_each, block_tasks, panels_each, panel_tasks;

  Cut(int64_t blocks, int64_t panels, int most) {
    panels_each = std::min(std::max<int64_t>(panels, 1), kRowsAtOnce / most);
    panel_tasks = ceil_div(std::max<int64_t>(panels, 1), panels_each);
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
  const T* rows[F::kPanel];
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
