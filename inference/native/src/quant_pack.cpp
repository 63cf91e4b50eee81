// Weights (N, K) into the layouts of gemm.h, quantised on the way.
#include <sys/mman.h>

#include <ATen/ops/from_blob.h>
#include <torch/library.h>

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

inline vi quantise(vf values, float inverse, int32_t low, int32_t high) {
  // Limited before the rounding, whose trick needs small numbers.
  const vf limited = vmin(vmax(values * inverse, splat(static_cast<float>(low))), splat(static_cast<float>(high)));
  return to_integers(limited);
}

// 16 steps from -8 to 7: the scale (its sign says which end has the eight steps) with the least squared error among
// some that let the greatest magnitude be at or a little beyond an end.
template <typename T>
bf16 scale_int4(const T* from, int64_t count) {
  const float greatest = greatest_magnitude(from, count);
  if (greatest < kTiny) return bf16(0.0f);
  float best_error = INFINITY;
  bf16 best(0.0f);
  for (const float end : {-8.0f, 8.0f, -7.0f, -7.5f, 7.5f, -8.5f, 8.5f, -9.0f, 9.0f}) {
    const bf16 scale(greatest / end);
    const float step = static_cast<float>(scale), inverse = 1.0f / step;
    vf errors = splat(0);
    for (int64_t i = 0; i < count; i += kLanes) {
      const vf values = i + kLanes <= count ? load(from + i) : load_part(from + i, count - i);
      const vf error = values - __builtin_convertvector(quantise(values, inverse, -8, 7), vf) * step;
      errors += error * error;
    }
    const float error = sum(errors);
    if (error < best_error) {
      best_error = error;
      best = scale;
    }
  }
  return best;
}

// Output `lane` of a block; `from` null: an output that is there to fill the block.
template <bool kFour, typename T>
void quantise_row(const T* from, const Matrix& w, int64_t lane, uint8_t* block, bf16* scales) {
  using F = Integer<kFour>;
  for (int64_t unit = 0; unit < w.units(); ++unit) {
    const int64_t first = unit * w.unit, count = std::min(w.unit, w.inputs - first);
    bf16 scale(0.0f);
    if (from) scale = kFour ? scale_int4(from + first, count) : scale_int8(from + first, count);
    scales[unit * kBlock + lane] = scale;
    const float step = static_cast<float>(scale), inverse = step == 0.0f ? 0.0f : 1.0f / step;
    const int64_t padded = padded_inputs<F>(count);
    for (int64_t i = 0; i < padded; i += kLanes) {
      vf values = splat(0);
      if (from && i < count)
        values = i + kLanes <= count ? load(from + first + i) : load_part(from + first + i, count - i);
      const vi whole = quantise(values, inverse, kFour ? -8 : -127, kFour ? 7 : 127) + F::kOffset;
      typedef uint8_t vub __attribute__((vector_size(16)));
      const vub bytes = __builtin_convertvector(whole, vub);
      const int64_t k = first + i, left = std::min<int64_t>(kLanes, padded - i);
      if constexpr (kFour) {
        for (int64_t j = 0; j < left; j += 8)
          for (int64_t b = 0; b < 4; ++b)
            block[(k + j) / 8 * 128 + lane * 4 + b] = static_cast<uint8_t>(bytes[j + b] | bytes[j + 4 + b] << 4);
      } else {
        uint8_t flat[kLanes];
        std::memcpy(flat, &bytes, sizeof flat);
        for (int64_t j = 0; j < left; j += 4) std::memcpy(block + (k + j) / 4 * 128 + lane * 4, flat + j, 4);
      }
    }
  }
}

// The values as they are, in the layout.
template <class F, typename T>
void copy_row(const T* from, const Matrix& w, int64_t lane, uint8_t* block) {
  T* to = reinterpret_cast<T*>(block);
  for (int64_t k = 0; k < padded_inputs<F>(w.inputs); ++k) {
    const int64_t place = (k / F::kPerStep * kBlock + lane) * F::kPerStep + k % F::kPerStep;
    to[place] = from && k < w.inputs ? from[k] : T(0);
  }
}

// (N, K), or (E, N, K) for the matrices of E experts.
std::tuple<at::Tensor, at::Tensor> pack_weight(const at::Tensor& weight, int64_t format, int64_t group) {
  TORCH_CHECK(
      (weight.dim() == 2 || weight.dim() == 3) && weight.numel() > 0 && weight.is_contiguous(),
      "pack_weight: contiguous matrices are needed");
  const int64_t outputs = weight.size(-2), inputs = weight.size(-1), blocks = ceil_div(outputs, kBlock);
  const int64_t matrices = weight.numel() / (outputs * inputs);
  at::Tensor data, scales;
  dispatch(weight.scalar_type(), "pack_weight", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = weight.const_data_ptr<T>();
    with_format(format, [&](auto f) {
      using F = decltype(f);
      TORCH_CHECK(
          !F::kGrouped || (group > 0 && group % kLanes == 0 && group <= 4096), "pack_weight: a group of ", group);
      Matrix w{nullptr, nullptr, outputs, inputs, F::kGrouped ? group : kPlainUnit, block_bytes_of<F>(inputs)};
      auto sizes = weight.sizes().vec();
      sizes[sizes.size() - 2] = blocks;
      sizes[sizes.size() - 1] = w.block_bytes;
      data = weight_memory(matrices * blocks * w.block_bytes).view(sizes);
      sizes[sizes.size() - 1] = F::kGrouped ? w.units() : 0;
      sizes.push_back(kBlock);
      scales = at::empty(sizes, weight.options().dtype(at::kBFloat16));
      uint8_t* packed = data.data_ptr<uint8_t>();
      bf16* scale = scales.data_ptr<bf16>();
      if constexpr (!F::kGrouped && F::kPerStep * sizeof(T) != 4) {
        TORCH_CHECK(false, "pack_weight: weights that are not quantised keep their dtype");
      } else {
        parallel_for(0, matrices * blocks, 1, [&](int64_t begin, int64_t end) {
          for (int64_t block = begin; block < end; ++block)
            for (int64_t lane = 0; lane < kBlock; ++lane) {
              const int64_t output = block % blocks * kBlock + lane;
              const T* row = output < outputs ? from + (block / blocks * outputs + output) * inputs : nullptr;
              uint8_t* to = packed + block * w.block_bytes;
              if constexpr (F::kGrouped)
                quantise_row<F::kStepBytes == 64>(row, w, lane, to, scale + block * w.units() * kBlock);
              else
                copy_row<F>(row, w, lane, to);
            }
        });
      }
    });
  });
  return {data, scales};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def("pack_weight(Tensor weight, int format, int group) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("pack_weight", pack_weight); }

}  // namespace blazr
