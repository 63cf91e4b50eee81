// y = x Wᵀ + b with packed weights (gemm.h), in the rows' dtype or (wide) float32, or of each row of y the greatest
// value alone; and rows of the weights back, for embeddings.
#include "gemm.h"

#include <c10/util/FunctionRef.h>
#include <torch/library.h>

#include <bit>
#include <limits>
#include <vector>

namespace blazr {

Matrix packed_matrix(
    const at::Tensor& data, const std::optional<at::Tensor>& scales, int64_t format, int64_t outputs, int64_t inputs,
    int64_t group) {
  Matrix w = matrix_layout(format, outputs, inputs, group);
  w.data = data.const_data_ptr<uint8_t>();
  TORCH_CHECK(
      data.is_contiguous() && data.numel() == w.blocks() * w.block_bytes, "packed weights: ", data.numel(),
      " bytes are not those of ", outputs, " outputs and ", inputs, " inputs");
  if (w.form) {
    TORCH_CHECK(
        scales.has_value() && scales->scalar_type() == (w.form->has_halves ? at::kHalf : at::kBFloat16) &&
            scales->is_contiguous() && scales->numel() == w.blocks() * w.block_scales(),
        "packed weights: the scales don't fit");
    w.scales = static_cast<const bf16*>(scales->const_data_ptr());
  }
  return w;
}

namespace {

constexpr int64_t kSumsAtOnce = 8192;       // of a run of blocks: they stay in the first cache
constexpr int64_t kOwnPanels = 1 << 20;     // bytes that each thread packs for itself
constexpr int64_t kOwnOutputs = 128;        // for each thread, above which that is a small part of its work
constexpr int64_t kParallelWork = 1 << 16;  // bytes of weights × panels, below which one thread is faster

// Where the thread's part ends that a block is in, and what the thread begins the next product with.
ReadOn read_on(const Matrix& w, int64_t block, const Upcoming* upcoming, int64_t threads) {
  int64_t thread = 0;
  while (part_begin(w.blocks(), thread + 1, threads) <= block) ++thread;
  const uint8_t* end = w.data + part_begin(w.blocks(), thread + 1, threads) * w.block_bytes;
  if (!upcoming) return {end, end};
  return {end, upcoming->data + part_begin(upcoming->count, thread, threads) * upcoming->block_bytes};
}

struct OwnPanels {
  at::Tensor memory;
  int64_t product = 0;
};

std::atomic<int64_t> products{0};
thread_local OwnPanels own_panels;

// Panels of a thread's own: lines that one processor writes and another reads cost more than packing the rows twice.
// They are filled when the thread first needs them in a product, which has a number of its own.
template <class F, typename T>
void fill_own(const T* x, const Matrix& w, Panels& panels, int64_t product) {
  OwnPanels& own = own_panels;
  if (own.product != product && (!own.memory.defined() || own.memory.numel() < panels.bytes()))
    own.memory = at::empty({panels.bytes()}, at::kByte);
  panels.place(own.memory.data_ptr());
  if (own.product == product) return;
  for (int64_t panel = 0; panel < panels.count; ++panel) fill_from<F>(x, w.inputs, w, panels, panel);
  own.product = product;
}

// Gets the sums of a run of rows with a run of blocks: sums, first row, rows, first block, end of the blocks. The sums,
// [blocks][rows][32], are its own to change; those beyond the last output mean nothing.
using Take = c10::function_ref<void(float*, int64_t, int64_t, int64_t, int64_t)>;

// x Wᵀ; each run is taken once, by any thread.
template <class F, typename T>
void product_of(const Matrix& w, const T* x, int64_t rows, Take take) {
  const Panels all = panels_for<F>(w, rows);
  const int64_t threads = at::get_num_threads();
  const bool own = all.bytes() <= kOwnPanels && w.outputs >= kOwnOutputs * threads;
  const int64_t product = own ? products.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
  Panels shared = all;
  at::Tensor memory;
  if (!own) memory = fill_panels<F>(x, w.inputs, w, shared);
  const Upcoming* upcoming = ThreadPool::current() ? ThreadPool::current()->upcoming() : nullptr;
  const auto run = [&](int64_t panel, int64_t panel_end, int64_t block, int64_t block_end) {
    Panels panels = shared;
    if (own) fill_own<F>(x, w, panels, product);
    const int64_t first = panels.start(panel), count = panels.start(panel_end) - first;
    float* sums = thread_buffer(count * (block_end - block) * kBlock);
    multiply<F>(w, panels, panel, panel_end, block, block_end, read_on(w, block, upcoming, threads), sums);
    take(sums, first, count, block, block_end);
  };
  const bool parallel = w.blocks() * w.block_bytes * all.count > kParallelWork;
  if (all.count <= panels_at_once(all)) {  // each thread reads long runs of blocks
    const int64_t most = std::max<int64_t>(1, kSumsAtOnce / (rows * kBlock));
    share_runs(
        w.blocks(), most, parallel, [&](int64_t block, int64_t block_end) { run(0, all.count, block, block_end); });
    return;
  }
  const Cut cut(w.blocks(), all);
  share(cut.count(), parallel, [&](int64_t task) {
    const int64_t panel = task / cut.block_tasks * cut.panels_each, block = task % cut.block_tasks * cut.blocks_each;
    run(panel, std::min(panel + cut.panels_each, all.count), block, std::min(block + cut.blocks_each, w.blocks()));
  });
}

template <class F, typename T, typename O>
void linear(const Matrix& w, const T* x, int64_t rows, const T* bias, O* out) {
  product_of<F>(w, x, rows, [&](const float* sums, int64_t first, int64_t count, int64_t block, int64_t block_end) {
    for (int64_t row = first; row < first + count; ++row) {
      for (int64_t at = block; at < block_end; ++at) {
        const float* from = sums + ((at - block) * count + row - first) * kBlock;
        const int64_t output = at * kBlock;
        O* to = out + row * w.outputs + output;
        for (int64_t i = 0; i < kBlock; i += kLanes) {
          const int64_t left = w.outputs - output - i;
          const vf values = load(from + i);  // the block is whole in the sums
          if (left >= kLanes)
            store(to + i, bias ? values + load(bias + output + i) : values);
          else if (left > 0)
            store_part(to + i, bias ? values + load_part(bias + output + i, left) : values, left);
        }
      }
    }
  });
}

// The greatest value of a row that any thread has seen, and the first place where it is, in one number that only grows.
class Greatest {
 public:
  // NaN counts as greater than everything, at place 0.
  void offer(float value, int64_t place) {
    const uint64_t mine = value != value ? ~uint64_t{0} : uint64_t{order_of(value)} << 32 | (kLast - place);
    uint64_t before = best_.load(std::memory_order_relaxed);
    while (mine > before && !best_.compare_exchange_weak(before, mine, std::memory_order_relaxed)) continue;
  }
  // Whether an offer of this value can change anything.
  bool may_take(float value) const {
    return value != value || uint64_t{order_of(value)} << 32 >= (best_.load(std::memory_order_relaxed) & ~kLast);
  }
  int64_t place() const { return is_nan() ? 0 : kLast - (best_.load(std::memory_order_relaxed) & kLast); }
  float value() const {
    const uint32_t order = best_.load(std::memory_order_relaxed) >> 32;
    return is_nan() ? std::numeric_limits<float>::quiet_NaN()
                    : std::bit_cast<float>(order & kSign ? order ^ kSign : ~order);
  }

 private:
  static constexpr uint64_t kLast = 0xffffffff;
  static constexpr uint32_t kSign = 0x80000000;

  bool is_nan() const { return best_.load(std::memory_order_relaxed) == ~uint64_t{0}; }
  // Bits that are ordered as the values are; both zeros are one.
  static uint32_t order_of(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
    return bits & kSign ? ~bits : bits | kSign;
  }

  std::atomic<uint64_t> best_{0};
};

// Each row's greatest output and where it is first, without a matrix of outputs. `masked`: a bit for each output that
// doesn't count, 32 to a block; null: all do.
template <class F, typename T>
void greatest(const Matrix& w, const T* x, int64_t rows, const T* bias, const int32_t* masked, Greatest* best) {
  product_of<F>(w, x, rows, [&](float* sums, int64_t first, int64_t count, int64_t block, int64_t block_end) {
    const float least = -std::numeric_limits<float>::infinity();
    for (int64_t at = block; at < block_end; ++at) {
      const int64_t output = at * kBlock, width = std::min(kBlock, w.outputs - output);
      uint32_t hidden = masked ? static_cast<uint32_t>(masked[at]) : 0;
      if (width < kBlock) hidden |= ~uint32_t{0} << width;
      if (!bias && !hidden) continue;
      for (float* row = sums + (at - block) * count * kBlock; row < sums + (at + 1 - block) * count * kBlock;
           row += kBlock) {
        for (int64_t i = 0; bias && i < kBlock; i += kLanes) {
          const int64_t left = width - i;
          if (left > 0)
            store(
                row + i,
                load(row + i) + (left >= kLanes ? load(bias + output + i) : load_part(bias + output + i, left)));
        }
        for (uint32_t bits = hidden; bits; bits &= bits - 1) row[std::countr_zero(bits)] = least;
      }
    }
    for (int64_t row = 0; row < count; ++row) {
      vf most = splat(least);
      vi unordered{};
      for (int64_t at = block; at < block_end; ++at) {
        const float* from = sums + ((at - block) * count + row) * kBlock;
        for (int64_t i = 0; i < kBlock; i += kLanes) {
          const vf values = load(from + i);
          most = vmax(values, most);
          unordered |= values != values;
        }
      }
      Greatest& found = best[first + row];
      if (any(unordered)) found.offer(std::numeric_limits<float>::quiet_NaN(), 0);
      const float value = max(most);
      if (!found.may_take(value)) continue;
      for (int64_t at = block; at < block_end; ++at) {
        const float* from = sums + ((at - block) * count + row) * kBlock;
        const float* place = std::find(from, from + kBlock, value);
        if (place == from + kBlock) continue;
        found.offer(value, at * kBlock + (place - from));
        break;
      }
    }
  });
}

void check_bias(const std::optional<at::Tensor>& bias, const at::Tensor& rows, int64_t outputs, const char* op) {
  TORCH_CHECK(
      !bias.has_value() ||
          (bias->numel() == outputs && bias->is_contiguous() && bias->scalar_type() == rows.scalar_type()),
      op, ": the bias doesn't fit");
}

at::Tensor packed_linear(
    const at::Tensor& input, const at::Tensor& data, const std::optional<at::Tensor>& scales,
    const std::optional<at::Tensor>& bias, int64_t format, int64_t outputs, int64_t group, bool wide) {
  TORCH_CHECK(input.dim() >= 1, "packed_linear: rows are needed");
  const at::Tensor x = input.contiguous();
  const int64_t inputs = x.size(-1), rows = inputs ? x.numel() / inputs : 0;
  const Matrix w = packed_matrix(data, scales, format, outputs, inputs, group);
  auto sizes = x.sizes().vec();
  sizes.back() = outputs;
  at::Tensor out = at::empty(sizes, wide ? x.options().dtype(at::kFloat) : x.options());
  if (rows == 0) return out;
  check_bias(bias, x, outputs, "packed_linear");
  with_format_and_rows(format, x.scalar_type(), "packed_linear", [&](auto f, auto* type) {
    using F = decltype(f);
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = x.const_data_ptr<T>();
    const T* b = bias.has_value() ? bias->const_data_ptr<T>() : nullptr;
    if (wide) {
      linear<F>(w, from, rows, b, out.data_ptr<float>());
    } else {
      linear<F>(w, from, rows, b, out.data_ptr<T>());
    }
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> packed_argmax(
    const at::Tensor& input, const at::Tensor& data, const std::optional<at::Tensor>& scales,
    const std::optional<at::Tensor>& bias, int64_t format, int64_t outputs, int64_t group,
    const std::optional<at::Tensor>& masked) {
  TORCH_CHECK(input.dim() == 2 && input.size(1) > 0, "packed_argmax: (n, K) rows are needed");
  const at::Tensor x = input.contiguous();
  const int64_t inputs = x.size(1), rows = x.size(0);
  const Matrix w = packed_matrix(data, scales, format, outputs, inputs, group);
  check_bias(bias, x, outputs, "packed_argmax");
  if (masked.has_value()) {
    TORCH_CHECK(
        masked->numel() == w.blocks() && masked->is_contiguous() && masked->scalar_type() == at::kInt,
        "packed_argmax: an int32 number for each 32 outputs is needed");
  }
  std::vector<Greatest> best(rows);
  with_format_and_rows(format, x.scalar_type(), "packed_argmax", [&](auto f, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* b = bias.has_value() ? bias->const_data_ptr<T>() : nullptr;
    const int32_t* bits = masked.has_value() ? masked->const_data_ptr<int32_t>() : nullptr;
    if (rows > 0) greatest<decltype(f)>(w, x.const_data_ptr<T>(), rows, b, bits, best.data());
  });
  at::Tensor places = at::empty({rows}, x.options().dtype(at::kLong));
  at::Tensor values = at::empty({rows}, x.options().dtype(at::kFloat));
  for (int64_t row = 0; row < rows; ++row) {
    places.data_ptr<int64_t>()[row] = best[row].place();
    values.data_ptr<float>()[row] = best[row].value();
  }
  return {places, values};
}

// A scale of a block, or with `kind` 1 an offset, of an input.
inline float scale_at(const Matrix& w, const bf16* block_scales, int64_t k, int64_t kind, int64_t lane) {
  const int64_t line = w.form->scale_line(), column = kind * kBlock + lane;
  const int64_t place = k / w.unit / w.units_per_scale * line + column;
  if (w.form->has_factors) {
    const bf16* factors = block_scales + (w.byte_lines() + k / kFactorInputs) * line;
    const float factor = *reinterpret_cast<const c10::Half*>(factors + column);
    return reinterpret_cast<const int8_t*>(block_scales)[place] * factor;
  }
  if (w.form->has_halves) return *reinterpret_cast<const c10::Half*>(block_scales + place);
  return block_scales[place];
}

// The byte that an input is multiplied by.
template <class F>
int32_t byte_at(const Matrix& w, const uint8_t* block, int64_t k, int64_t lane) {
  const uint8_t* chunk = block + k / F::kAlign * F::kLines * kLineBytes + lane * 4 + k % 4;
  const int64_t step = k % F::kAlign / 4;
  const auto field = [&](const uint8_t* lines, int width) {
    const int64_t per_byte = 8 / width;
    return lines[step / per_byte * kLineBytes] >> (step % per_byte * width) & ((1 << width) - 1);
  };
  int32_t code = field(chunk, F::kLower);
  if constexpr (F::kUpper > 0) code |= field(chunk + F::kLowerLines * kLineBytes, F::kUpper) << F::kLower;
  return F::kBits <= 4 ? w.form->levels[code] : code;
}

// One row of the weights, dequantised.
template <class F, typename T>
void read_row(const Matrix& w, int64_t row, T* out) {
  const int64_t lane = row % kBlock;
  const uint8_t* block = w.data + row / kBlock * w.block_bytes;
  for (int64_t k = 0; k < w.inputs; ++k) {
    float value;
    if constexpr (F::kGrouped || kExpands<F>) {
      const bf16* scales = w.scales + row / kBlock * w.block_scales();
      if constexpr (F::kGrouped) {
        value = static_cast<float>(byte_at<F>(w, block, k, lane) - w.form->zero);
      } else {
        const auto code = static_cast<int16_t>(block[(k / 2 * kBlock + lane) * 2 + k % 2] << 8);
        value = c10::Half(static_cast<uint16_t>(half_of_float8<int16_t>(code)), c10::Half::from_bits());
      }
      value *= scale_at(w, scales, k, 0, lane);
      if (w.form->has_offsets) value += scale_at(w, scales, k, 1, lane);
    } else if constexpr (F::kPerStep == 2) {
      value = static_cast<float>(reinterpret_cast<const bf16*>(block)[(k / 2 * kBlock + lane) * 2 + k % 2]);
    } else {
      value = reinterpret_cast<const float*>(block)[k * kBlock + lane];
    }
    out[k] = static_cast<T>(value);
  }
}

at::Tensor packed_rows(
    const at::Tensor& data, const std::optional<at::Tensor>& scales, const at::Tensor& ids, int64_t format,
    int64_t outputs, int64_t inputs, int64_t group, at::ScalarType dtype) {
  const Matrix w = packed_matrix(data, scales, format, outputs, inputs, group);
  TORCH_CHECK(ids.scalar_type() == at::kLong && ids.dim() == 1, "packed_rows: int64 row numbers are needed");
  const at::Tensor wanted = ids.contiguous();
  const int64_t* numbers = wanted.const_data_ptr<int64_t>();
  const int64_t count = wanted.numel();
  for (int64_t i = 0; i < count; ++i)
    TORCH_CHECK(numbers[i] >= 0 && numbers[i] < outputs, "packed_rows: row ", numbers[i], " of ", outputs);
  at::Tensor out = at::empty({count, inputs}, data.options().dtype(dtype));
  dispatch(dtype, "packed_rows", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* to = out.data_ptr<T>();
    with_format(format, [&](auto f) {
      using F = decltype(f);
      share(count, count * inputs > 65536, [&](int64_t i) { read_row<F>(w, numbers[i], to + i * inputs); });
    });
  });
  return out;
}

// The whole numbers that activations have on each side of 0, of which products with codes are made; 0: they stay as
// they are.
int64_t activation_steps(int64_t format) {
  int64_t steps = 0;
  with_format(format, [&](auto f) {
    using F = decltype(f);
    if constexpr (F::kGrouped) steps = kActivationSteps<F::kWords>;
  });
  return steps;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "packed_linear(Tensor x, Tensor data, Tensor? scales, Tensor? bias, int format, int outputs, int group, "
      "bool wide=False) -> Tensor");
  library.def(
      "packed_argmax(Tensor x, Tensor data, Tensor? scales, Tensor? bias, int format, int outputs, int group, "
      "Tensor? masked=None) -> (Tensor, Tensor)");
  library.def(
      "packed_rows(Tensor data, Tensor? scales, Tensor ids, int format, int outputs, int inputs, int group, "
      "ScalarType dtype) -> Tensor");
  library.def("activation_steps(int format) -> int", activation_steps);
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("packed_linear", packed_linear);
  library.impl("packed_argmax", packed_argmax);
  library.impl("packed_rows", packed_rows);
}

}  // namespace blazr
