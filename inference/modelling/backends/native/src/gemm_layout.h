// How packed weights lie in memory.
//
// A weight (N, K) lies in blocks of 32 outputs; within a block, step by step along K, 128 bytes hold what the lanes of
// two instructions need, so that a product with one row reads one stream from the first byte to the last:
//   codes  [N/32][K/chunk][lines][32][4]  see Coded; the four bytes belong to four inputs that follow each other
//   bf16   [N/32][K/2][32][2]
//   float8 the same in bytes, see Float8
//   float  [N/32][K][32]
// Codes have a scale for each output and group along K, and behind it perhaps an offset: [N/32][groups][1 or 2][32].
// With factors these are signed bytes, and behind those of a block lie float16 factors: [K/256][1 or 2][32].
// The number of a format is kBf16, kFloat, or that of a CodedForm.
#pragma once

#include "simd.h"
#include "work.h"

namespace blazr {

constexpr int64_t kBlock = 32;          // outputs in a block
constexpr int64_t kFactorInputs = 256;  // that share a factor
constexpr int kVectors = kBlock / kLanes;

// What the processor multiplies at once: four bytes and adds the products, else pairs of 16 bits; pairs of bfloat16,
// else float32.
#ifdef __AVX512VNNI__
constexpr bool kByteDots = true;
#else
constexpr bool kByteDots = false;
#endif
#ifdef __AVX512BF16__
constexpr bool kHalfDots = true;
#else
constexpr bool kHalfDots = false;
#endif

enum Format : int64_t { kInt8 = 0, kInt4 = 1, kBf16 = 2, kFloat = 3 };

// What the codes of a matrix mean: scale · (byte(code) - zero) + offset. Up to four bits choose the byte from a table,
// which a register repeats; more bits are the byte. Floats of 8 bits mean scale · 2^-8 · value.
struct alignas(64) CodedForm {
  uint8_t levels[64];
  int64_t bits;
  int32_t zero;
  bool has_offsets, has_halves;  // scales and offsets are float16, else bfloat16
  bool is_float;                 // E4M3
  bool has_factors;              // scales and offsets are signed bytes, times a float16 of kFactorInputs inputs

  int64_t scale_line() const { return has_offsets ? 2 * kBlock : kBlock; }  // of a block and group
  bool operator==(const CodedForm&) const = default;
};

// The form of a number; kInt8 and kInt4 are there from the beginning.
const CodedForm& coded_form(int64_t format);

// The levels of int4. More of them lie near 0, as more weights do; the two ends differ, so that a scale's sign can give
// the farther one to the greatest magnitude. Source: the levels of GGUF's IQ4_NL (ggml, ggml-common.h).
constexpr int32_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct Matrix {
  const uint8_t* data;
  const bf16* scales;
  int64_t outputs, inputs;
  int64_t unit;  // inputs whose sum is scaled at once; for bf16 and float, those between two looks at the loop's end
  int64_t block_bytes;
  const CodedForm* form;    // null: bf16 or float
  int64_t units_per_scale;  // that follow each other

  int64_t blocks() const { return ceil_div(outputs, kBlock); }
  int64_t units() const { return ceil_div(inputs, unit); }
  int64_t groups() const { return ceil_div(units(), units_per_scale); }
  // Of a block: scales and offsets, and with factors the place that these and bytes take.
  int64_t block_scales() const {
    if (!form) return 0;
    const int64_t lines = form->has_factors ? byte_lines() + ceil_div(inputs, kFactorInputs) : groups();
    return lines * form->scale_line();
  }
  // Lines that the bytes of a block take, those of two groups each.
  int64_t byte_lines() const { return ceil_div(groups(), 2); }
};

constexpr int64_t kLineBytes = 128;  // four bytes of each output of a block

// Codes of 2 to 8 bits. The lowest bits of a code are a field of 8, 4 or 2 bits, the others one of 2 or 1 bits. For a
// chunk of inputs, lines hold the lower fields, then others the upper ones: the first field of a byte belongs to the
// first four inputs, the next one to the next four.
template <int kBits_>
struct Coded {
  using Values = Coded;
  static constexpr bool kGrouped = true;
  static constexpr int kBits = kBits_;
  static constexpr int kLower = kBits == 8 ? 8 : kBits >= 4 ? 4 : 2;
  static constexpr int kUpper = kBits - kLower;
  static constexpr int kPerStep = 4;                             // inputs in four bytes of activations
  static constexpr int64_t kStepBytes = 16 * kBits;              // of a block's weights
  static constexpr int kSteps = 8 / (kUpper ? kUpper : kLower);  // of a chunk
  static constexpr int kLines = kSteps * kBits / 8;              // of a chunk
  static constexpr int kLowerLines = kSteps * kLower / 8;
  static constexpr int64_t kAlign = kSteps * kPerStep;                   // inputs are padded to a multiple of it
  static constexpr int kWords = kBits >= 6 || !kByteDots ? 2 : 1;        // of four activations (gemm_panels.h)
  static constexpr int kPanel = kByteDots ? 8 / kWords : kWide ? 8 : 4;  // most rows in a panel
  static constexpr int64_t kMostUnit = kBits >= 6 ? 128 : 32;            // inputs that share an activation's scale
  static constexpr int64_t kUsualSteps = kBits == 8 ? 32 : kBits == 6 ? 4 : 8;  // of a unit
  static constexpr int64_t kLine = kBits == 8 ? 16 : 0;  // words of a row of activations in a matrix tile; 0: none
};

struct Half {
  using Values = Half;
  static constexpr bool kGrouped = false;
  static constexpr int kPerStep = 2;
  static constexpr int64_t kStepBytes = 128;
  static constexpr int64_t kAlign = 2;
  static constexpr int kWords = kHalfDots ? 1 : 2;
  static constexpr int kPanel = kWide ? 12 : 6;
  static constexpr int64_t kLine = 16;
};

struct Single {
  using Values = Single;
  static constexpr bool kGrouped = false;
  static constexpr int kPerStep = 1;
  static constexpr int64_t kStepBytes = 128;
  static constexpr int64_t kAlign = 1;
  static constexpr int kWords = 1;
  static constexpr int kPanel = kWide ? 12 : 6;
  static constexpr int64_t kLine = 0;
};

// Rows are those of bfloat16 or float32. Each unit of a block becomes values that these are multiplied by, exactly, and
// its sums are scaled.
template <class Rows>
struct Float8 : Rows {
  using Values = std::conditional_t<kHalfDots, Rows, Single>;
  static constexpr int64_t kStepBytes = kBlock * Rows::kPerStep;
  static constexpr int64_t kAlign = 2;
  static constexpr int64_t kMostUnit = 128;
};

// Whether weights become others before they are multiplied.
template <class F>
constexpr bool kExpands = !std::is_same_v<F, typename F::Values>;

template <typename Body>
inline void with_format(int64_t format, Body&& body) {
  if (format == kBf16) return body(Half{});
  if (format == kFloat) return body(Single{});
  if (coded_form(format).is_float) return body(Float8<Half>{});
  switch (coded_form(format).bits) {
    case 2:
      return body(Coded<2>{});
    case 3:
      return body(Coded<3>{});
    case 4:
      return body(Coded<4>{});
    case 5:
      return body(Coded<5>{});
    case 6:
      return body(Coded<6>{});
    default:
      return body(Coded<8>{});
  }
}

// Call `body` with the format, for rows of T. Weights that are not quantised go with rows of their own dtype only. `op`
// names who complains.
template <typename T, typename Body>
inline void with_format_for(int64_t format, const char* op, Body&& body) {
  with_format(format, [&](auto f) {
    using F = decltype(f);
    if constexpr (kExpands<F>) {
      body(Float8<std::conditional_t<sizeof(T) == 4, Single, Half>>{});
    } else if constexpr (!F::kGrouped && F::kPerStep * sizeof(T) != 4) {
      TORCH_CHECK(false, op, ": weights that are not quantised need rows of their own dtype");
    } else {
      body(f);
    }
  });
}

// The same with a null pointer of the rows' C++ type besides.
template <typename Body>
inline void with_format_and_rows(int64_t format, at::ScalarType rows, const char* op, Body&& body) {
  dispatch(rows, op, [&](auto* type) {
    with_format_for<std::remove_pointer_t<decltype(type)>>(format, op, [&](auto f) { body(f, type); });
  });
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

constexpr int64_t kMostUnit = 128;      // inputs: their products' sum fits 32 bits
constexpr int64_t kLeastUnit = 16;      // inputs: groups are multiples of it
constexpr int64_t kTiledIntegers = 24;  // rows from which matrix tiles are worth it for int8
constexpr int64_t kPlainUnit = 256;     // of the formats without groups

// A matrix' sizes in the layout, without its memory. `group`: inputs that share a scale.
Matrix matrix_layout(int64_t format, int64_t outputs, int64_t inputs, int64_t group);

}  // namespace blazr
