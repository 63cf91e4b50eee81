// xLSTM's matrix memory between its projections: gates, recurrence, norm of each head, output gate. Beck et al. 2024,
// https://arxiv.org/abs/2405.04517, equations 19 to 27.
//
// Rows follow each other in a prefill too, as in the delta rule: a row has the same bits in a decode, in a prefill, and
// however a prefill is cut.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "recurrent.h"

namespace blazr {
namespace {

constexpr int kPanelVectors = 8;  // columns of a memory that are advanced together: their sums stay in registers

struct MlstmArguments {
  at::Tensor projected;            // (T, 2 H P + 2 H V): q, k, v, output gate
  at::Tensor gates;                // (T, 2 H): input gates, then forget gates
  at::Tensor runs;                 // read_runs
  at::Tensor memory, total, peak;  // (slots, H, P, V), (slots, H, P), (slots, H)
  at::Tensor norm_weight;          // (H V,)
  double gate_cap, norm_eps, eps;
};

struct Sizes {
  int64_t rows, heads, key_dim, width;
  States memories;
  int64_t columns() const { return 2 * heads * (key_dim + width); }
};

// What the gates of a row and head make of the memory: C = keep C + write kᵀ v, o = q C · scale.
struct Factors {
  float keep, write, scale;
};

inline float exp_of(float x) { return exp(splat(x))[0]; }

// cap · tanh(x / cap), NaN of NaN.
inline float capped(float x, float cap) { return std::isnan(x) ? x : cap * tanh(splat(x / cap))[0]; }

// The factors of a run's rows for one head; the sum of the written keys and the peak advance.
template <typename T>
void fill_factors(const MlstmArguments& in, const Sizes& sizes, const Run& run, int64_t head, Factors* factors) {
  const int64_t at = run.slot * sizes.heads + head, key_dim = sizes.key_dim;
  float *total = in.total.data_ptr<float>() + at * key_dim, *stored = in.peak.data_ptr<float>() + at;
  const float cap = static_cast<float>(in.gate_cap), eps = static_cast<float>(in.eps);
  const float query_scale = 1 / std::sqrt(static_cast<float>(key_dim));
  float peak = run.fresh ? 0.0f : *stored;
  if (run.fresh) std::fill(total, total + key_dim, 0.0f);
  for (int64_t row = run.start; row < run.start + run.count; ++row) {
    const T* gates = in.gates.const_data_ptr<T>() + row * 2 * sizes.heads + head;
    const T* query = in.projected.const_data_ptr<T>() + row * sizes.columns() + head * key_dim;
    const T* key = query + sizes.heads * key_dim;
    const float enters = capped(static_cast<float>(gates[0]), cap);
    const float stays = capped(static_cast<float>(gates[sizes.heads]), cap);
    const float before = peak - softplus(splat(-stays))[0];  // the logarithm of a sigmoid
    const bool is_number = enters == enters && before == before;
    peak = is_number ? std::max(before, enters) : NAN;
    const float keep = is_number ? exp_of(before - peak) : NAN, write = is_number ? exp_of(enters - peak) : NAN;
    vf product = splat(0);
    by_lanes(key_dim, [&](int64_t i, int64_t left) {
      vf sum = load_some(total + i, left) * keep;
      sum += load_some(key + i, left) * write;
      store_some(total + i, sum, left);
      product += load_some(query + i, left) * sum;
    });
    const float divisor = std::max(std::fabs(sum(product)) * query_scale, exp_of(-peak)) + eps;
    factors[row * sizes.heads + head] = {keep, write, query_scale / divisor};
  }
  *stored = peak;
}

// One row of some columns of a memory, whose rows are `stride` apart: kVectors vectors, or (not kWhole) `left` columns.
template <int kVectors, bool kWhole>
void advance(
    const Factors& factors, const float* query, const float* key, const float* value, float* memory, float* out,
    int64_t key_dim, int64_t stride, int64_t left) {
  vf values[kVectors], sums[kVectors] = {};
  for (int n = 0; n < kVectors; ++n) values[n] = load_some(value + n * kLanes, kWhole ? kLanes : left);
  for (int64_t i = 0; i < key_dim; ++i) {
    const float written = factors.write * key[i], read = query[i];
    for (int n = 0; n < kVectors; ++n) {
      float* place = memory + i * stride + n * kLanes;
      vf c = (kWhole ? load(place) : load_part(place, left)) * factors.keep;
      c += written * values[n];
      if constexpr (kWhole)
        store(place, c);
      else
        store_part(place, c, left);
      sums[n] += read * c;
    }
  }
  for (int n = 0; n < kVectors; ++n) store_some(out + n * kLanes, sums[n] * factors.scale, kWhole ? kLanes : left);
}

template <typename T>
void to_float(const T* from, float* to, int64_t count) {
  by_lanes(count, [&](int64_t i, int64_t left) { store_some(to + i, load_some(from + i, left), left); });
}

// A run's rows for the columns first … first+count-1 of one head.
template <typename T>
void recur(
    const MlstmArguments& in, const Sizes& sizes, const Run& run, int64_t head, int64_t first, int64_t count,
    const Factors* factors, float* out) {
  const int64_t key_dim = sizes.key_dim, width = sizes.width, whole = count / kLanes, left = count % kLanes;
  const int64_t at = (run.slot * sizes.heads + head) * key_dim * width + first;
  const int64_t copied = sizes.memories.scratch_for(key_dim * count), stride = copied ? count : width;
  Scratch scratch(2 * key_dim + count + copied);
  float *query = scratch.begin(), *key = query + key_dim, *value = key + key_dim, *copy = value + count;
  float* memory = sizes.memories.open(at, count, run.fresh, copy);
  for (int64_t i = 1; i < key_dim && copied; ++i)
    sizes.memories.open(at + i * width, count, run.fresh, copy + i * count);
  if (run.fresh)
    for (int64_t i = 0; i < key_dim; ++i) std::fill(memory + i * stride, memory + i * stride + count, 0.0f);
  for (int64_t row = run.start; row < run.start + run.count; ++row) {
    const T* from = in.projected.const_data_ptr<T>() + row * sizes.columns();
    to_float(from + head * key_dim, query, key_dim);
    to_float(from + (sizes.heads + head) * key_dim, key, key_dim);
    to_float(from + 2 * sizes.heads * key_dim + head * width + first, value, count);
    const Factors& own = factors[row * sizes.heads + head];
    float* to = out + (row * sizes.heads + head) * width + first;
    if (whole)
      with_constant<kPanelVectors>(whole, [&](auto vectors) {
        advance<vectors.value, true>(own, query, key, value, memory, to, key_dim, stride, 0);
      });
    const int64_t done = whole * kLanes;
    if (left) advance<1, false>(own, query, key, value + done, memory + done, to + done, key_dim, stride, left);
  }
  for (int64_t i = 0; i < key_dim && copied; ++i) sizes.memories.close(at + i * width, count, memory + i * stride);
}

// σ(gate) · weight · (values - mean) / sqrt(variance + eps) of one row and head.
template <typename T>
void norm_head(const float* values, const T* gate, const float* weight, float eps, T* out, int64_t width) {
  vf total = splat(0), squares = splat(0);
  by_lanes(width, [&](int64_t i, int64_t left) { total += load_some(values + i, left); });
  const float mean = sum(total) / static_cast<float>(width);
  by_lanes(width, [&](int64_t i, int64_t left) {
    vf value = load_some(values + i, left) - mean;
    if (left < kLanes) value = kLaneNumbers < static_cast<int32_t>(left) ? value : splat(0);
    squares += value * value;
  });
  const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps);
  by_lanes(width, [&](int64_t i, int64_t left) {
    const vf normed = (load_some(values + i, left) - mean) * scale * load_some(weight + i, left);
    store_some(out + i, sigmoid(load_some(gate + i, left)) * normed, left);
  });
}

Sizes sizes_of(const MlstmArguments& in) {
  TORCH_CHECK(
      in.memory.dim() == 4 && in.projected.dim() == 2, "mlstm_mix: memories (slots, H, P, V) and rows are needed");
  const int64_t slots = in.memory.size(0), heads = in.memory.size(1), key_dim = in.memory.size(2);
  const int64_t width = in.memory.size(3);
  const States memories(in.memory, {slots, heads, key_dim, width}, "memory_state");
  const Sizes sizes{in.projected.size(0), heads, key_dim, width, memories};
  TORCH_CHECK(
      in.projected.size(1) == sizes.columns() && in.projected.is_contiguous(), "mlstm_mix: contiguous rows of ",
      sizes.columns(), " values are needed");
  TORCH_CHECK(
      in.gates.dim() == 2 && in.gates.size(0) == sizes.rows && in.gates.size(1) == 2 * sizes.heads &&
          in.gates.is_contiguous() && in.gates.scalar_type() == in.projected.scalar_type(),
      "mlstm_mix: contiguous rows of ", 2 * sizes.heads, " gates of the projections' type are needed");
  checked(in.total, {slots, heads, key_dim}, "norm_state");
  checked(in.peak, {slots, heads}, "max_state");
  checked(in.norm_weight, {heads * width}, "norm weight");
  return sizes;
}

at::Tensor mlstm_mix(const MlstmArguments& in) {
  const Sizes sizes = sizes_of(in);
  const int64_t heads = sizes.heads, width = sizes.width, inner = heads * width;
  const auto found = read_runs(in.runs, sizes.rows, in.memory.size(0));
  const int64_t num_runs = found.size();
  std::vector<Factors> factors(sizes.rows * heads);
  Scratch scratch(sizes.rows * inner);
  float* mixed = scratch.begin();
  at::Tensor out = at::empty({sizes.rows, inner}, in.projected.options());
  dispatch(in.projected.scalar_type(), "mlstm_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    share(num_runs * heads, true, [&](int64_t task) {
      fill_factors<T>(in, sizes, found[task / heads], task % heads, factors.data());
    });
    constexpr int64_t kPanel = kPanelVectors * kLanes;
    const int64_t panels = ceil_div(width, kPanel), each = heads * panels;
    share(num_runs * each, true, [&](int64_t task) {
      const int64_t first = task % panels * kPanel;
      recur<T>(
          in, sizes, found[task / each], task % each / panels, first, std::min(kPanel, width - first), factors.data(),
          mixed);
    });
    const T* gates = in.projected.const_data_ptr<T>() + sizes.columns() - inner;
    const float* weight = in.norm_weight.const_data_ptr<float>();
    T* to = out.data_ptr<T>();
    parallel_for(0, sizes.rows * heads, 16, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / heads, first = task % heads * width;
        norm_head(
            mixed + row * inner + first, gates + row * sizes.columns() + first, weight + first,
            static_cast<float>(in.norm_eps), to + row * inner + first, width);
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "mlstm_mix(Tensor projected, Tensor gates, Tensor runs, Tensor(a!) memory, Tensor(b!) total, Tensor(c!) peak, "
      "Tensor norm_weight, float gate_cap, float norm_eps, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("mlstm_mix", with_arguments<mlstm_mix>()); }

}  // namespace blazr
