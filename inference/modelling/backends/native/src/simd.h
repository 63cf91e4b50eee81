// Vectors of float32 with GCC's vector extension: sixteen lanes with AVX-512, else eight, which are a register of AVX2
// or two of SSE and NEON. A vector wider than a register would live in memory (GCC doesn't take it apart).
//
// float32 sums over an axis are made in one fixed order that depends on the axis' length only, so that a row's result
// is the same in any batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace blazr {

#ifdef __AVX512F__
constexpr bool kWide = true;  // 32 registers of 16 lanes
#else
constexpr bool kWide = false;  // 16 registers of 8
#endif
constexpr int kLanes = kWide ? 16 : 8;
constexpr int kTileVectors = kWide ? 4 : 2;  // of each of six rows of sums: 24 of 32 registers, or 12 of 16

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef uint32_t vu __attribute__((vector_size(4 * kLanes)));
typedef uint16_t vh __attribute__((vector_size(2 * kLanes)));

using Lanes = std::make_integer_sequence<int, kLanes>;

template <int... I>
constexpr vi numbers_of(std::integer_sequence<int, I...>) {
  return vi{I...};
}

constexpr vi kLaneNumbers = numbers_of(Lanes{});

using bf16 = c10::BFloat16;

inline vf splat(float value) { return vf{} + value; }

inline vf load(const float* from) {
  vf out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

inline vf load(const bf16* from) {
  vh half;
  std::memcpy(&half, from, sizeof half);
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Compilers widen each half of the vector for itself.
  vu wide = std::bit_cast<vu>(_mm256_cvtepu16_epi32(std::bit_cast<__m128i>(half))) << 16;
#else
  vu wide = __builtin_convertvector(half, vu) << 16;
#endif
  return std::bit_cast<vf>(wide);
}

// Of words of two bfloat16 the lower ones (0) or the upper ones (1), as the bits of float32.
inline vu widen_half(vu words, int64_t half) { return half == 0 ? words << 16 : words & 0xffff0000u; }

inline void store(float* to, vf values) { std::memcpy(to, &values, sizeof values); }

inline void store(bf16* to, vf values) {
#ifdef __AVX512BF16__
  auto half = _mm512_cvtneps_pbh(std::bit_cast<__m512>(values));
  std::memcpy(to, &half, sizeof half);
#else
  // To nearest, ties to even; NaN stays NaN.
  vu bits = std::bit_cast<vu>(values);
  vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  vi is_nan = values != values;
  rounded = is_nan ? (bits >> 16) | 0x40 : rounded;
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i twice = _mm256_packus_epi32(std::bit_cast<__m256i>(rounded), std::bit_cast<__m256i>(rounded));
  const __m128i half = _mm256_castsi256_si128(_mm256_permute4x64_epi64(twice, 0xd8));
#else
  vh half = __builtin_convertvector(rounded, vh);
#endif
  std::memcpy(to, &half, sizeof half);
#endif
}

// The first `count` lanes, at least one; the others are 0.
template <typename T>
inline vf load_part(const T* from, int64_t count) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, from, count * sizeof(T));
  return load(buffer);
}

template <typename T>
inline void store_part(T* to, vf values, int64_t count) {
  T buffer[kLanes];
  store(buffer, values);
  std::memcpy(to, buffer, count * sizeof(T));
}

inline float sum(vf values) {
  float lanes[kLanes];
  store(lanes, values);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

inline float max(vf values) {
  float lanes[kLanes];
  store(lanes, values);
  float found = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) found = found < lanes[lane] ? lanes[lane] : found;
  return found;
}

// Whether a comparison holds in some lane.
inline bool any(vi lanes) {
  int32_t found = 0;
  for (int lane = 0; lane < kLanes; ++lane) found |= lanes[lane];
  return found != 0;
}

inline vf vmin(vf a, vf b) { return a < b ? a : b; }
inline vf vmax(vf a, vf b) { return a > b ? a : b; }

inline vu load_units(const uint32_t* from) {
  vu out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

inline void store_units(uint32_t* to, vu units) { std::memcpy(to, &units, sizeof units); }

// Exchange the blocks of W lanes off the diagonal of (a, b).
template <int W, typename V, int... I>
inline void exchange(V& a, V& b, std::integer_sequence<int, I...>) {
  const V first = __builtin_shufflevector(a, b, (I / W % 2 ? kLanes + I - W : I)...);
  const V second = __builtin_shufflevector(a, b, (I / W % 2 ? kLanes + I : I + W)...);
  a = first;
  b = second;
}

// Rows of kLanes units of 32 bits to columns.
template <typename V, int W = kLanes / 2>
inline void transpose_blocks(V (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i)
    if (!(i & W)) exchange<W>(rows[i], rows[i + W], Lanes{});
  if constexpr (W > 1) transpose_blocks<V, W / 2>(rows);
}

inline void transpose(vu (&rows)[kLanes]) {
#ifdef __AVX512F__
  __m512i a[kLanes], b[kLanes];
  for (int i = 0; i < kLanes; ++i) a[i] = std::bit_cast<__m512i>(rows[i]);
  for (int i = 0; i < kLanes; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // a[4g + c] holds column c (+ 4 per 128-bit lane) of rows 4g … 4g + 3.
  for (int c = 0; c < 4; ++c) {
    __m512i even01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88), odd01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    __m512i even23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    __m512i odd23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    b[c] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    b[8 + c] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    b[4 + c] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    b[12 + c] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
  for (int i = 0; i < kLanes; ++i) rows[i] = std::bit_cast<vu>(b[i]);
#else
  transpose_blocks(rows);
#endif
}

// e^x to about one unit in the last place between -87.3 and 88.3; 0 below, infinite above.
// Range reduction to |r| ≤ ln 2 / 2 and the Taylor polynomial of degree 7, whose error there is below 2^-25.
inline vf exp(vf x) {
  constexpr float kLog2e = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  vi underflow = x<splat(-87.3f), overflow = x> splat(88.3f);
  x = vmin(vmax(x, splat(-87.3f)), splat(88.3f));
  vf scaled = x * kLog2e;
  // Round to nearest by the magic number 1.5 · 2^23.
  vf magic = splat(12582912.0f);
  vf shifted = scaled + magic;
  vf whole = shifted - magic;
  vf r = x - whole * kLn2High;
  r = r - whole * kLn2Low;
  vf p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  vi exponent = __builtin_convertvector(whole, vi);
  vi bits = (exponent + 127) << 23;
  vf result = p * std::bit_cast<vf>(bits);
  result = overflow ? splat(INFINITY) : result;
  return underflow ? splat(0.0f) : result;
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }
inline vf silu(vf x) { return x / (1.0f + exp(-x)); }

// tanh by e^2x, exact at both ends.
inline vf tanh(vf x) {
  vf doubled = vmin(vmax(x + x, splat(-40.0f)), splat(40.0f));
  vf e = exp(doubled);
  return (e - 1.0f) / (e + 1.0f);
}

// Call `body` with a number from 1 to Most as a constant of a type of its own; a greater one counts as Most.
template <int Most, int Least = 1, typename Body>
inline void with_constant(int64_t number, Body&& body) {
  if constexpr (Least == Most) {
    body(std::integral_constant<int, Most>{});
  } else if (number == Least) {
    body(std::integral_constant<int, Least>{});
  } else {
    with_constant<Most, Least + 1>(number, body);
  }
}

// Call `body` with a null pointer of the tensor's C++ type, so that it can name it.
template <typename Body>
inline void dispatch(at::ScalarType type, const char* op, Body&& body) {
  if (type == at::kFloat) {
    body(static_cast<float*>(nullptr));
  } else {
    TORCH_CHECK(type == at::kBFloat16, op, ": float32 or bfloat16 is needed, not ", type);
    body(static_cast<bf16*>(nullptr));
  }
}

}  // namespace blazr
