// Mamba-2 between in_proj and out_proj, and the recurrence alone for Mamba-3.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "ssm_scan.h"

namespace blazr {
namespace {

struct Mamba2Arguments {
  at::Tensor projected;   // in_proj's rows: gate (I), x (I), B (G·S), C (G·S), dt (H)
  at::Tensor runs;        // read_runs
  at::Tensor conv_state;  // (slots, C, K-1)
  at::Tensor ssm_state;   // (slots, H, P, S)
  at::Tensor taps;        // (K, C)
  std::optional<at::Tensor> conv_bias;
  int64_t activation;
  at::Tensor rates, dt_bias, skip;  // (H,)
  double dt_min, dt_max;
  int64_t groups;
  std::optional<at::Tensor> norm_weight;
  double eps, offset;
  int64_t norm_group, norm_order;  // GatedNorm
};

at::Tensor mamba2_mix(const Mamba2Arguments& in) {
  TORCH_CHECK(
      in.ssm_state.dim() == 4 && in.taps.dim() == 2, "mamba2_mix: states (slots, H, P, S) and taps (K, C) are needed");
  const int64_t slots = in.ssm_state.size(0), heads = in.ssm_state.size(1), width = in.ssm_state.size(2),
                size = in.ssm_state.size(3);
  TORCH_CHECK(in.groups > 0 && heads % in.groups == 0, "mamba2_mix: ", heads, " heads in ", in.groups, " groups");
  const int64_t inner = heads * width, rows = in.projected.size(0), kernel = in.taps.size(0);
  const int64_t conv_width = inner + 2 * in.groups * size, all = inner + conv_width + heads;
  TORCH_CHECK(
      in.projected.dim() == 2 && in.projected.size(1) == all && in.projected.is_contiguous() && kernel >= 1,
      "mamba2_mix: contiguous rows of ", all, " values are needed");
  TORCH_CHECK(
      in.norm_group > 0 && inner % in.norm_group == 0, "mamba2_mix: norm groups of ", in.norm_group, " in ", inner);
  const auto found = read_runs(in.runs, rows, slots);
  const Convolution conv{
      States(in.conv_state, {slots, conv_width, kernel - 1}, "conv_state"),
      checked(in.taps, {kernel, conv_width}, "taps"),
      in.conv_bias ? checked(*in.conv_bias, {conv_width}, "conv bias") : nullptr,
      conv_width,
      kernel,
      in.activation,
  };
  const GatedNorm norm{
      in.norm_weight ? checked(*in.norm_weight, {inner}, "norm weight") : nullptr, static_cast<float>(in.eps),
      static_cast<float>(in.offset), in.norm_group, in.norm_order};
  const float *a = checked(in.rates, {heads}, "rates"), *bias = checked(in.dt_bias, {heads}, "dt_bias");
  const float* skips = checked(in.skip, {heads}, "D");
  const States states(in.ssm_state, {slots, heads, width, size}, "ssm_state");

  // One allocation: convolved rows (T, C), results (T, I), step sizes and log decays (T, H).
  const int64_t padded = Scratch::padded(conv_width);
  Scratch scratch(rows * (padded + inner + 2 * heads));
  float* xbc = scratch.begin();
  float *y = xbc + rows * conv_width, *delta = y + rows * inner, *log_decay = delta + rows * heads;
  at::Tensor out = at::empty({rows, inner}, in.projected.options());
  dispatch(in.projected.scalar_type(), "mamba2_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = in.projected.const_data_ptr<T>();
    convolve(conv, found, from + inner, all, xbc);
    const vf low = splat(static_cast<float>(in.dt_min)), high = splat(static_cast<float>(in.dt_max));
    parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        by_lanes(heads, [&](int64_t h, int64_t left) {
          vf dt = load_some(from + row * all + inner + conv_width + h, left) + load_some(bias + h, left);
          vf bounded = vmin(vmax(softplus(dt), low), high);
          store_some(delta + row * heads + h, bounded, left);
          store_some(log_decay + row * heads + h, bounded * load_some(a + h, left), left);
        });
    });
    Recurrence layer{xbc,        conv_width, delta, log_decay, skips, 0,    xbc + inner, xbc + inner + in.groups * size,
                     conv_width, states,     y,     heads,     width, size, in.groups};
    recur(layer, found);
    gated_norm(norm, y, from, all, out.data_ptr<T>(), rows, inner);
  });
  return out;
}

struct RecurArguments {
  at::Tensor x;                       // (T, H, P)
  at::Tensor enter, log_decay, skip;  // (T, H)
  at::Tensor b, c;                    // (T, G, S)
  at::Tensor runs;                    // read_runs
  at::Tensor state;                   // (slots, H, P, S)
  std::optional<at::Tensor> later;    // Mamba-3's, with the two states before a run; B and C are per head then
  std::optional<at::Tensor> x_before, b_before;
};

// The recurrence on given rows.
at::Tensor recur_op(const RecurArguments& in) {
  TORCH_CHECK(in.state.dim() == 4 && in.b.dim() == 3, "recur: states (slots, H, P, S) and B (T, G, S) are needed");
  const int64_t slots = in.state.size(0), heads = in.state.size(1), width = in.state.size(2), size = in.state.size(3);
  const int64_t rows = in.x.size(0), groups = in.b.size(1);
  TORCH_CHECK(groups > 0 && heads % groups == 0, "recur: ", heads, " heads in ", groups, " groups");
  const auto found = read_runs(in.runs, rows, slots);
  at::Tensor out = at::empty({rows, heads, width}, in.x.options());
  Recurrence layer{
      checked(in.x, {rows, heads, width}, "x"),
      heads * width,
      checked(in.enter, {rows, heads}, "enter"),
      checked(in.log_decay, {rows, heads}, "log_decay"),
      checked(in.skip, {rows, heads}, "skip"),
      heads,
      checked(in.b, {rows, groups, size}, "b"),
      checked(in.c, {rows, groups, size}, "c"),
      groups * size,
      States(in.state, {slots, heads, width, size}, "state"),
      out.data_ptr<float>(),
      heads,
      width,
      size,
      groups};
  if (in.later) {
    TORCH_CHECK(
        in.x_before && in.b_before && groups == heads, "recur: the state before a run and B per head are needed");
    layer.later = checked(*in.later, {rows, heads}, "later");
    layer.x_before = States(*in.x_before, {slots, heads, width}, "x_before");
    layer.b_before = States(*in.b_before, {slots, heads, size}, "b_before");
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
  library.impl("mamba2_mix", with_arguments<mamba2_mix>());
  library.impl("recur", with_arguments<recur_op>());
}

}  // namespace blazr
