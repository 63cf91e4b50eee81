// Causal depthwise convolution over each run's rows behind the run's own tail, with bias and activation in one pass.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "activation.h"
#include "recurrent.h"

namespace blazr {
namespace {

constexpr int64_t kGrainValues = 8192;

inline vf bias_of(const float* bias, int64_t at, int64_t left) { return bias ? load_some(bias + at, left) : splat(0); }

// One row whose window (the tail, then the row) is shifted on in place.
template <typename T>
void convolve_one(const Convolution& conv, const T* row, float* tail, bool fresh, float* out) {
  const int64_t width = conv.width, kernel = conv.kernel, kept = kernel - 1;
  int64_t begin = 0;
  if (kernel == 4) {  // what nearly all checkpoints have: three values per channel, taken apart by shuffles
    for (; begin + kLanes <= width; begin += kLanes) {
      float* at = tail + 3 * begin;
      vf a = splat(0), b = a, c = a, x = load(row + begin);
      if (!fresh) {
        vf e = load(at), f = load(at + kLanes), g = load(at + 2 * kLanes);
        a = shuffle::every_third<0>(e, f, g, Lanes{});
        b = shuffle::every_third<1>(e, f, g, Lanes{});
        c = shuffle::every_third<2>(e, f, g, Lanes{});
      }
      const float* taps = conv.taps + begin;
      vf y = a * load(taps) + b * load(taps + width) + c * load(taps + 2 * width) + x * load(taps + 3 * width);
      if (conv.bias) y += load(conv.bias + begin);
      store(out + begin, activation(y, conv.activation));
      store(at, shuffle::of_three<0>(b, c, x, Lanes{}));
      store(at + kLanes, shuffle::of_three<1>(b, c, x, Lanes{}));
      store(at + 2 * kLanes, shuffle::of_three<2>(b, c, x, Lanes{}));
    }
  }
  for (; begin < width; begin += kLanes) {
    const int64_t left = std::min<int64_t>(kLanes, width - begin);
    float sums[kLanes] = {};
    for (int64_t i = 0; i < left; ++i) {
      float* at = tail + (begin + i) * kept;
      const float* taps = conv.taps + begin + i;
      const float x = static_cast<float>(row[begin + i]);
      float y = x * taps[kept * width];
      if (!fresh)
        for (int64_t j = 0; j < kept; ++j) y += at[j] * taps[j * width];
      for (int64_t j = 0; j + 1 < kept; ++j) at[j] = fresh ? 0.0f : at[j + 1];
      if (kept) at[kept - 1] = x;
      sums[i] = y;
    }
    store_some(out + begin, activation(load(sums) + bias_of(conv.bias, begin, left), conv.activation), left);
  }
}

// One row from the rows before it in memory.
template <typename T>
void convolve_row(const Convolution& conv, const T* first, int64_t stride, float* out) {
  by_lanes(conv.width, [&](int64_t i, int64_t left) {
    vf y = load_some(first + i, left) * load_some(conv.taps + i, left);
    for (int64_t j = 1; j < conv.kernel; ++j)
      y += load_some(first + j * stride + i, left) * load_some(conv.taps + j * conv.width + i, left);
    store_some(out + i, activation(y + bias_of(conv.bias, i, left), conv.activation), left);
  });
}

// The first kernel-1 rows of a longer run, and its new tail.
template <typename T>
void convolve_edges(const Convolution& conv, const Run& run, const T* rows, int64_t stride, float* out) {
  const int64_t width = conv.width, kept = conv.kernel - 1, early = std::min(kept, run.count);
  Scratch scratch((kept + early) * width);
  float* window = scratch.begin();  // tail, then the first rows
  Scratch copy(conv.state.scratch_for(width * kept));
  float* tail = conv.state.open(run.slot * width * kept, width * kept, run.fresh, copy.begin());
  for (int64_t j = 0; j < kept; ++j)
    for (int64_t i = 0; i < width; ++i) window[j * width + i] = run.fresh ? 0.0f : tail[i * kept + j];
  for (int64_t j = 0; j < early; ++j)
    for (int64_t i = 0; i < width; ++i) window[(kept + j) * width + i] = static_cast<float>(rows[j * stride + i]);
  for (int64_t row = 0; row < early; ++row) convolve_row(conv, window + row * width, width, out + row * width);
  for (int64_t j = 0; j < kept; ++j) {
    const int64_t from = run.count - kept + j;  // negative: still a value of the old tail
    if (from < 0)
      for (int64_t i = 0; i < width; ++i) tail[i * kept + j] = window[(from + kept) * width + i];
    else
      for (int64_t i = 0; i < width; ++i) tail[i * kept + j] = static_cast<float>(rows[from * stride + i]);
  }
  conv.state.close(run.slot * width * kept, width * kept, tail);
}

at::Tensor causal_conv(
    const at::Tensor& rows, const at::Tensor& runs, at::Tensor state, const at::Tensor& taps,
    const std::optional<at::Tensor>& bias, int64_t activation) {
  TORCH_CHECK(rows.dim() == 2 && rows.stride(1) == 1, "causal_conv: rows (T, C) are needed");
  TORCH_CHECK(taps.dim() == 2 && taps.size(0) >= 1, "causal_conv: taps (K, C) are needed");
  TORCH_CHECK(state.dim() == 3, "causal_conv: a state (slots, C, K-1) is needed");
  const int64_t width = rows.size(1), kernel = taps.size(0);
  Convolution conv{
      States(state, {state.size(0), width, kernel - 1}, "conv_state"),
      checked(taps, {kernel, width}, "taps"),
      bias ? checked(*bias, {width}, "bias") : nullptr,
      width,
      kernel,
      activation,
  };
  at::Tensor out = at::empty({rows.size(0), width}, rows.options().dtype(at::kFloat));
  const auto found = read_runs(runs, rows.size(0), state.size(0));
  dispatch(rows.scalar_type(), "causal_conv", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    convolve(conv, found, rows.const_data_ptr<T>(), rows.stride(0), out.data_ptr<float>());
  });
  return out;
}

}  // namespace

template <typename T>
void convolve(const Convolution& conv, const std::vector<Run>& runs, const T* rows, int64_t stride, float* out) {
  const int64_t width = conv.width, kept = conv.kernel - 1, tails = width * kept;
  const int64_t total = runs.empty() ? 0 : runs.back().start + runs.back().count;
  const int64_t grain = std::max<int64_t>(1, kGrainValues / std::max<int64_t>(1, width));
  // The rows that read rows of the same step only; a row's result doesn't depend on which thread has it.
  parallel_for(0, total, grain, [&](int64_t begin, int64_t end) {
    auto run = std::upper_bound(
        runs.begin(), runs.end(), begin, [](int64_t row, const Run& one) { return row < one.start + one.count; });
    Scratch copy(conv.state.scratch_for(tails));
    for (int64_t row = begin; row < end; ++row) {
      while (row >= run->start + run->count) ++run;
      if (run->count == 1) {
        float* tail = conv.state.open(run->slot * tails, tails, run->fresh, copy.begin());
        convolve_one(conv, rows + row * stride, tail, run->fresh, out + row * width);
        conv.state.close(run->slot * tails, tails, tail);
      } else if (row - run->start >= kept) {
        convolve_row(conv, rows + (row - kept) * stride, stride, out + row * width);
      }
    }
  });
  for (const Run& run : runs)
    if (run.count > 1) convolve_edges(conv, run, rows + run.start * stride, stride, out + run.start * width);
}

template void convolve(const Convolution&, const std::vector<Run>&, const float*, int64_t, float*);
template void convolve(const Convolution&, const std::vector<Run>&, const bf16*, int64_t, float*);

std::vector<Run> read_runs(const at::Tensor& runs, int64_t rows, int64_t slots) {
  TORCH_CHECK(
      runs.dim() == 2 && runs.size(1) == 4 && runs.scalar_type() == at::kLong && runs.is_contiguous(),
      "runs: (B, 4) int64 is needed");
  const int64_t* values = runs.const_data_ptr<int64_t>();
  std::vector<Run> found;
  found.reserve(runs.size(0));
  int64_t next = 0;
  for (int64_t i = 0; i < runs.size(0); ++i, values += 4) {
    Run run{values[0], values[1], values[2], values[3] != 0};
    TORCH_CHECK(
        run.start == next && run.count > 0 && run.count <= rows - next, "runs: they must cover the rows in order");
    TORCH_CHECK(run.slot >= 0 && run.slot < slots, "runs: state slot ", run.slot, " of ", slots);
    next += run.count;
    found.push_back(run);
  }
  TORCH_CHECK(next == rows, "runs: they cover ", next, " of ", rows, " rows");
  return found;
}

template <typename T>
static T* checked_values(const at::Tensor& tensor, at::IntArrayRef shape, const char* type, const char* name) {
  TORCH_CHECK(
      tensor.sizes() == shape && tensor.is_contiguous() && tensor.scalar_type() == c10::CppTypeToScalarType<T>::value &&
          tensor.is_cpu(),
      name, ": contiguous ", type, " ", shape, " is needed, not ", tensor.sizes(), " ", tensor.scalar_type());
  return tensor.data_ptr<T>();
}

States::States(const at::Tensor& tensor, at::IntArrayRef shape, const char* name) {
  if (tensor.scalar_type() == at::kBFloat16)
    rounded_ = checked_values<bf16>(tensor, shape, "bfloat16", name);
  else
    exact_ = checked(tensor, shape, name);
}

float* States::open(int64_t at, int64_t count, bool fresh, float* scratch) const {
  if (exact_) return exact_ + at;
  if (!fresh) read(at, count, scratch);
  return scratch;
}

void States::close(int64_t at, int64_t count, const float* values) const {
  if (!exact_) write(at, count, values);
}

void States::read(int64_t at, int64_t count, float* to) const {
  if (exact_)
    std::memcpy(to, exact_ + at, count * sizeof(float));
  else
    by_lanes(count, [&](int64_t i, int64_t left) { store_some(to + i, load_some(rounded_ + at + i, left), left); });
}

void States::write(int64_t at, int64_t count, const float* from) const {
  if (exact_)
    std::memcpy(exact_ + at, from, count * sizeof(float));
  else
    by_lanes(count, [&](int64_t i, int64_t left) { store_some(rounded_ + at + i, load_some(from + i, left), left); });
}

float* checked(const at::Tensor& tensor, at::IntArrayRef shape, const char* name) {
  return checked_values<float>(tensor, shape, "float32", name);
}

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "causal_conv(Tensor rows, Tensor runs, Tensor(a!) state, Tensor taps, Tensor? bias, int activation) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("causal_conv", causal_conv); }

}  // namespace blazr
