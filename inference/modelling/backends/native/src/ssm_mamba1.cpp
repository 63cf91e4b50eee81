// Mamba-1's selective scan with its step sizes before and its gate after, one pass, lanes along the channels.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "recurrent.h"

namespace blazr {
namespace {

constexpr float kMaxGrowthExponent = 80.0f;  // as scan.py's MAX_GROWTH_EXPONENT
constexpr int64_t kGrainValues = 16384;      // exponentials below which a second thread isn't woken

template <typename T>
struct Selective {
  const float* x;              // (T, I)
  const T *dt, *b, *c, *gate;  // (T, I), (T, S), (T, S), (T, I)
  int64_t dt_stride, b_stride, c_stride, gate_stride;
  const float *dt_bias, *a, *skip;  // (I,), (I, S), (I,)
  States state;                     // (slots, I, S)
  T* out;                           // (T, I)
  int64_t channels, size;
  int64_t heads;  // H; each has channels / H channels, and B and C (T, H · S) of its own
  float limit;    // infinite: none
};

// Channels first … first+count-1 of a run; `a` and `state` of them are transposed (S, kLanes) in scratch.
template <typename T>
void scan_block(const Selective<T>& layer, const Run& run, int64_t first, int64_t count, float* scratch) {
  const int64_t size = layer.size;
  float *a = scratch, *state = scratch + size * kLanes;
  const int64_t at = (run.slot * layer.channels + first) * size;
  float* stored = layer.state.open(at, count * size, run.fresh, state + size * kLanes);
  if (count < kLanes || run.fresh) std::fill(a, state + size * kLanes, 0.0f);
  transpose_matrix(layer.a + first * size, size, a, kLanes, count, size);
  if (!run.fresh) transpose_matrix(stored, size, state, kLanes, count, size);
  const vf bias = load_some(layer.dt_bias + first, count), skip = load_some(layer.skip + first, count);
  const vf ceiling = splat(kMaxGrowthExponent), high = splat(layer.limit), low = splat(-layer.limit);
  const bool limited = layer.limit < INFINITY;
  const int64_t column = first / (layer.channels / layer.heads) * size;
  for (int64_t row = run.start; row < run.start + run.count; ++row) {
    const vf delta = softplus(load_some(layer.dt + row * layer.dt_stride + first, count) + bias);
    const vf x = load_some(layer.x + row * layer.channels + first, count);
    const vf entering = delta * x;
    const T *b = layer.b + row * layer.b_stride + column, *c = layer.c + row * layer.c_stride + column;
    vf y = splat(0);
    for (int64_t n = 0; n < size; ++n) {
      vf s = load(state + n * kLanes) * exp(vmin(delta * load(a + n * kLanes), ceiling));
      s += entering * static_cast<float>(b[n]);
      if (limited) s = vmin(vmax(s, low), high);
      store(state + n * kLanes, s);
      y += s * static_cast<float>(c[n]);
    }
    y += x * skip;
    y *= silu(load_some(layer.gate + row * layer.gate_stride + first, count));
    store_some(layer.out + row * layer.channels + first, y, count);
  }
  transpose_matrix(state, kLanes, stored, size, size, count);
  layer.state.close(at, count * size, stored);
}

struct Mamba1Arguments {
  at::Tensor x, dt, b, c, gate;  // (T, I), (T, I), (T, H · S), (T, H · S), (T, I)
  at::Tensor runs;
  at::Tensor state;  // (slots, I, S)
  at::Tensor dt_bias, a, skip;
  double limit;
};

at::Tensor mamba1_mix(const Mamba1Arguments& in) {
  TORCH_CHECK(in.state.dim() == 3 && in.x.dim() == 2, "mamba1_mix: rows (T, I) and states (slots, I, S) are needed");
  const int64_t slots = in.state.size(0), channels = in.state.size(1), size = in.state.size(2), rows = in.x.size(0);
  const auto rows_of = [&](const at::Tensor& tensor, int64_t width, const char* name) {
    TORCH_CHECK(
        tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == width && tensor.stride(1) == 1,
        "mamba1_mix: ", name, " must be (", rows, ", ", width, "), its rows contiguous");
    TORCH_CHECK(
        tensor.scalar_type() == in.gate.scalar_type(), "mamba1_mix: ", name, " has another dtype than the gate");
  };
  rows_of(in.dt, channels, "dt");
  TORCH_CHECK(
      in.b.dim() == 2 && in.b.size(1) >= size && in.b.size(1) % size == 0 && channels % (in.b.size(1) / size) == 0,
      "mamba1_mix: B must have S columns for each head, and the heads must divide the channels");
  const int64_t heads = in.b.size(1) / size, width = channels / heads;
  rows_of(in.b, heads * size, "B");
  rows_of(in.c, heads * size, "C");
  rows_of(in.gate, channels, "the gate");
  const auto found = read_runs(in.runs, rows, slots);
  at::Tensor out = at::empty({rows, channels}, in.gate.options());
  dispatch(in.gate.scalar_type(), "mamba1_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Selective<T> layer{
        checked(in.x, {rows, channels}, "x"),
        in.dt.const_data_ptr<T>(),
        in.b.const_data_ptr<T>(),
        in.c.const_data_ptr<T>(),
        in.gate.const_data_ptr<T>(),
        in.dt.stride(0),
        in.b.stride(0),
        in.c.stride(0),
        in.gate.stride(0),
        checked(in.dt_bias, {channels}, "dt_bias"),
        checked(in.a, {channels, size}, "A"),
        checked(in.skip, {channels}, "D"),
        States(in.state, {slots, channels, size}, "state"),
        out.data_ptr<T>(),
        channels,
        size,
        heads,
        static_cast<float>(in.limit)};
    const int64_t per_head = (width + kLanes - 1) / kLanes, blocks = heads * per_head, num_runs = found.size();
    const int64_t each = std::max<int64_t>(1, rows / std::max<int64_t>(1, num_runs)) * kLanes * size;
    parallel_for(0, num_runs * blocks, std::max<int64_t>(1, kGrainValues / each), [&](int64_t begin, int64_t end) {
      Scratch scratch(2 * size * kLanes + layer.state.scratch_for(size * kLanes));
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task % blocks / per_head, within = task % per_head * kLanes;
        const int64_t count = std::min<int64_t>(kLanes, width - within);
        scan_block(layer, found[task / blocks], head * width + within, count, scratch.begin());
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "mamba1_mix(Tensor x, Tensor dt, Tensor b, Tensor c, Tensor gate, Tensor runs, Tensor(a!) state, Tensor dt_bias, "
      "Tensor a, Tensor skip, float limit) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("mamba1_mix", with_arguments<mamba1_mix>()); }

}  // namespace blazr
