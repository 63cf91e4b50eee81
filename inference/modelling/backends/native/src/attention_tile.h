// The arithmetic of attention: rows of queries against a block of 64 keys, online softmax in float32.
//
// Every operand is made of 32-bit units that a multiply-accumulate step takes: one float32, or a pair of bfloat16
// where the processor multiplies pairs (vdpbf16ps). Packed operands lie in panels of kPanelColumns columns,
// [panel][unit][kPanelColumns]: a column of keys is a key, whose units follow the head's width; a column of values is
// one value of a head, whose units follow the keys. Queries lie row by row; so both products broadcast a unit of a row
// and run over lanes, and one form serves both types. Where there is no instruction for pairs, bfloat16 is widened
// while it is packed; values that few rows use aren't packed, but widened as they are read.
//
// A row's result doesn't depend on the rows beside it: each score is one sum over the units in order, each block of
// keys begins at a multiple of 64, and what is masked adds exact zeros.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <memory>

#include "simd.h"

namespace blazr {

constexpr int kKeys = 64;                             // keys of a block
constexpr int kKeyVectors = kKeys / kLanes;           // vectors of scores in a row
constexpr int kRows = 6;                              // rows whose sums, kTileVectors of each, stay in registers
constexpr int kMostTileVectors = 8;                   // of a row, however few rows there are
constexpr int kPanelColumns = kTileVectors * kLanes;  // of a packed operand, that lie together
constexpr float kNone = -std::numeric_limits<float>::infinity();

#ifdef __AVX512BF16__
template <typename T>
constexpr bool kPairs = std::is_same_v<T, bf16>;
#else
template <typename T>
constexpr bool kPairs = false;
#endif

// Vectors of sums of each row in a tile of `rows` rows. Few rows get wider tiles: with too few sums, each addition
// would wait for the one before it to the same register.
constexpr int tile_vectors(int rows) {
  int vectors = kTileVectors;
  while (vectors < kMostTileVectors && 2 * vectors * rows <= kRows * kTileVectors) vectors *= 2;
  return vectors;
}

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

template <typename T>
inline int64_t units_of(int64_t width) {
  return kPairs<T> ? (width + 1) / 2 : width;
}

// acc + a · b, unit by unit.
template <typename T>
inline vf step(vf acc, vu a, vu b) {
#ifdef __AVX512BF16__
  if constexpr (kPairs<T>) {
    __m512 sum = _mm512_dpbf16_ps(std::bit_cast<__m512>(acc), std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
    return std::bit_cast<vf>(sum);
  }
#endif
  return acc + std::bit_cast<vf>(a) * std::bit_cast<vf>(b);
}

inline float reduce_max(vf values) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps(std::bit_cast<__m512>(values));
#else
  return max(values);
#endif
}

// 2^x for x ≤ 0 to about one unit in the last place; 0 far below, NaN stays NaN.
inline vf exp2_negative(vf x) {
  x = x < splat(-140.0f) ? splat(-140.0f) : x;
  vf magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number
  vf whole = (x + magic) - magic;
  vf r = x - whole;
  // The Taylor polynomial of 2^r = e^(r ln 2) of degree 6; its error for |r| ≤ 1/2 is 1.2e-7.
  vf p = splat(1.54035304e-4f);
  p = p * r + 1.33335581e-3f;
  p = p * r + 9.61812911e-3f;
  p = p * r + 5.55041087e-2f;
  p = p * r + 2.40226507e-1f;
  p = p * r + 6.93147181e-1f;
  p = p * r + 1.0f;
#ifdef __AVX512F__
  __m512 scaled = _mm512_scalef_ps(std::bit_cast<__m512>(p), std::bit_cast<__m512>(whole));
  return std::bit_cast<vf>(scaled);
#else
  vi is_zero = whole < splat(-126.0f);
  vi exponent = __builtin_convertvector(vmax(whole, splat(-126.0f)), vi);
  vi bits = (exponent + 127) << 23;
  return is_zero ? splat(0) : p * std::bit_cast<vf>(bits);
#endif
}

// Memory of one thread that grows to the greatest request and is used again.
class Scratch {
 public:
  float* take(int64_t count) {
    if (count > size_) {
      const auto bytes = static_cast<size_t>(round_up(count * 4, 64));
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      TORCH_CHECK(memory_ != nullptr, "attention: no memory for ", bytes, " bytes of scratch");
      size_ = count;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
  int64_t size_ = 0;
};

// A row of `width` values as units, zeros up to `units`.
template <typename T>
inline void pack_row(const T* from, int64_t width, uint32_t* to, int64_t units) {
  if constexpr (kPairs<T>) {
    to[units - 1] = 0;
    std::memcpy(to, from, width * sizeof(T));
  } else {
    float values;
    for (int64_t i = 0; i < width; ++i) {
      values = static_cast<float>(from[i]);
      std::memcpy(to + i, &values, sizeof values);
    }
  }
}

// Values in a word of 32 bits, as they lie in memory.
template <typename T>
constexpr int kValuesPerWord = 4 / sizeof(T);

// kLanes words of 32 bits of a row; beyond its `left` (≥ 1) values they are 0.
template <typename T>
inline vu load_words(const T* from, int64_t left) {
  if (left >= kLanes * kValuesPerWord<T>) return load_units(reinterpret_cast<const uint32_t*>(from));
  uint32_t buffer[kLanes] = {};
  std::memcpy(buffer, from, left * sizeof(T));
  return load_units(buffer);
}

constexpr int64_t kBytesPerPrefetch = 128;  // of keys or values in the cache: `beside()` is called for each so many

// Where a column of a packed operand begins, whose panels have `units` units.
inline int64_t packed_offset(int64_t column, int64_t units) {
  return column / kPanelColumns * units * kPanelColumns + column % kPanelColumns;
}

// Where nothing is done beside.
struct Nothing {
  void operator()() const {}
};

// Keys of a block to [panel][unit][kPanelColumns]; rows beyond `count` are not packed further than the others of their
// vector. `beside()` is called with each kBytesPerPrefetch.
template <typename T, typename Beside = Nothing>
inline void pack_keys(const T* const* rows, int count, int64_t width, uint32_t* to, Beside&& beside = {}) {
  constexpr int64_t kValuesEach = kLanes * kValuesPerWord<T>;
  constexpr int kKeysPerPrefetch = std::max<int64_t>(1, kBytesPerPrefetch / (kValuesEach * sizeof(T)));
  constexpr bool kWidens = kValuesPerWord<T> == 2 && !kPairs<T>;
  constexpr int64_t kUnitsEach = kWidens ? kValuesEach : kLanes;
  for (int key = 0; key < count; key += kLanes) {
    const int there = std::min(kLanes, count - key);
    uint32_t* column = to + packed_offset(key, units_of<T>(width));
    for (int64_t at = 0; at < width; at += kValuesEach) {
      const int64_t left = width - at;
      for (int i = 0; i < there; i += kKeysPerPrefetch) beside();  // first: a call would send the vectors to memory
      vu block[kLanes] = {};
      if (there == kLanes && left >= kValuesEach) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) block[i] = load_words(rows[key + i] + at, kValuesEach);
      } else {
        for (int i = 0; i < there; ++i) block[i] = load_words(rows[key + i] + at, left);
      }
      // Words of two bfloat16 are transposed: half as many as values. The even one is the lower half of its word, and a
      // float32 when it is moved to the upper half.
      transpose(block);
      const auto widened_unit = [&](int64_t i) -> vu {
        if constexpr (!kWidens) return block[i];
        return widen_half(block[i / 2], i % 2);
      };
      if (left >= kValuesEach) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kUnitsEach; ++i) store_units(column + i * kPanelColumns, widened_unit(i));
      } else {
        for (int64_t i = 0; i < units_of<T>(left); ++i) store_units(column + i * kPanelColumns, widened_unit(i));
      }
      column += kUnitsEach * kPanelColumns;
    }
  }
}

#ifdef __AVX512BF16__
// 32 values of two rows to 32 units: the first row's in the lower halves.
inline void store_pairs(const bf16* low, const bf16* high, uint32_t* to) {
  typedef uint16_t vw __attribute__((vector_size(64)));
  vw first, second;
  std::memcpy(&first, low, sizeof first);
  std::memcpy(&second, high, sizeof second);
  const vw begin = __builtin_shufflevector(
      first, second, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13,
      45, 14, 46, 15, 47);
  const vw end = __builtin_shufflevector(
      first, second, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28,
      60, 29, 61, 30, 62, 31, 63);
  store_units(to, std::bit_cast<vu>(begin));
  store_units(to + kLanes, std::bit_cast<vu>(end));
}
#endif

// Values of a block to [panel][key unit][kPanelColumns]. `units`: of a whole panel, of which this call may write some.
// `beside()` is called with each kBytesPerPrefetch.
template <typename T, typename Beside = Nothing>
inline void pack_values(
    const T* const* rows, int count, int64_t width, int64_t units, uint32_t* to, Beside&& beside = {}) {
  const auto place = [&](int64_t column) { return to + packed_offset(column, units); };
  if constexpr (kPairs<T>) {
    for (int key = 0; key < count; key += 2) {
      const T *low_row = rows[key], *high_row = key + 1 < count ? rows[key + 1] : nullptr;
      int64_t at = 0;
#ifdef __AVX512BF16__
      for (; high_row != nullptr && at + 2 * kLanes <= width; at += 2 * kLanes) {
        store_pairs(low_row + at, high_row + at, place(at));
        beside();
      }
#endif
      for (; at < width; at += kLanes) {
        const int64_t left = width - at;
        // A bfloat16 is the upper half of its float32: two of them are one unit.
        vf low = left >= kLanes ? load(low_row + at) : load_part(low_row + at, left);
        vf high = high_row == nullptr ? splat(0)
                  : left >= kLanes    ? load(high_row + at)
                                      : load_part(high_row + at, left);
        store_units(place(at), (std::bit_cast<vu>(low) >> 16) | std::bit_cast<vu>(high));
      }
      to += kPanelColumns;
    }
  } else {
    constexpr int kVectorsPerPrefetch = kBytesPerPrefetch / (kLanes * sizeof(T));
    int vectors = 0;
    for (int key = 0; key < count; ++key, to += kPanelColumns)
      for (int64_t at = 0; at < width; at += kLanes) {
        const int64_t left = width - at;
        vf values = left >= kLanes ? load(rows[key] + at) : load_part(rows[key] + at, left);
        store_units(place(at), std::bit_cast<vu>(values));
        if (++vectors % kVectorsPerPrefetch == 0) beside();
      }
  }
}

// sums[row][j] += columns_at(j) · unit_of(row). The fewer of both are loaded first and stay in registers, the others
// one by one.
template <typename T, int Count, int V, typename ColumnsAt, typename UnitOf>
inline __attribute__((always_inline)) void add_products(
    vf (&sums)[Count][V], ColumnsAt&& columns_at, UnitOf&& unit_of) {
  if constexpr (Count < V) {
    vu units[Count];
#pragma GCC unroll 6
    for (int row = 0; row < Count; ++row) units[row] = unit_of(row);
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j) {
      const vu columns = columns_at(j);
#pragma GCC unroll 6
      for (int row = 0; row < Count; ++row) sums[row][j] = step<T>(sums[row][j], columns, units[row]);
    }
  } else {
    vu columns[V];
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j) columns[j] = columns_at(j);
#pragma GCC unroll 6
    for (int row = 0; row < Count; ++row) {
      const vu unit = unit_of(row);
#pragma GCC unroll 8
      for (int j = 0; j < V; ++j) sums[row][j] = step<T>(sums[row][j], columns[j], unit);
    }
  }
}

// A column of a packed operand [panel][unit][kPanelColumns], and those beside it.
struct PackedColumns {
  const uint32_t* at;
  int64_t panel_stride;  // units · kPanelColumns

  PackedColumns(const uint32_t* packed, int64_t units, int64_t column)
      : at(packed + packed_offset(column, units)), panel_stride(units * kPanelColumns) {}

  // kLanes columns of a unit, `vector` vectors after the first one. Where more than one is read, `column` begins a
  // panel.
  vu load_at(int64_t unit, int vector) const {
    return load_units(
        at + vector / kTileVectors * panel_stride + unit * kPanelColumns + vector % kTileVectors * kLanes);
  }
};

// Rows of units (Count, units) times 64 packed columns.
template <typename T, int Count>
inline void multiply(const uint32_t* rows, int64_t units, const uint32_t* packed, vf out[Count][kKeyVectors]) {
  constexpr int kVectors = std::min(tile_vectors(Count), kKeyVectors);
  for (int first = 0; first < kKeyVectors; first += kVectors) {
    const PackedColumns columns(packed, units, first * kLanes);
    // A local copy stays in registers; the compiler can't keep `out` there.
    vf sums[Count][kVectors];
    for (auto& row : sums)
      for (auto& vector : row) vector = splat(0);
    for (int64_t unit = 0; unit < units; ++unit)
      add_products<T>(
          sums, [&](int j) { return columns.load_at(unit, j); },
          [&](int row) { return vu{} + rows[row * units + unit]; });
#pragma GCC unroll 6
    for (int row = 0; row < Count; ++row)
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) out[row][first + j] = sums[row][j];
  }
}

// The vectors of a row's scores to one, pair by pair.
template <typename Operation>
inline vf fold(const vf (&scores)[kKeyVectors], Operation&& operation) {
  vf left[kKeyVectors];
  for (int j = 0; j < kKeyVectors; ++j) left[j] = scores[j];
#pragma GCC unroll 3
  for (int width = kKeyVectors / 2; width > 0; width /= 2)
#pragma GCC unroll 4
    for (int j = 0; j < width; ++j) left[j] = operation(left[2 * j], left[2 * j + 1]);
  return left[0];
}

// What the scores go through.
struct ScoreRule {
  float scale;     // of q·k
  float softcap;   // 0: none
  int64_t window;  // positions that a query sees, its own included; 0: all
  // Of each query head, the score of a position without a value; none: nullptr.
  const float* sinks = nullptr;

  // What the sink of a head adds to the sum of the weights of a row whose highest exponent this is.
  float weight_of_sink(int64_t head, float highest) const {
    constexpr float kLog2e = 1.44269504088896341f;
    return sinks == nullptr ? 0.0f : std::exp2(sinks[head] * kLog2e - highest);
  }

  // To exponents of 2, so that the softmax needs 2^x only.
  vf operator()(vf scores) const {
    constexpr float kLog2e = 1.44269504088896341f;
    if (softcap == 0) return scores * (scale * kLog2e);
    return tanh(scores * (scale / softcap)) * (softcap * kLog2e);
  }
};

// Values of a block as pack_values lays them out.
struct PackedValues {
  static constexpr int kUnitsAtOnce = kKeys;
  const uint32_t* packed;
  PackedColumns columns(int64_t column) const {
    return {packed, kKeys, column};
  }  // of pairs half of the units are used
};

// Values of a block, read where they lie in the cache and widened if bfloat16; their width is a multiple of kLanes.
// kUnitsAtOnce keys at a time, so that their lines stay in the first cache until all columns have been read.
template <typename T>
struct ValueRows {
  static constexpr int kUnitsAtOnce = 16;
  struct Columns {
    const T* const* rows;
    int64_t column;
    vu load_at(int64_t unit, int vector) const {
      return std::bit_cast<vu>(load(rows[unit] + column + vector * kLanes));
    }
  };
  const T* const* rows;
  Columns columns(int64_t column) const { return {rows, column}; }
};

// The state of a row's softmax: exponents relative to `highest`, sums by lane.
struct RowState {
  vf total;
  float highest;
};

// `Count` rows against a block: scores, softmax, weighted values added to `mixed`.
//
// queries: (Count, units); keys: packed; values: PackedValues or ValueRows; positions: of each row, from the block's
// first key; mixed: (Count, padded) float32; states: Count; probabilities: scratch of Count · 64 units.
template <typename T, int Count, typename Values>
inline void advance(
    const uint32_t* queries, int64_t units, const uint32_t* keys, const Values& values, int64_t padded, int num_keys,
    const int64_t* positions, bool masked, const ScoreRule& rule, RowState* states, float* mixed,
    uint32_t* probabilities) {
  vf scores[Count][kKeyVectors];
  multiply<T, Count>(queries, units, keys, scores);

  float kept[Count];  // by how much what was gathered so far shrinks
  constexpr int64_t stride = kPairs<T> ? kKeys / 2 : kKeys;
#pragma GCC unroll 6
  for (int row = 0; row < Count; ++row) {
#pragma GCC unroll 8
    for (int j = 0; j < kKeyVectors; ++j) {
      scores[row][j] = rule(scores[row][j]);
      if (masked) {
        const vi lane = kLaneNumbers + j * kLanes;
        const auto last = static_cast<int32_t>(std::min<int64_t>(positions[row], num_keys - 1));
        vi hidden = lane > last;
        if (rule.window) hidden |= lane <= static_cast<int32_t>(std::max<int64_t>(positions[row] - rule.window, -1));
        scores[row][j] = hidden ? splat(kNone) : scores[row][j];
      }
    }
    const float highest = std::max(states[row].highest, reduce_max(fold(scores[row], vmax)));
    const float base = highest == kNone ? 0.0f : highest;  // nothing seen yet: all weights are 2^-inf
    kept[row] = states[row].highest == highest ? 1.0f : std::exp2(states[row].highest - base);
    states[row].highest = highest;
#pragma GCC unroll 8
    for (int j = 0; j < kKeyVectors; ++j) scores[row][j] = exp2_negative(scores[row][j] - base);
    states[row].total = states[row].total * kept[row] + fold(scores[row], [](vf a, vf b) { return a + b; });
#pragma GCC unroll 8
    for (int j = 0; j < kKeyVectors; ++j) {
      if constexpr (kPairs<T>) {
        store(reinterpret_cast<bf16*>(probabilities + row * stride) + j * kLanes, scores[row][j]);
      } else {
        store_units(probabilities + row * stride + j * kLanes, std::bit_cast<vu>(scores[row][j]));
      }
    }
  }

  const int key_units = kPairs<T> ? (num_keys + 1) / 2 : num_keys;
  auto add_columns = [&](auto vectors, int64_t at, int first, int end) {
    constexpr int kVectors = decltype(vectors)::value;
    const auto columns = values.columns(at);
    vf sums[Count][kVectors];
#pragma GCC unroll 6
    for (int row = 0; row < Count; ++row)
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c)
        sums[row][c] = load(mixed + row * padded + at + c * kLanes) * (first == 0 ? kept[row] : 1.0f);
    for (int unit = first; unit < end; ++unit)
      add_products<T>(
          sums, [&](int c) { return columns.load_at(unit, c); },
          [&](int row) { return vu{} + probabilities[row * stride + unit]; });
#pragma GCC unroll 6
    for (int row = 0; row < Count; ++row)
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) store(mixed + row * padded + at + c * kLanes, sums[row][c]);
  };
  constexpr int kVectors = tile_vectors(Count);
  for (int first = 0; first < key_units; first += Values::kUnitsAtOnce) {
    const int end = std::min(first + Values::kUnitsAtOnce, key_units);
    int64_t at = 0;
    for (; at + kVectors * kLanes <= padded; at += kVectors * kLanes)
      add_columns(std::integral_constant<int, kVectors>{}, at, first, end);
    if constexpr (kVectors > kTileVectors)
      for (; at + kPanelColumns <= padded; at += kPanelColumns)
        add_columns(std::integral_constant<int, kTileVectors>{}, at, first, end);
    for (; at < padded; at += kLanes) add_columns(std::integral_constant<int, 1>{}, at, first, end);
  }
}

}  // namespace blazr
