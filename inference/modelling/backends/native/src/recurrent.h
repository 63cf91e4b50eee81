// What the recurrent layers' kernels share: a step's runs of rows, vector functions, sums and transposes by shuffles.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "simd.h"
#include "work.h"

namespace blazr {

// Consecutive rows of one sequence.
struct Run {
  int64_t start, count, slot;
  bool fresh;  // the state starts at zero, whatever the slot holds
};

// (B, 4) int64: first row, number of rows, state slot, 1 if fresh. The runs cover the rows 0 … rows-1 in order.
std::vector<Run> read_runs(const at::Tensor& runs, int64_t rows, int64_t slots);

// A contiguous float32 tensor of this shape, or an error that names it.
float* checked(const at::Tensor& tensor, at::IntArrayRef shape, const char* name);

// Memory for one thread's intermediate values, aligned to whole vectors.
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : values_(count ? static_cast<float*>(::operator new(count * sizeof(float), kAlignment)) : nullptr) {}
  ~Scratch() { ::operator delete(values_, kAlignment); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* begin() { return values_; }
  static int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  float* values_;
};

// ln x of a positive, normal x: m · 2^e with m from √½ to √2, ln m = 2 artanh((m-1)/(m+1)) by its series.
inline vf log(vf x) {
  vi bits = (vi)x;                          // the same bits: what a cast between vectors means
  vi exponent = (bits - 0x3f3504f3) >> 23;  // 0x3f3504f3: √½
  vi mantissa = bits - (exponent << 23);
  vf m = (vf)mantissa;
  vf whole = __builtin_convertvector(exponent, vf);
  vf s = (m - 1.0f) / (m + 1.0f);
  vf square = s * s;
  vf p = splat(2.0f / 9);
  p = p * square + 2.0f / 7;
  p = p * square + 2.0f / 5;
  p = p * square + 2.0f / 3;
  p = p * square + 2.0f;
  return whole * 0.693359375f + (whole * -2.12194440e-4f + s * p);
}

// ln(1 + e^x); x itself above 20, as torch's softplus.
inline vf softplus(vf x) {
  vf u = exp(vmin(x, splat(20.0f)));
  vf w = 1.0f + u;
  // What rounding 1 + u took away, given back as a factor (Kahan).
  vf small = w - 1.0f;
  vf inexact = log(w) * (u / small);
  vf below = small == splat(0) ? u : inexact;
  return x > splat(20.0f) ? x : below;
}

// cos and sin of an angle from 0 to 2π.
inline void cos_sin(vf angle, vf& cosine, vf& sine) {
  vf magic = splat(12582912.0f);
  vf quarters = (angle * 0.636619772f + magic) - magic;
  vf r = angle - quarters * 1.5703125f;  // π/2 in three parts
  r = r - quarters * 4.837512969970703125e-4f;
  r = r - quarters * 7.54978995489188e-8f;
  vf square = r * r;
  vf odd = splat(1.0f / 362880);
  odd = odd * square - 1.0f / 5040;
  odd = odd * square + 1.0f / 120;
  odd = odd * square - 1.0f / 6;
  odd = r + r * square * odd;
  vf even = splat(-1.0f / 3628800);
  even = even * square + 1.0f / 40320;
  even = even * square - 1.0f / 720;
  even = even * square + 1.0f / 24;
  even = even * square - 0.5f;
  even = even * square + 1.0f;
  vi quarter = __builtin_convertvector(quarters, vi);
  vi swapped = (quarter & 1) != 0;
  vf s = swapped ? even : odd, c = swapped ? odd : even;
  sine = (quarter & 2) != 0 ? -s : s;
  cosine = ((quarter + 1) & 2) != 0 ? -c : c;
}

// --- shuffles -----------------------------------------------------------------------------------

namespace shuffle {

// With W lanes of partial sums per row in a and b: half as many, those of a's rows before those of b's.
template <int W, int... I>
inline vf halve(vf a, vf b, std::integer_sequence<int, I...>) {
  constexpr int h = W / 2;
  return __builtin_shufflevector(a, b, (I / h * W + I % h)...) +
         __builtin_shufflevector(a, b, (I / h * W + I % h + h)...);
}

template <int J, int... I>
inline vf every_third(vf a, vf b, vf c, std::integer_sequence<int, I...>) {
  vf first = __builtin_shufflevector(a, b, (3 * I + J < 2 * kLanes ? 3 * I + J : 0)...);
  return __builtin_shufflevector(first, c, (3 * I + J < 2 * kLanes ? I : 3 * I + J - kLanes)...);
}

template <int M, int... I>
inline vf of_three(vf a, vf b, vf c, std::integer_sequence<int, I...>) {
  constexpr int kFirst = kLanes * M;
  vf first =
      __builtin_shufflevector(a, b, ((kFirst + I) % 3 < 2 ? (kFirst + I) % 3 * kLanes + (kFirst + I) / 3 : 0)...);
  return __builtin_shufflevector(first, c, ((kFirst + I) % 3 < 2 ? I : kLanes + (kFirst + I) / 3)...);
}

}  // namespace shuffle

// Lane i: the sum of rows[i], in one fixed order. Overwrites the rows.
template <int W = kLanes>
inline vf sum_rows(vf (&rows)[kLanes]) {
  for (int i = 0; i < W / 2; ++i) rows[i] = shuffle::halve<W>(rows[2 * i], rows[2 * i + 1], Lanes{});
  if constexpr (W > 2) return sum_rows<W / 2>(rows);
  return rows[0];
}

// to (columns, to_stride) = from (rows, from_stride) transposed; columns of `to` past `rows` are left as they are.
inline void transpose_matrix(
    const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int64_t columns) {
  int64_t row = 0;
  for (; row + kLanes <= rows; row += kLanes) {
    int64_t column = 0;
    for (; column + kLanes <= columns; column += kLanes) {
      vf tile[kLanes];
      for (int i = 0; i < kLanes; ++i) tile[i] = load(from + (row + i) * from_stride + column);
      transpose_blocks(tile);
      for (int i = 0; i < kLanes; ++i) store(to + (column + i) * to_stride + row, tile[i]);
    }
    for (; column < columns; ++column)
      for (int i = 0; i < kLanes; ++i) to[column * to_stride + row + i] = from[(row + i) * from_stride + column];
  }
  for (; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      to[column * to_stride + row] = from[row * from_stride + column];
}

// Whole vectors where they fit, the last one in part.
template <typename Body>
inline void by_lanes(int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, static_cast<int64_t>(kLanes));
  if (i < count) body(i, count - i);
}

template <typename T>
inline vf load_some(const T* from, int64_t count) {
  return count == kLanes ? load(from) : load_part(from, count);
}

template <typename T>
inline void store_some(T* to, vf values, int64_t count) {
  if (count == kLanes)
    store(to, values);
  else
    store_part(to, values, count);
}

// --- states -------------------------------------------------------------------------------------

// States of one kind, (slots, …), stored in float32 or bfloat16. Kernels compute in float32: on the stored values, or
// on copies in scratch that are rounded to nearest once, behind a run's last row.
class States {
 public:
  States() = default;
  // A contiguous tensor of this shape, or an error that names it.
  States(const at::Tensor& tensor, at::IntArrayRef shape, const char* name);

  // Values of scratch that `open` needs for so many.
  int64_t scratch_for(int64_t count) const { return exact_ ? 0 : count; }
  // `count` values at `at` to change and `close`: the stored ones, or a copy in `scratch`. Fresh ones are undefined.
  float* open(int64_t at, int64_t count, bool fresh, float* scratch) const;
  void close(int64_t at, int64_t count, const float* values) const;

  void read(int64_t at, int64_t count, float* to) const;
  void write(int64_t at, int64_t count, const float* from) const;

 private:
  float* exact_ = nullptr;
  bf16* rounded_ = nullptr;
};

// --- parts of layers ----------------------------------------------------------------------------

// Convolution of the rows' columns 0 … width-1, each run behind its own tail; tails advance.
struct Convolution {
  States state;       // (slots, width, kernel-1)
  const float* taps;  // (kernel, width)
  const float* bias;  // (width,) or null
  int64_t width, kernel, activation;
};

template <typename T>
void convolve(const Convolution& conv, const std::vector<Run>& runs, const T* rows, int64_t stride, float* out);

// norm(y · silu(gate)) · w, norm(y) · w · silu(gate), norm(y) · w · σ(gate), or y · silu(gate).
struct GatedNorm {
  enum Order : int64_t { kNoNorm, kAfterGate, kBeforeGate, kBeforeSigmoid };
  const float* weight;  // or null
  float eps, offset;
  int64_t group, order;
};

template <typename T>
void gated_norm(
    const GatedNorm& norm, const float* values, const T* gate, int64_t gate_stride, T* out, int64_t rows,
    int64_t width);

}  // namespace blazr
