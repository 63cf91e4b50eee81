// RMSNorm and LayerNorm, the residual addition before it, and gated activations: each one pass over its rows.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "activation.h"
#include "simd.h"
#include "work.h"

namespace blazr {
namespace {

constexpr int64_t kGrainValues = 16384;  // below, waking a second thread costs more than it saves

int64_t grain(int64_t width) { return std::max<int64_t>(1, kGrainValues / std::max<int64_t>(1, width)); }

// What a norm is, its weights float32 or the values' type, or none.
template <typename W>
struct NormOf {
  const W* weight;
  const W* bias;
  float eps;
  float offset;
  bool centred;  // LayerNorm: the mean is taken off first
};

// y = (x - mean) / rms · (w + offset) + b.
template <typename T, typename W>
void normalise(const T* x, const NormOf<W>& norm, T* out, int64_t width) {
  float mean = 0;
  if (norm.centred) {
    vf total = splat(0);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) total += load(x + i);
    if (i < width) total += load_part(x + i, width - i);
    mean = sum(total) / static_cast<float>(width);
  }
  vf squares = splat(0);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const vf values = load(x + i) - splat(mean);
    squares += values * values;
  }
  // One by one: lanes beyond the end would count as -mean.
  float rest = 0;
  for (; i < width; ++i) {
    const float value = static_cast<float>(x[i]) - mean;
    rest += value * value;
  }
  const float scale = 1.0f / std::sqrt((sum(squares) + rest) / static_cast<float>(width) + norm.eps);
  const auto shaped = [&](vf values, auto&& read) {
    values = (values - splat(mean)) * scale;
    if (norm.weight) values = values * (read(norm.weight) + norm.offset);
    return norm.bias ? values + read(norm.bias) : values;
  };
  for (i = 0; i + kLanes <= width; i += kLanes)
    store(out + i, shaped(load(x + i), [&](const W* from) { return load(from + i); }));
  if (i < width) {
    const int64_t left = width - i;
    store_part(out + i, shaped(load_part(x + i, left), [&](const W* from) { return load_part(from + i, left); }), left);
  }
}

// hidden += multiplier · mixed, in the type of hidden.
template <typename T>
void add_row(T* hidden, const T* mixed, int64_t width, float multiplier) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(hidden + i, load(hidden + i) + load(mixed + i) * multiplier);
  if (i < width) {
    const int64_t left = width - i;
    store_part(hidden + i, load_part(hidden + i, left) + load_part(mixed + i, left) * multiplier, left);
  }
}

using MaybeTensor = std::optional<at::Tensor>;

template <typename Run>
void with_norm(
    const MaybeTensor& weight, const MaybeTensor& bias, int64_t width, double eps, double offset, bool centred,
    Run&& run) {
  const auto type = weight.has_value() ? weight->scalar_type() : at::kFloat;
  for (const MaybeTensor* given : {&weight, &bias}) {
    if (!given->has_value()) continue;
    TORCH_CHECK((*given)->numel() == width && (*given)->is_contiguous(), "norm: weight of another width");
    TORCH_CHECK((*given)->scalar_type() == type, "norm: weight and bias of two dtypes");
  }
  dispatch(type, "norm", [&](auto* pointer) {
    using W = std::remove_pointer_t<decltype(pointer)>;
    const auto data = [](const MaybeTensor& tensor) {
      return tensor.has_value() ? tensor->const_data_ptr<W>() : nullptr;
    };
    run(NormOf<W>{data(weight), data(bias), static_cast<float>(eps), static_cast<float>(offset), centred});
  });
}

at::Tensor norm(
    const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, double eps, double offset,
    bool centred) {
  const at::Tensor x = input.contiguous();
  at::Tensor out = at::empty_like(x);
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  dispatch(x.scalar_type(), "norm", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = x.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    with_norm(weight, bias, width, eps, offset, centred, [&](const auto& how) {
      parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) normalise(from + row * width, how, to + row * width, width);
      });
    });
  });
  return out;
}

at::Tensor add_norm(
    at::Tensor hidden, const at::Tensor& mixed, double multiplier, const MaybeTensor& weight, const MaybeTensor& bias,
    double eps, double offset, bool centred) {
  TORCH_CHECK(hidden.is_contiguous() && hidden.sizes() == mixed.sizes(), "add_norm: equal, contiguous rows needed");
  TORCH_CHECK(hidden.scalar_type() == mixed.scalar_type(), "add_norm: two dtypes");
  const at::Tensor added = mixed.contiguous();
  at::Tensor out = at::empty_like(hidden);
  const int64_t width = hidden.size(-1), rows = width ? hidden.numel() / width : 0;
  dispatch(hidden.scalar_type(), "add_norm", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* stream = hidden.data_ptr<T>();
    const T* from = added.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    with_norm(weight, bias, width, eps, offset, centred, [&](const auto& how) {
      parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          add_row(stream + row * width, from + row * width, width, static_cast<float>(multiplier));
          normalise(stream + row * width, how, to + row * width, width);
        }
      });
    });
  });
  return out;
}

// (…, 2f) gate then up to (…, f).
at::Tensor gated_activation(const at::Tensor& joint, int64_t kind) {
  const at::Tensor x = joint.contiguous();
  const int64_t doubled = x.size(-1), width = doubled / 2, rows = doubled ? x.numel() / doubled : 0;
  TORCH_CHECK(doubled % 2 == 0, "gated_activation: an even width is needed");
  auto sizes = x.sizes().vec();
  sizes.back() = width;
  at::Tensor out = at::empty(sizes, x.options());
  dispatch(x.scalar_type(), "gated_activation", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = x.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    parallel_for(0, rows, grain(4 * width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *gate = from + row * doubled, *up = gate + width;
        T* result = to + row * width;
        int64_t i = 0;
        for (; i + kLanes <= width; i += kLanes) store(result + i, activation(load(gate + i), kind) * load(up + i));
        if (i < width) {
          const int64_t left = width - i;
          store_part(result + i, activation(load_part(gate + i, left), kind) * load_part(up + i, left), left);
        }
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def("norm(Tensor x, Tensor? weight, Tensor? bias, float eps, float offset, bool centred) -> Tensor");
  library.def(
      "add_norm(Tensor(a!) hidden, Tensor mixed, float multiplier, Tensor? weight, Tensor? bias, float eps, "
      "float offset, bool centred) -> Tensor");
  library.def("gated_activation(Tensor joint, int kind) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("norm", norm);
  library.impl("add_norm", add_norm);
  library.impl("gated_activation", gated_activation);
}

}  // namespace blazr
