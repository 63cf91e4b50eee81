// The gated delta rule between its projections: convolution, gates, recurrence, gated norm. Yang et al. 2024,
// https://arxiv.org/abs/2412.06464, equation 10; with a decay for each key channel, Kimi Team 2025,
// https://arxiv.org/abs/2510.26692, equation 1.
//
// Rows follow each other in a prefill too: per head a row takes 4 P V multiplications, a few percent of what the
// projections take. So a row has the same bits in a decode, in a prefill, and however a prefill is cut.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "activation.h"
#include "arguments.h"
#include "recurrent.h"

namespace blazr {
namespace {

constexpr float kUnitEps = 1e-6f;  // of the squared length of queries and keys
constexpr int kBlockVectors = 4;   // columns of a state that are advanced together: their sums stay in registers

struct DeltaArguments {
  at::Tensor projected;       // in_proj's rows: q (G·P), k (G·P), v (H·V), gate (H·V)
  at::Tensor ba;              // (T, 2H): b, then a
  at::Tensor runs;            // read_runs
  at::Tensor conv_state;      // (slots, C, K-1)
  at::Tensor delta_state;     // (slots, H, P, V)
  at::Tensor taps;            // (K, C)
  at::Tensor rates, dt_bias;  // (H,)
  double beta_scale;
  int64_t key_heads;  // G
  std::optional<at::Tensor> norm_weight;
  double eps, offset;
  int64_t norm_group, norm_order;  // GatedNorm
};

struct ChannelDeltaArguments {
  at::Tensor qkv;          // (T, 3 H P): q, k, v
  at::Tensor b;            // (T, H), its last axis contiguous
  at::Tensor decay, gate;  // (T, H P)
  at::Tensor runs;         // read_runs
  at::Tensor conv_state;   // (slots, 3 H P, K-1)
  at::Tensor delta_state;  // (slots, H, P, P)
  at::Tensor taps;         // (K, 3 H P)
  at::Tensor rates;        // (H,)
  at::Tensor dt_bias;      // (H P,)
  double least_log_decay;  // 0: the decays' logarithms are softplus · rate, without a bound
  at::Tensor norm_weight;
  double eps, offset;
};

struct Sizes {
  int64_t heads, key_heads, key_dim, width, rows;
  int64_t key_width() const { return key_heads * key_dim; }
  int64_t inner() const { return heads * width; }
  int64_t conv_width() const { return 2 * key_width() + inner(); }
};

// What the recurrence reads of each row, float32.
struct Rows {
  float* qkv;                  // (T, C), convolved
  float* beta;                 // (T, H)
  float* decay;                // (T, H), or (T, H, P)
  float *q_length, *k_length;  // (T, G): what makes them unit vectors, the scale of queries included
  float* out;                  // (T, H, V)
};

float squares(const float* values, int64_t count) {
  vf total = splat(0);
  by_lanes(count, [&](int64_t i, int64_t left) {
    vf x = load_some(values + i, left);
    total += x * x;
  });
  return sum(total);
}

void fill_lengths(const Sizes& sizes, const Rows& rows, int64_t row) {
  const float query_scale = 1 / std::sqrt(static_cast<float>(sizes.key_dim));
  const float *query = rows.qkv + row * sizes.conv_width(), *key = query + sizes.key_width();
  for (int64_t g = 0; g < sizes.key_heads; ++g) {
    const int64_t at = row * sizes.key_heads + g, first = g * sizes.key_dim;
    rows.q_length[at] = query_scale / std::sqrt(squares(query + first, sizes.key_dim) + kUnitEps);
    rows.k_length[at] = 1 / std::sqrt(squares(key + first, sizes.key_dim) + kUnitEps);
  }
}

template <typename T>
void fill_gates(const DeltaArguments& in, const Sizes& sizes, const T* ba, const Rows& rows) {
  const int64_t heads = sizes.heads;
  const float *rates = in.rates.const_data_ptr<float>(), *bias = in.dt_bias.const_data_ptr<float>();
  const float scale = static_cast<float>(in.beta_scale);
  parallel_for(0, sizes.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *b = ba + row * 2 * heads, *a = b + heads;
      by_lanes(heads, [&](int64_t h, int64_t left) {
        vf forgets = softplus(load_some(a + h, left) + load_some(bias + h, left)) * load_some(rates + h, left);
        store_some(rows.beta + row * heads + h, sigmoid(load_some(b + h, left)) * scale, left);
        store_some(rows.decay + row * heads + h, exp(forgets), left);
      });
      fill_lengths(sizes, rows, row);
    }
  });
}

template <typename T>
void fill_channel_gates(const ChannelDeltaArguments& in, const Sizes& sizes, const Rows& rows) {
  const int64_t heads = sizes.heads, key_dim = sizes.key_dim, b_stride = in.b.stride(0);
  const float *rates = in.rates.const_data_ptr<float>(), *bias = in.dt_bias.const_data_ptr<float>();
  const T *b = in.b.const_data_ptr<T>(), *projected = in.decay.const_data_ptr<T>();
  const float least = static_cast<float>(in.least_log_decay);
  parallel_for(0, sizes.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      by_lanes(heads, [&](int64_t h, int64_t left) {
        store_some(rows.beta + row * heads + h, sigmoid(load_some(b + row * b_stride + h, left)), left);
      });
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t first = head * key_dim, at = row * heads * key_dim + first;
        by_lanes(key_dim, [&](int64_t i, int64_t left) {
          vf value = load_some(projected + at + i, left) + load_some(bias + first + i, left);
          vf forgets = least != 0 ? sigmoid(value * -rates[head]) * least : softplus(value) * rates[head];
          store_some(rows.decay + at + i, exp(forgets), left);
        });
      }
      fill_lengths(sizes, rows, row);
    }
  });
}

// One row's factors for a head.
struct Step {
  const float *query, *key;  // (P,)
  float q_length, k_length, beta, decay;
  const float* decays;  // (P,), in place of `decay`
};

// Some columns of one row: S = α S + kᵀ β (v - k α S), o = q S, with α a number or one for each row of S.
template <bool kChannels, int kVectors>
void advance(const Step& step, float* state, const float* value, float* out, int64_t key_dim, int64_t width) {
  vf held[kVectors] = {}, result[kVectors] = {};
  for (int64_t i = 0; i < key_dim; ++i) {
    const float key = kChannels ? step.key[i] * step.decays[i] : step.key[i];
    for (int n = 0; n < kVectors; ++n) held[n] += key * load(state + i * width + n * kLanes);
  }
  vf written[kVectors];
  const float length = kChannels ? step.k_length : step.decay * step.k_length;
  for (int n = 0; n < kVectors; ++n)
    written[n] = (load(value + n * kLanes) - held[n] * length) * (step.beta * step.k_length);
  for (int64_t i = 0; i < key_dim; ++i) {
    const float decay = kChannels ? step.decays[i] : step.decay;
    for (int n = 0; n < kVectors; ++n) {
      float* place = state + i * width + n * kLanes;
      vf s = load(place) * decay + step.key[i] * written[n];
      store(place, s);
      result[n] += step.query[i] * s;
    }
  }
  for (int n = 0; n < kVectors; ++n) store(out + n * kLanes, result[n] * step.q_length);
}

// The same of the last columns, fewer than a vector.
template <bool kChannels>
void advance_last(
    const Step& step, float* state, const float* value, float* out, int64_t key_dim, int64_t width, int64_t left) {
  vf held = splat(0), result = splat(0);
  for (int64_t i = 0; i < key_dim; ++i)
    held += (kChannels ? step.key[i] * step.decays[i] : step.key[i]) * load_part(state + i * width, left);
  const float length = kChannels ? step.k_length : step.decay * step.k_length;
  const vf written = (load_part(value, left) - held * length) * (step.beta * step.k_length);
  for (int64_t i = 0; i < key_dim; ++i) {
    const float decay = kChannels ? step.decays[i] : step.decay;
    vf s = load_part(state + i * width, left) * decay + step.key[i] * written;
    store_part(state + i * width, s, left);
    result += step.query[i] * s;
  }
  store_part(out, result * step.q_length, left);
}

template <bool kChannels>
void recur_head(const Sizes& sizes, const Rows& rows, const Run& run, int64_t head, const States& states) {
  const int64_t key_dim = sizes.key_dim, width = sizes.width, group = head / (sizes.heads / sizes.key_heads);
  const int64_t size = key_dim * width, place = (run.slot * sizes.heads + head) * size;
  Scratch copy(states.scratch_for(size));
  float* state = states.open(place, size, run.fresh, copy.begin());
  if (run.fresh) std::fill(state, state + size, 0.0f);
  for (int64_t row = run.start; row < run.start + run.count; ++row) {
    const float* query = rows.qkv + row * sizes.conv_width() + group * key_dim;
    const int64_t at = row * sizes.heads + head, lengths = row * sizes.key_heads + group;
    const Step step{
        query,
        query + sizes.key_width(),
        rows.q_length[lengths],
        rows.k_length[lengths],
        rows.beta[at],
        kChannels ? 1.0f : rows.decay[at],
        kChannels ? rows.decay + at * key_dim : nullptr};
    const float* value = rows.qkv + row * sizes.conv_width() + 2 * sizes.key_width() + head * width;
    float* out = rows.out + at * width;
    int64_t j = 0;
    for (; j + kBlockVectors * kLanes <= width; j += kBlockVectors * kLanes)
      advance<kChannels, kBlockVectors>(step, state + j, value + j, out + j, key_dim, width);
    for (; j + kLanes <= width; j += kLanes) advance<kChannels, 1>(step, state + j, value + j, out + j, key_dim, width);
    if (j < width) advance_last<kChannels>(step, state + j, value + j, out + j, key_dim, width, width - j);
  }
  states.close(place, size, state);
}

Sizes sizes_of(const DeltaArguments& in) {
  TORCH_CHECK(
      in.delta_state.dim() == 4 && in.taps.dim() == 2, "delta_mix: states (slots, H, P, V) and taps (K, C) are needed");
  const Sizes sizes{
      in.delta_state.size(1), in.key_heads, in.delta_state.size(2), in.delta_state.size(3), in.projected.size(0)};
  TORCH_CHECK(
      in.key_heads > 0 && sizes.heads % in.key_heads == 0, "delta_mix: ", sizes.heads, " heads for ", in.key_heads,
      " key heads");
  const int64_t all = sizes.conv_width() + sizes.inner();
  TORCH_CHECK(
      in.projected.dim() == 2 && in.projected.size(1) == all && in.projected.is_contiguous(),
      "delta_mix: contiguous rows of ", all, " values are needed");
  TORCH_CHECK(
      in.ba.dim() == 2 && in.ba.size(0) == sizes.rows && in.ba.size(1) == 2 * sizes.heads && in.ba.is_contiguous() &&
          in.ba.scalar_type() == in.projected.scalar_type(),
      "delta_mix: contiguous rows of ", 2 * sizes.heads, " gates of the projections' type are needed");
  TORCH_CHECK(
      in.norm_group > 0 && sizes.inner() % in.norm_group == 0, "delta_mix: norm groups of ", in.norm_group, " in ",
      sizes.inner());
  return sizes;
}

// The convolution over `width` channels, without a bias, that the arguments' states and taps describe.
template <class Arguments>
Convolution convolution_of(const Arguments& in, int64_t slots, int64_t width) {
  const int64_t kernel = in.taps.size(0);
  return {
      States(in.conv_state, {slots, width, kernel - 1}, "conv_state"),
      checked(in.taps, {kernel, width}, "taps"),
      nullptr,
      width,
      kernel,
      kSilu,
  };
}

at::Tensor delta_mix(const DeltaArguments& in) {
  const Sizes sizes = sizes_of(in);
  const int64_t slots = in.delta_state.size(0), rows = sizes.rows, heads = sizes.heads;
  const int64_t conv_width = sizes.conv_width(), inner = sizes.inner();
  const auto found = read_runs(in.runs, rows, slots);
  const Convolution conv = convolution_of(in, slots, conv_width);
  const GatedNorm norm{
      in.norm_weight ? checked(*in.norm_weight, {inner}, "norm weight") : nullptr, static_cast<float>(in.eps),
      static_cast<float>(in.offset), in.norm_group, in.norm_order};
  checked(in.rates, {heads}, "rates");
  checked(in.dt_bias, {heads}, "dt_bias");
  const States states(in.delta_state, {slots, heads, sizes.key_dim, sizes.width}, "delta_state");
  Scratch scratch(rows * (conv_width + inner + 2 * heads + 2 * sizes.key_heads));
  Rows parts;
  parts.qkv = scratch.begin();
  parts.out = parts.qkv + rows * conv_width;
  parts.beta = parts.out + rows * inner;
  parts.decay = parts.beta + rows * heads;
  parts.q_length = parts.decay + rows * heads;
  parts.k_length = parts.q_length + rows * sizes.key_heads;
  at::Tensor out = at::empty({rows, inner}, in.projected.options());
  dispatch(in.projected.scalar_type(), "delta_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = in.projected.const_data_ptr<T>();
    convolve(conv, found, from, conv_width + inner, parts.qkv);
    fill_gates(in, sizes, in.ba.const_data_ptr<T>(), parts);
    share(static_cast<int64_t>(found.size()) * heads, true, [&](int64_t task) {
      recur_head<false>(sizes, parts, found[task / heads], task % heads, states);
    });
    gated_norm(norm, parts.out, from + conv_width, conv_width + inner, out.data_ptr<T>(), rows, inner);
  });
  return out;
}

// A contiguous (rows, width) of one type, or an error that names it.
void check_rows(const at::Tensor& tensor, int64_t rows, int64_t width, at::ScalarType type, const char* name) {
  TORCH_CHECK(
      tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == width && tensor.is_contiguous() &&
          tensor.scalar_type() == type,
      "channel_delta_mix: ", name, " must be contiguous (", rows, ", ", width, ") of one type");
}

at::Tensor channel_delta_mix(const ChannelDeltaArguments& in) {
  TORCH_CHECK(
      in.delta_state.dim() == 4 && in.taps.dim() == 2 && in.qkv.dim() == 2,
      "channel_delta_mix: states (slots, H, P, P), taps (K, C) and rows are needed");
  const int64_t slots = in.delta_state.size(0), heads = in.delta_state.size(1), key_dim = in.delta_state.size(2);
  const Sizes sizes{heads, heads, key_dim, key_dim, in.qkv.size(0)};
  const int64_t rows = sizes.rows, inner = sizes.inner(), conv_width = sizes.conv_width();
  const at::ScalarType type = in.qkv.scalar_type();
  check_rows(in.qkv, rows, conv_width, type, "qkv");
  check_rows(in.decay, rows, inner, type, "decay");
  check_rows(in.gate, rows, inner, type, "gate");
  TORCH_CHECK(
      in.b.dim() == 2 && in.b.size(0) == rows && in.b.size(1) == heads && in.b.stride(1) == 1 &&
          in.b.scalar_type() == type,
      "channel_delta_mix: b must be (", rows, ", ", heads, ")");
  const auto found = read_runs(in.runs, rows, slots);
  const Convolution conv = convolution_of(in, slots, conv_width);
  const GatedNorm norm{
      checked(in.norm_weight, {inner}, "norm weight"), static_cast<float>(in.eps), static_cast<float>(in.offset),
      key_dim, GatedNorm::kBeforeSigmoid};
  checked(in.rates, {heads}, "rates");
  checked(in.dt_bias, {inner}, "dt_bias");
  const States states(in.delta_state, {slots, heads, key_dim, key_dim}, "delta_state");
  Scratch scratch(rows * (conv_width + 2 * inner + 3 * heads));
  Rows parts;
  parts.qkv = scratch.begin();
  parts.out = parts.qkv + rows * conv_width;
  parts.decay = parts.out + rows * inner;
  parts.beta = parts.decay + rows * inner;
  parts.q_length = parts.beta + rows * heads;
  parts.k_length = parts.q_length + rows * heads;
  at::Tensor out = at::empty({rows, inner}, in.qkv.options());
  dispatch(type, "channel_delta_mix", [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    convolve(conv, found, in.qkv.const_data_ptr<T>(), conv_width, parts.qkv);
    fill_channel_gates<T>(in, sizes, parts);
    share(static_cast<int64_t>(found.size()) * heads, true, [&](int64_t task) {
      recur_head<true>(sizes, parts, found[task / heads], task % heads, states);
    });
    gated_norm(norm, parts.out, in.gate.const_data_ptr<T>(), inner, out.data_ptr<T>(), rows, inner);
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "delta_mix(Tensor projected, Tensor ba, Tensor runs, Tensor(a!) conv_state, Tensor(b!) delta_state, "
      "Tensor taps, Tensor rates, Tensor dt_bias, float beta_scale, int key_heads, Tensor? norm_weight, float eps, "
      "float offset, int norm_group, int norm_order) -> Tensor");
  library.def(
      "channel_delta_mix(Tensor qkv, Tensor b, Tensor decay, Tensor gate, Tensor runs, Tensor(a!) conv_state, "
      "Tensor(b!) delta_state, Tensor taps, Tensor rates, Tensor dt_bias, float least_log_decay, Tensor norm_weight, "
      "float eps, float offset) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("delta_mix", with_arguments<delta_mix>());
  library.impl("channel_delta_mix", with_arguments<channel_delta_mix>());
}

}  // namespace blazr
