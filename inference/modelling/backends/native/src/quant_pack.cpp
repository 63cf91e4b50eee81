// Weights (N, K) into the layouts of gemm_layout.h, quantised on the way.
#include <sys/mman.h>

#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "gemm.h"

namespace blazr {
namespace {

constexpr int64_t kHugePage = 2 << 20;

// Memory for weights: in huge pages where the system gives them, as each small one costs a walk through the page
// table for every 4 KiB that a product reads.
at::Tensor weight_memory(int64_t bytes) {
  if (bytes < kHugePage) return at::empty({bytes}, at::kByte);
  const int64_t rounded = ceil_div(bytes, kHugePage) * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, rounded);
  TORCH_CHECK(memory != nullptr, "no memory for ", bytes, " bytes of weights");
#ifdef MADV_HUGEPAGE
  madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return at::from_blob(memory, {bytes}, [memory](void*) { std::free(memory); }, at::kByte);
}

bf16 rounded_up(float value) {  // value ≥ 0
  bf16 near(value);
  if (static_cast<float>(near) < value) near.x += 1;
  return near;
}

// Symmetric, 255 steps: the greatest magnitude becomes ±127.
template <typename T>
bf16 scale_int8(const T* from, int64_t count) {
  const float greatest = greatest_magnitude(from, count);
  return greatest < kTiny ? bf16(0.0f) : rounded_up(greatest / 127.0f);
}

// Limited before the rounding, whose trick needs small numbers.
inline vi quantise(vf values, vf inverse, float low, float high) {
  return to_integers(vmin(vmax(values * inverse, splat(low)), splat(high)));
}

// The rows of a vector of a block; null: an output that is there to fill the block.
template <typename T>
using Rows = std::array<const T*, kLanes>;

// kLanes units of each row from input `first` on, of which `count` (≥ 1) inputs exist: column by column.
template <typename T>
void load_columns(const Rows<T>& from, int64_t first, int64_t count, vu (&columns)[kLanes]) {
  constexpr int64_t kInputs = sizeof columns[0] / sizeof(T);
  for (int lane = 0; lane < kLanes; ++lane) {
    columns[lane] = vu{};
    if (from[lane])
      std::memcpy(&columns[lane], from[lane] + first, std::min(count, kInputs) * static_cast<int64_t>(sizeof(T)));
  }
  transpose(columns);
}

// Whole ones, without looking at their number each time.
template <typename T>
void load_whole_columns(const Rows<T>& from, int64_t first, vu (&columns)[kLanes]) {
  for (int lane = 0; lane < kLanes; ++lane) std::memcpy(&columns[lane], from[lane] + first, sizeof columns[lane]);
  transpose(columns);
}

inline void store_columns(const vu (&columns)[kLanes], int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * kLineBytes, &columns[i], sizeof columns[i]);
}

// The values as they are, in the layout. `to`: the block's outputs of a vector.
template <class F, typename T>
void copy_rows(const Rows<T>& from, const Matrix& w, uint8_t* to) {
  constexpr int64_t kInputs = kLanes * F::kPerStep;
  const bool is_full = std::find(from.begin(), from.end(), nullptr) == from.end();
  const int64_t steps = steps_of<F>(w.inputs);
  for (int64_t step = 0; step < steps; step += kLanes, to += kLanes * kLineBytes) {
    const int64_t first = step * F::kPerStep, left = w.inputs - first;
    vu columns[kLanes];
    if (is_full && left >= kInputs) {
      load_whole_columns(from, first, columns);
    } else {
      load_columns(from, first, left, columns);
    }
    store_columns(columns, std::min<int64_t>(kLanes, steps - step), to);
  }
}

template <typename T>
void quantise_int8(const Rows<T>& from, const Matrix& w, uint8_t* to, bf16* scales) {
  using F = Coded<8>;
  constexpr int32_t kZero = 128;
  constexpr int64_t kPart = 256;  // inputs of which the bytes stay in the first cache until they are transposed
  alignas(64) uint8_t bytes[kLanes][kPart];
  typedef uint8_t vub __attribute__((vector_size(kLanes)));
  for (int64_t unit = 0; unit < w.units(); ++unit) {
    const int64_t first = unit * w.unit, count = std::min(w.unit, w.inputs - first);
    float inverses[kLanes] = {};
    for (int lane = 0; lane < kLanes; ++lane) {
      const bf16 scale = from[lane] ? scale_int8(from[lane] + first, count) : bf16(0.0f);
      const auto step = static_cast<float>(scale);
      scales[unit * kBlock + lane] = scale;
      if (step != 0.0f) inverses[lane] = 1.0f / step;
    }
    for (int64_t part = 0; part < count; part += kPart) {
      const int64_t here = std::min(kPart, count - part), steps = padded_inputs<F>(here) / F::kPerStep;
      for (int lane = 0; lane < kLanes; ++lane) {
        const T* row = from[lane] ? from[lane] + first + part : nullptr;
        const vf inverse = splat(inverses[lane]);
        for (int64_t i = 0; i < here; i += kLanes) {
          vf values = splat(0);
          if (row) values = i + kLanes <= here ? load(row + i) : load_part(row + i, here - i);
          const vub part_bytes = __builtin_convertvector(quantise(values, inverse, -127, 127) + kZero, vub);
          std::memcpy(bytes[lane] + i, &part_bytes, sizeof part_bytes);
        }
      }
      for (int64_t step = 0; step < steps; step += kLanes) {
        vu columns[kLanes];
        for (int lane = 0; lane < kLanes; ++lane)
          std::memcpy(&columns[lane], bytes[lane] + step * F::kPerStep, sizeof columns[lane]);
        transpose(columns);
        store_columns(columns, std::min<int64_t>(kLanes, steps - step), to + ((first + part) / 4 + step) * kLineBytes);
      }
    }
  }
}

// Inputs [first, first + count) of each row as float32, column by column; what fills the last vectors is 0.
template <typename T>
void widen_columns(const Rows<T>& from, int64_t first, int64_t count, float* columns) {
  constexpr int64_t kInputs = kLanes * 4 / sizeof(T);
  for (int64_t i = 0; i < count; i += kInputs) {
    vu units[kLanes];
    load_columns(from, first + i, count - i, units);
    for (int j = 0; j < kLanes; ++j) {
      if constexpr (sizeof(T) == 4) {
        store(columns + (i + j) * kLanes, std::bit_cast<vf>(units[j]));
      } else {
        store(columns + (i + 2 * j) * kLanes, std::bit_cast<vf>(widen_half(units[j], 0)));
        store(columns + (i + 2 * j + 1) * kLanes, std::bit_cast<vf>(widen_half(units[j], 1)));
      }
    }
  }
}

inline vf rounded_to_bf16(vf values) {
  bf16 near[kLanes];
  store(near, values);
  return load(near);
}

constexpr int kMiddle = 8;  // of the sixteen levels

using Table = std::array<float, 16>;

// Half-way between each level and the next.
constexpr Table middles_of_levels() {
  Table middles{};
  for (int i = 0; i + 1 < std::ssize(kLevels); ++i) middles[i] = 0.5f * static_cast<float>(kLevels[i] + kLevels[i + 1]);
  return middles;
}

constexpr Table float_levels() {
  Table levels{};
  for (int i = 0; i < std::ssize(kLevels); ++i) levels[i] = static_cast<float>(kLevels[i]);
  return levels;
}

constexpr Table kMiddles = middles_of_levels(), kFloatLevels = float_levels();

inline vf look_up(const Table& table, vi numbers) {
  if constexpr (kWide) return __builtin_shuffle(load(table.data()), numbers);
  return __builtin_shuffle(load(table.data()), load(&table[16 - kLanes]), numbers);
}

// The number of the level that is nearest, by halves.
inline vi nearest_level(vf values) {
  vi number = (values > splat(kMiddles[kMiddle - 1])) & kMiddle;
  for (int step = kMiddle / 2; step > 0; step /= 2) number += (values > look_up(kMiddles, number + (step - 1))) & step;
  return number;
}

inline vf level_of(vi number) { return look_up(kFloatLevels, number); }

// Where the value of the greatest magnitude is tried: at both ends, and a little before and beyond them.
constexpr float kEnds[] = {-127, -118, -136, -110, -145, 113, 104, 121, 97};

// The scale with the least squared error: for each end the levels that are nearest, and of the scales that these can
// have the best, Σ value · level / Σ level². A lane is a row.
inline vf scales_int4(const float* columns, int64_t count) {
  vi bits = {};
  vf extreme = splat(0);
  for (int64_t i = 0; i < count; ++i) {
    const vf value = load(columns + i * kLanes);
    const vi here = std::bit_cast<vi>(value) & 0x7fffffff;
    extreme = here > bits ? value : extreme;
    bits = here > bits ? here : bits;
  }
  const vi is_nothing = std::bit_cast<vf>(bits) < splat(kTiny);
  const vf inverse = splat(1.0f) / (is_nothing ? splat(1.0f) : extreme);
  vf best = splat(0), best_gain = splat(0);
  constexpr int kChains = 4;
  for (const float end : kEnds) {
    vf products[kChains] = {}, squares[kChains] = {};
    const auto add = [&](int64_t i, int chain) {
      const vf value = load(columns + i * kLanes) * inverse, level = level_of(nearest_level(value * end));
      products[chain] += value * level;
      squares[chain] += level * level;
    };
    int64_t i = 0;
    for (; i + kChains <= count; i += kChains)
      for (int chain = 0; chain < kChains; ++chain) add(i + chain, chain);
    for (; i < count; ++i) add(i, 0);
    const vf product = (products[0] + products[1]) + (products[2] + products[3]);
    const vf scale = product / ((squares[0] + squares[1]) + (squares[2] + squares[3])), gain = product * scale;
    const vi is_better = gain > best_gain;
    best = is_better ? scale : best;
    best_gain = is_better ? gain : best_gain;
  }
  return is_nothing ? splat(0) : rounded_to_bf16(best * extreme);
}

template <typename T>
void quantise_int4(const Rows<T>& from, const Matrix& w, uint8_t* to, bf16* scales) {
  using F = Coded<4>;
  // A load of columns may go beyond the group by as many as it makes.
  float* columns = thread_buffer((ceil_div(w.unit, 2 * kLanes) + 1) * 2 * kLanes * kLanes);
  for (int64_t unit = 0; unit < w.units(); ++unit) {
    const int64_t first = unit * w.unit, count = std::min(w.unit, w.inputs - first);
    widen_columns(from, first, count, columns);
    const vf scale = scales_int4(columns, count);
    store(scales + unit * kBlock, scale);
    const vi is_nothing = scale == splat(0);
    const vf inverse = is_nothing ? splat(0) : splat(1.0f) / scale;
    for (int64_t i = 0; i < padded_inputs<F>(count); i += F::kAlign) {
      vu nibbles = {};
      for (int j = 0; j < F::kAlign; ++j) {
        const vi number = nearest_level(load(columns + (i + j) * kLanes) * inverse);
        nibbles |= std::bit_cast<vu>(number) << (j % 4 * 8 + j / 4 * 4);
      }
      std::memcpy(to + (first + i) / F::kAlign * kLineBytes, &nibbles, sizeof nibbles);
    }
  }
}

// One block from `count` rows.
template <class F, typename T>
void pack_block(const T* rows, int64_t count, const Matrix& w, uint8_t* to, bf16* scales) {
  for (int64_t vector = 0; vector < kVectors; ++vector, to += kLanes * 4, scales += kLanes) {
    Rows<T> from;
    for (int lane = 0; lane < kLanes; ++lane)
      from[lane] = vector * kLanes + lane < count ? rows + (vector * kLanes + lane) * w.inputs : nullptr;
    if constexpr (!F::kGrouped) {
      copy_rows<F>(from, w, to);
    } else if constexpr (F::kBits == 4) {
      quantise_int4(from, w, to, scales);
    } else if constexpr (F::kBits == 8) {
      quantise_int8(from, w, to, scales);
    }
  }
}

// Memory for a matrix (N, K), or the matrices of E experts (E, N, K).
std::tuple<at::Tensor, at::Tensor> empty_packed(at::IntArrayRef shape, int64_t format, int64_t group) {
  TORCH_CHECK(shape.size() == 2 || shape.size() == 3, "pack_weight: matrices are needed");
  auto sizes = shape.vec();
  const Matrix w = matrix_layout(format, sizes.end()[-2], sizes.back(), group);
  const int64_t matrices = sizes.size() == 3 ? sizes[0] : 1;
  sizes.end()[-2] = w.blocks();
  sizes.back() = w.block_bytes;
  const at::Tensor data = weight_memory(matrices * w.blocks() * w.block_bytes).view(sizes);
  const int64_t line = w.form ? w.form->scale_line() : kBlock;
  sizes.back() = w.block_scales() / line;
  sizes.push_back(line);
  return {data, at::empty(sizes, w.form && w.form->has_halves ? at::kHalf : at::kBFloat16)};
}

// Rows of matrices whose outputs are a multiple of 32, or the last ones of a single matrix, to their place from row
// `first` on, which begins a block. On the caller's thread alone, so that several can pack rows as they are read.
void pack_rows(
    const at::Tensor& rows, const at::Tensor& data, const at::Tensor& scales, int64_t first, int64_t format,
    int64_t group) {
  TORCH_CHECK(rows.dim() == 2 && rows.is_contiguous() && rows.numel() > 0, "pack_rows: contiguous rows are needed");
  const Matrix w = matrix_layout(format, rows.size(0), rows.size(1), group);
  const int64_t begin = first / kBlock;
  TORCH_CHECK(
      data.is_contiguous() && scales.is_contiguous() && first >= 0 && first % kBlock == 0 &&
          (begin + w.blocks()) * w.block_bytes <= data.numel() && data.scalar_type() == at::kByte,
      "pack_rows: rows from ", first, " on have no place");
  TORCH_CHECK(
      !w.form || ((format == kInt8 || format == kInt4) && w.units_per_scale == 1),
      "pack_rows: values become int8 or int4, in groups of one unit");
  TORCH_CHECK(
      !w.form || (scales.scalar_type() == at::kBFloat16 && (begin + w.blocks()) * w.block_scales() <= scales.numel()),
      "pack_rows: the scales don't fit");
  dispatch(rows.scalar_type(), "pack_rows", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_format(format, [&](auto f) {
      using F = decltype(f);
      if constexpr (!F::kGrouped && F::kPerStep * sizeof(T) != 4) {
        TORCH_CHECK(false, "pack_rows: weights that are not quantised keep their dtype");
      } else {
        uint8_t* to = data.data_ptr<uint8_t>() + begin * w.block_bytes;
        bf16* scale = scales.data_ptr<bf16>() + begin * w.block_scales();
        const T* from = rows.const_data_ptr<T>();
        for (int64_t block = 0; block < w.blocks(); ++block) {
          const int64_t row = block * kBlock;
          pack_block<F>(
              from + row * w.inputs, std::min(kBlock, w.outputs - row), w, to + block * w.block_bytes,
              scale + block * w.block_scales());
        }
      }
    });
  });
}

// (N, K), or (E, N, K) for the matrices of E experts.
std::tuple<at::Tensor, at::Tensor> pack_weight(const at::Tensor& weight, int64_t format, int64_t group) {
  TORCH_CHECK(weight.numel() > 0 && weight.is_contiguous(), "pack_weight: contiguous matrices are needed");
  const auto [data, scales] = empty_packed(weight.sizes(), format, group);
  const int64_t outputs = weight.size(-2), inputs = weight.size(-1), blocks = ceil_div(outputs, kBlock);
  const int64_t matrices = weight.numel() / (outputs * inputs);
  const at::Tensor flat = weight.view({matrices * outputs, inputs});
  const at::Tensor blocks_data = data.view({matrices * blocks, data.size(-1)});
  const at::Tensor blocks_scales = scales.view({matrices * blocks, scales.size(-2), kBlock});
  constexpr int64_t kBlocksEach = 16;
  const int64_t tasks = ceil_div(blocks, kBlocksEach);
  // A thread that the system has put aside holds nobody up.
  share(matrices * tasks, weight.numel() > 65536, [&](int64_t task) {
    const int64_t matrix = task / tasks, first = task % tasks * kBlocksEach,
                  count = std::min(kBlocksEach, blocks - first);
    const int64_t row = first * kBlock, begin = matrix * blocks + first;
    pack_rows(
        flat.narrow(0, matrix * outputs + row, std::min(count * kBlock, outputs - row)),
        blocks_data.narrow(0, begin, count), blocks_scales.narrow(0, begin, count), 0, format, group);
  });
  return {data, scales};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def("empty_packed(int[] shape, int format, int group) -> (Tensor, Tensor)", empty_packed);
  library.def("pack_rows(Tensor rows, Tensor(a!) data, Tensor(b!) scales, int first, int format, int group) -> ()");
  library.def("pack_weight(Tensor weight, int format, int group) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("pack_rows", pack_rows);
  library.impl("pack_weight", pack_weight);
}

}  // namespace blazr
