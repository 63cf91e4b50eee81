// Mamba-3 between its projections and its recurrence: norms, biases, rotation and the weights of each token.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "recurrent.h"

namespace blazr {
namespace {

constexpr double kTau = 6.283185307179586;

// B or C: (G, S) of a row to (H, S), normed by group, biased per head, turned in adjacent pairs.
void spread(
    const float* from, const float* weight, float eps, const float* bias, const float* cosine, const float* sine,
    int64_t heads, int64_t groups, int64_t size, float* scratch, float* out) {
  const int64_t per_group = heads / groups;
  for (int64_t group = 0; group < groups; ++group) {
    const float* values = from + group * size;
    vf squares = splat(0);
    by_lanes(size, [&](int64_t i, int64_t left) {
      vf value = load_some(values + i, left);
      squares += value * value;
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps);
    by_lanes(size, [&](int64_t i, int64_t left) {
      vf value = load_some(values + i, left) * scale;
      store_some(scratch + i, weight ? value * load_some(weight + i, left) : value, left);
    });
    for (int64_t head = group * per_group; head < (group + 1) * per_group; ++head) {
      const float* added = bias + head * size;
      float* to = out + head * size;
      for (int64_t i = 0; i < size; ++i) to[i] = scratch[i] + added[i];
      if (!cosine) continue;
      const float *cos_head = cosine + head * (size / 2), *sin_head = sine + head * (size / 2);
      for (int64_t i = 0; i < size / 2; ++i) {
        const float first = to[2 * i], second = to[2 * i + 1];
        to[2 * i] = first * cos_head[i] - second * sin_head[i];
        to[2 * i + 1] = first * sin_head[i] + second * cos_head[i];
      }
    }
  }
}

// angle (count,) += turn · Δ, kept from 0 to 2π; the running sum in double precision.
template <typename T>
void turn(double* angle, const T* turns, const float* delta, int64_t heads, int64_t half) {
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = head * half; i < (head + 1) * half; ++i) {
      double next = angle[i] + static_cast<double>(static_cast<float>(turns[i]) * delta[head]);
      next -= std::floor(next * (1.0 / kTau)) * kTau;
      next = next < 0 ? next + kTau : next;
      angle[i] = next >= kTau ? next - kTau : next;
    }
}

// Rows of x, B, C (I + 2GS) and dt to x (T, H·P), B, C (T, H, S) and
// (4, T, H): enter, log_decay, skip, later of the recurrence.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mamba3_prepare(
    const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& share, const std::optional<at::Tensor>& turns,
    const at::Tensor& runs, const std::optional<at::Tensor>& angle_state, bool convolved, int64_t slots, int64_t groups,
    int64_t size, const std::optional<at::Tensor>& norm_weight, double eps, const at::Tensor& b_bias,
    const at::Tensor& c_bias, const at::Tensor& rates, const at::Tensor& dt_bias, const at::Tensor& skip, double dt_min,
    double dt_max) {
  TORCH_CHECK(xbc.dim() == 2 && dt.dim() == 2 && groups > 0 && size > 0, "mamba3_prepare: rows are needed");
  const int64_t rows = xbc.size(0), heads = dt.size(1), inner = xbc.size(1) - 2 * groups * size, half = size / 2;
  TORCH_CHECK(
      inner > 0 && heads > 0 && heads % groups == 0 && inner % heads == 0, "mamba3_prepare: ", xbc.size(1),
      " values for ", heads, " heads");
  TORCH_CHECK(dt.size(0) == rows && dt.stride(1) == 1 && xbc.stride(1) == 1, "mamba3_prepare: contiguous rows are needed");
  TORCH_CHECK(share.scalar_type() == dt.scalar_type() && share.sizes() == dt.sizes() && share.is_contiguous(),
              "mamba3_prepare: shares (T, H) of dt's dtype are needed");
  TORCH_CHECK(turns.has_value() == angle_state.has_value(), "mamba3_prepare: turns and angles belong together");
  if (turns)
    TORCH_CHECK(
        size % 2 == 0 && turns->dim() == 2 && turns->size(0) == rows && turns->size(1) == heads * half &&
            turns->is_contiguous() && turns->scalar_type() == dt.scalar_type(),
        "mamba3_prepare: turns (T, H · S/2) are needed");
  TORCH_CHECK(
      xbc.scalar_type() == (convolved ? at::kFloat : dt.scalar_type()), "mamba3_prepare: rows of another dtype");
  const auto found = read_runs(runs, rows, slots);
  float* angles = angle_state ? checked(*angle_state, {slots, heads, half}, "angle_state") : nullptr;
  const float* weight = norm_weight ? checked(*norm_weight, {size}, "norm weight") : nullptr;
  const float *b_added = checked(b_bias, {heads, size}, "b_bias"), *c_added = checked(c_bias, {heads, size}, "c_bias");
  const float *a = checked(rates, {heads}, "rates"), *bias = checked(dt_bias, {heads}, "dt_bias");
  const float* skips = checked(skip, {heads}, "D");
  const auto options = dt.options().dtype(at::kFloat);
  at::Tensor x = at::empty({rows, heads, inner / heads}, options);
  at::Tensor b = at::empty({rows, heads, size}, options), c = at::empty({rows, heads, size}, options);
  at::Tensor weights = at::empty({4, rows, heads}, options);
  float *x_out = x.data_ptr<float>(), *b_out = b.data_ptr<float>(), *c_out = c.data_ptr<float>();
  float *enter = weights.data_ptr<float>(), *log_decay = enter + rows * heads;
  float *skip_out = log_decay + rows * heads, *later = skip_out + rows * heads;
  Scratch delta_(rows * heads), angle_(angles ? rows * heads * half : 0);
  float *delta = delta_.begin(), *angle = angle_.begin();

  dispatch(dt.scalar_type(), "mamba3_prepare", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *steps = dt.const_data_ptr<T>(), *shares = share.const_data_ptr<T>();
    const int64_t step_stride = dt.stride(0);
    const vf low = splat(static_cast<float>(dt_min)), high = splat(static_cast<float>(dt_max));
    parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        by_lanes(heads, [&](int64_t h, int64_t left) {
          const int64_t at = row * heads + h;
          vf size_of_step = softplus(load_some(steps + row * step_stride + h, left) + load_some(bias + h, left));
          size_of_step = vmin(vmax(size_of_step, low), high);
          const vf now = sigmoid(load_some(shares + at, left));
          store_some(delta + at, size_of_step, left);
          store_some(enter + at, now * size_of_step, left);
          store_some(later + at, (1.0f - now) * size_of_step, left);
          store_some(log_decay + at, size_of_step * load_some(a + h, left), left);
          store_some(skip_out + at, load_some(skips + h, left), left);
        });
    });
    if (angles) {  // sums along each run: parallel over the runs' heads
      const T* turned = turns->const_data_ptr<T>();
      parallel_for(0, found.size() * heads, std::max<int64_t>(1, 4096 / half), [&](int64_t begin, int64_t end) {
        std::vector<double> running(half);
        for (int64_t task = begin; task < end; ++task) {
          const Run& run = found[task / heads];
          const int64_t head = task % heads;
          float* stored = angles + (run.slot * heads + head) * half;
          for (int64_t i = 0; i < half; ++i) running[i] = run.fresh ? 0.0 : stored[i];
          for (int64_t row = run.start; row < run.start + run.count; ++row) {
            const int64_t at = (row * heads + head) * half;
            turn(running.data(), turned + at, delta + row * heads + head, 1, half);
            for (int64_t i = 0; i < half; ++i) angle[at + i] = static_cast<float>(running[i]);
          }
          for (int64_t i = 0; i < half; ++i) stored[i] = static_cast<float>(running[i]);
        }
      });
    }
  });

  const auto spread_rows = [&](auto* from, int64_t stride) {
    parallel_for(0, rows, std::max<int64_t>(1, 4096 / (heads * size)), [&](int64_t begin, int64_t end) {
      const int64_t pairs = angles ? heads * half : 0;
      Scratch scratch(3 * Scratch::padded(std::max(groups * size, pairs)) + Scratch::padded(size));
      float *one = scratch.begin(), *cosine = one + Scratch::padded(size);
      float* sine = cosine + Scratch::padded(std::max(groups * size, pairs));
      float* part = sine + Scratch::padded(std::max(groups * size, pairs));
      for (int64_t row = begin; row < end; ++row) {
        const auto* values = from + row * stride;
        by_lanes(inner, [&](int64_t i, int64_t left) {
          vf value = load_some(values + i, left);
          store_some(x_out + row * inner + i, convolved ? value : silu(value), left);
        });
        by_lanes(pairs, [&](int64_t i, int64_t left) {
          vf cos_of, sin_of;
          cos_sin(load_some(angle + row * pairs + i, left), cos_of, sin_of);
          store_some(cosine + i, cos_of, left);
          store_some(sine + i, sin_of, left);
        });
        for (int which = 0; which < 2; ++which) {
          const auto* source = values + inner + which * groups * size;
          by_lanes(groups * size, [&](int64_t i, int64_t left) { store_some(part + i, load_some(source + i, left), left); });
          spread(
              part, weight, static_cast<float>(eps), which ? c_added : b_added, pairs ? cosine : nullptr, sine, heads,
              groups, size, one, (which ? c_out : b_out) + row * heads * size);
        }
      }
    });
  };
  if (xbc.scalar_type() == at::kFloat)
    spread_rows(xbc.const_data_ptr<float>(), xbc.stride(0));
  else
    spread_rows(xbc.const_data_ptr<bf16>(), xbc.stride(0));

  // A token that another follows in its run enters with the weight of that one's second part at once, and its own
  // row gives that part back.
  for (const Run& run : found) {
    const int64_t first = run.start * heads, last = (run.start + run.count - 1) * heads;
    parallel_for(first, last, std::max<int64_t>(1, 16384 / size), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        vf products = splat(0);
        by_lanes(size, [&](int64_t i, int64_t left) {
          products += load_some(b_out + at * size + i, left) * load_some(c_out + at * size + i, left);
        });
        enter[at] += later[at + heads];
        skip_out[at] -= later[at + heads] * sum(products);
      }
    });
  }
  return {x, b, c, weights};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "mamba3_prepare(Tensor xbc, Tensor dt, Tensor share, Tensor? turns, Tensor runs, Tensor(a!)? angle_state, "
      "bool convolved, int slots, int groups, int size, Tensor? norm_weight, float eps, Tensor b_bias, Tensor c_bias, "
      "Tensor rates, Tensor dt_bias, Tensor skip, float dt_min, float dt_max) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("mamba3_prepare", mamba3_prepare); }

}  // namespace blazr
