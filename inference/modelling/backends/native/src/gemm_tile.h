// The sums of a panel with a block of weights, in registers.
#pragma once

#include <c10/util/Half.h>

#include <algorithm>
#include <bit>

#include "gemm_layout.h"
#include "read_ahead.h"

namespace blazr {

constexpr int64_t kScalesAhead = 1024;  // scales, which two lines of weights or more lie between

struct TileArgs {
  const uint32_t* steps;  // of the panel, from its first step
  const float* scales;
  const int32_t* offsets;
  const float* totals;
  int64_t depth;  // steps of the whole panel
  const Matrix* matrix;
  const uint8_t* weights;  // of the block, from its first step
  const bf16* weight_scales;
  const float* products;  // the scales that are multiplied out, from the block's first group on; null: none are
  int64_t unit_begin, unit_end, unit_steps;
  float* sums;         // [rows][32]
  bool is_first;       // the sums start at 0
  WeightsAhead ahead;  // what is read later, prefetched at each step
  int64_t advance;     // bytes of it that belong to a step, all passes over the block's outputs together
  bool in_pages;       // its order (read_ahead.h)
  bool is_read_once;   // the product has one row, and prefetches in line
};

// The bytes of a table of sixteen (repeated in a register) that the low four bits of each byte choose.
inline vi look_up(vi table, vi numbers) {
#if defined(__AVX512VBMI__)
  // Six bits choose of 64 bytes: the upper two don't matter where a table repeats.
  return std::bit_cast<vi>(_mm512_permutexvar_epi8(std::bit_cast<__m512i>(numbers), std::bit_cast<__m512i>(table)));
#elif defined(__AVX512BW__)
  return std::bit_cast<vi>(
      _mm512_shuffle_epi8(std::bit_cast<__m512i>(table), std::bit_cast<__m512i>(numbers & 0x0f0f0f0f)));
#elif defined(__AVX2__)
  return std::bit_cast<vi>(
      _mm256_shuffle_epi8(std::bit_cast<__m256i>(table), std::bit_cast<__m256i>(numbers & 0x0f0f0f0f)));
#else
  uint8_t levels[sizeof table], chosen[sizeof numbers];
  std::memcpy(levels, &table, sizeof table);
  std::memcpy(chosen, &numbers, sizeof numbers);
  for (uint8_t& byte : chosen) byte = levels[byte & 15];
  std::memcpy(&numbers, chosen, sizeof chosen);
  return numbers;
#endif
}

inline vi splat_bits(uint32_t word) { return vi{} + static_cast<int32_t>(word); }

#ifdef __AVX512VNNI__
// acc + Σ of four unsigned weights × four signed activations in each lane.
inline vi dot_bytes(vi acc, vi weights, vi activations) {
  auto result = _mm512_dpbusd_epi32(
      std::bit_cast<__m512i>(acc), std::bit_cast<__m512i>(weights), std::bit_cast<__m512i>(activations));
  return std::bit_cast<vi>(result);
}
#endif

// acc + Σ of two weights × two activations of 16 bits in each lane.
inline vi dot_pairs(vi acc, vi weights, vi activations) {
#if defined(__AVX512BW__)
  const __m512i sums = _mm512_madd_epi16(std::bit_cast<__m512i>(weights), std::bit_cast<__m512i>(activations));
  return acc + std::bit_cast<vi>(sums);
#elif defined(__AVXVNNI__)
  return std::bit_cast<vi>(_mm256_dpwssd_avx_epi32(
      std::bit_cast<__m256i>(acc), std::bit_cast<__m256i>(weights), std::bit_cast<__m256i>(activations)));
#elif defined(__AVX2__)
  const __m256i sums = _mm256_madd_epi16(std::bit_cast<__m256i>(weights), std::bit_cast<__m256i>(activations));
  return acc + std::bit_cast<vi>(sums);
#else
  return acc + ((weights << 16) >> 16) * ((activations << 16) >> 16) + (weights >> 16) * (activations >> 16);
#endif
}

inline vf fused_multiply_add(vf a, vf b, vf c) {
#ifdef __AVX512F__
  auto result = _mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b), std::bit_cast<__m512>(c));
  return std::bit_cast<vf>(result);
#elif defined(__FMA__)
  // Left to itself GCC also takes the forms that overwrite a factor, and then copies factors and spills sums.
  asm("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
#else
  return a * b + c;
#endif
}

#ifdef __AVX512BF16__
// acc + Σ of two weights × two activations in each lane.
inline vf dot_halves(vf acc, vi weights, vi activations) {
  auto result = _mm512_dpbf16_ps(
      std::bit_cast<__m512>(acc), std::bit_cast<__m512bh>(weights), std::bit_cast<__m512bh>(activations));
  return std::bit_cast<vf>(result);
}
#endif

inline vi load_bits(const uint8_t* from) {
  vi out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

// Integer sums of R rows: of the upper and the lower bytes of 16 bits, where bytes are multiplied.
template <class F>
constexpr int sums_of(int rows) {
  return kByteDots ? rows * F::kWords : rows;
}

// Prefetches what lies ahead of some steps. A product of one row reads its weights once; but lines that don't stay in
// any cache can't be prefetched in pages, which takes too long for the first one. Several panels share what lies ahead,
// as do a tile's passes, each at its own steps, so that memory never waits for a pass over what is in the cache.
template <bool kOnce, int V>
inline void prefetch_ahead(WeightsAhead& ahead, int64_t advance) {
  ahead.prefetch<kOnce, V == kVectors>();
  ahead.at += advance;
}

// The fields of a step of a chunk, in the lowest bits of the bytes.
template <int kWidth>
inline vi fields_of(const uint8_t* lines, int step) {
  constexpr int kPerByte = 8 / kWidth;
  return load_bits(lines + step / kPerByte * kLineBytes) >> (step % kPerByte * kWidth);
}

// The bytes that a step of a chunk is multiplied by. Of a table's index the bits beyond the table don't matter.
template <class F>
inline vi bytes_of(const uint8_t* chunk, int step, vi levels) {
  constexpr int32_t kLowest = 0x01010101;
  vi codes = fields_of<F::kLower>(chunk, step);
  if constexpr (F::kUpper > 0) {
    const vi upper = fields_of<F::kUpper>(chunk + F::kLowerLines * kLineBytes, step);
    constexpr int32_t kLowerMask = kLowest * ((1 << F::kLower) - 1), kUpperMask = kLowest * ((1 << F::kUpper) - 1);
    codes = (codes & kLowerMask) | (upper & kUpperMask) << F::kLower;
  }
  if constexpr (F::kBits <= 4) return look_up(levels, codes);
  return codes;
}

// Signed bytes in float32.
inline vf widen_bytes(const int8_t* from) {
#if defined(__AVX512F__)
  return __builtin_convertvector(std::bit_cast<vi>(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from))), vf);
#elif defined(__AVX2__)
  return __builtin_convertvector(std::bit_cast<vi>(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from))), vf);
#else
  vf wide;
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = from[lane];
  return wide;
#endif
}

// float16 in float32.
inline vf widen(vh halves) {
#if defined(__AVX512F__)
  return std::bit_cast<vf>(_mm512_maskz_cvtph_ps(0xffff, std::bit_cast<__m256i>(halves)));
#elif defined(__AVX2__) && defined(__F16C__)
  return std::bit_cast<vf>(_mm256_cvtph_ps(std::bit_cast<__m128i>(halves)));
#else
  vf wide;
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = c10::Half(halves[lane], c10::Half::from_bits());
  return wide;
#endif
}

// A vector's scales or offsets.
inline vf load_scales(const bf16* from, bool has_halves) {
  if (!has_halves) return load(from);
  vh halves;
  std::memcpy(&halves, from, sizeof halves);
  return widen(halves);
}

// Scales and offsets of the groups [group, end) of a block: bytes times factors, kLine of both for each group.
template <int64_t kLine>
void multiply_out(const Matrix& w, const bf16* block_scales, int64_t group, int64_t end, float* to) {
  const int64_t each = kFactorInputs / (w.unit * w.units_per_scale);  // groups
  const auto* bytes = reinterpret_cast<const int8_t*>(block_scales) + group * kLine;
  const bf16* factors = block_scales + w.byte_lines() * kLine;
  while (group < end) {
    vf factor[kLine / kLanes];
    for (int v = 0; v < kLine / kLanes; ++v) factor[v] = load_scales(factors + group / each * kLine + v * kLanes, true);
    for (const int64_t stop = std::min(end, (group / each + 1) * each); group < stop; ++group) {
      __builtin_prefetch(bytes + kScalesAhead);
      for (int v = 0; v < kLine / kLanes; ++v, bytes += kLanes, to += kLanes) store(to, widen_bytes(bytes) * factor[v]);
    }
  }
}

// The bits of 2^-8 of a float8 value in float16, which has one bit of exponent and seven of mantissa more, from a word
// with the code in its upper byte. Subnormal values are right, too; NaN doesn't occur.
template <typename T>
inline T half_of_float8(T code) {
  return (code >> 1) & static_cast<int16_t>(0xbf80);
}

#ifdef __AVX512VBMI__
// The two bytes of 2^-8 of each positive float8 value in bfloat16.
struct Float8Bytes {
  uint8_t lower[128], upper[128];

  Float8Bytes() {
    for (int code = 0; code < 128; ++code) {
      const bf16 value = static_cast<float>(c10::Half(static_cast<uint16_t>(code << 7), c10::Half::from_bits()));
      lower[code] = value.x & 0xff;
      upper[code] = value.x >> 8;
    }
  }
};

// Pairs of inputs of float8 as bfloat16: bytes are looked up, and joined in the codes' order.
inline void widen_pairs(const uint8_t* codes, int64_t pairs, float* to) {
  static const Float8Bytes kBytes;
  const auto register_of = [](const void* from) { return _mm512_loadu_si512(from); };
  const __m512i lower[] = {register_of(kBytes.lower), register_of(kBytes.lower + 64)};
  const __m512i upper[] = {register_of(kBytes.upper), register_of(kBytes.upper + 64)};
  const __m512i first = std::bit_cast<__m512i>(kLaneNumbers * 0x02020202 + 0x41014000);
  const __m512i second = _mm512_add_epi8(first, _mm512_set1_epi8(32));
  const __m512i signs = _mm512_set1_epi8(-128);
  for (int64_t pair = 0; pair < pairs; ++pair, codes += 2 * kBlock, to += kBlock) {
    const __m512i code = register_of(codes);
    const __m512i low = _mm512_permutex2var_epi8(lower[0], code, lower[1]);
    __m512i high = _mm512_permutex2var_epi8(upper[0], code, upper[1]);
    high = _mm512_or_si512(high, _mm512_and_si512(code, signs));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi8(low, first, high));
    _mm512_storeu_si512(to + kLanes, _mm512_permutex2var_epi8(low, second, high));
  }
}
#endif

// Pairs of inputs of a block's float8 in the layout of F: 2^-8 of their values.
template <class F>
void expand(const uint8_t* codes, int64_t pairs, float* to) {
#ifdef __AVX512VBMI__
  if constexpr (F::kPerStep == 2) return widen_pairs(codes, pairs, to);
#endif
  typedef int16_t vs __attribute__((vector_size(2 * kLanes)));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    for (int v = 0; v < kVectors; ++v, codes += 2 * kLanes) {
      vs both;
      std::memcpy(&both, codes, sizeof both);
      const vf first = widen(std::bit_cast<vh>(half_of_float8<vs>(both << 8)));
      const vf second = widen(std::bit_cast<vh>(half_of_float8<vs>(both)));
      if constexpr (F::kPerStep == 1) {
        store(to + v * kLanes, first);
        store(to + kBlock + v * kLanes, second);
      } else {
        const vu joined = std::bit_cast<vu>(first) >> 16 | (std::bit_cast<vu>(second) & 0xffff0000u);
        std::memcpy(to + v * kLanes, &joined, sizeof joined);
      }
    }
    to += 2 / F::kPerStep * kBlock;
  }
}

// += the sums of some rows with a unit of float8, times their scales.
inline void add_scaled(const float* unit_sums, int rows, const TileArgs& t, float* sums) {
  const Matrix& w = *t.matrix;
  const bf16* scales = t.weight_scales + t.unit_begin / w.units_per_scale * kBlock;
  for (int v = 0; v < kVectors; ++v, scales += kLanes) {
    const vf scale = load_scales(scales, w.form->has_halves);
    for (int64_t at = v * kLanes; at < rows * kBlock; at += kBlock)
      store(sums + at, fused_multiply_add(load(unit_sums + at), scale, t.unit_begin ? load(sums + at) : splat(0)));
  }
}

// += the products of R rows with a step's bytes: a word of activations has four bytes; or, where the processor
// multiplies pairs of 16 bits, the first and third input, and R words further the second and fourth.
template <class F, int R, int V>
inline __attribute__((always_inline)) void add_step(
    vi (&acc)[sums_of<F>(R)][V], const uint32_t* a, const vi (&bytes)[V]) {
  if constexpr (kByteDots) {
    for (int r = 0; r < R * F::kWords; ++r) {
      const vi broadcast = splat_bits(a[r]);
      for (int v = 0; v < V; ++v) acc[r][v] = dot_bytes(acc[r][v], bytes[v], broadcast);
    }
  } else {
    constexpr int32_t kEven = 0x00ff00ff;
    vi even[V], odd[V];
    for (int v = 0; v < V; ++v) even[v] = bytes[v] & kEven;
    for (int r = 0; r < R; ++r) {
      const vi broadcast = splat_bits(a[r]);
      for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], even[v], broadcast);
    }
    for (int v = 0; v < V; ++v) odd[v] = bytes[v] >> 8 & kEven;
    for (int r = 0; r < R; ++r) {
      const vi broadcast = splat_bits(a[R + r]);
      for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], odd[v], broadcast);
    }
  }
}

// The steps kFrom to kTo of a chunk of a unit.
template <class F, int R, int V, bool kOnce, int kFrom, int kTo>
inline __attribute__((always_inline)) void add_steps(
    vi (&acc)[sums_of<F>(R)][V], const uint32_t* a, const uint8_t* chunk, vi levels, WeightsAhead& ahead,
    int64_t line_advance) {
  constexpr int kLinesBefore = kFrom * F::kLines / F::kSteps, kLinesThen = kTo * F::kLines / F::kSteps;
  for (int line = kLinesBefore; line < kLinesThen; ++line) prefetch_ahead<kOnce, V>(ahead, line_advance);
#pragma GCC unroll 8
  for (int step = kFrom; step < kTo; ++step) {
    vi bytes[V];
    for (int v = 0; v < V; ++v) bytes[v] = bytes_of<F>(chunk + v * sizeof(vi), step, levels);
    add_step<F, R, V>(acc, a + (step - kFrom) * R * F::kWords, bytes);
  }
}

// A unit's integer sums of R rows with V vectors of outputs, from its first chunk on. Of 3 and 5 bits it may be half of
// a chunk.
template <class F, int R, int V, bool kOnce>
inline __attribute__((always_inline)) void add_unit(
    vi (&acc)[sums_of<F>(R)][V], const uint32_t* a, const uint8_t* w, int64_t steps, bool is_second_half, vi levels,
    WeightsAhead& ahead, int64_t advance) {
  constexpr int kWords = R * F::kWords;
  const int64_t line_advance = advance * F::kSteps / F::kLines;
  if constexpr (F::kAlign > kLeastUnit) {
    constexpr int kHalf = F::kSteps / 2;
    if (steps < F::kSteps && is_second_half)
      return add_steps<F, R, V, kOnce, kHalf, F::kSteps>(acc, a, w, levels, ahead, line_advance);
    if (steps < F::kSteps) return add_steps<F, R, V, kOnce, 0, kHalf>(acc, a, w, levels, ahead, line_advance);
  }
  for (int64_t chunk = 0; chunk < steps; chunk += F::kSteps, a += F::kSteps * kWords, w += F::kLines * kLineBytes)
    add_steps<F, R, V, kOnce, 0, F::kSteps>(acc, a, w, levels, ahead, line_advance);
}

// += a unit of codes.
template <class F, int R, int V, bool kOnce>
inline __attribute__((always_inline)) void add_codes(
    const TileArgs& t, int64_t unit, int first_vector, WeightsAhead& ahead, vf (*sums)[kVectors]) {
  const int64_t first = unit * t.unit_steps, steps = std::min(t.unit_steps, t.depth - first);
  const uint32_t* a = t.steps + first * R * F::kWords;
  const uint8_t* w = t.weights + first / F::kSteps * F::kLines * kLineBytes + first_vector * sizeof(vi);
  const CodedForm& form = *t.matrix->form;
  const vi levels = load_bits(form.levels);
  const int64_t advance = ceil_div(t.advance * V, kVectors);
  constexpr int kSums = sums_of<F>(R);
  vi acc[kSums][V] = {};
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) acc[kSums - R + r][v] = vi{} + t.offsets[unit * R + r];
  if (steps == F::kUsualSteps) {
    add_unit<F, R, V, kOnce>(acc, a, w, F::kUsualSteps, false, levels, ahead, advance);  // unrolled
  } else {
    add_unit<F, R, V, kOnce>(acc, a, w, steps, first % F::kSteps != 0, levels, ahead, advance);
  }
  if constexpr (kSums == 2 * R) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) acc[r][v] = (acc[r][v] << 8) + acc[R + r][v];
  }
  const int64_t per_scale = t.matrix->units_per_scale, group = per_scale == 1 ? unit : unit / per_scale;
  const int64_t first_scale = group * form.scale_line() + first_vector * kLanes;
  if (t.in_pages && !t.products) __builtin_prefetch(t.weight_scales + first_scale + kScalesAhead, 0, 2);
  const auto scales_at = [&](int64_t place) {
    return t.products ? load(t.products + first_scale + place)
                      : load_scales(t.weight_scales + first_scale + place, form.has_halves);
  };
  for (int v = 0; v < V; ++v) {
    const vf scale = scales_at(v * kLanes);
    for (int r = 0; r < R; ++r) {
      vf& sum = sums[r][first_vector + v];
      sum = fused_multiply_add(__builtin_convertvector(acc[r][v], vf), scale * t.scales[unit * R + r], sum);
    }
    if (!form.has_offsets) continue;
    const vf offset = scales_at(kBlock + v * kLanes);
    for (int r = 0; r < R; ++r) {
      vf& sum = sums[r][first_vector + v];
      sum = fused_multiply_add(offset, splat(t.totals[unit * R + r]), sum);
    }
  }
}

// += the products of R rows with a step of bfloat16 or float32.
template <class F, int R, int V>
inline __attribute__((always_inline)) void add_products(vf (&sums)[R][V], const uint32_t* a, const uint8_t* w) {
  vi values[V];
  for (int v = 0; v < V; ++v) values[v] = load_bits(w + v * sizeof(vi));
  for (int word = 0; word < F::kWords; ++word) {
    vi weights[V];
    for (int v = 0; v < V; ++v)
      weights[v] = F::kWords == 1 ? values[v] : std::bit_cast<vi>(widen_half(std::bit_cast<vu>(values[v]), word));
    for (int r = 0; r < R; ++r) {
      const vi broadcast = splat_bits(a[word * R + r]);
      for (int v = 0; v < V; ++v) {
#ifdef __AVX512BF16__
        if constexpr (F::kPerStep == 2) {
          sums[r][v] = dot_halves(sums[r][v], weights[v], broadcast);
          continue;
        }
#endif
        sums[r][v] = fused_multiply_add(std::bit_cast<vf>(weights[v]), std::bit_cast<vf>(broadcast), sums[r][v]);
      }
    }
  }
}

// += a unit of bfloat16 or float32. Prefetches are asked for once in some steps: a core whose other thread is busy (on
// most rented machines somebody else's) decodes three instructions a cycle or fewer, and each one that multiplies
// nothing costs time.
template <class F, int R, int V, bool kOnce>
inline __attribute__((always_inline)) void add_values(
    const TileArgs& t, int64_t unit, int first_vector, WeightsAhead& ahead, vf (*all)[kVectors]) {
  constexpr int64_t kStepsAtOnce = V == kVectors ? 2 : 4;  // two pieces for one panel, at most one for several
  const int64_t first = unit * t.unit_steps, last = std::min(first + t.unit_steps, t.depth);
  const uint32_t* a = t.steps + first * R * F::kWords;
  const uint8_t* w = t.weights + first * F::kStepBytes + first_vector * sizeof(vi);
  const int64_t advance = ceil_div(t.advance * V, kVectors);
  vf sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = all[r][first_vector + v];
  const auto add_next = [&] {
    add_products<F>(sums, a, w);
    a += R * F::kWords;
    w += F::kStepBytes;
  };
  int64_t step = first;
#pragma GCC unroll 1
  for (; step + kStepsAtOnce <= last; step += kStepsAtOnce) {
    ahead.prefetch<kOnce>();
    if (ahead.offsets) ahead.prefetch<kOnce>(kPiece);
    ahead.at += kStepsAtOnce * advance;
#pragma GCC unroll 4
    for (int64_t i = 0; i < kStepsAtOnce; ++i) add_next();
  }
#pragma GCC unroll 1
  for (; step < last; ++step) add_next();
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) all[r][first_vector + v] = sums[r][v];
}

// The sums of R rows (a panel's) with a block, over some units. Where there are sixteen registers, half of a block's
// outputs are taken at once, but for two rows or one.
template <class F, int R, bool kOnce>
void tile(const TileArgs& t) {
  constexpr int kAtOnce = kWide || R <= 2 ? kVectors : kVectors / 2;
  vf sums[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = t.is_first ? splat(0) : load(t.sums + r * kBlock + v * kLanes);
  WeightsAhead ahead = t.ahead;
  for (int64_t unit = t.unit_begin; unit < t.unit_end; ++unit) {
    for (int vector = 0; vector < kVectors; vector += kAtOnce) {
      if constexpr (F::kGrouped)
        add_codes<F, R, kAtOnce, kOnce>(t, unit, vector, ahead, sums);
      else
        add_values<F, R, kAtOnce, kOnce>(t, unit, vector, ahead, sums);
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
  if constexpr (R == 1) {
    if (t.is_read_once) return tile<F, R, true>(t);
  }
  tile<F, R, false>(t);
}

}  // namespace blazr
