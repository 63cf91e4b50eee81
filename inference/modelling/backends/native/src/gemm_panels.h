// Activations in panels of a few rows: four bytes of each row side by side, [steps][rows], or for matrix tiles a line
// of them, [lines][rows][words]. For codes they are quantised per row and unit on the way, by the unit's greatest
// magnitude: for codes of up to 5 bits to signed bytes, for others to 16 bits, whose upper and lower bytes (both
// signed) lie as rows of their own, the upper ones first. Rounded to bytes they would cost more than the weights of
// int8 do. A processor that multiplies pairs of 16 bits rather than bytes gets 16 bits always, the even inputs' rows
// first.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "amx.h"
#include "gemm_layout.h"

namespace blazr {

constexpr int kMostRows = 2 * kAmxRows;  // of any panel

// Rows in panels.
struct Panels {
  // Panel p from start(p) · words · depth: [depth][words · size(p)], or [depth / line][words · size(p)][line].
  uint32_t* steps = nullptr;
  float* scales = nullptr;     // panel p from start(p) · units: [units][size(p)]
  int32_t* offsets = nullptr;  // alike: what the zero of the weights adds to the sum, negated
  float* totals = nullptr;     // alike: the sum of the activations, for offsets of the weights
  int64_t rows = 0, depth = 0, units = 0;
  int64_t words = 1;
  int64_t line = 0;  // words of a row in a matrix tile; 0: no tiles are used
  int64_t most = 0, count = 0, base = 0, extra = 0;

  Panels(int64_t rows_, int64_t most_, int64_t depth_, int64_t units_, int64_t words_, int64_t line_)
      : rows(rows_), depth(depth_), units(units_), words(words_), line(line_), most(most_) {
    count = ceil_div(rows, most);
    // Panels for tiles are full, but for the last one. So are those of rows that aren't quantised where there are
    // sixteen registers: six rows have twelve sums at once, four only eight, which just hide a multiplication's
    // latency, so that six and two rows are faster than four and four. Other panels have nearly the same size.
    const bool are_full = line || (!kWide && units == 0);
    base = are_full ? most : count ? rows / count : 0;
    extra = count && !are_full ? rows % count : 0;
  }
  int64_t start(int64_t panel) const { return std::min(rows, panel * base + std::min(panel, extra)); }
  uint32_t* first_step(int64_t panel) const { return steps + start(panel) * words * depth; }
  int size(int64_t panel) const { return static_cast<int>(start(panel + 1) - start(panel)); }
  int64_t bytes() const { return rows * (words * depth * 4 + units * 12); }
  void place(void* memory) {
    steps = static_cast<uint32_t*>(memory);
    scales = reinterpret_cast<float*>(steps + rows * words * depth);
    offsets = reinterpret_cast<int32_t*>(scales + rows * units);
    totals = reinterpret_cast<float*>(offsets + rows * units);
  }
};

typedef int8_t vb __attribute__((vector_size(kLanes)));
typedef int16_t vs __attribute__((vector_size(2 * kLanes)));

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

constexpr int64_t kInputsAtOnce = 1024;  // of a row, quantised before they are put in their places
constexpr float kTiny = 1e-30f;          // magnitudes below count as 0: their reciprocal would overflow

// Words of `width` rows step by step: to[step][row]. There are kLanes pointers, those from `width` on to any such row.
// With kHalves 2 words are pairs of bfloat16, and of each step come the first ones of all rows, then the second ones.
template <int kHalves = 1>
inline void interleave(const uint32_t* const* rows, int width, int64_t steps, uint32_t* to) {
  if (kHalves == 1 && width == 1) {
    std::memcpy(to, rows[0], steps * sizeof *to);
    return;
  }
  const uint32_t* end = to + kHalves * steps * width;
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
    for (int64_t i = 0; i < left; ++i) {
      for (int half = 0; half < kHalves; ++half, to += width) {
        const vu words = kHalves == 1 ? block[i] : widen_half(block[i], half);
        // What a whole vector writes too much, the next one writes over.
        if (end - to >= kLanes)
          std::memcpy(to, &words, sizeof words);
        else
          std::memcpy(to, &words, width * sizeof *to);
      }
    }
  }
}

template <int kWords>
constexpr int64_t kActivationSteps = kWords == 2 ? 127 * 256 : 127;

struct QuantisedGroup {
  float scale;
  int32_t total;  // of the whole numbers
};

// The even values in the lower half, the odd ones in the upper one.
template <int... I>
inline vs apart(vs values, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(values, values, (I < kLanes / 2 ? 2 * I : 2 * I + 1 - kLanes)...);
}

// Values of a row that share a scale, padded to a multiple of kLanes, four to a word: signed bytes. With kWords 2 they
// are 16 bits: the upper bytes, and `stride` words further on the lower ones; or, where the processor multiplies pairs,
// those of the even inputs, and further on those of the odd ones.
template <int kWords, typename T>
inline QuantisedGroup quantise_group(const T* from, int64_t count, uint32_t* to, int64_t stride) {
  constexpr float kSteps = kActivationSteps<kWords>;
  const float greatest = greatest_magnitude(from, count);
  const float inverse = greatest < kTiny ? 0.0f : kSteps / greatest;
  vi total = {};
  const auto put = [](vi whole, uint32_t* place) {
    const vb bytes = __builtin_convertvector(whole, vb);
    std::memcpy(place, &bytes, sizeof bytes);
  };
  for (int64_t i = 0; i < count; i += kLanes) {
    const vf values = (i + kLanes <= count ? load(from + i) : load_part(from + i, count - i)) * inverse;
    const vi whole = to_integers(values);
    total += whole;
    if constexpr (!kByteDots) {
      const vs pairs = apart(__builtin_convertvector(whole, vs), Lanes{});
      std::memcpy(to + i / 4, &pairs, sizeof pairs / 2);
      std::memcpy(to + stride + i / 4, reinterpret_cast<const char*>(&pairs) + sizeof pairs / 2, sizeof pairs / 2);
    } else if constexpr (kWords == 2) {
      put((whole + 128) >> 8, to + i / 4);  // the lower byte, with its sign, is what is left
      put(whole, to + stride + i / 4);
    } else {
      put(whole, to + i / 4);
    }
  }
  return {greatest < kTiny ? 0.0f : greatest / kSteps, sum(total)};
}

// Whether the products of `rows` rows use matrix tiles. Sums of bfloat16 products come out otherwise than without, in
// the last bits, so there it is the same for any number of rows; integers are exact, and few rows are faster without.
template <class F>
bool suits_tiles(const Matrix& w, int64_t rows) {
  if (F::kLine == 0 || !use_amx()) return false;
  if (F::kGrouped && (w.form != &coded_form(kInt8) || w.units_per_scale > 1 || rows < kTiledIntegers)) return false;
  const int64_t line = F::kLine * F::kPerStep;  // inputs
  return w.inputs % line == 0 && w.unit % line == 0;
}

// How the rows of a product with a matrix lie.
template <class F>
Panels panels_for(const Matrix& w, int64_t rows) {
  const bool tiled = suits_tiles<F>(w, rows);
  return Panels(
      rows, tiled ? kMostRows : F::kPanel, steps_of<F>(w.inputs), F::kGrouped ? w.units() : 0, F::kWords,
      tiled ? F::kLine : 0);
}

// The rows of a panel into lines.
template <class F, typename T>
void fill_lines(const T* const* rows, const Matrix& w, const Panels& panels, int64_t panel) {
  const int width = panels.size(panel), lines = width * F::kWords;
  uint32_t* steps = panels.first_step(panel);
  const auto place = [&](const uint32_t* from, int64_t first, int64_t end, int row) {
    for (int64_t at = first; at < end; at += F::kLine, from += F::kLine)
      std::memcpy(steps + at * lines + row * F::kLine, from, F::kLine * sizeof *from);
  };
  for (int row = 0; row < width; ++row) {
    if constexpr (F::kGrouped) {
      float* scales = panels.scales + panels.start(panel) * panels.units;
      int32_t* offsets = panels.offsets + panels.start(panel) * panels.units;
      alignas(64) uint32_t quantised[F::kWords][kMostUnit / 4];
      for (int64_t unit = 0; unit < panels.units; ++unit) {
        const int64_t first = unit * w.unit, count = std::min(w.unit, w.inputs - first);
        const auto [scale, total] =
            quantise_group<F::kWords>(rows[row] + first, count, quantised[0], std::size(quantised[0]));
        scales[unit * width + row] = scale;
        offsets[unit * width + row] = -w.form->zero * total;
        for (int word = 0; word < F::kWords; ++word)
          place(quantised[word], first / 4, (first + count) / 4, word * width + row);
      }
    } else {
      place(reinterpret_cast<const uint32_t*>(rows[row]), 0, panels.depth, row);
    }
  }
}

// Quantised rows of a panel into its place, run by run of whole groups.
template <class F, typename T>
void fill_quantised(const T* const* rows, const Matrix& w, const Panels& panels, int64_t panel) {
  const int width = panels.size(panel), lines = width * F::kWords;
  uint32_t* steps = panels.first_step(panel);
  float* scales = panels.scales + panels.start(panel) * panels.units;
  int32_t* offsets = panels.offsets + panels.start(panel) * panels.units;
  float* totals = panels.totals + panels.start(panel) * panels.units;
  uint32_t quantised[F::kPanel * F::kWords * kInputsAtOnce / 4];
  const int64_t at_once = kInputsAtOnce / w.unit, stride = at_once * w.unit / 4;
  const uint32_t* words[kLanes];
  for (int line = 0; line < kLanes; ++line) words[line] = quantised + (line < lines ? line : 0) * stride;
  for (int64_t begin = 0; begin < panels.units; begin += at_once) {
    const int64_t end = std::min(begin + at_once, panels.units);
    for (int row = 0; row < width; ++row) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t first = unit * w.unit, count = std::min(w.unit, w.inputs - first);
        uint32_t* to = quantised + row * stride + (unit - begin) * w.unit / 4;
        const auto [scale, total] = quantise_group<F::kWords>(rows[row] + first, count, to, width * stride);
        // Groups are multiples of 16, so only the last one is padded.
        const int64_t padded = unit + 1 == panels.units ? padded_inputs<F>(w.inputs) - first : count;
        const int64_t written = ceil_div(count, kLanes) * kLanes / 4, all = padded / 4;
        for (int word = 0; word < F::kWords && written < all; ++word)
          std::fill(to + word * width * stride + written, to + word * width * stride + all, 0);
        scales[unit * width + row] = scale;
        offsets[unit * width + row] = -w.form->zero * total;
        totals[unit * width + row] = scale * static_cast<float>(total);
      }
    }
    const int64_t first = begin * w.unit, count = std::min(end * w.unit, padded_inputs<F>(w.inputs)) - first;
    interleave(words, lines, count / 4, steps + first / 4 * lines);
  }
}

// Rows of bfloat16 or float32 of a panel into its place; bfloat16 as pairs, or as the float32 of the first, and behind
// those of all rows the float32 of the second.
template <class F, typename T>
void fill_values(const T* const* rows, const Matrix& w, const Panels& panels, int64_t panel) {
  constexpr int kPer = F::kPerStep;
  const int width = panels.size(panel);
  uint32_t* steps = panels.first_step(panel);
  const int64_t whole = w.inputs / kPer;
  const uint32_t* words[kLanes];
  for (int row = 0; row < kLanes; ++row) words[row] = reinterpret_cast<const uint32_t*>(rows[row < width ? row : 0]);
  interleave<F::kWords>(words, width, whole, steps);
  // The last one of an odd number of values is alone in its word. A last step without a value pads float8's inputs.
  uint32_t* last = steps + whole * F::kWords * width;
  for (int row = 0; row < width && whole < panels.depth; ++row) {
    uint32_t word = 0;
    if (whole * kPer < w.inputs) std::memcpy(&word, rows[row] + whole * kPer, sizeof(T));
    last[row] = F::kWords == 1 ? word : word << 16;
    if (F::kWords == 2) last[width + row] = 0;
  }
}

// The rows of a panel into its place.
template <class F, typename T>
void fill_panel(const T* const* rows, const Matrix& w, const Panels& panels, int64_t panel) {
  if constexpr (F::kLine > 0) {
    if (panels.line) return fill_lines<F>(rows, w, panels, panel);
  }
  if constexpr (F::kGrouped) {
    fill_quantised<F>(rows, w, panels, panel);
  } else {
    fill_values<F>(rows, w, panels, panel);
  }
}

}  // namespace blazr
