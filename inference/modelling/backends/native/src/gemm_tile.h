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
  int64_t depth;           // steps of the whole panel
  const uint8_t* weights;  // of the block, from its first step
  const bf16* weight_scales;
  int64_t unit_begin, unit_end, unit_steps;
  float* sums;         // [rows][32]
  bool is_first;       // the sums start at 0
  WeightsAhead ahead;  // what is read later, asked for at each step
  int64_t advance;     // bytes by which a step moves it
  bool in_pages;       // its order (read_ahead.h)
};

// The bytes of a table of sixteen (repeated in a register) that the low four bits of each byte choose.
inline vi look_up(vi table, vi numbers) {
#if defined(__AVX512VBMI__)
  // Six bits choose of 64 bytes: the upper two don't matter where a table repeats.
  return std::bit_cast<vi>(_mm512_permutexvar_epi8(std::bit_cast<__m512i>(numbers), std::bit_cast<__m512i>(table)));
#elif defined(__AVX512BW__)
  return std::bit_cast<vi>(
      _mm512_shuffle_epi8(std::bit_cast<__m512i>(table), std::bit_cast<__m512i>(numbers & 0x0f0f0f0f)));
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
template <bool kOnce, int kSteps = 1>
inline void ask_ahead(WeightsAhead& ahead, int64_t advance) {
  ahead.ask<kOnce>();
  ahead.at += kSteps * advance;
}

// A group's integer sums of R rows of bytes.
template <class F, int R, bool kOnce>
inline void add_group(
    vi (&acc)[R][kVectors], const uint32_t* a, const uint8_t* w, int64_t steps, WeightsAhead& ahead, int64_t advance) {
  constexpr bool kFour = F::kStepBytes == 64;
  const vi levels = load_bits(kUnsignedLevels.bytes);
  for (int64_t step = 0; step < steps; step += kFour ? 2 : 1, a += kFour ? 2 * R : R, w += 128) {
    ask_ahead<kOnce, kFour ? 2 : 1>(ahead, advance);
    vi values[kVectors], high[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      values[v] = load_bits(w + v * 64);
      if constexpr (kFour) {
        high[v] = look_up(levels, values[v] >> 4);
        values[v] = look_up(levels, values[v]);
      }
    }
    for (int r = 0; r < R; ++r) {
      const vi broadcast = splat_bits(a[r]);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = dot_bytes(acc[r][v], values[v], broadcast);
    }
    if constexpr (kFour) {
      for (int r = 0; r < R; ++r) {
        const vi broadcast = splat_bits(a[R + r]);
        for (int v = 0; v < kVectors; ++v) acc[r][v] = dot_bytes(acc[r][v], high[v], broadcast);
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
  for (int64_t unit = t.unit_begin; unit < t.unit_end; ++unit) {
    const int64_t first = unit * t.unit_steps, last = std::min(first + t.unit_steps, t.depth);
    const uint32_t* a = t.steps + first * kBytes;
    const uint8_t* w = t.weights + first * F::kStepBytes;
    if constexpr (F::kGrouped) {
      vi acc[kBytes][kVectors] = {};
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) acc[kBytes - R + r][v] = vi{} + t.offsets[unit * R + r];
      if (last - first == F::kUsualSteps) {
        add_group<F, kBytes, kOnce>(acc, a, w, F::kUsualSteps, ahead, advance);  // unrolled
      } else {
        add_group<F, kBytes, kOnce>(acc, a, w, last - first, ahead, advance);
      }
      if constexpr (F::kWords == 2) {
        for (int r = 0; r < R; ++r)
          for (int v = 0; v < kVectors; ++v) acc[r][v] = (acc[r][v] << 8) + acc[R + r][v];
      }
      if constexpr (kInPages) __builtin_prefetch(t.weight_scales + unit * kBlock + kScalesAhead, 0, 2);
      for (int v = 0; v < kVectors; ++v) {
        const vf scale = load(t.weight_scales + unit * kBlock + v * kLanes);
        for (int r = 0; r < R; ++r)
          sums[r][v] =
              fused_multiply_add(__builtin_convertvector(acc[r][v], vf), scale * t.scales[unit * R + r], sums[r][v]);
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
