// The gate and the norm behind a recurrence, in one pass over each group of values.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "recurrent.h"

namespace blazr {
namespace {

constexpr int64_t kGrainValues = 8192;

template <typename T>
void norm_group(const GatedNorm& norm, const float* values, const T* gate, const float* weight, T* out, int64_t width) {
  const bool gated_first = norm.order == GatedNorm::kAfterGate;
  Scratch scratch(gated_first ? Scratch::padded(width) : 0);
  const float* from = values;
  vf squares = splat(0);
  by_lanes(width, [&](int64_t i, int64_t left) {
    vf value = load_some(values + i, left);
    if (gated_first) {
      value *= silu(load_some(gate + i, left));
      store(scratch.begin() + i, value);
    }
    squares += value * value;
  });
  if (gated_first) from = scratch.begin();
  const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + norm.eps);
  by_lanes(width, [&](int64_t i, int64_t left) {
    vf value = load_some(from + i, left) * scale;
    if (weight) value *= load_some(weight + i, left) + norm.offset;
    if (norm.order == GatedNorm::kBeforeGate) value *= silu(load_some(gate + i, left));
    if (norm.order == GatedNorm::kBeforeSigmoid) value *= sigmoid(load_some(gate + i, left));
    store_some(out + i, value, left);
  });
}

at::Tensor gated_norm_op(
    const at::Tensor& values, const at::Tensor& gate, const std::optional<at::Tensor>& weight, double eps,
    double offset, int64_t group, int64_t order) {
  TORCH_CHECK(values.dim() == 2 && gate.sizes() == values.sizes() && gate.stride(1) == 1, "gated_norm: (T, I) twice");
  const int64_t rows = values.size(0), width = values.size(1);
  TORCH_CHECK(group > 0 && width % group == 0, "gated_norm: groups of ", group, " in ", width);
  GatedNorm norm{
      weight ? checked(*weight, {width}, "norm weight") : nullptr, static_cast<float>(eps), static_cast<float>(offset),
      group, order};
  const float* from = checked(values, {rows, width}, "values");
  at::Tensor out = at::empty({rows, width}, gate.options());
  dispatch(gate.scalar_type(), "gated_norm", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    gated_norm(norm, from, gate.const_data_ptr<T>(), gate.stride(0), out.data_ptr<T>(), rows, width);
  });
  return out;
}

}  // namespace

template <typename T>
void gated_norm(
    const GatedNorm& norm, const float* values, const T* gate, int64_t gate_stride, T* out, int64_t rows,
    int64_t width) {
  const int64_t groups = width / norm.group, grain = std::max<int64_t>(1, kGrainValues / norm.group);
  parallel_for(0, rows * groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / groups, first = task % groups * norm.group;
      const float* from = values + row * width + first;
      const T* factor = gate + row * gate_stride + first;
      T* to = out + row * width + first;
      if (norm.order == GatedNorm::kNoNorm)
        by_lanes(norm.group, [&](int64_t i, int64_t left) {
          store_some(to + i, load_some(from + i, left) * silu(load_some(factor + i, left)), left);
        });
      else
        norm_group(norm, from, factor, norm.weight ? norm.weight + first : nullptr, to, norm.group);
    }
  });
}

template void gated_norm(const GatedNorm&, const float*, const float*, int64_t, float*, int64_t, int64_t);
template void gated_norm(const GatedNorm&, const float*, const bf16*, int64_t, bf16*, int64_t, int64_t);

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "gated_norm(Tensor values, Tensor gate, Tensor? weight, float eps, float offset, int group, int order) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("gated_norm", gated_norm_op); }

}  // namespace blazr
