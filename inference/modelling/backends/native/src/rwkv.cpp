// RWKV-4: each token's row mixed with the row before it, and the weighted mean of all values so far, kept over e^m.
// Peng et al. 2023, https://arxiv.org/abs/2305.13048, section 3 and appendix D.
//
// Each channel is computed for itself, row after row: a row has the same bits in a decode, in a prefill, and however a
// prefill is cut.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "recurrent.h"

namespace blazr {
namespace {

constexpr float kNothing = -1e38f;      // as rwkv.py's NOTHING
constexpr int kVectors = 2;             // of a row that are advanced together: their exponentials overlap
constexpr int64_t kGrainValues = 8192;  // below which a second thread isn't woken

// --- the row before -----------------------------------------------------------------------------

// out[n] = before + share[n] · (row - before) for each of the shares.
template <typename T>
void mix_row(const T* row, const float* stored, const T* previous, const at::Tensor& shares, T* out, int64_t stride) {
  const int64_t count = shares.size(0), width = shares.size(1);
  const float* share = shares.const_data_ptr<float>();
  by_lanes(width, [&](int64_t i, int64_t left) {
    const vf x = load_some(row + i, left);
    const vf before = stored ? load_some(stored + i, left) : previous ? load_some(previous + i, left) : splat(0);
    for (int64_t n = 0; n < count; ++n)
      store_some(out + n * stride + i, before + load_some(share + n * width + i, left) * (x - before), left);
  });
}

at::Tensor token_shift(const at::Tensor& rows, const at::Tensor& runs, at::Tensor state, const at::Tensor& shares) {
  TORCH_CHECK(rows.dim() == 2 && rows.is_contiguous(), "token_shift: contiguous rows (T, h) are needed");
  const int64_t total = rows.size(0), width = rows.size(1), slots = state.size(0);
  const States states(state, {slots, width}, "shift_state");
  checked(shares, {shares.size(0), width}, "shares");
  const auto found = read_runs(runs, total, slots);
  at::Tensor out = at::empty({shares.size(0), total, width}, rows.options());
  dispatch(rows.scalar_type(), "token_shift", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = rows.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    const int64_t grain = std::max<int64_t>(1, kGrainValues / std::max<int64_t>(1, width));
    parallel_for(0, total, grain, [&](int64_t begin, int64_t end) {
      auto run = std::upper_bound(
          found.begin(), found.end(), begin, [](int64_t row, const Run& one) { return row < one.start + one.count; });
      Scratch copy(states.scratch_for(width));
      for (int64_t row = begin; row < end; ++row) {
        while (row >= run->start + run->count) ++run;
        const bool begins = row == run->start, is_behind = begins && !run->fresh;
        const float* stored = is_behind ? states.open(run->slot * width, width, false, copy.begin()) : nullptr;
        mix_row(
            from + row * width, stored, begins ? nullptr : from + (row - 1) * width, shares, to + row * width,
            total * width);
      }
    });
    Scratch copy(states.scratch_for(width));
    for (const Run& run : found) {
      const T* last = from + (run.start + run.count - 1) * width;
      float* stored = states.open(run.slot * width, width, true, copy.begin());
      by_lanes(width, [&](int64_t i, int64_t left) { store_some(stored + i, load_some(last + i, left), left); });
      states.close(run.slot * width, width, stored);
    }
  });
  return out;
}

// --- the mean of the values ---------------------------------------------------------------------

struct WkvArguments {
  at::Tensor key, value, receptance;  // (T, A)
  at::Tensor runs;                    // read_runs
  at::Tensor total, weight, peak;     // (slots, A): both sums over e^peak
  at::Tensor log_decay, bonus;        // (A,)
};

// Of two weights e^a and e^b, both over the greater: the smaller one is e^-|a-b|, NaN if either is.
struct Weights {
  vf first, second;
  Weights(vf a, vf b) {
    const vf difference = a - b;
    const vi is_second = difference < splat(0);
    vf smaller = exp(is_second ? difference : -difference);
    smaller = difference == difference ? smaller : difference;
    first = is_second ? smaller : splat(1);
    second = is_second ? splat(1) : smaller;
  }
};

// A run's channels first … first+count-1, at most kVectors vectors.
template <int kCount, typename T>
void scan(const WkvArguments& in, const States& states, const Run& run, int64_t first, int64_t count, T* out) {
  const int64_t width = in.key.size(1), at = run.slot * width + first;
  float copy[kCount * kLanes];
  float *totals = states.open(at, count, run.fresh, copy), *weights = in.weight.data_ptr<float>() + at;
  float* peaks = in.peak.data_ptr<float>() + at;
  const T *keys = in.key.const_data_ptr<T>() + first, *values = in.value.const_data_ptr<T>() + first;
  const T* gates = in.receptance.const_data_ptr<T>() + first;
  const auto left = [&](int v) { return v + 1 < kCount ? kLanes : count - (kCount - 1) * kLanes; };
  vf total[kCount], weight[kCount], peak[kCount], log_decay[kCount], bonus[kCount];
  for (int v = 0; v < kCount; ++v) {
    const int64_t i = v * kLanes;
    log_decay[v] = load_some(in.log_decay.const_data_ptr<float>() + first + i, left(v));
    bonus[v] = load_some(in.bonus.const_data_ptr<float>() + first + i, left(v));
    total[v] = run.fresh ? splat(0) : load_some(totals + i, left(v));
    weight[v] = run.fresh ? splat(0) : load_some(weights + i, left(v));
    peak[v] = run.fresh ? splat(kNothing) : load_some(peaks + i, left(v));
  }
  for (int64_t row = run.start; row < run.start + run.count; ++row)
    for (int v = 0; v < kCount; ++v) {
      const int64_t i = row * width + v * kLanes;
      const vf key = load_some(keys + i, left(v)), value = load_some(values + i, left(v));
      const Weights now(key + bonus[v], peak[v]);
      const vf mean = (now.second * total[v] + now.first * value) / (now.second * weight[v] + now.first);
      store_some(out + first + i, sigmoid(load_some(gates + i, left(v))) * mean, left(v));
      const vf decayed = peak[v] + log_decay[v];
      const Weights next(key, decayed);
      total[v] = next.second * total[v] + next.first * value;
      weight[v] = next.second * weight[v] + next.first;
      peak[v] = vmax(decayed, key);
    }
  for (int v = 0; v < kCount; ++v) {
    const int64_t i = v * kLanes;
    store_some(totals + i, total[v], left(v));
    store_some(weights + i, weight[v], left(v));
    store_some(peaks + i, peak[v], left(v));
  }
  states.close(at, count, totals);
}

at::Tensor wkv_mix(const WkvArguments& in) {
  TORCH_CHECK(in.key.dim() == 2 && in.total.dim() == 2, "wkv_mix: keys (T, A) and states (slots, A) are needed");
  const int64_t rows = in.key.size(0), width = in.key.size(1), slots = in.total.size(0);
  for (const at::Tensor* part : {&in.key, &in.value, &in.receptance})
    TORCH_CHECK(
        part->sizes() == in.key.sizes() && part->is_contiguous() && part->scalar_type() == in.key.scalar_type(),
        "wkv_mix: keys, values and receptances must be contiguous (T, A) of one type");
  const States states(in.total, {slots, width}, "wkv_state");
  checked(in.weight, {slots, width}, "weight_state");
  checked(in.peak, {slots, width}, "max_state");
  checked(in.log_decay, {width}, "log_decay");
  checked(in.bonus, {width}, "bonus");
  const auto found = read_runs(in.runs, rows, slots);
  at::Tensor out = at::empty({rows, width}, in.key.options());
  dispatch(in.key.scalar_type(), "wkv_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int64_t kPanel = kVectors * kLanes;
    const int64_t panels = ceil_div(width, kPanel), num_runs = found.size();
    const int64_t each = std::max<int64_t>(1, rows / std::max<int64_t>(1, num_runs)) * kPanel;
    parallel_for(0, num_runs * panels, std::max<int64_t>(1, kGrainValues / each), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % panels * kPanel, count = std::min(kPanel, width - first);
        with_constant<kVectors>(ceil_div(count, kLanes), [&](auto vectors) {
          scan<vectors.value>(in, states, found[task / panels], first, count, out.data_ptr<T>());
        });
      }
    });
  });
  return out;
}

// σ(gate) · values.
at::Tensor sigmoid_gate(const at::Tensor& gate, const at::Tensor& values) {
  TORCH_CHECK(
      gate.sizes() == values.sizes() && gate.is_contiguous() && values.is_contiguous() &&
          gate.scalar_type() == values.scalar_type(),
      "sigmoid_gate: two contiguous tensors of one shape and type are needed");
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  dispatch(gate.scalar_type(), "sigmoid_gate", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *factors = gate.const_data_ptr<T>(), *from = values.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    parallel_for(0, gate.numel(), kGrainValues, [&](int64_t begin, int64_t end) {
      by_lanes(end - begin, [&](int64_t i, int64_t left) {
        const int64_t at = begin + i;
        store_some(to + at, sigmoid(load_some(factors + at, left)) * load_some(from + at, left), left);
      });
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def("sigmoid_gate(Tensor gate, Tensor values) -> Tensor");
  library.def("token_shift(Tensor rows, Tensor runs, Tensor(a!) state, Tensor shares) -> Tensor");
  library.def(
      "wkv_mix(Tensor key, Tensor value, Tensor receptance, Tensor runs, Tensor(a!) total, Tensor(b!) weight, "
      "Tensor(c!) peak, Tensor log_decay, Tensor bonus) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("sigmoid_gate", sigmoid_gate);
  library.impl("token_shift", token_shift);
  library.impl("wkv_mix", with_arguments<wkv_mix>());
}

}  // namespace blazr
