// Mamba-2 between in_proj and out_proj, and the recurrence alone for Mamba-3.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ssm_scan.h"

namespace blazr {
namespace {

// in_proj's rows are gate (I), x (I), B (G·S), C (G·S), dt (H).
at::Tensor mamba2_mix(
    const at::Tensor& projected, const at::Tensor& runs, at::Tensor conv_state, at::Tensor ssm_state,
    const at::Tensor& taps, const std::optional<at::Tensor>& conv_bias, int64_t activation, const at::Tensor& rates,
    const at::Tensor& dt_bias, const at::Tensor& skip, double dt_min, double dt_max, int64_t groups,
    const std::optional<at::Tensor>& norm_weight, double eps, double offset, int64_t norm_group, int64_t norm_order) {
  TORCH_CHECK(ssm_state.dim() == 4 && taps.dim() == 2, "mamba2_mix: states (slots, H, P, S) and taps (K, C) are needed");
  const int64_t slots = ssm_state.size(0), heads = ssm_state.size(1), width = ssm_state.size(2), size = ssm_state.size(3);
  TORCH_CHECK(groups > 0 && heads % groups == 0, "mamba2_mix: ", heads, " heads in ", groups, " groups");
  const int64_t inner = heads * width, rows = projected.size(0), kernel = taps.size(0);
  const int64_t conv_width = inner + 2 * groups * size, all = inner + conv_width + heads;
  TORCH_CHECK(
      projected.dim() == 2 && projected.size(1) == all && projected.is_contiguous() && kernel >= 1,
      "mamba2_mix: contiguous rows of ", all, " values are needed");
  TORCH_CHECK(norm_group > 0 && inner % norm_group == 0, "mamba2_mix: norm groups of ", norm_group, " in ", inner);
  const auto found = read_runs(runs, rows, slots);
  const Convolution conv{
      checked(conv_state, {slots, conv_width, kernel - 1}, "conv_state"),
      checked(taps, {kernel, conv_width}, "taps"),
      conv_bias ? checked(*conv_bias, {conv_width}, "conv bias") : nullptr,
      conv_width,
      kernel,
      activation,
  };
  const GatedNorm norm{
      norm_weight ? checked(*norm_weight, {inner}, "norm weight") : nullptr, static_cast<float>(eps),
      static_cast<float>(offset), norm_group, norm_order};
  const float *a = checked(rates, {heads}, "rates"), *bias = checked(dt_bias, {heads}, "dt_bias");
  const float* skips = checked(skip, {heads}, "D");
  float* states = checked(ssm_state, {slots, heads, width, size}, "ssm_state");

  // One allocation: convolved rows (T, C), results (T, I), step sizes and log decays (T, H).
  const int64_t padded = Scratch::padded(conv_width);
  Scratch scratch(rows * (padded + inner + 2 * heads));
  float* xbc = scratch.begin();
  float *y = xbc + rows * conv_width, *delta = y + rows * inner, *log_decay = delta + rows * heads;
  at::Tensor out = at::empty({rows, inner}, projected.options());
  dispatch(projected.scalar_type(), "mamba2_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = projected.const_data_ptr<T>();
    convolve(conv, found, from + inner, all, xbc);
    const vf low = splat(static_cast<float>(dt_min)), high = splat(static_cast<float>(dt_max));
    parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        by_lanes(heads, [&](int64_t h, int64_t left) {
          vf dt = load_some(from + row * all + inner + conv_width + h, left) + load_some(bias + h, left);
          vf bounded = vmin(vmax(softplus(dt), low), high);
          store_some(delta + row * heads + h, bounded, left);
          store_some(log_decay + row * heads + h, bounded * load_some(a + h, left), left);
        });
    });
    Recurrence layer{
        xbc, conv_width, delta, log_decay, skips, 0, xbc + inner, xbc + inner + groups * size, conv_width, states, y,
        heads, width, size, groups};
    recur(layer, found);
    gated_norm(norm, y, from, all, out.data_ptr<T>(), rows, inner);
  });
  return out;
}

// The recurrence on given rows; `later` with the two states before a run: Mamba-3's, where B and C are per head.
at::Tensor recur_op(
    const at::Tensor& x, const at::Tensor& enter, const at::Tensor& log_decay, const at::Tensor& skip,
    const at::Tensor& b, const at::Tensor& c, const at::Tensor& runs, at::Tensor state,
    const std::optional<at::Tensor>& later, const std::optional<at::Tensor>& x_before,
    const std::optional<at::Tensor>& b_before) {
  TORCH_CHECK(state.dim() == 4 && b.dim() == 3, "recur: states (slots, H, P, S) and B (T, G, S) are needed");
  const int64_t slots = state.size(0), heads = state.size(1), width = state.size(2), size = state.size(3);
  const int64_t rows = x.size(0), groups = b.size(1);
  TORCH_CHECK(groups > 0 && heads % groups == 0, "recur: ", heads, " heads in ", groups, " groups");
  const auto found = read_runs(runs, rows, slots);
  at::Tensor out = at::empty({rows, heads, width}, x.options());
  Recurrence layer{
      checked(x, {rows, heads, width}, "x"), heads * width, checked(enter, {rows, heads}, "enter"),
      checked(log_decay, {rows, heads}, "log_decay"), checked(skip, {rows, heads}, "skip"), heads,
      checked(b, {rows, groups, size}, "b"), checked(c, {rows, groups, size}, "c"), groups * size,
      checked(state, {slots, heads, width, size}, "state"), out.data_ptr<float>(), heads, width, size, groups};
  if (later) {
    TORCH_CHECK(x_before && b_before && groups == heads, "recur: the state before a run and B per head are needed");
    layer.later = checked(*later, {rows, heads}, "later");
    layer.x_before = checked(*x_before, {slots, heads, width}, "x_before");
    layer.b_before = checked(*b_before, {slots, heads, size}, "b_before");
  }
  recur(layer, found);
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "mamba2_mix(Tensor projected, Tensor runs, Tensor(a!) conv_state, Tensor(b!) ssm_state, Tensor taps, "
      "Tensor? conv_bias, int activation, Tensor rates, Tensor dt_bias, Tensor skip, float dt_min, float dt_max, "
      "int groups, Tensor? norm_weight, float eps, float offset, int norm_group, int norm_order) -> Tensor");
  library.def(
      "recur(Tensor x, Tensor enter, Tensor log_decay, Tensor skip, Tensor b, Tensor c, Tensor runs, "
      "Tensor(a!) state, Tensor? later, Tensor(b!)? x_before, Tensor(c!)? b_before) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("mamba2_mix", mamba2_mix);
  library.impl("recur", recur_op);
}

}  // namespace blazr
