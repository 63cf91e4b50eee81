// The sums of a panel with a block of weights, in registers.
#pragma once

#include <algorithm>
#include <bit>

#include "gemm_layout.h"
#include "read_ahead.h"

namespace blazr {

constexpr int64_t kScalesAhead = 1024;  // bfloat16 values, which two lines of weights or more lie between

struct TileArgs {
  const uint32_t* steps;  // of the panel, from its first step
  const float* scales;
  const int32_t* offsets;
  const float* totals;
  int64_t depth;  // steps of the whole panel
  const Matrix* matrix;
  const uint8_t* weights;  // of the block, from its first step
  const bf16* weight_scales;
  int64_t unit_begin, unit_end, unit_steps;
  float* sums;         // [rows][32]
  bool is_first;       // the sums start at 0
  WeightsAhead ahead;  // what is read later, asked for at each step
  int64_t advance;     // bytes by which a step moves it
  bool in_pages;       // its order (read_ahead.h)
};

#if defined(__AVX2__) && !defined(__AVX512F__)
struct alignas(64) Halves {
  __m256i low, high;
};

// Σ of four unsigned × four signed bytes in each lane.
inline __m256i dot_words(__m256i w, __m256i a) {
  const __m256i even = _mm256_and_si256(w, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(w, 8);
  const __m256i a_even = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8), a_odd = _mm256_srai_epi16(a, 8);
  return _mm256_add_epi32(_mm256_madd_epi16(even, a_even), _mm256_madd_epi16(odd, a_odd));
}
#endif

// The bytes of a table of sixteen (repeated in a register) that the low four bits of each byte choose.
inline vi look_up(vi table, vi numbers) {
#if defined(__AVX512VBMI__)
  // Six bits choose of 64 bytes: the upper two don't matter where a table repeats.
  return std::bit_cast<vi>(_mm512_permutexvar_epi8(std::bit_cast<__m512i>(numbers), std::bit_cast<__m512i>(table)));
#elif defined(__AVX512BW__)
  return std::bit_cast<vi>(
      _mm512_shuffle_epi8(std::bit_cast<__m512i>(table), std::bit_cast<__m512i>(numbers & 0x0f0f0f0f)));
#elif defined(__AVX2__)
  const vi fields = numbers & 0x0f0f0f0f;
  const auto halves = std::bit_cast<Halves>(fields), tables = std::bit_cast<Halves>(table);
  return std::bit_cast<vi>(
      Halves{_mm256_shuffle_epi8(tables.low, halves.low), _mm256_shuffle_epi8(tables.high, halves.high)});
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

// acc + Σ of four unsigned weights × four signed activations in each lane.
inline vi dot_bytes(vi acc, vi weights, vi activations) {
#ifdef __AVX512VNNI__
  auto result = _mm512_dpbusd_epi32(
      std::bit_cast<__m512i>(acc), std::bit_cast<__m512i>(weights), std::bit_cast<__m512i>(activations));
  return std::bit_cast<vi>(result);
#elif defined(__AVX2__)
  // Every second byte as a word of 16 bits, twice: pairs of words are multiplied without overflow.
  const auto w = std::bit_cast<Halves>(weights), a = std::bit_cast<Halves>(activations);
  return acc + std::bit_cast<vi>(Halves{dot_words(w.low, a.low), dot_words(w.high, a.high)});
#else
  for (int shift = 0; shift < 32; shift += 8) acc += ((weights >> shift) & 255) * ((activations << (24 - shift)) >> 24);
  return acc;
#endif
}

inline vf fused_multiply_add(vf a, vf b, vf c) {
#ifdef __AVX512F__
  auto result = _mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b), std::bit_cast<__m512>(c));
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

// What lies ahead of some steps. Of one row, weights are read once; but lines that don't stay in any cache can't be
// asked for in pages, which takes too long for the first one. Several panels share what lies ahead.
template <bool kOnce>
inline void ask_ahead(WeightsAhead& ahead, int64_t advance) {
  ahead.ask<kOnce>();
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

// Sixteen scales or offsets.
inline vf load_scales(const bf16* from, bool has_halves) {
  if (!has_halves) return load(from);
#if defined(__AVX512F__)
  __m256i halves;
  std::memcpy(&halves, from, sizeof halves);
  return std::bit_cast<vf>(_mm512_maskz_cvtph_ps(0xffff, halves));
#else
  c10::Half halves[kLanes];
  std::memcpy(halves, from, sizeof halves);
  vf wide;
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = halves[lane];
  return wide;
#endif
}

// A unit's integer sums of R rows of bytes.
template <class F, int R, bool kOnce>
inline void add_unit(
    vi (&acc)[R][kVectors], const uint32_t* a, const uint8_t* w, int64_t steps, vi levels, WeightsAhead& ahead,
    int64_t advance) {
  const int64_t line_advance = advance * F::kSteps / F::kLines;
  for (int64_t chunk = 0; chunk < steps; chunk += F::kSteps, a += F::kSteps * R, w += F::kLines * kLineBytes) {
    for (int line = 0; line < F::kLines; ++line) ask_ahead<kOnce>(ahead, line_advance);
#pragma GCC unroll 8
    for (int step = 0; step < F::kSteps; ++step) {
      vi values[kVectors];
      for (int v = 0; v < kVectors; ++v) values[v] = bytes_of<F>(w + v * 64, step, levels);
      for (int r = 0; r < R; ++r) {
        const vi broadcast = splat_bits(a[step * R + r]);
        for (int v = 0; v < kVectors; ++v) acc[r][v] = dot_bytes(acc[r][v], values[v], broadcast);
      }
    }
  }
}

// The sums of R rows (a panel's) with a block, over some units.
template <class F, int R, bool kInPages>
void tile(const TileArgs& t) {
  vf sums[R][kVectors];
  if (t.is_first) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(0);
  } else {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = load(t.sums + r * kBlock + v * kLanes);
  }
  constexpr bool kOnce = R == 1 && !kInPages;
  constexpr int kBytes = R * F::kWords;  // rows of bytes
  WeightsAhead ahead = t.ahead;
  const int64_t advance = t.advance;
  vi levels{};
  int64_t per_scale = 1, scale_line = 0;
  bool has_offsets = false, has_halves = false;
  if constexpr (F::kGrouped) {
    const CodedForm& form = *t.matrix->form;
    levels = load_bits(form.levels);
    per_scale = t.matrix->units_per_scale;
    scale_line = form.scale_line();
    has_offsets = form.has_offsets;
    has_halves = form.has_halves;
  }
  for (int64_t unit = t.unit_begin; unit < t.unit_end; ++unit) {
    const int64_t first = unit * t.unit_steps, last = std::min(first + t.unit_steps, t.depth);
    const uint32_t* a = t.steps + first * kBytes;
    const uint8_t* w = t.weights + first * F::kStepBytes;
    if constexpr (F::kGrouped) {
      vi acc[kBytes][kVectors] = {};
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) acc[kBytes - R + r][v] = vi{} + t.offsets[unit * R + r];
      if (last - first == F::kUsualSteps) {
        add_unit<F, kBytes, kOnce>(acc, a, w, F::kUsualSteps, levels, ahead, advance);  // unrolled
      } else {
        add_unit<F, kBytes, kOnce>(acc, a, w, last - first, levels, ahead, advance);
      }
      if constexpr (F::kWords == 2) {
        for (int r = 0; r < R; ++r)
          for (int v = 0; v < kVectors; ++v) acc[r][v] = (acc[r][v] << 8) + acc[R + r][v];
      }
      const int64_t group = per_scale == 1 ? unit : unit / per_scale;
      const bf16* unit_scales = t.weight_scales + group * scale_line;
      if constexpr (kInPages) __builtin_prefetch(unit_scales + kScalesAhead, 0, 2);
      for (int v = 0; v < kVectors; ++v) {
        const vf scale = load_scales(unit_scales + v * kLanes, has_halves);
        for (int r = 0; r < R; ++r)
          sums[r][v] =
              fused_multiply_add(__builtin_convertvector(acc[r][v], vf), scale * t.scales[unit * R + r], sums[r][v]);
        if (!has_offsets) continue;
        const vf offset = load_scales(unit_scales + kBlock + v * kLanes, has_halves);
        for (int r = 0; r < R; ++r) sums[r][v] = fused_multiply_add(offset, splat(t.totals[unit * R + r]), sums[r][v]);
      }
    } else {
      for (int64_t step = first; step < last; ++step, a += R, w += 128) {
        ask_ahead<kOnce>(ahead, advance);
        vi values[kVectors];
        for (int v = 0; v < kVectors; ++v) values[v] = load_bits(w + v * 64);
        for (int r = 0; r < R; ++r) {
          const vi broadcast = splat_bits(a[r]);
          for (int v = 0; v < kVectors; ++v) {
            if constexpr (F::kPerStep == 2)
              sums[r][v] = dot_halves(sums[r][v], values[v], broadcast);
            else
              sums[r][v] = fused_multiply_add(std::bit_cast<vf>(values[v]), std::bit_cast<vf>(broadcast), sums[r][v]);
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
  if (t.in_pages)
    tile<F, R, true>(t);
  else
    tile<F, R, false>(t);
}

}  // namespace blazr
