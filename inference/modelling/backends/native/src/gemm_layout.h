// How packed weights lie in memory.
//
// A weight (N, K) lies in blocks of 32 outputs; within a block, step by step along K, 128 bytes hold what the lanes of
// two instructions need, so that a product with one row reads one stream from the first byte to the last:
//   int8   [N/32][K/4][32][4]  bytes, offset 128 (vpdpbusd wants one unsigned operand)
//   int4   [N/32][K/8][32][4]  two nibbles: the low ones are k 0 to 3 of each eight, the high ones 4 to 7; a nibble is
//                              the number of one of sixteen levels
//   bf16   [N/32][K/2][32][2]
//   float  [N/32][K][32]
// int8 and int4 have a bfloat16 scale for each output and group along K: [N/32][groups][32].
#pragma once

#include "simd.h"
#include "work.h"

namespace blazr {

constexpr int64_t kBlock = 32;  // outputs in a block
constexpr int kVectors = 2;     // of 16 lanes
#ifdef __AVX512F__
constexpr bool kWide = true;  // 32 registers of 16 lanes
#else
constexpr bool kWide = false;
#endif

enum Format : int64_t { kInt8 = 0, kInt4 = 1, kBf16 = 2, kFloat = 3 };

// What the nibbles of int4 stand for, plus 128, once for every sixteen bytes of a register. More levels lie near 0, as
// more weights do; the two ends differ, so that a scale's sign can give the farther one to the greatest magnitude.
// Source: the levels of GGUF's IQ4_NL (ggml, ggml-common.h).
struct alignas(64) Levels {
  uint8_t bytes[64];
};

constexpr int32_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr Levels unsigned_levels() {
  Levels levels{};
  for (int i = 0; i < 64; ++i) levels.bytes[i] = static_cast<uint8_t>(kLevels[i % 16] + 128);
  return levels;
}

inline constexpr Levels kUnsignedLevels = unsigned_levels();

struct Matrix {
  const uint8_t* data;
  const bf16* scales;
  int64_t outputs, inputs;
  int64_t unit;  // inputs in a group; for bf16 and float, those between two looks at the loop's end
  int64_t block_bytes;

  int64_t blocks() const { return ceil_div(outputs, kBlock); }
  int64_t units() const { return ceil_div(inputs, unit); }
};

template <bool kFour>
struct Integer {
  static constexpr bool kGrouped = true;
  static constexpr int kPerStep = 4;                       // inputs in four bytes of activations
  static constexpr int64_t kStepBytes = kFour ? 64 : 128;  // of a block's weights
  static constexpr int64_t kAlign = kFour ? 8 : 4;         // inputs are padded to a multiple of it
  static constexpr int32_t kOffset = 128;                  // of the unsigned weights
  static constexpr int kWords = kFour ? 1 : 2;             // bytes of an activation, each in a word of its own
  static constexpr int kPanel = (kWide ? 8 : 2) / kWords;  // most rows in a panel
  static constexpr int64_t kUsualSteps = kFour ? 8 : 32;   // of a group
  static constexpr int64_t kLine = kFour ? 0 : 16;         // words of a row of activations in a matrix tile; 0: none
};

struct Half {
  static constexpr bool kGrouped = false;
  static constexpr int kPerStep = 2;
  static constexpr int64_t kStepBytes = 128;
  static constexpr int64_t kAlign = 2;
  static constexpr int kWords = 1;
  static constexpr int kPanel = kWide ? 12 : 2;
  static constexpr int64_t kLine = 16;
};

struct Single {
  static constexpr bool kGrouped = false;
  static constexpr int kPerStep = 1;
  static constexpr int64_t kStepBytes = 128;
  static constexpr int64_t kAlign = 1;
  static constexpr int kWords = 1;
  static constexpr int kPanel = kWide ? 12 : 2;
  static constexpr int64_t kLine = 0;
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

// Call `body` with the format and a null pointer of the rows' C++ type. Weights that are not quantised go with rows of
// their own dtype only. `op` names who complains.
template <typename Body>
inline void with_format_and_rows(int64_t format, at::ScalarType rows, const char* op, Body&& body) {
  dispatch(rows, op, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_format(format, [&](auto f) {
      using F = decltype(f);
      if constexpr (!F::kGrouped && F::kPerStep * sizeof(T) != 4) {
        TORCH_CHECK(false, op, ": weights that are not quantised need rows of their own dtype");
      } else {
        body(f, type);
      }
    });
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

constexpr int64_t kMostGroup = 512;     // inputs: their products' sum fits 32 bits
constexpr int64_t kTiledIntegers = 24;  // rows from which matrix tiles are worth it for int8
constexpr int64_t kPlainUnit = 256;     // of the formats without groups

}  // namespace blazr
