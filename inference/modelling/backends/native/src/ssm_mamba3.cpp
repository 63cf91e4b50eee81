// Mamba-3 between its projections and its recurrence: norms, biases, rotation and the weights of each token.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "recurrent.h"

namespace blazr {
namespace {

constexpr double kTau = 6.283185307179586;

struct Mamba3Arguments {
  at::Tensor xbc;                         // (T, I + 2GS): x, B and C; float32 where they are convolved
  at::Tensor dt, share;                   // (T, H)
  std::optional<at::Tensor> turns;        // (T, H · S/2)
  at::Tensor runs;                        // read_runs
  std::optional<at::Tensor> angle_state;  // (slots, H, S/2)
  bool is_convolved;
  int64_t slots, groups, size;            // size: S
  std::optional<at::Tensor> norm_weight;  // (S,)
  double eps;
  at::Tensor b_bias, c_bias;        // (H, S)
  at::Tensor rates, dt_bias, skip;  // (H,)
  double dt_min, dt_max;
};

struct Sizes {
  int64_t rows, heads, inner, groups, size, half;
};

// Weights of each token in the recurrence, (T, H) each.
struct TokenWeights {
  float *enter, *log_decay, *skip, *later;
};

// How B or C of one row becomes one vector per head.
struct HeadVectors {
  const float* norm_weight;  // (S,) or null
  float eps;
  const float* bias;           // (H, S)
  const float *cosine, *sine;  // (H, S/2), or null: no rotation
};

Sizes checked_sizes(const Mamba3Arguments& in) {
  const at::Tensor &xbc = in.xbc, &dt = in.dt;
  TORCH_CHECK(xbc.dim() == 2 && dt.dim() == 2 && in.groups > 0 && in.size > 0, "mamba3_prepare: rows are needed");
  const int64_t rows = xbc.size(0), heads = dt.size(1), inner = xbc.size(1) - 2 * in.groups * in.size;
  const int64_t half = in.size / 2;
  TORCH_CHECK(
      inner > 0 && heads > 0 && heads % in.groups == 0 && inner % heads == 0, "mamba3_prepare: ", xbc.size(1),
      " values for ", heads, " heads");
  TORCH_CHECK(
      dt.size(0) == rows && dt.stride(1) == 1 && xbc.stride(1) == 1, "mamba3_prepare: contiguous rows are needed");
  TORCH_CHECK(
      in.share.scalar_type() == dt.scalar_type() && in.share.sizes() == dt.sizes() && in.share.is_contiguous(),
      "mamba3_prepare: shares (T, H) of dt's dtype are needed");
  TORCH_CHECK(in.turns.has_value() == in.angle_state.has_value(), "mamba3_prepare: turns and angles belong together");
  if (in.turns)
    TORCH_CHECK(
        in.size % 2 == 0 && in.turns->dim() == 2 && in.turns->size(0) == rows && in.turns->size(1) == heads * half &&
            in.turns->is_contiguous() && in.turns->scalar_type() == dt.scalar_type(),
        "mamba3_prepare: turns (T, H · S/2) are needed");
  TORCH_CHECK(
      xbc.scalar_type() == (in.is_convolved ? at::kFloat : dt.scalar_type()), "mamba3_prepare: rows of another dtype");
  return {rows, heads, inner, in.groups, in.size, half};
}

// The tokens' step sizes (T, H), and their weights in the recurrence without what follows them.
template <typename T>
void weigh_tokens(const Mamba3Arguments& in, const Sizes& sizes, float* delta, const TokenWeights& to) {
  const int64_t heads = sizes.heads, step_stride = in.dt.stride(0);
  const float *rates = checked(in.rates, {heads}, "rates"), *bias = checked(in.dt_bias, {heads}, "dt_bias");
  const float* skips = checked(in.skip, {heads}, "D");
  const T *steps = in.dt.const_data_ptr<T>(), *shares = in.share.const_data_ptr<T>();
  const vf low = splat(static_cast<float>(in.dt_min)), high = splat(static_cast<float>(in.dt_max));
  parallel_for(0, sizes.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      by_lanes(heads, [&](int64_t h, int64_t left) {
        const int64_t at = row * heads + h;
        vf step_size = softplus(load_some(steps + row * step_stride + h, left) + load_some(bias + h, left));
        step_size = vmin(vmax(step_size, low), high);
        const vf share = sigmoid(load_some(shares + at, left));
        store_some(delta + at, step_size, left);
        store_some(to.enter + at, share * step_size, left);
        store_some(to.later + at, (1.0f - share) * step_size, left);
        store_some(to.log_decay + at, step_size * load_some(rates + h, left), left);
        store_some(to.skip + at, load_some(skips + h, left), left);
      });
  });
}

// angle (count,) += turn · Δ, kept from 0 to 2π; the running sum in double precision.
template <typename T>
void turn(double* angle, const T* turns, float delta, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    double next = angle[i] + static_cast<double>(static_cast<float>(turns[i]) * delta);
    next -= std::floor(next * (1.0 / kTau)) * kTau;
    next = next < 0 ? next + kTau : next;
    angle[i] = next >= kTau ? next - kTau : next;
  }
}

// The angles (T, H, S/2) of each token: sums of the turns along its run, from the run's state, which advances.
template <typename T>
void accumulate_angles(
    const Sizes& sizes, const std::vector<Run>& runs, const T* turns, const float* delta, float* state, float* angles) {
  const int64_t heads = sizes.heads, half = sizes.half, tasks = static_cast<int64_t>(runs.size()) * heads;
  parallel_for(0, tasks, std::max<int64_t>(1, 4096 / half), [&](int64_t begin, int64_t end) {
    std::vector<double> running(half);
    for (int64_t task = begin; task < end; ++task) {
      const Run& run = runs[task / heads];
      const int64_t head = task % heads;
      float* stored = state + (run.slot * heads + head) * half;
      for (int64_t i = 0; i < half; ++i) running[i] = run.fresh ? 0.0 : stored[i];
      for (int64_t row = run.start; row < run.start + run.count; ++row) {
        const int64_t at = (row * heads + head) * half;
        turn(running.data(), turns + at, delta[row * heads + head], half);
        for (int64_t i = 0; i < half; ++i) angles[at + i] = static_cast<float>(running[i]);
      }
      for (int64_t i = 0; i < half; ++i) stored[i] = static_cast<float>(running[i]);
    }
  });
}

// B or C: (G, S) of a row to (H, S), normed by group, biased per head, turned in adjacent pairs.
void expand_heads(const float* from, const HeadVectors& how, const Sizes& sizes, float* scratch, float* out) {
  const int64_t size = sizes.size, per_group = sizes.heads / sizes.groups;
  for (int64_t group = 0; group < sizes.groups; ++group) {
    const float* values = from + group * size;
    vf squares = splat(0);
    by_lanes(size, [&](int64_t i, int64_t left) {
      vf value = load_some(values + i, left);
      squares += value * value;
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + how.eps);
    by_lanes(size, [&](int64_t i, int64_t left) {
      vf value = load_some(values + i, left) * scale;
      store_some(scratch + i, how.norm_weight ? value * load_some(how.norm_weight + i, left) : value, left);
    });
    for (int64_t head = group * per_group; head < (group + 1) * per_group; ++head) {
      const float* added = how.bias + head * size;
      float* to = out + head * size;
      for (int64_t i = 0; i < size; ++i) to[i] = scratch[i] + added[i];
      if (!how.cosine) continue;
      const float *cosine = how.cosine + head * (size / 2), *sine = how.sine + head * (size / 2);
      for (int64_t i = 0; i < size / 2; ++i) {
        const float first = to[2 * i], second = to[2 * i + 1];
        to[2 * i] = first * cosine[i] - second * sine[i];
        to[2 * i + 1] = first * sine[i] + second * cosine[i];
      }
    }
  }
}

// Rows of x, B and C to x (T, I), activated, and B, C (T, H, S). angles: (T, H, S/2) or null.
template <typename T>
void expand_rows(
    const Mamba3Arguments& in, const Sizes& sizes, const float* angles, float* x_out, float* b_out, float* c_out) {
  const int64_t heads = sizes.heads, size = sizes.size, inner = sizes.inner, joint = sizes.groups * size;
  const int64_t pairs = angles ? heads * sizes.half : 0, padded = Scratch::padded(std::max(joint, pairs));
  const float* weight = in.norm_weight ? checked(*in.norm_weight, {size}, "norm weight") : nullptr;
  const float* biases[] = {checked(in.b_bias, {heads, size}, "b_bias"), checked(in.c_bias, {heads, size}, "c_bias")};
  float* outputs[] = {b_out, c_out};
  const T* from = in.xbc.const_data_ptr<T>();
  const int64_t stride = in.xbc.stride(0);
  parallel_for(0, sizes.rows, std::max<int64_t>(1, 4096 / (heads * size)), [&](int64_t begin, int64_t end) {
    Scratch scratch(3 * padded + Scratch::padded(size));
    float *one = scratch.begin(), *cosine = one + Scratch::padded(size), *sine = cosine + padded, *part = sine + padded;
    for (int64_t row = begin; row < end; ++row) {
      const T* values = from + row * stride;
      by_lanes(inner, [&](int64_t i, int64_t left) {
        vf value = load_some(values + i, left);
        store_some(x_out + row * inner + i, in.is_convolved ? value : silu(value), left);
      });
      by_lanes(pairs, [&](int64_t i, int64_t left) {
        vf cos_of, sin_of;
        cos_sin(load_some(angles + row * pairs + i, left), cos_of, sin_of);
        store_some(cosine + i, cos_of, left);
        store_some(sine + i, sin_of, left);
      });
      for (int which = 0; which < 2; ++which) {
        const T* source = values + inner + which * joint;
        by_lanes(joint, [&](int64_t i, int64_t left) { store_some(part + i, load_some(source + i, left), left); });
        const HeadVectors how{weight, static_cast<float>(in.eps), biases[which], pairs ? cosine : nullptr, sine};
        expand_heads(part, how, sizes, one, outputs[which] + row * heads * size);
      }
    }
  });
}

// A token that another follows in its run enters with the weight of that one's second part at once, and its own row
// returns that part.
void add_following(
    const Sizes& sizes, const std::vector<Run>& runs, const float* b, const float* c, const TokenWeights& to) {
  const int64_t heads = sizes.heads, size = sizes.size;
  for (const Run& run : runs) {
    const int64_t first = run.start * heads, last = (run.start + run.count - 1) * heads;
    parallel_for(first, last, std::max<int64_t>(1, 16384 / size), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        vf products = splat(0);
        by_lanes(size, [&](int64_t i, int64_t left) {
          products += load_some(b + at * size + i, left) * load_some(c + at * size + i, left);
        });
        to.enter[at] += to.later[at + heads];
        to.skip[at] -= to.later[at + heads] * sum(products);
      }
    });
  }
}

// Rows of x, B, C and dt to x (T, H, P), B, C (T, H, S) and (4, T, H): enter, log_decay, skip, later of the recurrence.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mamba3_prepare(const Mamba3Arguments& in) {
  const Sizes sizes = checked_sizes(in);
  const int64_t rows = sizes.rows, heads = sizes.heads, half = sizes.half;
  const auto runs = read_runs(in.runs, rows, in.slots);
  float* state = in.angle_state ? checked(*in.angle_state, {in.slots, heads, half}, "angle_state") : nullptr;
  const auto options = in.dt.options().dtype(at::kFloat);
  at::Tensor x = at::empty({rows, heads, sizes.inner / heads}, options);
  at::Tensor b = at::empty({rows, heads, sizes.size}, options), c = at::empty({rows, heads, sizes.size}, options);
  at::Tensor weights = at::empty({4, rows, heads}, options);
  float *first = weights.data_ptr<float>(), *b_out = b.data_ptr<float>(), *c_out = c.data_ptr<float>();
  const int64_t each = rows * heads;
  const TokenWeights to{first, first + each, first + 2 * each, first + 3 * each};
  Scratch delta(each), angles(state ? each * half : 0);

  dispatch(in.dt.scalar_type(), "mamba3_prepare", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    weigh_tokens<T>(in, sizes, delta.begin(), to);
    if (state) accumulate_angles(sizes, runs, in.turns->const_data_ptr<T>(), delta.begin(), state, angles.begin());
  });
  dispatch(in.xbc.scalar_type(), "mamba3_prepare", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    expand_rows<T>(in, sizes, state ? angles.begin() : nullptr, x.data_ptr<float>(), b_out, c_out);
  });
  add_following(sizes, runs, b_out, c_out, to);
  return {x, b, c, weights};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "mamba3_prepare(Tensor xbc, Tensor dt, Tensor share, Tensor? turns, Tensor runs, Tensor(a!)? angle_state, "
      "bool convolved, int slots, int groups, int size, Tensor? norm_weight, float eps, Tensor b_bias, Tensor c_bias, "
      "Tensor rates, Tensor dt_bias, Tensor skip, float dt_min, float dt_max) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("mamba3_prepare", with_arguments<mamba3_prepare>()); }

}  // namespace blazr
